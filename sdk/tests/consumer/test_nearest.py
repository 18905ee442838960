# SPDX-License-Identifier: Apache-2.0
"""Which broker a consumer reads a partition from."""

from __future__ import annotations

from collections import Counter

from lograft._client.metadata import BrokerNode, ClusterState, ClusterView, PartitionState, TopicState
from lograft._consumer.nearest import ReadPlace, read_place

RACKS = {1: "a", 2: "b", 3: "b", 4: "b", 5: None}


def seen(
    *, isr: tuple[int, ...], leader_id: int | None = 1, fenced: tuple[int, ...] = (), count: int = 1
) -> ClusterView:
    """A cluster of five brokers with topic "t"."""
    view = ClusterView()
    brokers = tuple(
        BrokerNode(broker_id=number, host="h", port=number, rack=rack, fenced=number in fenced)
        for number, rack in RACKS.items()
    )
    partitions = tuple(
        PartitionState(partition=number, leader_id=leader_id, leader_epoch=7, replicas=isr, isr=isr)
        for number in range(count)
    )
    topic = TopicState(topic="t", topic_id=b"a", partitions=partitions)
    view.apply(ClusterState(metadata_offset=1, cluster_id="c", brokers=brokers, topics=(topic,)))
    return view


def chosen(view: ClusterView, rack: str | None, partition: int = 0) -> tuple[int, bool] | None:
    """Return the broker, and whether it is read as the leader."""
    place = read_place(view, "t", partition, rack=rack)
    return None if place is None else (place.broker_id, place.is_leader)


def test_a_place_says_where_and_as_what_the_broker_is_asked() -> None:
    """Address and epoch belong to the broker and the partition."""
    view = seen(isr=(1, 2))
    assert read_place(view, "t", 0, rack="a") == ReadPlace(broker_id=1, address="h:1", leader_epoch=7, is_leader=True)
    assert read_place(view, "t", 0, rack="b") == ReadPlace(broker_id=2, address="h:2", leader_epoch=7, is_leader=False)


def test_the_leader_is_read_without_a_rack_or_where_it_is_as_near() -> None:
    """The leader has everything first. It serves consumers without a rack, in its own rack, or in a rack without a follower."""
    view = seen(isr=(1, 2, 3, 5))
    assert chosen(view, None) == (1, True)
    assert chosen(view, "a") == (1, True)
    assert chosen(view, "c") == (1, True)
    assert chosen(seen(isr=(2, 3), leader_id=2), "b") == (2, True)
    assert chosen(seen(isr=(2, 3), leader_id=2, fenced=(2,)), "b") == (2, True), (
        "it leads until the metadata says otherwise"
    )


def test_only_followers_in_sync_known_and_unfenced_are_asked() -> None:
    """All other brokers lag behind or serve no reads."""
    assert chosen(seen(isr=(1, 3)), "b") == (3, False)
    assert chosen(seen(isr=(1, 2, 3), fenced=(2,)), "b") == (3, False)
    assert chosen(seen(isr=(1, 2), fenced=(2,)), "b") == (1, True)
    assert chosen(seen(isr=(1, 9)), "b") == (1, True)
    assert chosen(seen(isr=(1,)), "b") == (1, True)


def test_without_a_leader_there_is_no_place() -> None:
    """The same holds for unknown partitions."""
    assert chosen(seen(isr=(1, 2), leader_id=None), "b") is None
    assert chosen(seen(isr=(1, 2)), "b", partition=1) is None
    view = seen(isr=(1, 2))
    assert view.in_sync("t", 1) == ()
    assert view.in_sync("u", 0) == ()
    assert view.broker(9) is None


def test_partitions_take_turns_among_several_followers() -> None:
    """Each of three followers has a third of the partitions, always the same."""
    view = seen(isr=(4, 1, 3, 2), count=30)
    found = [chosen(view, "b", number) for number in range(30)]
    assert Counter(found) == {(2, False): 10, (3, False): 10, (4, False): 10}
    assert found == [chosen(seen(isr=(1, 2, 3, 4), count=30), "b", number) for number in range(30)]
