# SPDX-License-Identifier: Apache-2.0
"""Requested elections as decisions: preferred, unclean, unnecessary, and every refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    ElectionKind,
    ElectionResult,
    ElectionTarget,
    ElectLeaders,
    FenceBroker,
    LeadersElected,
    Reassignment,
    ReassignPartitions,
    Refusal,
)
from metaquorum.controller.elections import ElectionRules, partition_change
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import SETTINGS, World, topic_id


@pytest.fixture
def world() -> World:
    """Brokers 0, 1 and 2; topic "t" with two partitions on all of them, led by 0, all in sync."""
    made = World()
    for broker_id in (0, 1, 2):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), partition_count=2)
    return made


def elect(*partitions: int, kind: ElectionKind = ElectionKind.PREFERRED, topic: str = "t") -> ElectLeaders:
    """Return the command for some partitions of a topic, or for all of them."""
    return ElectLeaders(kind=kind, targets=(ElectionTarget(topic=topic, partitions=partitions or None),))


def results(world: World, command: ElectLeaders) -> list[ElectionResult]:
    """Run a command; the elected partitions in its response must match the image."""
    response = world.run(command).response
    assert isinstance(response, LeadersElected), response
    for each in response.results:
        if isinstance(each.outcome, PartitionImage):
            assert each.outcome == world.partition(each.topic, each.partition)
    return list(response.results)


def refusal(world: World, command: ElectLeaders) -> Refusal:
    """Run a command for one partition; it must be refused and change nothing."""
    before = world.log_end_offset
    (one,) = results(world, command)
    assert isinstance(one.outcome, Refusal)
    assert not one.elected
    assert world.log_end_offset == before
    return one.outcome


def lead(world: World, leader_id: int | None, *, isr: tuple[int, ...] | None = None) -> None:
    """Write another leader of both partitions."""
    for number in (0, 1):
        change = PartitionChangeRecord(
            topic_id=topic_id("t"), partition=number, leader=LeaderChange(leader_id=leader_id), isr=isr
        )
        world.write(change)


def fence(world: World, *broker_ids: int) -> None:
    """Fence brokers and run the sweeps."""
    for broker_id in broker_ids:
        world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))


def test_preferred_election_gives_the_first_replica_the_lead_once(world: World) -> None:
    """The epoch rises by one; a second request elects no leader and changes nothing."""
    lead(world, 2)
    before = world.partition("t")
    first, second = results(world, elect())
    assert (first.partition, first.elected, second.partition, second.elected) == (0, True, 1, True)
    now = world.partition("t")
    assert (now.leader_id, now.leader_epoch, now.isr) == (0, before.leader_epoch + 1, (0, 1, 2))
    end = world.log_end_offset
    assert [each.elected for each in results(world, elect(1, 0))] == [False, False]
    assert world.log_end_offset == end


def test_check_only_tells_and_changes_nothing(world: World) -> None:
    """A dry run answers like the election; no record is written."""
    lead(world, 2)
    checked = world.decide(replace(elect(0), validate_only=True))
    done = world.decide(elect(0))
    assert checked.response == done.response
    assert (checked.records, len(done.records)) == ((), 1)


@pytest.mark.parametrize(
    ("fenced", "leader_id", "isr", "text"),
    [
        ((), 1, (1, 2), "not in sync"),
        ((0,), 1, (0, 1, 2), "fenced or leaving"),
        ((), None, (1, 2), "has no leader"),
    ],
)
def test_preferred_election_is_refused_with_the_reason(
    world: World, fenced: tuple[int, ...], leader_id: int | None, isr: tuple[int, ...], text: str
) -> None:
    """The first replica must be in sync and active, and the partition must have a leader."""
    fence(world, *fenced)
    lead(world, leader_id, isr=isr)
    found = refusal(world, elect(0))
    assert found.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert text in found.message


def test_unclean_election_takes_a_live_replica_where_no_other_can(world: World) -> None:
    """The last in-sync replica is gone: another one leads alone, and records may be lost because the operator asked for it."""
    lead(world, 0, isr=(0,))
    fence(world, 0)
    assert world.partition("t").leader_id is None
    (one,) = results(world, elect(0, kind=ElectionKind.UNCLEAN))
    assert one.elected
    assert (world.partition("t").leader_id, world.partition("t").isr) == (1, (1,))
    # The partition that the request did not name keeps waiting.
    assert world.partition("t", 1).leader_id is None


def test_unclean_election_touches_no_partition_that_is_led(world: World) -> None:
    """A leader that may lead stays, and nothing is written."""
    end = world.log_end_offset
    assert [each.elected for each in results(world, elect(kind=ElectionKind.UNCLEAN))] == [False, False]
    assert world.log_end_offset == end


def test_unclean_election_takes_who_has_everything_first(world: World) -> None:
    """Before the sweep visits the partition, an in-sync replica is elected, even if a lagging one is earlier in the list."""
    lead(world, 0, isr=(0, 2))
    world.append(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    decision = world.decide(elect(0, kind=ElectionKind.UNCLEAN))
    assert decision.records == (
        PartitionChangeRecord(topic_id=topic_id("t"), partition=0, leader=LeaderChange(leader_id=2), isr=(2,)),
    )


def test_unclean_election_needs_a_live_replica(world: World) -> None:
    """If all replicas are away no leader can be elected, and the refusal names them."""
    fence(world, 0, 1, 2)
    found = refusal(world, elect(0, kind=ElectionKind.UNCLEAN))
    assert found.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert "0, 1, 2" in found.message


def test_unclean_election_takes_a_replica_that_is_being_added_last(world: World) -> None:
    """It has the fewest records, although it is first in the list of replicas."""
    world.start_broker(3)
    world.run(ReassignPartitions(reassignments=(Reassignment(topic="t", partition=0, replicas=(3, 0)),)))
    partition = world.partition("t")
    assert (partition.replicas[0], partition.adding) == (3, (3,))
    away = partition._replace(leader_id=None, isr=(0,))
    rules = ElectionRules(unclean=True)
    change = partition_change(topic_id("t"), away, {1, 3}.__contains__, rules=rules)
    assert change is not None
    assert change.leader == LeaderChange(leader_id=1)
    change = partition_change(topic_id("t"), away, {3}.__contains__, rules=rules)
    assert change is not None
    assert change.leader == LeaderChange(leader_id=3)


@pytest.mark.parametrize("kind", list(ElectionKind))
def test_unknown_partitions_are_refused_beside_known_ones(world: World, kind: ElectionKind) -> None:
    """Each has its own answer."""
    targets = (ElectionTarget(topic="t", partitions=(0, 2, -1)), ElectionTarget(topic="none", partitions=(0,)))
    found = results(world, ElectLeaders(kind=kind, targets=targets))
    codes = [each.outcome.code if isinstance(each.outcome, Refusal) else None for each in found]
    assert codes == [None, ErrorCode.UNKNOWN_PARTITION, ErrorCode.UNKNOWN_PARTITION, ErrorCode.UNKNOWN_TOPIC]


@pytest.mark.parametrize(
    ("targets", "code"),
    [
        ((), ErrorCode.INVALID_REQUEST),
        ((ElectionTarget(topic="t", partitions=()),), ErrorCode.INVALID_REQUEST),
        ((ElectionTarget(topic="t"), ElectionTarget(topic="t", partitions=(1,))), ErrorCode.INVALID_REQUEST),
        ((ElectionTarget(topic="none"),), ErrorCode.UNKNOWN_TOPIC),
        (
            (ElectionTarget(topic="t", partitions=tuple(range(SETTINGS.max_elected_partitions + 1))),),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_request_of_no_use_is_refused_as_a_whole(
    world: World, targets: tuple[ElectionTarget, ...], code: ErrorCode
) -> None:
    """No partition, a partition twice, too many, or all partitions of an unknown topic."""
    assert world.refusal(ElectLeaders(kind=ElectionKind.PREFERRED, targets=targets)).code is code
