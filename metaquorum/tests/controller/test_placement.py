# SPDX-License-Identifier: Apache-2.0
"""Placement of replicas: no broker twice, racks as spread as can be, counts as even as can be, over many topics too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.controller import placement
from metaquorum.controller.placement import UsableBroker, place
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.state import PartitionCounts, PartitionImage

Placed = list[tuple[int, ...]]
SEEDS = st.integers(0, 2**64 - 1)

ANY_CLUSTER = st.lists(st.none() | st.sampled_from("abcd"), min_size=1, max_size=12).map(
    lambda racks: [UsableBroker(3 * number + 1, rack) for number, rack in enumerate(racks)]
)
EVEN_CLUSTER = st.tuples(st.integers(1, 5), st.integers(1, 4)).map(
    lambda sizes: [UsableBroker(number, f"r{number % sizes[0]}") for number in range(sizes[0] * sizes[1])]
)

LOOKUPS = ControllerSettings().max_leader_lookups


def count(counts: PartitionCounts, placed: Placed) -> PartitionCounts:
    """Add placed partitions, each led by its first replica."""
    for number, replicas in enumerate(placed):
        counts.add(PartitionImage(number, replicas, replicas, replicas[0], 0, 0))
    return counts


def new(
    partition_count: int,
    factor: int,
    usable: list[UsableBroker],
    *,
    cluster: PartitionCounts | None = None,
    seed: int = 1,
    max_leader_lookups: int = LOOKUPS,
) -> Placed:
    """Place a new topic."""
    return place(
        partition_count,
        factor,
        usable,
        topic=PartitionCounts(),
        cluster=cluster or PartitionCounts(),
        seed=seed,
        max_leader_lookups=max_leader_lookups,
    )


def width(counts: dict[int, int], usable: Iterable[UsableBroker]) -> int:
    """Return how far brokers are apart."""
    values = [counts.get(broker.broker_id, 0) for broker in usable]
    return max(values) - min(values)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ANY_CLUSTER, st.integers(1, 40), st.data(), SEEDS)
def test_replicas_are_distinct_and_racks_as_spread_as_possible(
    usable: list[UsableBroker], partition_count: int, data: st.DataObject, seed: int
) -> None:
    """No broker has a partition twice; a rack has a second replica only where every other rack has one or is used up."""
    factor = data.draw(st.integers(1, len(usable)))
    rack_of = {broker.broker_id: broker.rack for broker in usable}
    sizes = Counter(rack_of.values())
    placed = new(partition_count, factor, usable, seed=seed)
    assert len(placed) == partition_count
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        used = Counter(rack_of[broker_id] for broker_id in replicas)
        most = max(used.values())
        assert all(used[rack] >= min(size, most - 1) for rack, size in sizes.items())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(EVEN_CLUSTER, st.integers(1, 60), st.data(), SEEDS)
def test_replicas_and_leaders_are_even_over_racks_of_one_size(
    usable: list[UsableBroker], partition_count: int, data: st.DataObject, seed: int
) -> None:
    """With racks of one size, brokers differ by at most one in replicas and in leaders, whatever the replication factor."""
    factor = data.draw(st.integers(1, len(usable)))
    counts = count(PartitionCounts(), new(partition_count, factor, usable, seed=seed))
    assert width(counts.replicas, usable) <= 1
    assert width(counts.leaders, usable) <= 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EVEN_CLUSTER, st.lists(st.integers(1, 7), min_size=1, max_size=12), st.data(), SEEDS)
def test_many_topics_are_even_together(
    usable: list[UsableBroker], topics: list[int], data: st.DataObject, seed: int
) -> None:
    """The remainders of topics even out: replicas of the whole cluster stay within one of each other, leaders within two."""
    factor = data.draw(st.integers(1, len(usable)))
    cluster = PartitionCounts()
    for number, partition_count in enumerate(topics):
        count(cluster, new(partition_count, factor, usable, cluster=cluster, seed=seed + number))
    assert width(cluster.replicas, usable) <= 1
    assert width(cluster.leaders, usable) <= 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EVEN_CLUSTER, st.lists(st.integers(1, 9), min_size=2, max_size=5), st.data(), SEEDS)
def test_growth_goes_on_as_if_placed_at_once(
    usable: list[UsableBroker], steps: list[int], data: st.DataObject, seed: int
) -> None:
    """A topic that grows in steps is as even as one made at once: the existing replicas count."""
    factor = data.draw(st.integers(1, len(usable)))
    topic, cluster = PartitionCounts(), PartitionCounts()
    for partition_count in steps:
        placed = place(
            partition_count, factor, usable, topic=topic, cluster=cluster, seed=seed, max_leader_lookups=LOOKUPS
        )
        count(topic, placed)
        count(cluster, placed)
    assert width(topic.replicas, usable) <= 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ANY_CLUSTER, st.integers(1, 60), st.data(), SEEDS)
def test_brokers_of_one_rack_are_even_in_any_cluster(
    usable: list[UsableBroker], partition_count: int, data: st.DataObject, seed: int
) -> None:
    """Racks of different sizes make brokers differ; brokers of one rack differ by at most one."""
    factor = data.draw(st.integers(1, len(usable)))
    counts = count(PartitionCounts(), new(partition_count, factor, usable, seed=seed))
    for rack in {broker.rack for broker in usable}:
        assert width(counts.replicas, [broker for broker in usable if broker.rack == rack]) <= 1


@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 3), (2, 2, 1)])
def test_larger_racks_get_more_where_the_spread_allows_it(sizes: tuple[int, ...]) -> None:
    """With one replica each, brokers are even in any racks; a rack never counts as one broker."""
    usable = [UsableBroker(10 * rack + number, str(rack)) for rack, size in enumerate(sizes) for number in range(size)]
    counts = count(PartitionCounts(), new(60, 1, usable))
    assert width(counts.replicas, usable) == 0


def test_same_seed_gives_the_same_places_in_any_order_of_brokers() -> None:
    """The result follows from the arguments alone; another seed gives another one."""
    usable = [UsableBroker(number, f"r{number % 3}") for number in range(9)]
    first = new(20, 3, usable, seed=7)
    assert new(20, 3, list(reversed(usable)), seed=7) == first
    assert new(20, 3, usable, seed=8) != first


def test_partitions_of_a_lost_broker_spread_over_the_others() -> None:
    """Brokers share partitions in ever new groups: no broker is the only follower of a leader."""
    placed = new(120, 2, [UsableBroker(number, None) for number in range(1, 7)])
    for leader_id in range(1, 7):
        followers = Counter(replicas[1] for replicas in placed if replicas[0] == leader_id)
        assert len(followers) >= 4
        assert max(followers.values()) <= 10


def test_new_broker_is_used_first_without_getting_a_whole_topic() -> None:
    """A broker without replicas takes the remainder; within the topic it gets only its share."""
    usable = [UsableBroker(number, None) for number in (1, 2, 3)]
    cluster = count(PartitionCounts(), [(1,)] * 50 + [(2,)] * 50)
    assert new(1, 1, usable, cluster=cluster) == [(3,)]
    assert sorted(new(4, 1, usable, cluster=cluster)).count((3,)) == 2


def test_leaders_are_mended_along_chains() -> None:
    """If the brokers with the most and the fewest leaders share no partition, a third broker passes a leadership on."""
    placed = [[1, 2], [1, 2], [1, 2], [2, 3]]
    topic = PartitionCounts(leaders={2: 1})
    placement._Leaders(placed, topic, PartitionCounts(), LOOKUPS).spread()  # pyright: ignore[reportPrivateUsage]
    leaders = Counter(replicas[0] for replicas in placed)
    leaders[2] += 1
    assert sorted(leaders.values()) == [1, 2, 2]
    assert {frozenset(replicas) for replicas in placed} == {frozenset({1, 2}), frozenset({2, 3})}


def test_leaders_stay_as_they_are_beyond_the_limit() -> None:
    """The number of moves is bounded; without them the placement is still complete."""
    usable = [UsableBroker(number, None) for number in range(5)]
    assert len(new(40, 3, usable, max_leader_lookups=0)) == 40


def test_more_replicas_than_brokers_are_a_fault_of_the_caller() -> None:
    """The service refuses that before."""
    with pytest.raises(AssertionError, match="2 replicas on 1 brokers"):
        new(1, 2, [UsableBroker(1, None)])
