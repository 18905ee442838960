# SPDX-License-Identifier: Apache-2.0
"""What a client knows about the cluster, merged from states of any age."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lograft._client.metadata import BrokerNode, ClusterState, ClusterView, Leader, PartitionState, TopicState


def broker(broker_id: int, port: int = 1) -> BrokerNode:
    """Return a broker on the loopback address."""
    return BrokerNode(broker_id=broker_id, host="127.0.0.1", port=port)


def topic(*leaders: tuple[int | None, int], topic_id: bytes = b"a") -> TopicState:
    """Return topic "t" with (leader, leader epoch) of each partition."""
    return TopicState(
        topic="t",
        topic_id=topic_id,
        partitions=tuple(
            PartitionState(partition=number, leader_id=leader_id, leader_epoch=leader_epoch)
            for number, (leader_id, leader_epoch) in enumerate(leaders)
        ),
    )


def state(
    offset: int,
    *topics: TopicState,
    brokers: tuple[BrokerNode, ...] = (),
    covered: tuple[str, ...] = (),
    removed_topics: tuple[str, ...] = (),
    removed_brokers: tuple[int, ...] = (),
    has_all_brokers: bool = False,
) -> ClusterState:
    """Return a state with a metadata offset."""
    return ClusterState(
        metadata_offset=offset,
        cluster_id="c",
        controller_id=offset,
        brokers=brokers,
        topics=topics,
        covered_topics=frozenset(covered),
        removed_topics=removed_topics,
        removed_broker_ids=removed_brokers,
        has_all_brokers=has_all_brokers,
    )


def test_leader_needs_a_leader_and_its_address() -> None:
    """Without a topic, a partition, a leader or its broker, no leader is known."""
    view = ClusterView()
    assert view.leader("t", 0) is None
    view.apply(state(1, topic((1, 4), (None, 5)), brokers=(broker(2),)))
    assert [view.leader("t", number) for number in range(3)] == [None, None, None]
    view.apply(state(2, brokers=(broker(1, 99),)))
    assert view.leader("t", 0) == Leader(broker_id=1, address="127.0.0.1:99", leader_epoch=4)
    assert (view.cluster_id, view.controller_id, view.metadata_offset) == ("c", 2, 2)
    assert view.brokers() == [broker(1, 99), broker(2)]


def test_lower_leader_epoch_is_ignored_even_in_a_newer_state() -> None:
    """A leader with a lower epoch than the known one is ignored. Other leaders of the same state are taken."""
    view = ClusterView()
    view.apply(state(5, topic((1, 7), (1, 7)), brokers=(broker(1), broker(2))))
    view.apply(state(9, topic((2, 6), (2, 8))))
    found = view.topic("t")
    assert found is not None
    assert [(part.leader_id, part.leader_epoch) for part in found.partitions] == [(1, 7), (2, 8)]


def test_partitions_are_not_taken_away_by_an_older_state() -> None:
    """A state from before a growth does not shrink the topic."""
    view = ClusterView()
    view.apply(state(5, topic((1, 1), (1, 1))))
    view.apply(state(4, topic((1, 1))))
    found = view.topic("t")
    assert found is not None
    assert len(found.partitions) == 2


def test_topic_made_anew_replaces_the_old_one_only_in_a_newer_state() -> None:
    """Another id means another topic: leader epochs start again, but an old state does not bring the old topic back."""
    view = ClusterView()
    view.apply(state(5, topic((1, 7), topic_id=b"old")))
    view.apply(state(6, topic((2, 0), topic_id=b"new")))
    assert view.topic("t") == topic((2, 0), topic_id=b"new")
    view.apply(state(5, topic((1, 9), topic_id=b"old")))
    assert view.topic("t") == topic((2, 0), topic_id=b"new")


def test_topics_go_when_a_state_that_is_not_older_says_so() -> None:
    """A topic is forgotten when it is removed or missing in an answer. An older state cannot do that."""
    view = ClusterView()
    view.apply(state(5, topic((1, 1))))
    view.apply(state(4, covered=("t",)))
    view.apply(state(4, removed_topics=("t",)))
    assert view.topic("t") is not None
    view.apply(state(5, covered=("t",)))
    assert view.topic("t") is None
    view.apply(state(6, topic((1, 1)), covered=("t",)))
    assert view.topic("t") is not None
    view.apply(state(7, removed_topics=("t", "never-known")))
    assert view.topic("t") is None


def test_brokers_go_and_move_only_by_newer_states() -> None:
    """An older state adds unknown brokers but neither moves nor removes a broker."""
    view = ClusterView()
    view.apply(state(5, brokers=(broker(1, 10), broker(2, 20)), has_all_brokers=True))
    view.apply(state(4, brokers=(broker(1, 11), broker(3, 30)), removed_brokers=(2,), has_all_brokers=True))
    assert view.brokers() == [broker(1, 10), broker(2, 20), broker(3, 30)]
    view.apply(state(6, brokers=(broker(1, 12), broker(2, 20)), has_all_brokers=True))
    assert view.brokers() == [broker(1, 12), broker(2, 20)]
    view.apply(state(7, removed_brokers=(1, 9)))
    assert view.brokers() == [broker(2, 20)]


def test_hint_counts_only_when_it_is_newer() -> None:
    """A leader hint counts with a higher epoch, or when no leader is known. It brings the address."""
    view = ClusterView()
    hint = {"leader_id": 2, "leader_epoch": 5, "host": "::1", "port": 77}
    assert not view.take_hint("t", 0, **hint)
    view.apply(state(1, topic((1, 5), (None, 5), (None, 4)), brokers=(broker(1),)))
    assert not view.take_hint("t", 0, **hint)
    assert not view.take_hint("t", 3, **hint)
    assert view.take_hint("t", 1, **hint)
    assert view.leader("t", 1) == Leader(broker_id=2, address="[::1]:77", leader_epoch=5)
    assert view.take_hint("t", 2, leader_id=2, leader_epoch=5, host="", port=0)
    assert view.take_hint("t", 0, leader_id=2, leader_epoch=6, host="moved", port=78)
    assert view.leader("t", 0) == Leader(broker_id=2, address="moved:78", leader_epoch=6)


@given(
    states=st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=3)),
        max_size=12,
    )
)
def test_leader_epochs_never_go_back(states: list[tuple[int, list[tuple[int, int]]]]) -> None:
    """For any order of a topic's states, the known epoch of a partition only grows."""
    view = ClusterView()
    best: dict[int, int] = {}
    for offset, leaders in states:
        view.apply(state(offset, topic(*leaders)))
        found = view.topic("t")
        assert found is not None
        for part in found.partitions:
            assert part.leader_epoch >= best.get(part.partition, 0)
            best[part.partition] = part.leader_epoch
