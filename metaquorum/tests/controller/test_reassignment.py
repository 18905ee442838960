# SPDX-License-Identifier: Apache-2.0
"""Reassignment as decisions: begin, progress by AlterPartition, completion, change, cancelling, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterPartition,
    FenceBroker,
    IsrProposal,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    Refusal,
)
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.image_rows import PartitionBlock
from metaquorum.metadata.records import PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage, Partitions
from metaquorum.tests.controller_world import SETTINGS, World, topic_id, view


@pytest.fixture
def world() -> World:
    """Brokers 0 to 4; topic "t" on 0, 1 and 2, led by 0, all in sync."""
    made = World(settings=ControllerSettings(max_broker_replicas=3))
    for broker_id in range(5):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2))
    return made


def reassign(*replicas: int, partition: int = 0, topic: str = "t") -> ReassignPartitions:
    """Return the command for one partition; without replicas it cancels."""
    return ReassignPartitions(
        reassignments=(Reassignment(topic=topic, partition=partition, replicas=replicas or None),)
    )


def result(world: World, command: ReassignPartitions | AlterPartition) -> PartitionImage | Refusal:
    """Run a command for one partition and return its result, which must match the image."""
    response = world.run(command).response
    assert isinstance(response, PartitionsAltered), response
    (one,) = response.results
    if isinstance(one, PartitionImage):
        assert one == world.partition("t")
    return one


def propose(world: World, *isr: int) -> AlterPartition:
    """Return the leader's proposal for the partition as it is."""
    partition = world.partition("t")
    assert partition.leader_id is not None
    proposal = IsrProposal(
        topic_id=topic_id("t"),
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple((node_id, world.epoch(node_id)) for node_id in isr),
    )
    return AlterPartition(
        broker_id=partition.leader_id, broker_epoch=world.epoch(partition.leader_id), proposals=(proposal,)
    )


def test_replicas_move_when_all_new_ones_are_in_sync(world: World) -> None:
    """Old and new replicas have the partition until then; then the old ones are removed and a new leader has a higher leader epoch."""
    assert result(world, reassign(3, 4, 2)) == PartitionImage(
        0, (3, 4, 2, 0, 1), (0, 1, 2), 0, 0, 1, (), (), (3, 4), (0, 1)
    )
    assert world.image.counts.replicas == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}
    grown = result(world, propose(world, 0, 1, 2, 3))
    assert isinstance(grown, PartitionImage)
    assert (grown.adding, grown.isr) == ((3, 4), (3, 2, 0, 1))
    assert result(world, propose(world, 0, 1, 2, 3, 4)) == PartitionImage(0, (3, 4, 2), (3, 4, 2), 3, 1, 3)
    assert world.image.counts.replicas == {2: 1, 3: 1, 4: 1}
    assert world.leaders("t") == [3]


def test_leader_that_stays_leads_on_with_a_new_epoch(world: World) -> None:
    """Removed replicas must stop following, so the leader epoch rises although the leader stays."""
    result(world, reassign(3, 0))
    done = result(world, propose(world, 0, 3))
    assert isinstance(done, PartitionImage)
    assert (done.replicas, done.leader_id, done.leader_epoch) == ((3, 0), 0, 1)


def test_shrink_inside_the_in_sync_replicas_completes_at_once(world: World) -> None:
    """There is nothing to copy; the leader epoch rises."""
    assert result(world, reassign(1, 2)) == PartitionImage(0, (1, 2), (1, 2), 1, 1, 1)


def test_other_order_changes_the_preferred_leader_only(world: World) -> None:
    """With the same replicas and another first one no new leader is elected. Repeating it changes nothing."""
    assert result(world, reassign(2, 1, 0)) == PartitionImage(0, (2, 1, 0), (0, 1, 2), 0, 0, 1)
    assert world.decide(reassign(2, 1, 0)).records == ()
    assert result(world, reassign(2, 1, 0)) == world.partition("t")


def test_reassignment_waits_for_min_isr(world: World) -> None:
    """It does not complete while the new set could not commit a record."""
    world.write_topic("m", (0, 1), configs={"min.insync.replicas": "2"})
    world.write(PartitionChangeRecord(topic_id=topic_id("m"), partition=0, isr=(0,), elr=(1,)))
    world.run(reassign(1, 3, topic="m"))
    partition = world.partition("m")
    assert (partition.adding, partition.removing, partition.elr) == ((3,), (0,), (1,))
    proposal = IsrProposal(
        topic_id=topic_id("m"), partition=0, leader_epoch=0, partition_epoch=2, isr=((0, None), (3, None))
    )
    leader = AlterPartition(broker_id=0, broker_epoch=world.epoch(0), proposals=(proposal,))
    world.run(leader)
    assert world.partition("m").adding == (3,)
    again = replace(proposal, partition_epoch=3, isr=((0, None), (1, None), (3, None)))
    world.run(replace(leader, proposals=(again,)))
    done = world.partition("m")
    assert (done.replicas, set(done.isr), done.leader_id, done.adding, done.removing) == ((1, 3), {1, 3}, 1, (), ())


def test_cancel_restores_the_original_replicas(world: World) -> None:
    """The replicas are the old set, even if some new ones were in sync already; a second cancel is refused."""
    result(world, reassign(3, 4))
    result(world, propose(world, 0, 1, 2, 3))
    back = result(world, reassign())
    assert isinstance(back, PartitionImage)
    assert (set(back.replicas), set(back.isr), back.leader_id) == ({0, 1, 2}, {0, 1, 2}, 0)
    assert (back.adding, back.removing, back.leader_epoch) == ((), (), 1)
    refused = result(world, reassign())
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.INVALID_REQUEST


def test_cancel_is_refused_where_only_new_replicas_are_in_sync(world: World) -> None:
    """A cancel would lose committed records."""
    world.write_topic("only", (0,))
    world.run(reassign(3, 4, topic="only"))
    world.write(PartitionChangeRecord(topic_id=topic_id("only"), partition=0, isr=(0, 3)))
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    assert world.partition("only").isr == (3,)
    response = world.run(reassign(topic="only")).response
    assert isinstance(response, PartitionsAltered)
    (refused,) = response.results
    assert isinstance(refused, Refusal)
    assert "would be lost" in refused.message
    response = world.run(reassign(4, topic="only")).response
    assert isinstance(response, PartitionsAltered)
    assert isinstance(response.results[0], Refusal)


def test_another_target_replaces_the_one_under_way(world: World) -> None:
    """Replicas that the new target does not want are removed; the originals are still those that will be left."""
    result(world, reassign(3, 4, 1))
    result(world, propose(world, 0, 1, 2, 3))
    changed = result(world, reassign(4, 1, 2))
    assert isinstance(changed, PartitionImage)
    assert (set(changed.replicas), changed.adding, changed.removing) == ({4, 1, 2, 0}, (4,), (0,))
    assert 3 not in changed.isr
    done = result(world, propose(world, 0, 1, 2, 4))
    assert isinstance(done, PartitionImage)
    assert (done.replicas, done.leader_id) == ((4, 1, 2), 4)


def test_change_that_completes_at_once_is_one_leader_epoch(world: World) -> None:
    """Replicas of the earlier target and old ones are removed in one step."""
    result(world, reassign(3, 4))
    before = world.partition("t").leader_epoch
    done = result(world, reassign(1, 2))
    assert isinstance(done, PartitionImage)
    assert (done.replicas, done.leader_epoch) == ((1, 2), before + 1)


def test_reassignment_waits_while_nobody_of_the_target_can_lead(world: World) -> None:
    """If no replica of the target can lead, it stays under way, and completes when requested again."""
    for broker_id in (0, 1, 2):
        world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))
    assert world.partition("t").isr == (2,)
    waiting = result(world, reassign(2))
    assert isinstance(waiting, PartitionImage)
    assert waiting.removing == (0, 1)
    world.beat(2)
    done = result(world, reassign(2))
    assert isinstance(done, PartitionImage)
    assert (done.replicas, done.leader_id, done.removing) == ((2,), 2, ())


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (reassign(1, topic="none"), ErrorCode.UNKNOWN_TOPIC, "'none'"),
        (reassign(1, partition=1), ErrorCode.UNKNOWN_PARTITION, "no partition 1"),
        (reassign(1, 1), ErrorCode.INVALID_REQUEST, "named twice"),
        (reassign(1, 9), ErrorCode.INVALID_REQUEST, "[9] are not registered"),
        (reassign(*range(101)), ErrorCode.INVALID_REQUEST, "1 to 100 replicas"),
        (reassign(0, 4), ErrorCode.LIMIT_EXCEEDED, "broker 4 has 3 replicas"),
    ],
)
def test_bad_reassignment_is_refused_alone(
    world: World, command: ReassignPartitions, code: ErrorCode, text: str
) -> None:
    """Each partition of a request is refused with its own reason, and the good one beside it begins."""
    world.write_topic("full", (4,), partition_count=3)
    world.write_topic("good", (0, 1))
    good = reassign(1, topic="good").reassignments
    response = world.run(ReassignPartitions(reassignments=(*command.reassignments, *good))).response
    assert isinstance(response, PartitionsAltered)
    refused, begun = response.results
    assert isinstance(refused, Refusal)
    assert refused.code is code
    assert text in refused.message
    assert begun == world.partition("good")
    assert world.partition("good").replicas == (1,)
    assert world.partition("t").partition_epoch == 0


def test_request_is_bounded_and_names_a_partition_once(world: World) -> None:
    """A request that is empty, too large or names one partition twice is refused as a whole."""
    one = reassign(1).reassignments
    many = tuple(replace(one[0], partition=number) for number in range(SETTINGS.max_reassigned_partitions + 1))
    for reassignments in ((), one + one, many):
        assert world.refusal(ReassignPartitions(reassignments=reassignments)).code is ErrorCode.INVALID_REQUEST


def test_reassignment_survives_a_change_of_controller(world: World) -> None:
    """The rows of the image carry both lists, and the next controller completes it."""
    result(world, reassign(3))
    (block,) = [row for _, row in view(world.image) if isinstance(row, PartitionBlock)]
    copy = Partitions()
    copy.add_block(block.number, block.data)
    assert copy[0].adding == (3,)
    world.take_over()
    done = result(world, propose(world, 0, 3))
    assert isinstance(done, PartitionImage)
    assert done.replicas == (3,)


def test_check_only_tells_what_would_be_and_changes_nothing(world: World) -> None:
    """A dry run answers as the change would, with the earlier replicas; it writes no record."""
    command = ReassignPartitions(
        reassignments=(*reassign(3, 4).reassignments, *reassign(1, partition=7).reassignments), validate_only=True
    )
    decision = world.decide(command)
    done = world.decide(replace(command, validate_only=False))
    assert (decision.response, decision.records) == (done.response, ())
    assert isinstance(decision.response, PartitionsAltered)
    assert decision.response.before == (world.partition("t"), None)
    assert len(done.records) == 1


def outcomes(world: World, command: ReassignPartitions) -> list[str]:
    """Run a command and return "done" or the refusal's message for each partition."""
    response = world.run(command).response
    assert isinstance(response, PartitionsAltered), response
    return [one.message if isinstance(one, Refusal) else "done" for one in response.results]


def test_limit_of_a_broker_counts_what_the_request_itself_adds(world: World) -> None:
    """Broker 4 may have three replicas: of five partitions in one request it gets three, in a dry run and in the change."""
    world.write_topic("u", (0,), partition_count=5)
    command = ReassignPartitions(
        reassignments=tuple(Reassignment(topic="u", partition=number, replicas=(0, 4)) for number in range(5))
    )
    checked = world.decide(replace(command, validate_only=True)).response
    done = outcomes(world, command)
    assert done[:3] == ["done"] * 3
    assert all("broker 4 has 3 replicas" in message for message in done[3:])
    assert isinstance(checked, PartitionsAltered)
    assert [isinstance(one, Refusal) for one in checked.results] == [False] * 3 + [True] * 2
    assert world.image.counts.replicas[4] == 3


def test_limit_of_a_broker_counts_what_the_request_takes_from_it_before(world: World) -> None:
    """A replica that is removed at once makes room for later partitions of the same request, and not for earlier ones."""
    world.write_topic("u", (3, 4), partition_count=3)
    world.write_topic("v", (3,), partition_count=2)
    shrink = Reassignment(topic="u", partition=0, replicas=(3,))
    early = Reassignment(topic="v", partition=0, replicas=(3, 4))
    late = Reassignment(topic="v", partition=1, replicas=(3, 4))
    results = outcomes(world, ReassignPartitions(reassignments=(early, shrink, late)))
    assert [result == "done" for result in results] == [False, True, True]
    assert world.image.counts.replicas[4] == 3


def test_cancelled_reassignment_makes_room_in_the_same_request(world: World) -> None:
    """A cancel removes the replicas that were being added; a refused one removes nothing."""
    world.write_topic("u", (0,), partition_count=5)
    begin = tuple(Reassignment(topic="u", partition=number, replicas=(0, 4)) for number in range(3))
    assert outcomes(world, ReassignPartitions(reassignments=begin)) == ["done"] * 3
    cancel = Reassignment(topic="u", partition=1, replicas=None)
    unknown = Reassignment(topic="u", partition=3, replicas=(0, 4, 99))
    later = Reassignment(topic="u", partition=4, replicas=(0, 4))
    results = outcomes(world, ReassignPartitions(reassignments=(cancel, unknown, later)))
    assert [result == "done" for result in results] == [True, False, True]
    assert world.image.counts.replicas[4] == 3
