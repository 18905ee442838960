# SPDX-License-Identifier: Apache-2.0
"""Space of a log directory: states with hysteresis, the ballast, and who may write."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from storage.directory.ballast import PIECE_BYTES, Ballast
from storage.directory.space import DEFAULT_SOFT_BYTES, BallastMove, SpaceLimits, SpaceState, SpaceWatch
from storage.directory.space_guard import LOOK_INTERVAL_MS, SpaceGuard, make_room
from storage.errors import DiskAccessError, DiskFailedError, DiskSpaceLowError
from storage.testing.sim_disk import Refusal, SimDisk

FREE, TIGHT, FULL = SpaceState.FREE, SpaceState.TIGHT, SpaceState.FULL
LIMITS = SpaceLimits(soft_bytes=800, hard_bytes=160, ballast_bytes=40)


def states_of(watch: SpaceWatch, *free_bytes: int) -> list[SpaceState]:
    states: list[SpaceState] = []
    for free in free_bytes:
        watch.note_free(free)
        states.append(watch.state)
    return states


def test_limits_bound_the_states_with_an_eighth_of_hysteresis() -> None:
    """Each limit is exclusive on the way down; the directory leaves the state an eighth above it (inclusive)."""
    watch = SpaceWatch(LIMITS, has_ballast=True)
    assert watch.state is FREE
    assert states_of(watch, 800, 799, 800, 899, 900) == [FREE, TIGHT, TIGHT, TIGHT, FREE]
    assert states_of(watch, 160, 159, 160, 179, 180, 899, 900) == [TIGHT, FULL, FULL, FULL, TIGHT, TIGHT, FREE]
    assert states_of(watch, 0, 900) == [FULL, FREE]


def test_ballast_counts_as_used_whether_it_is_there_or_not() -> None:
    """Removing it leaves a full directory full, although more bytes are free now."""
    watch = SpaceWatch(LIMITS, has_ballast=True)
    assert states_of(watch, 500) == [TIGHT]
    assert watch.ballast_move() is BallastMove.NONE
    assert states_of(watch, 150) == [FULL]
    assert watch.ballast_move() is BallastMove.GIVE_BACK
    watch.has_ballast = False
    assert watch.ballast_move() is BallastMove.NONE
    assert states_of(watch, 150 + 40, 179 + 40, 180 + 40) == [FULL, FULL, TIGHT]
    assert watch.ballast_move() is BallastMove.NONE
    assert states_of(watch, 900 + 40) == [FREE]
    assert watch.ballast_move() is BallastMove.TAKE
    watch.has_ballast = True
    assert states_of(watch, 900) == [FREE]
    assert watch.ballast_move() is BallastMove.NONE


def test_limits_are_derived_from_one_number() -> None:
    """The default keeps 256 MiB; 0 switches everything off."""
    assert SpaceLimits.from_soft().soft_bytes == DEFAULT_SOFT_BYTES
    assert SpaceLimits.from_soft(1_600) == SpaceLimits(soft_bytes=1_600, hard_bytes=400, ballast_bytes=100)
    off = SpaceWatch(SpaceLimits.from_soft(0), has_ballast=False)
    assert states_of(off, 0) == [FREE]
    assert off.ballast_move() is BallastMove.NONE
    for soft_bytes, hard_bytes, ballast_bytes in ((1, 2, 0), (1, -1, 0), (1, 1, -1)):
        with pytest.raises(AssertionError):
            SpaceLimits(soft_bytes=soft_bytes, hard_bytes=hard_bytes, ballast_bytes=ballast_bytes)


class MeasuredDisk(SimDisk):
    """A simulated disk with a given number of free bytes, or no answer, and a count of the questions."""

    def __init__(self, *, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self.make_directory("/data")
        self.questions = 0
        self.is_mute = False

    def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        self.questions += 1
        if self.is_mute:
            raise DiskAccessError(path, "statvfs refused")
        return super().free_bytes(path)

    def fill_to(self, free_bytes: int) -> None:
        """Add a file that takes all but `free_bytes`."""
        if self.exists("/data/other"):
            self.remove("/data/other")
        file = self.create_file("/data/other")
        file.append([bytes(super().free_bytes("/data") - free_bytes)])
        file.close()


def test_ballast_is_written_whole_and_given_back() -> None:
    """It takes its full size on the disk, in bytes that do not repeat; a second `take` changes nothing."""
    disk = MeasuredDisk(capacity_bytes=10 * PIECE_BYTES)
    ballast = Ballast(disk, "/data/ballast", 2 * PIECE_BYTES + 5)
    assert not ballast.is_there()
    assert ballast.take()
    assert ballast.is_there()
    assert ballast.take()
    content = disk.read_file("/data/ballast")
    assert len(content) == ballast.size_bytes == disk.used_bytes()
    assert content[:64] not in content[64:]
    assert disk.list_directory("/data") == ["ballast"]
    ballast.give_back()
    assert (ballast.is_there(), disk.used_bytes()) == (False, 0)
    disk.calls.clear()
    ballast.give_back()
    assert not [call for call in disk.calls if call.operation == "sync_directory"]


def test_ballast_without_room_leaves_nothing() -> None:
    """A partial one would hold space for ever; the rest of an interrupted one is removed too."""
    disk = MeasuredDisk(capacity_bytes=PIECE_BYTES + 5)
    ballast = Ballast(disk, "/data/ballast", 2 * PIECE_BYTES)
    assert not ballast.take()
    assert disk.list_directory("/data") == []
    disk.create_file("/data/ballast.tmp").close()
    ballast.give_back()
    assert disk.list_directory("/data") == []
    disk.refuse("append", "ballast", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        ballast.take()


def test_ballast_that_the_quorum_released_is_written_again() -> None:
    """The disk may have room again before the guard looks. It sees that the ballast is gone, and writes it."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    guard = SpaceGuard(disk, "/data", LIMITS)
    assert guard.tend(0) is BallastMove.TAKE
    disk.remove("/data/ballast")
    assert guard.tend(1) is BallastMove.TAKE
    assert disk.size_bytes("/data/ballast") == LIMITS.ballast_bytes


def test_tight_directory_refuses_clients_and_a_full_one_everybody() -> None:
    """The error is typed, says what to do, and its code tells a client to try again."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    guard = SpaceGuard(disk, "/data", LIMITS)
    assert guard.free_bytes is None
    guard.admit(1, now_ms=0)
    disk.fill_to(700)
    guard.admit(1, now_ms=LOOK_INTERVAL_MS - 1)
    with pytest.raises(DiskSpaceLowError, match="delete records or topics, shorten their retention") as caught:
        guard.admit(1, now_ms=LOOK_INTERVAL_MS)
    assert (caught.value.free_bytes, caught.value.needed_bytes) == (700, 800)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert caught.value.code.retriable
    guard.admit(1, now_ms=LOOK_INTERVAL_MS, is_client=False)
    disk.fill_to(100)
    with pytest.raises(DiskSpaceLowError):
        guard.admit(1, now_ms=2 * LOOK_INTERVAL_MS, is_client=False)
    assert (guard.state, guard.free_bytes) == (FULL, 100)
    disk.fill_to(5_000)
    guard.admit(1, now_ms=3 * LOOK_INTERVAL_MS)
    assert guard.state is FREE


def test_disk_is_asked_at_a_bounded_rate() -> None:
    """The disk is asked once a second while little is written, and at once after a sixteenth of the soft limit."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    guard = SpaceGuard(disk, "/data", LIMITS)
    for _ in range(40):
        guard.admit(1, now_ms=5)
    assert disk.questions == 1
    guard.admit(11, now_ms=5)
    assert disk.questions == 2
    guard.admit(49, now_ms=5)
    assert disk.questions == 2
    guard.admit(1, now_ms=5)
    assert disk.questions == 3


def test_mute_disk_changes_nothing() -> None:
    """If a disk does not report its free space, the last number counts."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    guard = SpaceGuard(disk, "/data", LIMITS)
    disk.fill_to(10)
    disk.is_mute = True
    guard.admit(1, now_ms=0)
    disk.is_mute = False
    assert guard.look(0) is FULL
    disk.is_mute = True
    assert guard.look(1) is FULL


def test_guard_holds_the_ballast_and_gives_it_back_when_full() -> None:
    """A full directory gets space for its checkpoints; the ballast is written again once there is plenty."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    guard = SpaceGuard(disk, "/data", LIMITS)
    assert guard.tend(0) is BallastMove.TAKE
    assert guard.tend(0) is BallastMove.NONE
    assert disk.exists("/data/ballast")
    disk.fill_to(100)
    assert guard.tend(0) is BallastMove.GIVE_BACK
    assert SimDisk.free_bytes(disk, "/data") == 140
    assert guard.tend(0) is BallastMove.NONE
    assert guard.state is FULL
    disk.fill_to(5_000)
    assert guard.tend(0) is BallastMove.TAKE
    assert SpaceGuard(disk, "/data", LIMITS).tend(0) is BallastMove.NONE


def test_start_on_a_full_disk_has_the_room_of_the_ballast() -> None:
    """The ballast is removed before anything is written, once, and in a full directory only."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    SpaceGuard(disk, "/data", LIMITS).tend(0)
    assert not make_room(disk, "/data", LIMITS)
    disk.fill_to(500)
    assert not make_room(disk, "/data", LIMITS)
    assert disk.exists("/data/ballast")
    disk.fill_to(0)
    assert make_room(disk, "/data", LIMITS)
    assert SimDisk.free_bytes(disk, "/data") == LIMITS.ballast_bytes
    assert not make_room(disk, "/data", LIMITS)


def test_ballast_that_finds_no_room_is_tried_again() -> None:
    """Another process took the space between the measurement and the write."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    guard = SpaceGuard(disk, "/data", LIMITS)
    disk.refuse("append", "ballast", Refusal.FULL)
    assert guard.tend(0) is BallastMove.TAKE
    assert not disk.exists("/data/ballast")
    assert guard.tend(0) is BallastMove.TAKE
    assert disk.exists("/data/ballast")


def test_work_that_nobody_waits_for_asks_for_room_first() -> None:
    """A move leaves the directory free. Compaction, which frees space later, may use the space between the limits."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    guard = SpaceGuard(disk, "/data", LIMITS)
    hard_bytes = LIMITS.hard_bytes
    spare_bytes = 1_000 - LIMITS.ballast_bytes
    disk.fill_to(1_000)
    guard.check_room(spare_bytes - 800, now_ms=0)
    with pytest.raises(DiskSpaceLowError, match="201 bytes were not begun to be written") as caught:
        guard.check_room(201, now_ms=0)
    assert (caught.value.free_bytes, caught.value.needed_bytes, caught.value.size_bytes) == (1_000, 800, 201)
    guard.check_room(spare_bytes - hard_bytes, now_ms=0, is_freeing=True)
    with pytest.raises(DiskSpaceLowError):
        guard.check_room(spare_bytes - hard_bytes + 1, now_ms=0, is_freeing=True)
    disk.fill_to(700)
    with pytest.raises(DiskSpaceLowError):
        guard.check_room(0, now_ms=0)
    guard.check_room(100, now_ms=0, is_freeing=True)
    disk.fill_to(hard_bytes - 1)
    with pytest.raises(DiskSpaceLowError):
        guard.check_room(0, now_ms=0, is_freeing=True)


def test_disk_that_does_not_tell_bars_nobody() -> None:
    """Before the first answer nothing is refused."""
    disk = MeasuredDisk(capacity_bytes=10_000)
    disk.is_mute = True
    SpaceGuard(disk, "/data", LIMITS).check_room(10**9, now_ms=0)
