# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies: groups of any kind, small enough to be judged by brute force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from brokerd.groups.assignment.specs import MemberSpec, TopicSpec
from brokerd.tests.groups.assignment.assignment_laws import topic_id

RACKS = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Group:
    """The input of one computation."""

    members: list[MemberSpec]
    topics: Mapping[bytes, TopicSpec]


def _topics(max_partitions: int) -> st.SearchStrategy[dict[bytes, TopicSpec]]:
    replicas = st.frozensets(st.sampled_from((*RACKS, "elsewhere")), max_size=3)

    def topic(number: int) -> st.SearchStrategy[TopicSpec]:
        return st.integers(0, max_partitions).flatmap(
            lambda count: st.one_of(st.just([]), st.lists(replicas, min_size=count, max_size=count)).map(
                lambda racks: TopicSpec(topic_id(number), count, tuple(racks))
            )
        )

    return st.integers(0, 4).flatmap(
        lambda count: st.tuples(*(topic(number) for number in range(count))).map(
            lambda topics: {each.topic_id: each for each in topics}
        )
    )


@st.composite
def groups(draw: st.DrawFn, *, equal: bool | None = None, racks: bool = True, max_partitions: int = 6) -> Group:
    """Return a strategy for groups. `equal`: whether all subscriptions are equal; None for either."""
    topics = draw(_topics(max_partitions))
    if not racks:
        topics = {key: TopicSpec(key, topic.partition_count, ()) for key, topic in topics.items()}
    known = [*topics, topic_id(99)]
    is_equal = draw(st.booleans()) if equal is None else equal
    everybody = draw(st.frozensets(st.sampled_from(known)))
    count = draw(st.integers(1, 5))
    # Present owners as a target would have them: one for each partition. Some are of topics that the member has dropped since.
    owned: list[dict[bytes, list[int]]] = [{} for _ in range(count)]
    style = draw(st.sampled_from(("nothing", "everything", "random")))
    for topic in topics.values() if style != "nothing" else ():
        for partition in range(topic.partition_count + 1):
            owner = 0 if style == "everything" else draw(st.integers(-1, count - 1))
            if owner >= 0:
                owned[owner].setdefault(topic.topic_id, []).append(partition)
    members = [
        MemberSpec(
            member_id=f"member-{number}",
            instance_id=draw(st.sampled_from((None, f"instance-{count - number}"))),
            rack=draw(st.sampled_from((None, *RACKS))) if racks else None,
            topics=everybody if is_equal else draw(st.frozensets(st.sampled_from(known))),
            owned={topic: tuple(partitions) for topic, partitions in owned[number].items()},
        )
        for number in range(count)
    ]
    return Group(members, topics)
