# SPDX-License-Identifier: Apache-2.0
"""A rebalance storm by seed: members join, leave and subscribe anew, topics grow, come and go, the rule changes.

`LAWS` judges each assignment; a storm goes on with what was assigned before.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from brokerd.groups.assignment.assignors import ASSIGNORS
from brokerd.groups.assignment.specs import Assignment, MemberSpec, TopicSpec
from brokerd.tests.groups.assignment import assignment_laws as laws

RACKS = ("a", "b", "c", "d")
MAX_MEMBERS = 9
MAX_TOPICS = 6
MAX_PARTITIONS = 14


@dataclass
class Storm:
    """One group under random changes. `equal`: all members subscribe to all topics."""

    seed: int
    name: str
    equal: bool
    racks: bool
    members: list[MemberSpec] = field(default_factory=list[MemberSpec])
    topics: dict[bytes, TopicSpec] = field(default_factory=dict[bytes, TopicSpec])
    counts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next_number = 0
        for _ in range(3):
            self._create_topic()
        for _ in range(2):
            self._join()

    def run(self, steps: int) -> None:
        """Change, assign and judge, `steps` times."""
        for _ in range(steps):
            for _ in range(self._random.choice((1, 1, 1, 3))):
                self.change()
            assignment = ASSIGNORS[self.name].assign(self._shuffled(), self.topics)
            self.judge(assignment)
            self.members = laws.owning(self.members, assignment)

    def judge(self, assignment: Assignment) -> None:
        """Check the laws, and count moves and the fewest possible ones."""
        laws.LAWS[self.name](self.members, self.topics, assignment)
        self.counts["moved"] += laws.moves(laws.valid_owners(self.members, self.topics), assignment)
        if laws.have_equal_subscriptions(self.members, self.topics):
            self.counts["fewest"] += laws.fewest_moves(self.members, self.topics)
        again = ASSIGNORS[self.name].assign(laws.owning(self.members, assignment), self.topics)
        assert again == assignment, "a second computation changes something"

    def change(self) -> None:
        """Do one random thing that is possible."""
        changes = (self._join, self._leave, self._restart, self._subscribe, self._grow, self._create_topic)
        rarer = (self._delete_topic, self._move_replicas, self._switch_assignor)
        change = self._random.choice((*changes, *changes[:2], *rarer))
        change()
        self.counts[change.__name__] += 1

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _wanted(self) -> frozenset[bytes]:
        known = sorted(self.topics)
        if self.equal:
            return frozenset(known)
        return frozenset(self._random.sample(known, self._random.randint(0, len(known))))

    def _join(self) -> None:
        if len(self.members) == MAX_MEMBERS:
            return
        number = self._number()
        name = f"{self._random.randrange(1000)}-{number}"
        instance = f"{self._random.randrange(1000)}-{number}" if self._random.random() < 0.3 else None
        rack = self._random.choice((None, *RACKS)) if self.racks else None
        self.members.append(MemberSpec(name, instance, rack, self._wanted(), {}))

    def _leave(self) -> None:
        if len(self.members) > 1:
            self.members.pop(self._random.randrange(len(self.members)))

    def _restart(self) -> None:
        position = self._random.randrange(len(self.members))
        member = self.members[position]
        self.members[position] = replace(
            member, member_id=f"again-{self._number()}", owned={} if member.instance_id is None else member.owned
        )

    def _subscribe(self) -> None:
        position = self._random.randrange(len(self.members))
        self.members[position] = replace(self.members[position], topics=self._wanted())

    def _grow(self) -> None:
        if self.topics:
            topic = self.topics[self._random.choice(sorted(self.topics))]
            count = min(MAX_PARTITIONS, topic.partition_count + self._random.randint(1, 4))
            racks = topic.racks + self._replicas(count - topic.partition_count) if topic.racks else ()
            self.topics[topic.topic_id] = replace(topic, partition_count=count, racks=racks)

    def _create_topic(self) -> None:
        if len(self.topics) == MAX_TOPICS:
            return
        topic_id = laws.topic_id(self._number())
        count = self._random.choice((0, 1, 2, 4, 4, 9))
        self.topics[topic_id] = TopicSpec(topic_id, count, self._replicas(count) if self.racks else ())
        if self.equal:
            self.members = [replace(member, topics=frozenset(self.topics)) for member in self.members]

    def _delete_topic(self) -> None:
        if len(self.topics) > 1:
            # Members still name it: the group has not resolved their subscriptions again yet.
            del self.topics[self._random.choice(sorted(self.topics))]

    def _move_replicas(self) -> None:
        if self.topics and self.racks:
            topic = self.topics[self._random.choice(sorted(self.topics))]
            self.topics[topic.topic_id] = replace(topic, racks=self._replicas(topic.partition_count))

    def _switch_assignor(self) -> None:
        """Leave the members with shares that another rule gave them."""
        owned: list[dict[bytes, list[int]]] = [{} for _ in self.members]
        for topic_id, topic in self.topics.items():
            for partition in range(topic.partition_count):
                self._random.choice(owned).setdefault(topic_id, []).append(partition)
        self.members = [
            replace(member, owned={topic_id: tuple(partitions) for topic_id, partitions in shares.items()})
            for member, shares in zip(self.members, owned, strict=True)
        ]

    def _replicas(self, count: int) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(self._random.sample(RACKS, self._random.randint(1, 2))) for _ in range(count))

    def _shuffled(self) -> list[MemberSpec]:
        return self._random.sample(self.members, len(self.members))


def larger_share_must_change_racks() -> tuple[list[MemberSpec], dict[bytes, TopicSpec]]:
    """Return four partitions for three members in which a rack must give up its larger share for all four to be near.

    Rack b has the larger share (0 and 2), both of which are near to rack a, too. Rack c must have 1 and 3.
    """
    topic = TopicSpec(laws.topic_id(0), 4, (frozenset("ab"), frozenset("c"), frozenset("ab"), frozenset("cd")))
    owned = {"a": (1,), "b": (0, 2, 3), "c": ()}
    members = [
        MemberSpec(rack, None, rack, frozenset({topic.topic_id}), {topic.topic_id: partitions})
        for rack, partitions in owned.items()
    ]
    return members, {topic.topic_id: topic}
