# SPDX-License-Identifier: Apache-2.0
"""Findings of the model since it knows log start, compaction, seals and transactions, reduced to the fewest steps."""

from __future__ import annotations

import random

from storage.log.deleted import DeletedFiles
from storage.testing.crash_points import LARGE, TINY, append
from storage.testing.log_faults import CloseAndOpen, CrashNow
from storage.testing.log_operations import BeginFlush, EndFlush, RunFlush, TruncateSuffix
from storage.testing.log_prefix import TruncatePrefix
from storage.testing.log_world import World
from storage.testing.sim_disk import SimDisk
from storage.testing.sim_tree import Crash

RNG = random.Random(0)


def flush(world: World) -> None:
    for operation in (BeginFlush(), RunFlush(), EndFlush()):
        world.perform(operation, RNG)


def test_tail_without_its_first_segment_is_torn_and_no_damage() -> None:
    """Everything was removed, then segments were filled and not flushed: a crash may lose the name of the first one only.

    Found by the model (seed 4): the first segment began above the log start, and its files counted as lost.
    """
    for seed in range(12):
        world = World(TINY)
        append(world, 2)
        flush(world)
        world.perform(TruncatePrefix(to_offset=2), RNG)
        for _ in range(12):
            append(world, 1, size_bytes=100)
        world.perform(CrashNow(how=Crash.TEAR), random.Random(seed))
        assert not world.log.damaged
        append(world, 1)
        flush(world)
        world.perform(CrashNow(how=Crash.LOSE_ALL), RNG)


def test_file_that_takes_the_name_of_a_deleted_one_has_its_whole_delay() -> None:
    """A segment is compacted, and the replacement is removed soon after: the second file stays as long as the first one.

    Found by the model's check of `.deleted` files: the entry of the first one removed the second one.
    """
    disk = SimDisk()
    disk.make_directory("/data")
    deleted = DeletedFiles(disk)
    for now_ms in (0, 90):
        disk.create_file("/data/0.log").append([b"x"])
        deleted.rename(["/data/0.log"], now_ms=now_ms)
    assert deleted.take_due(now_ms=100, delay_ms=100) is None
    work = deleted.take_due(now_ms=190, delay_ms=100)
    assert work is not None
    assert work.run() == 1
    assert deleted.take_due(now_ms=1_000, delay_ms=100) is None


def test_removed_segment_that_comes_back_makes_no_damage() -> None:
    """Segments were removed, and nothing above the log start was flushed: a crash may bring back an old file alone.

    Found by the model (seed 4): the offsets between it and the next file counted as damage, because they had been
    flushed once.
    """
    for seed in range(30):
        world = World(TINY)
        for _ in range(9):
            append(world, 1, size_bytes=100)
        flush(world)
        world.perform(TruncatePrefix(to_offset=9), RNG)
        for _ in range(9):
            append(world, 1, size_bytes=100)
        world.perform(TruncatePrefix(to_offset=15), RNG)
        world.perform(CrashNow(how=Crash.TEAR), random.Random(seed))
        assert not world.log.damaged


def test_log_start_makes_nothing_flushed_for_the_recovery_point() -> None:
    """A truncation removes a clean mark; its recovery point stays below what a removal only counted as flushed.

    Found by the model (seed 423): the leader epoch of the batch that holds the log start was lost, because everything
    below the recovery point was assumed to be in the checkpoint.
    """
    world = World(LARGE)
    append(world, 1)
    world.perform(CloseAndOpen(clean=True), RNG)
    append(world, 4, epoch=1)
    append(world, 2, epoch=1)
    world.perform(TruncatePrefix(to_offset=3), RNG)
    world.perform(TruncateSuffix(to_offset=5), RNG)
    world.perform(CrashNow(how=Crash.KEEP_ALL), RNG)
    assert (world.log.last_epoch, world.log.log_end_offset) == (1, 5)
