# SPDX-License-Identifier: Apache-2.0
"""Failed log directories in the controller: a heartbeat reports them, the image keeps them, a new process clears them."""

from __future__ import annotations

from metaquorum.controller.commands import Decision, Heartbeat, HeartbeatAnswered
from metaquorum.metadata import record_codec
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_rows import add_row, all_rows
from metaquorum.metadata.records import BrokerChangeRecord
from metaquorum.metadata.row_codec import decode_row, encode_row
from metaquorum.tests.controller_world import World, incarnation, register

FIRST, SECOND, THIRD = incarnation(91), incarnation(92), incarnation(93)


def started() -> World:
    """A world with an unfenced broker that has three log directories."""
    world = World()
    world.run(register(1, log_directory_ids=(FIRST, SECOND, THIRD)))
    world.beat(1)
    return world


def beat(world: World, *offline: bytes, want_fence: bool = False, want_shutdown: bool = False) -> Decision:
    return world.run(
        Heartbeat(
            broker_id=1,
            broker_epoch=world.epoch(1),
            metadata_offset=world.log_end_offset,
            want_fence=want_fence,
            want_shutdown=want_shutdown,
            offline_log_directory_ids=offline,
        )
    )


def offline(world: World) -> tuple[bytes, ...]:
    return world.image.brokers[1].offline_log_directory_ids


def test_failed_directories_are_remembered_once() -> None:
    """Each change is one record; a heartbeat that reports the same directories in another order writes none."""
    world = started()
    decision = beat(world, THIRD)
    assert decision.records == (
        BrokerChangeRecord(broker_id=1, broker_epoch=world.epoch(1), offline_log_directory_ids=(THIRD,)),
    )
    assert decision.response == HeartbeatAnswered(fenced=False, caught_up=True, should_shutdown=False)
    assert offline(world) == (THIRD,)
    assert beat(world, THIRD).records == ()
    assert len(beat(world, THIRD, SECOND, THIRD).records) == 1
    assert offline(world) == (SECOND, THIRD)
    assert beat(world, THIRD, SECOND).records == ()
    assert world.image.brokers[1].can_lead


def test_ids_that_the_broker_never_registered_are_passed_over() -> None:
    """No broker has these directories; the heartbeat counts nevertheless."""
    world = started()
    assert beat(world, incarnation(7), b"short").records == ()
    assert offline(world) == ()


def test_what_else_a_heartbeat_asks_for_is_answered_by_the_next_one() -> None:
    """The decision has only the change of directories."""
    world = started()
    assert beat(world, SECOND, want_shutdown=True).response == HeartbeatAnswered(
        fenced=False, caught_up=True, should_shutdown=False
    )
    answer = beat(world, SECOND, want_shutdown=True).response
    assert answer == HeartbeatAnswered(fenced=True, caught_up=True, should_shutdown=True)
    assert offline(world) == (SECOND,)


def test_same_process_keeps_them_and_a_new_one_starts_without() -> None:
    """A repeated registration of the same process changes nothing; the next process reports its own failed directories."""
    world = started()
    beat(world, SECOND)
    world.run(register(1, log_directory_ids=(FIRST, SECOND, THIRD), host="elsewhere"))
    assert offline(world) == (SECOND,)
    beat(world, SECOND, want_fence=True)
    assert world.image.brokers[1].fenced
    world.run(register(1, process=2, log_directory_ids=(FIRST, SECOND, THIRD)))
    assert offline(world) == ()


def test_image_survives_the_way_through_its_rows() -> None:
    """The stored copy of the image has them too."""
    world = started()
    beat(world, SECOND, THIRD)
    copy = MetadataImage()
    for key, row in all_rows(world.image):
        add_row(copy, decode_row(key, encode_row(row)))
    assert copy.brokers[1].offline_log_directory_ids == (SECOND, THIRD)


def test_other_changes_of_a_broker_leave_them_alone() -> None:
    """The wire distinguishes an absent list from an empty one."""
    for ids in (None, (), (FIRST, SECOND)):
        record = BrokerChangeRecord(broker_id=1, broker_epoch=5, offline_log_directory_ids=ids)
        assert record_codec.decode(record_codec.encode(record)) == record
    world = started()
    beat(world, SECOND)
    beat(world)
    assert offline(world) == ()
