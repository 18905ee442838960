# SPDX-License-Identifier: Apache-2.0
"""Repairs of damaged segments with batches of another replica: what is accepted, what is refused, and what is due."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from lograft.wire.errors import CorruptBatchError, InvalidBatchError

from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass
from storage.compaction.plan import find_range
from storage.errors import CorruptLogError, DataLossError, OutOfOrderOffsetError
from storage.files.names import LOG_SUFFIX, offset_file_name
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.maintenance.repair import LogRepair, SegmentRepair
from storage.testing.builders import SMALL, append, make_batch, open_log, read_values

COUNT = 30
"""Batches of one record each, so that offsets are batch numbers."""

BATCH_BYTES = len(make_batch([b"0" * 20]))


class World:
    """A log that is damaged from outside, and a replica that is not."""

    def __init__(self, path: Path) -> None:
        self.disk = PosixDisk()
        self.path = path
        self.directory = f"{path}/log"
        log = open_log(self.disk, self.directory).log
        for number in range(COUNT):
            append(log, [b"%020d" % number], leader_epoch=number // 10, timestamp_ms=1_000 + number)
        log.close(clean=True)
        shutil.copytree(self.directory, f"{path}/other")
        self.other: PartitionLog = open_log(self.disk, f"{path}/other").log
        self.bases = [segment.base_offset for segment in self.other.segments]
        self.values = read_values(self.other)
        self.log: PartitionLog = self.other

    def file(self, offset: int, directory: str = "log") -> Path:
        base = max(each for each in self.bases if each <= offset)
        return self.path / directory / offset_file_name(base, LOG_SUFFIX)

    def hurt(self, *offsets: int) -> None:
        """Change a byte of some batches, and open the log."""
        for offset in offsets:
            path = self.file(offset)
            content = bytearray(path.read_bytes())
            content[(offset - int(path.stem)) * BATCH_BYTES + 70] ^= 0x40
            path.write_bytes(content)
        self.log = open_log(self.disk, self.directory).log
        self.notice(*offsets)

    def notice(self, *offsets: int) -> None:
        for offset in offsets:
            with pytest.raises(DataLossError):
                self.log.read(offset, 1)

    def begin(self, *, high_watermark: int = COUNT, passed_over: tuple[int, ...] = ()) -> SegmentRepair | None:
        owner = LogRepair(self.log)
        task = owner.begin(high_watermark=high_watermark, now_ms=0, passed_over=passed_over)
        return None if task is None else SegmentRepair(self.disk, task, lambda _: None)

    def begun(self) -> SegmentRepair:
        work = self.begin()
        assert work is not None, "nothing is due"
        work.start()
        return work

    def bytes_of(self, first: int, end: int) -> bytes:
        return self.other.read(first, 10**6, end_offset=end).data

    def end(self, work: SegmentRepair) -> bool:
        return LogRepair(self.log).end(work.finish(), found_epochs=work.found_epochs, now_ms=0)

    def repair(self) -> None:
        work = self.begun()
        while (wanted := work.wanted) is not None:
            work.put(self.bytes_of(wanted.start, wanted.stop))
        assert self.end(work)

    def is_whole(self) -> bool:
        """Tell whether the log equals the replica byte for byte, now and after a restart."""
        names = [offset_file_name(base, LOG_SUFFIX) for base in self.bases]
        same = [(self.path / "log" / name).read_bytes() == (self.path / "other" / name).read_bytes() for name in names]
        assert read_values(self.log) == self.values
        assert not self.log.damaged
        self.log.close(clean=False)
        reopened = open_log(self.disk, self.directory)
        assert not reopened.report.damaged
        return all(same) and read_values(reopened.log) == self.values


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    assert len(made.bases) > 2
    return made


def leftovers(world: World) -> list[str]:
    return [name for name in os.listdir(world.directory) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("offsets", [(0,), (3,), (1, 2), (0, 4, 5), (2, 12), (COUNT - 1,)])
def test_repaired_segments_are_those_of_the_replica(world: World, offsets: tuple[int, ...]) -> None:
    """First, middle and last batches, several ranges, several segments, the active one: byte for byte as before."""
    world.hurt(*offsets)
    for _ in {world.file(offset) for offset in offsets}:
        world.repair()
    assert world.begin() is None
    assert world.is_whole()


def test_ranges_come_in_any_number_of_pieces(world: World) -> None:
    """One batch at a time; `wanted` names the next ones."""
    world.hurt(1, 2, 3, 5)
    work = world.begun()
    asked: list[range | None] = []
    for offset in (1, 2, 3, 5):
        asked.append(work.wanted)
        work.put(world.bytes_of(offset, offset + 1))
    assert asked == [range(1, 4), range(2, 4), range(3, 4), range(5, 6)]
    assert world.end(work)
    assert world.is_whole()


@pytest.mark.parametrize("size_bytes", [0, BATCH_BYTES + 7, 3 * BATCH_BYTES])
def test_bytes_that_are_missing_come_back(world: World, size_bytes: int) -> None:
    """The file of a sealed segment was truncated, or emptied."""
    path = world.file(0)
    with path.open("r+b") as file:
        file.truncate(size_bytes)
    world.log = open_log(world.disk, world.directory).log
    world.notice(size_bytes // BATCH_BYTES)
    world.repair()
    assert world.is_whole()


def test_segment_whose_file_is_gone_comes_back(world: World) -> None:
    """The first segment file was removed; an empty one replaces it until the repair."""
    world.file(0).unlink()
    world.log = open_log(world.disk, world.directory).log
    assert world.log.damaged
    world.repair()
    assert world.is_whole()


def test_what_is_refused_changes_nothing(world: World) -> None:
    """Damaged, misplaced, too long, of another history, or nothing: the right batches are accepted afterwards."""
    world.hurt(3)
    work = world.begun()
    right = world.bytes_of(3, 4)
    damaged = bytearray(right)
    damaged[-1] ^= 1
    other_epoch = bytearray(right)
    other_epoch[12:16] = (7).to_bytes(4, "big")
    refused = {
        bytes(damaged): CorruptBatchError,
        right[:-1]: CorruptBatchError,
        world.bytes_of(2, 3): OutOfOrderOffsetError,
        world.bytes_of(4, 5): OutOfOrderOffsetError,
        world.bytes_of(3, 5): InvalidBatchError,
        bytes(other_epoch): OutOfOrderOffsetError,
        b"": InvalidBatchError,
    }
    for batches, error in refused.items():
        with pytest.raises(error):
            work.put(batches)
        assert work.wanted == range(3, 4)
    work.put(right)
    assert world.end(work)
    assert world.is_whole()


def test_what_is_not_committed_is_not_due(world: World) -> None:
    """Damage that reaches above the high watermark may still be truncated."""
    world.hurt(3)
    assert world.begin(high_watermark=3) is None
    assert world.begin(high_watermark=4) is not None


def test_segments_can_be_passed_over(world: World) -> None:
    """A segment that no replica has does not delay the next one."""
    world.hurt(3, 12)
    first = world.begin()
    assert first is not None
    assert first.task.segment.base_offset == 0
    second = world.begin(passed_over=(0,))
    assert second is not None
    assert second.task.damaged[0].base_offset == 12
    assert world.begin(passed_over=tuple(world.bases)) is None


def test_damage_below_the_log_start_is_not_due(world: World) -> None:
    """Other replicas may have removed it; it is removed with its segment."""
    world.hurt(3)
    world.log.truncate_prefix(4, 0)
    assert not world.log.damaged
    assert world.begin() is None


def test_segment_that_is_appended_to_is_due_once_it_is_flushed(world: World) -> None:
    """It is rolled; its appends since the last flush must reach the disk first."""
    world.hurt(COUNT - 2)
    append(world.log, [b"tail"], leader_epoch=2)
    assert world.begin() is None
    assert world.log.segment_count == len(world.bases) + 1
    world.log.flush()
    work = world.begun()
    wanted = work.wanted
    assert wanted is not None
    work.put(world.bytes_of(wanted.start, wanted.stop))
    assert world.end(work)
    assert read_values(world.log) == [*world.values, b"tail"]


def test_compacted_range_is_not_due(world: World) -> None:
    """A batch of another replica may lack a tombstone whose record is still here."""
    world.hurt()
    world.log.apply_settings(replace(SMALL, compact=True, min_cleanable_dirty_ratio=0.0))
    rules = LogCompaction(world.log).rules
    assert rules is not None
    chosen = find_range(LogCompaction(world.log).facts(COUNT), rules, 10**9)
    assert chosen is not None
    found = CompactionPass(
        world.disk, LogCompaction(world.log).begin(chosen, now_ms=10**9, max_keys=10**6), lambda _: None
    )
    found.build()
    for group in found.groups():
        assert found.clean(group) is None, "records without a key stay"
    LogCompaction(world.log).end(found.outcome())
    world.log.close(clean=True)
    world.hurt(3, COUNT - 1)
    work = world.begin()
    assert work is not None
    assert work.task.damaged[0].base_offset == COUNT - 1


def test_segment_that_changed_meanwhile_stays(world: World) -> None:
    """More damage is found during the rewrite: nothing is swapped, and the next repair covers all of it."""
    world.hurt(3)
    work = world.begun()
    work.put(world.bytes_of(3, 4))
    path = world.file(0)
    content = bytearray(path.read_bytes())
    content[5 * BATCH_BYTES + 70] ^= 1
    path.write_bytes(content)
    world.log.segments.holding(0).unverified_bytes = 10**6
    world.log.segments.holding(0)._verified = range(0)
    world.log._reader.forget_all()
    world.notice(5)
    assert not world.end(work)
    assert not leftovers(world)
    world.repair()
    assert world.is_whole()


def test_more_damage_than_was_known_ends_the_repair(world: World) -> None:
    """The copy is verified: a second bad batch is not copied."""
    world.hurt(3)
    path = world.file(0)
    content = bytearray(path.read_bytes())
    content[5 * BATCH_BYTES + 70] ^= 1
    path.write_bytes(content)
    work = world.begun()
    with pytest.raises(CorruptLogError, match="offset 5"):
        work.put(world.bytes_of(3, 4))
    work.discard()
    assert not leftovers(world)


def test_log_that_began_anew_takes_no_repair(world: World) -> None:
    """The restarted log has no damage."""
    world.hurt(3)
    work = world.begun()
    work.put(world.bytes_of(3, 4))
    world.log.restart_at(COUNT)
    assert not world.end(work)
    assert not leftovers(world)
    append(world.log, [b"new"], leader_epoch=2)
    assert read_values(world.log) == [b"new"]
