# SPDX-License-Identifier: Apache-2.0
"""Findings of the proofs (model, crash enumeration, corruption), reduced to the fewest steps."""

from __future__ import annotations

import random
from dataclasses import replace

from storage.testing.builders import SMALL, ProducerStamp, append, open_log
from storage.testing.crash_points import TINY
from storage.testing.crash_points import append as append_model
from storage.testing.log_faults import CloseAndOpen, CrashNow
from storage.testing.log_operations import BeginFlush, EndFlush, RunFlush, TruncateSuffix
from storage.testing.log_world import World
from storage.testing.sim_disk import SimDisk
from storage.testing.sim_tree import Crash
from storage.tests.support import FIRST, LARGE, LOG, position_of, readable, write_log

ONE_SEGMENT = replace(SMALL, segment_bytes=10**6)
RNG = random.Random(0)


def flush(world: World) -> None:
    for operation in (BeginFlush(), RunFlush(), EndFlush()):
        world.perform(operation, RNG)


def test_group_in_flight_outlives_two_truncations() -> None:
    """A file of the group is truncated and synced, so that the budget closes it, and then removed: the group skips it."""
    world = World(TINY)
    for _ in range(40):
        append_model(world, 1)
    world.perform(BeginFlush(), RNG)
    world.perform(TruncateSuffix(to_offset=33), RNG)
    world.perform(TruncateSuffix(to_offset=13), RNG)
    world.perform(RunFlush(), RNG)
    world.perform(EndFlush(), RNG)


def test_roll_does_not_close_a_file_of_the_group_in_flight() -> None:
    """A segment truncated to the flushed offset may be closed when many are open, but not while a group syncs it."""
    world = World(TINY)
    append_model(world, 1)
    append_model(world, 1)
    flush(world)
    append_model(world, 1)
    world.perform(BeginFlush(), RNG)
    world.perform(TruncateSuffix(to_offset=1), RNG)
    # Too large for the rest of the segment: the segment stays as it was truncated, and others follow.
    for _ in range(10):
        append_model(world, 1, size_bytes=350)
    world.perform(RunFlush(), RNG)
    world.perform(EndFlush(), RNG)


def test_cut_back_to_the_clean_end_is_on_stable_storage() -> None:
    """Killed between truncating to the size at the clean close and the sync: the log opens, and the tail stays removed."""
    for seed in range(20):
        rng = random.Random(seed)
        world = World(ONE_SEGMENT)
        for _ in range(3):
            append_model(world, 1)
        world.perform(CloseAndOpen(clean=True), rng)
        for _ in range(3):
            append_model(world, 1, size_bytes=5)
        world.perform_with_power_failure(
            TruncateSuffix(to_offset=3), rng, before_call=_calls_before_sync(), how=Crash.KEEP_ALL
        )
        for _ in range(2):
            append_model(world, 1, size_bytes=300)
        world.perform(CrashNow(how=Crash.TEAR), rng)


def _calls_before_sync() -> int:
    """Return the number of disk calls of this truncation before it syncs the log file."""
    world = World(ONE_SEGMENT)
    for _ in range(3):
        append_model(world, 1)
    world.perform(CloseAndOpen(clean=True), RNG)
    for _ in range(3):
        append_model(world, 1, size_bytes=5)
    first = len(world.disk.calls)
    world.perform(TruncateSuffix(to_offset=3), RNG)
    calls = world.disk.calls[first:]
    return max(n for n, call in enumerate(calls) if call.operation == "sync" and call.path.endswith(".log"))


def test_bytes_of_nobody_behind_a_complete_active_segment(disk: SimDisk) -> None:
    """The last batches are in an earlier place: the log is served to its end, and accepts appends."""
    batches = write_log(disk, flush=True)
    content = disk.read_file(FIRST)
    open_log(disk, LOG, LARGE).log.close()
    disk.corrupt(FIRST, position_of(batches, 9) + 20, content[position_of(batches, 10) :])
    disk.corrupt(
        FIRST, position_of(batches, 11) + 20, b"\xff" * (position_of(batches, 12) - position_of(batches, 11) - 20)
    )
    log = open_log(disk, LOG, LARGE).log
    assert readable(log) == ([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11], [(9, 10)])
    append(log, [b"value-12" * 3])


def test_snapshot_of_lost_batches_does_not_outlive_a_clean_open(disk: SimDisk) -> None:
    """A later life rolled, and a power failure kept only its snapshot file, which is removed.

    Otherwise a later recovery would use it and report new records as duplicates.
    """
    settings = replace(SMALL, segment_bytes=400)
    log = open_log(disk, LOG, settings).log
    append(log, [b"a"], producer=ProducerStamp(producer_id=1, base_sequence=0))
    log.close()
    log = open_log(disk, LOG, settings).log
    for number in range(1, 6):
        append(log, [b"lost" * 15], producer=ProducerStamp(producer_id=1, base_sequence=number))
    snapshots = {
        name: disk.read_file(f"{LOG}/{name}") for name in disk.list_directory(LOG) if name.endswith(".snapshot")
    }
    disk.crash(Crash.LOSE_ALL, RNG)
    for name, content in snapshots.items():
        if not disk.exists(f"{LOG}/{name}"):
            file = disk.create_file(f"{LOG}/{name}")
            file.append([content])
            file.sync()
    disk.sync_directory(LOG)
    opened = open_log(disk, LOG, replace(settings, segment_bytes=100_000))
    assert opened.report.clean
    append(opened.log, [b"n"] * 10, producer=ProducerStamp(producer_id=2, base_sequence=0))
    opened.log.flush()
    disk.crash(Crash.KEEP_ALL, RNG)
    log = open_log(disk, LOG, settings).log
    appended = append(log, [b"x"], producer=ProducerStamp(producer_id=1, base_sequence=1))
    assert appended == (11, 12, False)
