# SPDX-License-Identifier: Apache-2.0
"""Which directory holds a log after an interrupted move: the decision, and crashes before every disk call."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from storage.directory.move_marks import MoveMark, decide
from storage.directory.move_recovery import Place, Step, settle_partition
from storage.directory.move_source import MoveSource
from storage.errors import DiskFailedError
from storage.files.names import FUTURE_SUFFIX, MOVED_FROM_FILE, MOVED_SUFFIX, MOVED_TO_FILE
from storage.testing.builders import read_values
from storage.testing.move_ground import MOVE_ID, NAME, A, B, Ground, clean_up, copy_all, fill, no_pace, switch
from storage.testing.sim_disk import Crash, SimCall, SimDisk

C = b"c" * 16
OTHER = b"o" * 16
ALL = (A, B, C)


def at(directory_id: bytes, suffix: str = "", **facts: object) -> Place:
    move_id = MOVE_ID if suffix else b""
    return replace(Place(directory_id=directory_id, suffix=suffix, move_id=move_id), **facts)


def steps(places: list[Place], directory_ids: tuple[bytes, ...] = ALL) -> list[tuple[Step, bytes]]:
    return [(action.step, action.directory_id) for action in settle_partition(places, directory_ids)]


def test_settled_partition_asks_for_nothing() -> None:
    """This also holds for a partition in two directories without any mark, which an operator must judge."""
    assert steps([at(A)]) == []
    assert steps([at(A), at(B)]) == []
    assert steps([]) == []


def test_unfinished_copy_goes() -> None:
    """The log stays where it was. A copy or a retired log without any log beside it stays for an operator."""
    assert steps([at(A), at(B, FUTURE_SUFFIX, moved_from=None)]) == [(Step.REMOVE, B)]
    assert steps([at(B, FUTURE_SUFFIX)]) == []
    assert steps([at(A, MOVED_SUFFIX)]) == []


def test_decided_move_is_finished() -> None:
    """Before and after the copy has its name, and after the source was retired."""
    to_b, from_a = MoveMark(MOVE_ID, B), MoveMark(MOVE_ID, A)
    finish = [(Step.RETIRE, A), (Step.SETTLE, B)]
    assert steps([at(A, moved_to=to_b), at(B, FUTURE_SUFFIX)]) == [(Step.PLACE, B), *finish]
    assert steps([at(A, moved_to=to_b), at(B, moved_from=from_a)]) == finish
    assert steps([at(A, moved_to=to_b), at(B)]) == [(Step.RETIRE, A)]
    assert steps([at(A, MOVED_SUFFIX), at(B, moved_from=from_a)]) == [(Step.SETTLE, B), (Step.REMOVE, A)]
    assert steps([at(B, moved_from=from_a)]) == [(Step.SETTLE, B)]


def test_mark_of_an_absent_source_is_kept() -> None:
    """Its disk may come back with a log whose mark says that it has moved."""
    assert steps([at(B, moved_from=MoveMark(MOVE_ID, A))], (B, C)) == []


def test_copy_that_is_gone_gives_the_log_back_to_its_source() -> None:
    """The target was emptied or given up; a copy of another move does not count."""
    log = at(A, moved_to=MoveMark(MOVE_ID, B))
    assert steps([log]) == [(Step.REVOKE, A)]
    other = at(B, FUTURE_SUFFIX, move_id=OTHER)
    assert steps([log, other]) == [(Step.REVOKE, A), (Step.REMOVE, B)]


def test_revoked_copy_goes_although_the_log_has_moved_on() -> None:
    """Directory B failed during a move and was given up, then the log moved from A to C, and B comes back with an old copy."""
    old = at(B, moved_from=MoveMark(OTHER, A))
    assert steps([at(A), old]) == [(Step.RETIRE, B)]
    assert steps([at(C), old]) == [(Step.RETIRE, B)]
    new = at(C, moved_from=MoveMark(MOVE_ID, A))
    assert steps([at(A, MOVED_SUFFIX), old, new]) == [(Step.RETIRE, B), (Step.SETTLE, C), (Step.REMOVE, A)]
    decided = at(A, moved_to=MoveMark(MOVE_ID, C))
    assert steps([decided, old, new]) == [(Step.RETIRE, A), (Step.RETIRE, B), (Step.SETTLE, C)]


def test_interrupted_revocation_is_carried_out_by_the_start() -> None:
    """The mark names a copy that does not exist: the mark is removed durably, and the log is used."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 3)
    log.close()
    decide(ground.disk, log.directory, MoveMark(MOVE_ID, B))
    ground.directories.scan()
    ground.disk.crash(Crash.LOSE_ALL, random.Random(0))
    again = Ground(ground.disk)
    assert again.directories.find(NAME) is None
    again.directories.scan()
    assert MOVED_TO_FILE not in ground.disk.list_directory(f"/a/partitions/{NAME}")
    assert again.open(again.a).log_end_offset == 3


def test_directories_are_found_by_id_and_take_over_a_moved_partition() -> None:
    """The broker's table follows the log."""
    ground = Ground()
    ground.open(ground.a).close()
    ground.directories.scan()
    first, second = ground.directories
    assert ground.directories.by_id(B) is second
    assert ground.directories.by_id(C) is None
    ground.directories.relocate(NAME, second)
    assert ground.directories.find(NAME) is second
    ground.directories.relocate("new", first)
    assert ground.directories.find("new") is first
    assert ground.directories.failed_ids == ()
    second.note_failure(DiskFailedError("/b", "gone"))
    assert ground.directories.failed_ids == (B,)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the log lines about some hundred interrupted moves."""
    caplog.set_level(logging.CRITICAL, logger="storage.directory.move_recovery")


def scenario(ground: Ground, told: list[int]) -> None:
    """Move a log beside appends; `told` gets the flushed offset whenever an append is acknowledged."""
    log = ground.open(ground.a)
    fill(log, 9)
    told.append(log.flush())
    source, future = MoveSource(log), ground.future()
    future.create()
    copy_all(source, future)
    future.copy_caches(no_pace)
    fill(log, 8, epoch=1)
    told.append(log.flush())
    moved = switch(ground, log, source, future)
    fill(moved, 2, epoch=1)
    told.append(moved.flush())
    clean_up(ground)
    fill(moved, 2, epoch=2)
    told.append(moved.flush())


def check_after(disk: SimDisk, how: Crash, seed: int, acknowledged: int) -> None:
    disk.crash(how, random.Random(seed))
    ground = Ground(disk)
    ground.directories.scan()
    names = [name for name in ground.names() if not name.endswith(".tmp")]
    if not names and not acknowledged:
        return
    assert len(names) == 1, f"{names}"
    found = ground.directories.find(NAME)
    assert found is not None, names
    log = ground.open(found.move_end)
    assert log.log_end_offset >= acknowledged
    assert read_values(log) == [b"value %d" % offset + bytes(50) for offset in range(log.log_end_offset)]
    left = set(disk.list_directory(log.directory))
    assert not left & {MOVED_TO_FILE, MOVED_FROM_FILE}, left
    fill(log, 1, epoch=9)
    end = log.flush()
    disk.crash(Crash.LOSE_ALL, random.Random(seed))
    again = Ground(disk)
    again.directories.scan()
    assert again.directories.find(NAME) is not None
    assert again.open(again.a if found.path == "/a" else again.b).log_end_offset == end


@pytest.mark.usefixtures("quiet")
def test_crash_before_every_call_leaves_exactly_one_log() -> None:
    """It has every acknowledged record, whatever else survived, and the start leaves nothing of the move."""
    ground = Ground()
    told = [0]
    points: list[tuple[SimDisk, int, SimCall]] = []
    ground.disk.on_call = lambda call: points.append((ground.disk.fork(), told[-1], call))
    scenario(ground, told)
    assert len(points) > 100
    kinds = list(Crash)
    for number, (disk, acknowledged, call) in enumerate(points):
        how = kinds[number // 2 % len(kinds)]
        # The steps of the switch, and unsynced names, matter most, so they are crashed in every way.
        every = call.operation in ("rename", "remove_directory")
        if not every and number % 2:
            continue
        for each in kinds if every else (how,):
            try:
                check_after(disk.fork(), each, number, acknowledged)
            except Exception as error:
                raise AssertionError(f"crash {number} before {call}, {each.name}: {error!r}") from error


@pytest.mark.usefixtures("quiet")
def test_crashes_while_a_start_settles_a_move_are_settled_by_the_next() -> None:
    """The recovery from every point of the switch is crashed before each of its own calls."""
    ground = Ground()
    told = [0]
    points: list[tuple[SimDisk, int]] = []

    def observe(call: SimCall) -> None:
        if call.operation in ("rename", "sync_directory") and (
            "partitions" in call.path[-11:] or "moved" in call.path or "-future" in call.path[-8:]
        ):
            points.append((ground.disk.fork(), told[-1]))

    ground.disk.on_call = observe
    scenario(ground, told)
    assert len(points) >= 8
    for number, (disk, acknowledged) in enumerate(points):
        for how in ((Crash.KEEP_ALL, Crash.TEAR)[number % 2],):
            crashed = disk.fork()
            crashed.crash(how, random.Random(number))
            inner: list[SimDisk] = []
            again = Ground(crashed)
            crashed.on_call = lambda _, crashed=crashed, inner=inner: inner.append(crashed.fork())
            again.directories.scan()
            crashed.on_call = None
            for step, fork in enumerate(inner):
                check_after(fork, list(Crash)[(step + number) % len(Crash)], number, acknowledged)
