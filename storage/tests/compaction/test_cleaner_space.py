# SPDX-License-Identifier: Apache-2.0
"""Compaction checks the space before it writes: without space the log loses its turn, and nothing is written."""

from __future__ import annotations

from storage.compaction.cleaner import FIRST_BACK_OFF_MS, MIN_KEY_MAP_BYTES, Cleaner, CleanerSettings, LogReport
from storage.compaction.owner import LogCompaction
from storage.errors import DiskSpaceLowError
from storage.tests.compaction.support import pairs
from storage.tests.compaction.test_cleaner import World


class Room:
    """A directory with a given number of free bytes."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.asked: list[tuple[str, int]] = []

    def check(self, name: str, size_bytes: int) -> None:
        self.asked.append((name, size_bytes))
        if size_bytes > self.room_bytes:
            raise DiskSpaceLowError("/data", free_bytes=self.room_bytes, needed_bytes=0, size_bytes=size_bytes)


def cleaner_of(world: World, room: Room) -> Cleaner:
    return Cleaner(
        lambda: world.targets,
        settings=CleanerSettings(bytes_per_s=10**9, key_map_bytes=MIN_KEY_MAP_BYTES),
        wall_ms=lambda: world.clock_ms,
        monotonic_ms=lambda: world.clock_ms,
        wait_ms=world.wait,
        check_room=room.check,
    )


def test_log_without_room_backs_off_and_is_compacted_once_there_is_room() -> None:
    """The report names the reserve; no file was started."""
    world, room = World(), Room(10)
    target = world.add("full")
    before = pairs(target.log)
    cleaner = cleaner_of(world, room)
    calls = len(world.disk.calls)
    assert not cleaner.run_once()
    assert len(world.disk.calls) == calls
    report = cleaner.report()["full"]
    assert report.error is not None
    assert "in reserve" in report.error
    assert report.retry_at_ms == world.clock_ms + FIRST_BACK_OFF_MS
    assert pairs(target.log) == before
    room.room_bytes = 10**9
    world.clock_ms += FIRST_BACK_OFF_MS
    assert cleaner.run_once()
    assert cleaner.report()["full"] == LogReport(pass_count=1, read_count=30, kept_count=3)
    assert {name for name, _ in room.asked} == {"full"}


def test_log_that_fits_is_compacted_while_a_larger_one_waits() -> None:
    """Small passes free space although there is little."""
    world = World()
    small, large = world.add("small", 12), world.add("large", 90, segment_bytes=10**6)
    small_bytes, large_bytes = (
        sum(segment.size_bytes for segment in LogCompaction(each.log).facts(10**9).sealed) for each in (small, large)
    )
    assert small_bytes < large_bytes
    cleaner = cleaner_of(world, Room(small_bytes))
    for _ in range(3):
        cleaner.run_once()
    assert len(pairs(small.log)) == 3
    assert len(pairs(large.log)) == 90
