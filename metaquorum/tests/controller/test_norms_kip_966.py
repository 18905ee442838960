# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-966 (eligible leader replicas) that no other test shows; `docs/normative.md` has all of them."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Final

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterConfigs,
    AlterPartition,
    FenceBroker,
    IsrProposal,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    ResourceChanges,
    SweepPartitions,
)
from metaquorum.controller.elections import ElectionRules, Lossy, partition_change
from metaquorum.controller_service.codec import to_partition
from metaquorum.metadata.isr import changed_isr, needed_in_sync
from metaquorum.metadata.records import ConfigResource, LeaderChange, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import World, register, topic_id

TOPIC_ID: Final = b"t" * 16
MIN_ISR: Final = "min.insync.replicas"


@pytest.fixture
def world() -> World:
    """Brokers 0 to 3, all unfenced, and topic "t" on 0, 1 and 2, all of which must be in sync."""
    made = World()
    for broker_id in range(4):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), configs={MIN_ISR: "3"})
    return made


def fence(world: World, *broker_ids: int) -> None:
    """Fence brokers, one after the other."""
    for broker_id in broker_ids:
        world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))


def propose(world: World, *isr: int) -> None:
    """The leader proposes in-sync replicas, and they are taken."""
    partition = world.partition("t")
    assert partition.leader_id is not None
    proposal = IsrProposal(
        topic_id=topic_id("t"),
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple((broker_id, None) for broker_id in isr),
    )
    leader_id = partition.leader_id
    decision = world.run(
        AlterPartition(broker_id=leader_id, broker_epoch=world.epoch(leader_id), proposals=(proposal,))
    )
    assert isinstance(decision.response, PartitionsAltered)


def set_min_isr(world: World, value: str) -> None:
    """Set the topic's `min.insync.replicas`."""
    changes = ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=((MIN_ISR, value),))
    world.run(AlterConfigs(resources=(changes,)))


def lists(world: World) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return in-sync and eligible leader replicas."""
    partition = world.partition("t")
    return partition.isr, partition.elr


def change(
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    alive: Collection[int],
    *,
    min_isr: int = 3,
    unclean: bool = False,
    lossy: tuple[int, ...] = (),
) -> PartitionChangeRecord | None:
    """Return what becomes of a partition with replicas 0, 1 and 2 and without a leader."""
    partition = PartitionImage(0, (0, 1, 2), isr, None, 4, 6, elr, ())
    rules = ElectionRules(min_isr=min_isr, unclean=unclean)
    return partition_change(TOPIC_ID, partition, alive.__contains__, tuple(map(Lossy, lossy)), rules)


def test_eligible_and_in_sync_replicas_never_overlap_and_are_replicas() -> None:
    """Over every pair of lists, next list, loss and `min.insync.replicas` of three replicas."""
    replicas = (0, 1, 2)
    subsets = [subset for size in range(4) for subset in itertools.combinations(replicas, size)]
    seen = 0
    for isr, elr, following, lost in itertools.product(subsets, subsets, subsets, subsets):
        if not isr or not following or set(isr) & set(elr):
            continue
        partition = PartitionImage(0, replicas, isr, isr[0], 4, 6, elr, ())
        for min_isr in (1, 2, 3):
            state = changed_isr(partition, following, min_isr=min_isr, lost=lost)
            assert not set(state.isr) & set(state.elr)
            assert not set(state.elr) & set(lost)
            assert {*state.isr, *state.elr} <= set(replicas)
            assert set(state.elr) <= {*isr, *elr}, "nobody becomes eligible who was in neither list"
            assert not state.elr or len(state.isr) < min_isr
            seen += 1
    assert seen > 1_000


def test_min_isr_above_the_replication_factor_counts_as_the_replication_factor() -> None:
    """Otherwise a partition with fewer replicas could never commit, and every replica that left would be eligible."""
    assert needed_in_sync(PartitionImage(0, (0, 1), (0, 1), 0, 1, 1), 3) == 2
    assert changed_isr(PartitionImage(0, (0,), (0,), 0, 1, 1), (0,), min_isr=3).elr == ()


def test_leader_that_takes_an_eligible_replica_in_ends_its_eligibility(world: World) -> None:
    """In sync again, it is no longer listed as eligible; the others stay so while there are too few in sync."""
    fence(world, 1, 2)
    assert lists(world) == ((0,), (1, 2))
    world.beat(1)
    assert lists(world) == ((0,), (1, 2)), "a live eligible replica is not in sync before its leader says so"
    propose(world, 0, 1)
    assert lists(world) == ((0, 1), (2,))
    world.beat(2)
    propose(world, 0, 1, 2)
    assert lists(world) == ((0, 1, 2), ())


def test_leader_that_drops_a_slow_replica_below_min_isr_makes_it_eligible(world: World) -> None:
    """It is eligible after any change that takes it out of the in-sync replicas while too few are left, not only after a fencing."""
    propose(world, 0, 2)
    assert lists(world) == ((0, 2), (1,))
    propose(world, 0)
    assert lists(world) == ((0,), (1, 2))


def test_higher_min_isr_makes_nobody_eligible(world: World) -> None:
    """A replica that left while enough were in sync may lack records, and a config change does not return them."""
    set_min_isr(world, "2")
    fence(world, 2)
    assert lists(world) == ((0, 1), ())
    set_min_isr(world, "3")
    assert lists(world) == ((0, 1), ())
    fence(world, 1)
    assert lists(world) == ((0,), (1,))


@pytest.mark.parametrize(
    ("alive", "leader"), [({0, 1, 2}, 1), ({1, 2}, 1), ({0, 2}, 0), ({0}, 0), ({2}, 2), (set[int](), None)]
)
def test_in_sync_replicas_are_elected_before_eligible_ones(alive: set[int], leader: int | None) -> None:
    """An election tries the in-sync replicas first, then the eligible ones, in replica order; fenced ones never lead."""
    record = change((1,), (0, 2), alive)
    elected = None if record is None or record.leader is None else record.leader.leader_id
    assert elected == leader


@pytest.mark.parametrize("unclean", [False, True])
def test_eligible_replica_is_elected_where_an_unclean_election_is_allowed_too(unclean: bool) -> None:
    """An unclean election is the last resort: a live replica with every committed record makes it needless."""
    record = change((1,), (2,), {0, 2}, unclean=unclean)
    assert record is not None
    assert (record.leader, record.isr, record.elr) == (LeaderChange(leader_id=2), (2,), (1,))


def test_no_leader_rather_than_one_that_lacks_records() -> None:
    """If no in-sync and no eligible replica is alive, the partition waits for one."""
    assert change((1,), (2,), {0}) is None


def test_elected_eligible_replica_begins_a_new_leader_epoch(world: World) -> None:
    """The higher epoch fences every earlier leader and follower."""
    fence(world, 1, 2, 0)
    before = world.partition("t").leader_epoch
    world.beat(2)
    partition = world.partition("t")
    assert (partition.leader_id, partition.isr, partition.elr) == (2, (2,), (0, 1))
    assert partition.leader_epoch == before + 1


def test_unclean_stop_of_an_eligible_replica_that_is_not_needed_leaves_the_leader_alone(world: World) -> None:
    """It is dropped from the list of eligible replicas; leader and in-sync replicas do not change."""
    changes = ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=(("flush.policy", "none"),))
    world.run(AlterConfigs(resources=(changes,)))
    fence(world, 1)
    before = world.partition("t")
    assert (before.isr, before.elr) == ((0, 2), (1,))
    world.run(register(1, process=101))
    world.run(SweepPartitions())
    after = world.partition("t")
    assert (after.leader_id, after.leader_epoch, after.isr, after.elr) == (0, before.leader_epoch, (0, 2), ())
    assert after.last_known_elr == (1,)


def test_replica_that_is_reassigned_away_is_not_eligible_any_more(world: World) -> None:
    """The eligible replicas are replicas of the partition."""
    set_min_isr(world, "2")
    fence(world, 2)
    fence(world, 1)
    assert lists(world) == ((0,), (1,))
    world.run(ReassignPartitions(reassignments=(Reassignment(topic="t", partition=0, replicas=(0, 3)),)))
    propose(world, 0, 3)
    partition = world.partition("t")
    assert (partition.replicas, partition.isr, partition.elr) == ((0, 3), (0, 3), ())
    assert partition.last_known_elr == ()


def test_replica_that_leaves_in_order_below_min_isr_is_eligible(world: World) -> None:
    """A broker that shuts down has every committed record at that point, and may lead after its return."""
    world.beat(1, want_shutdown=True)
    assert lists(world) == ((0, 2), (1,))


@pytest.mark.parametrize(("resource", "name"), [(ConfigResource.BROKER, "1"), (ConfigResource.CLUSTER, "")])
def test_min_isr_is_a_matter_of_topics(world: World, resource: ConfigResource, name: str) -> None:
    """Only topics have it, because the controller decides by it: a broker or the cluster cannot have another value."""
    command = AlterConfigs(resources=(ResourceChanges(resource=resource, name=name, changes=((MIN_ISR, "1"),)),))
    assert world.refusal(command).code is ErrorCode.INVALID_CONFIG


def test_descriptions_show_eligible_and_last_known_eligible_replicas() -> None:
    """Clients see both lists in the description of a partition, here and in what brokers send."""
    partition = PartitionImage(0, (0, 1, 2), (0,), 0, 4, 9, elr=(2,), last_known_elr=(1,))
    described = to_partition(partition)
    assert list(described.eligible_leader_replicas) == [2]
    assert list(described.last_known_eligible_leader_replicas) == [1]
