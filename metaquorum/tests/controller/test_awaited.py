# SPDX-License-Identifier: Apache-2.0
"""The last in-sync replica returns without its log directory: it leads nothing until the directory returns or an operator decides."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterPartition,
    ElectionKind,
    ElectionTarget,
    ElectLeaders,
    FenceBroker,
    IsrProposal,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    Refusal,
)
from metaquorum.metadata.awaited import AwaitedReplica, awaited_directories, pack, unpack
from metaquorum.metadata.image import MetadataImage, PartitionImage
from metaquorum.metadata.image_rows import add_row, all_rows
from metaquorum.tests.controller_world import World, create_topic, incarnation, register, topic_id, view

A, B, C = 1, 2, 3
X, Y, Z = incarnation(901), incarnation(7), incarnation(8)
"""Directories of broker A: that of `register`, and the next ones."""


def stop(world: World, broker_id: int) -> None:
    """Take a broker's process away."""
    world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))


def start(world: World, broker_id: int, *directories: bytes, process: int) -> None:
    """Start the next process of a broker with these log directories, and unfence it if the controller allows that."""
    ids = directories or world.image.brokers[broker_id].log_directory_ids
    world.run(register(broker_id, process=process, clean_stop_epoch=world.epoch(broker_id), log_directory_ids=ids))
    world.beat(broker_id)


def found(
    world: World, directory_id: bytes, *, broker_id: int = A, topic: str = "t", number: int = 0
) -> PartitionImage | Refusal:
    """Report that a broker found the log of its replica in a directory; return the result."""
    seen = world.partition(topic, number)
    proposal = IsrProposal(
        topic_id=topic_id(topic),
        partition=number,
        leader_epoch=seen.leader_epoch,
        partition_epoch=seen.partition_epoch,
        isr=(),
        found_directory_id=directory_id,
    )
    command = AlterPartition(broker_id=broker_id, broker_epoch=world.epoch(broker_id), proposals=(proposal,))
    response = world.run(command).response
    assert isinstance(response, PartitionsAltered)
    return response.results[0]


def elect_uncleanly(world: World) -> None:
    """Elect a leader uncleanly, as an operator who accepts the loss of records."""
    target = ElectionTarget(topic="t", partitions=(0,))
    world.run(ElectLeaders(kind=ElectionKind.UNCLEAN, targets=(target,), validate_only=False))


@pytest.fixture
def world() -> World:
    """Three brokers with topic "t" that stopped one after the other, broker A last."""
    world = World()
    for broker_id in (A, B, C):
        world.start_broker(broker_id)
    world.write_topic("t", (A, B, C))
    for broker_id in (B, C, A):
        stop(world, broker_id)
    assert world.partition("t").isr == (A,)
    return world


@pytest.mark.parametrize("order", list(permutations((A, B, C))))
def test_wiped_last_replica_leads_nothing_in_any_order_of_starts(world: World, order: tuple[int, ...]) -> None:
    """The broker had all acknowledged records and has lost them: the partition stays without a leader."""
    for broker_id in order:
        start(world, broker_id, *([Y] if broker_id == A else []), process=100 + broker_id)
    after = world.partition("t")
    assert (after.leader_id, after.isr, after.elr) == (None, (A,), ())
    assert not world.image.brokers[A].fenced, "it may lead what is created from now on"


@pytest.mark.parametrize("replicas", [(A,), (A, B)])
def test_wiped_last_replica_leads_nothing_with_fewer_replicas(replicas: tuple[int, ...]) -> None:
    """The controller does not give the topic up silently, even where the broker has the only replica."""
    world = World()
    for broker_id in (A, B):
        world.start_broker(broker_id)
    world.write_topic("t", replicas)
    for broker_id in (B, A):
        stop(world, broker_id)
    start(world, A, Y, process=100)
    start(world, B, process=101)
    assert world.partition("t").leader_id is None
    elect_uncleanly(world)
    assert world.partition("t").leader_id == replicas[-1], "a replica that has some of it before one that has nothing"
    assert world.partition("t").awaited == ()


def test_new_partitions_of_a_wiped_broker_are_led_by_it(world: World) -> None:
    """The broker waits only for partitions that were on the lost directory."""
    start(world, A, Y, process=100)
    world.run(create_topic("later"))
    assert world.leaders("later") == [A]


def test_directory_that_returns_brings_the_leader_back(world: World) -> None:
    """The broker reports where it found the log; the controller refuses any directory but the awaited one."""
    start(world, A, Y, process=100)
    assert awaited_directories(world.partition("t").awaited, A) == (X,)
    refused = found(world, Y)
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert X.hex() in refused.message
    stop(world, A)
    start(world, A, X, process=101)
    assert world.partition("t").leader_id is None, "the directory alone says nothing of the log in it"
    before = world.partition("t")
    after = found(world, X)
    assert isinstance(after, PartitionImage)
    assert (after.leader_id, after.leader_epoch, after.awaited) == (A, before.leader_epoch + 1, ())
    assert world.partition("t") == after
    assert found(world, X) == after, "said again it changes nothing"


def test_healthy_directory_of_several_brings_its_partitions_back() -> None:
    """The controller does not know which directory a replica was in: the broker reports the replicas that it still has."""
    world = World()
    world.run(register(A, log_directory_ids=(X, Z)))
    world.beat(A)
    world.write_topic("t", (A,), partition_count=2)
    stop(world, A)
    start(world, A, Z, Y, process=100)
    assert world.leaders("t") == [None, None]
    assert isinstance(found(world, Z, number=1), PartitionImage)
    assert isinstance(found(world, Y, number=0), Refusal)
    assert world.leaders("t") == [None, A]


def test_second_loss_does_not_change_what_the_first_one_awaits(world: World) -> None:
    """X is lost, then Y, then X returns: X has an old copy of what was last in sync on Y, and the only copy of the rest."""
    start(world, A, Y, process=100)
    start(world, B, process=110)
    world.write_topic("u", (A, B))
    stop(world, B)
    stop(world, A)
    start(world, A, X, process=101)
    assert world.leaders("u") == [None]
    assert awaited_directories(world.partition("t").awaited, A) == (X,)
    assert awaited_directories(world.partition("u").awaited, A) == (Y,)
    assert isinstance(found(world, X, topic="u"), Refusal)
    assert isinstance(found(world, X, topic="t"), PartitionImage)
    assert (world.leaders("t"), world.leaders("u")) == ([A], [None])


def test_loss_before_the_first_one_is_settled_awaits_what_was_before_both(world: World) -> None:
    """The sweep had not reached the partition when the broker returned without the second directory as well."""
    wiped = register(A, process=100, log_directory_ids=(Y,))
    world.append(wiped)
    world.commit()
    world.append(replace(wiped, incarnation_id=incarnation(101), log_directory_ids=(Z,)))
    world.commit()
    start(world, A, Z, process=102)
    assert awaited_directories(world.partition("t").awaited, A) == (X,)


def test_unclean_election_by_config_ends_it(world: World) -> None:
    """A replica that has some of the records is elected before one that has none."""
    start(world, A, Y, process=100)
    world.run(create_topic("unclean", configs={"unclean.leader.election.enable": "true"}, replication_factor=1))
    elect_uncleanly(world)
    assert world.partition("t").leader_id == A, "the only one that is active, and it begins with nothing"
    assert world.partition("t").awaited == ()


def test_other_elections_pass_an_awaited_replica_over(world: World) -> None:
    """Neither a preferred election nor the end of a reassignment elects it."""
    start(world, A, Y, process=100)
    start(world, B, process=101)
    target = ElectionTarget(topic="t", partitions=(0,))
    world.run(ElectLeaders(kind=ElectionKind.PREFERRED, targets=(target,), validate_only=False))
    assert world.partition("t").leader_id is None
    for replicas in ((A,), (A, B), (B,), (B, A)):
        world.run(ReassignPartitions(reassignments=(Reassignment(topic="t", partition=0, replicas=replicas),)))
        assert world.partition("t").leader_id is None
        assert world.partition("t").isr == (A,)
        assert awaited_directories(world.partition("t").awaited, A) == (X,)


def test_withdrawal_of_an_awaited_replica_is_refused(world: World) -> None:
    """Its log fails to open as well: still no other replica has every record."""
    start(world, A, Y, process=100)
    start(world, B, process=101)
    seen = world.partition("t")
    proposal = IsrProposal(
        topic_id=topic_id("t"),
        partition=0,
        leader_epoch=seen.leader_epoch,
        partition_epoch=seen.partition_epoch,
        isr=(),
        is_lost=True,
    )
    response = world.run(AlterPartition(broker_id=A, broker_epoch=world.epoch(A), proposals=(proposal,))).response
    assert isinstance(response, PartitionsAltered)
    assert isinstance(response.results[0], Refusal)
    assert world.partition("t") == seen


def test_another_replica_that_has_everything_takes_over_and_nothing_is_awaited(world: World) -> None:
    """An eligible replica, or an in-sync one that was only away, has every record: the wiped one leaves."""
    world.write_topic("u", (A, B), configs={"min.insync.replicas": "2"})
    world.run(FenceBroker(broker_id=A, broker_epoch=world.epoch(A)))
    start(world, A, Y, process=100)
    assert world.partition("u").awaited == ()
    assert A not in world.partition("u").isr
    start(world, B, process=101)
    assert world.partition("u").leader_id == B


def test_what_is_awaited_survives_rows_and_a_new_controller(world: World) -> None:
    """Through the packed block, and back."""
    start(world, A, Y, process=100)
    copy = MetadataImage()
    for _, row in all_rows(world.image):
        add_row(copy, row)
    copy.reset_offset(world.image.metadata_offset)
    assert view(copy) == view(world.image)
    world.take_over()
    assert unpack(world.partition("t").awaited) == (AwaitedReplica(A, (X,)),)


def test_packed_form_takes_ids_and_brokers_of_any_size() -> None:
    """Any 16 bytes, also those that are negative as integers; a truncated form is refused."""
    replicas = (AwaitedReplica(2**31 - 1, (b"\xff" * 16, bytes(16))), AwaitedReplica(0, (bytes(range(240, 256)),)))
    assert unpack(pack(replicas)) == replicas
    for end in range(1, len(pack(replicas))):
        if end != 10:
            with pytest.raises(AssertionError):
                unpack(pack(replicas)[:end])
