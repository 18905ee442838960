# SPDX-License-Identifier: Apache-2.0
"""Leader epochs that begin in damage: the log learns their starts from the repaired batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import DiskFullError, OutOfOrderOffsetError
from storage.files.names import EPOCH_FILE
from storage.files.posix import PosixDisk
from storage.log.epochs import EpochStart, LeaderEpochs
from storage.log.partition_log import PartitionLog
from storage.maintenance.repair import LogRepair, SegmentRepair
from storage.segment.damage import DamagedRanges
from storage.testing.builders import append, open_log, read_values
from storage.testing.sim_disk import SimDisk
from storage.tests.maintenance.test_repair import BATCH_BYTES, COUNT, World
from storage.types import DamagedRange

MAGIC_AT = 16


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A log with epochs 0, 1 and 2 of ten batches each."""
    return World(tmp_path)


def hurt(world: World, *offsets: int) -> None:
    """Damage the headers of some batches, lose the epoch checkpoint, and open the log."""
    for offset in offsets:
        path = world.file(offset)
        content = bytearray(path.read_bytes())
        content[(offset - int(path.stem)) * BATCH_BYTES + MAGIC_AT] ^= 0x40
        path.write_bytes(content)
    (world.path / "log" / EPOCH_FILE).unlink()
    world.log = open_log(world.disk, world.directory).log


def ends(log: PartitionLog) -> list[int]:
    found = [log.end_offset_for_epoch(epoch) for epoch in range(3)]
    return [end.end_offset for end in found if end is not None]


@pytest.mark.parametrize(
    ("offsets", "wrong_ends", "hidden"),
    [
        ((10,), [11, 20, 30], [10, None, None]),
        ((9, 10, 11), [12, 20, 30], [9, None, None]),
        ((9,), [10, 20, 30], [9, None, None]),
        ((10, 20), [11, 21, 30], [10, 20, None]),
        (tuple(range(8, 25)), [25, 25, 30], [8, 8, None]),
        ((12,), [10, 20, 30], [None, None, None]),
    ],
)
def test_epochs_that_begin_in_damage_are_found_again(
    world: World, offsets: tuple[int, ...], wrong_ends: list[int], hidden: list[int | None]
) -> None:
    """Also an epoch that was wholly in the damage, and damage that continues in the next segment; also after a restart."""
    hurt(world, *offsets)
    assert ends(world.log) == wrong_ends
    assert [world.log.hidden_from(end) for end in wrong_ends] == hidden
    while world.log.damaged:
        world.repair()
    assert ends(world.log) == [10, 20, 30]
    assert [world.log.hidden_from(end) for end in ends(world.log)] == [None] * 3
    assert world.is_whole()
    reopened = open_log(world.disk, world.directory).log
    assert ends(reopened) == [10, 20, 30]


@pytest.mark.parametrize("count", [1, 3, 12, 25])
def test_epochs_of_the_first_batches_are_found_again(world: World, count: int) -> None:
    """Nothing is known of epochs that begin in damage at the log start, and followers get records with their epochs."""
    hurt(world, *range(count))
    assert world.log.epoch_at(0) is None
    while world.log.damaged:
        world.repair()
    expected = [offset // 10 for offset in range(30)]
    assert [world.log.epoch_at(offset) for offset in range(30)] == expected
    assert world.is_whole()
    reopened = open_log(world.disk, world.directory).log
    assert [reopened.epoch_at(offset) for offset in range(30)] == expected


def test_epochs_that_cannot_have_been_there_are_refused(world: World) -> None:
    """An epoch above the one behind the damage, or below one that was repaired before it; nothing changes."""
    hurt(world, *range(18, 22))
    work = world.begun()
    right = world.bytes_of(18, 22)
    for epoch in (0, 3):
        with pytest.raises(OutOfOrderOffsetError):
            work.put(of_epoch(right[:BATCH_BYTES], epoch))
    work.put(right[: 3 * BATCH_BYTES])
    with pytest.raises(OutOfOrderOffsetError):
        work.put(of_epoch(right[3 * BATCH_BYTES :], 1))
    assert work.wanted == range(21, 22)
    work.put(right[3 * BATCH_BYTES :])
    assert work.found_epochs == ((2, 20),)
    assert end(world.log, work)
    assert ends(world.log) == [10, 20, 30]


def test_epoch_that_is_known_between_two_ranges_bounds_the_first(world: World) -> None:
    """The ranges touch in the middle of epoch 1, and epoch 2 begins behind both: it cannot begin before epoch 1 ends."""
    hurt(world, *range(9, 20))
    world.log._epochs = LeaderEpochs([EpochStart(0, 0), EpochStart(1, 11), EpochStart(2, 20)])
    work = world.begun()
    right = world.bytes_of(9, 11)
    with pytest.raises(OutOfOrderOffsetError):
        work.put(of_epoch(right[:BATCH_BYTES], 2))
    work.put(right)
    assert work.found_epochs == ((1, 10),)
    assert end(world.log, work)
    world.repair()
    assert ends(world.log) == [10, 20, 30]


def of_epoch(batch: bytes, leader_epoch: int) -> bytes:
    changed = bytearray(batch)
    changed[12:16] = leader_epoch.to_bytes(4, "big")
    return bytes(changed)


def test_flush_under_way_could_save_the_epochs_of_before(world: World) -> None:
    """Then nothing is done; after the flush the same repair succeeds."""
    hurt(world, 10)
    work = world.begun()
    work.put(world.bytes_of(10, 11))
    append(world.log, [b"more"], leader_epoch=2)
    flush = world.log.begin_flush()
    assert flush is not None
    cleaned = work.finish()
    assert not LogRepair(world.log).end(cleaned, found_epochs=work.found_epochs, now_ms=0)
    assert ends(world.log)[0] == 11
    flush.run()
    world.log.end_flush(flush)
    assert LogRepair(world.log).end(cleaned, found_epochs=work.found_epochs, now_ms=0)
    assert ends(world.log)[0] == 10
    assert read_values(world.log)[:COUNT] == world.values


def test_range_that_was_cut_off_meanwhile_teaches_nothing(world: World) -> None:
    """The epoch that began in it may begin elsewhere now."""
    hurt(world, 10)
    work = world.begun()
    work.put(world.bytes_of(10, 11))
    world.log.truncate_suffix(10)
    append(world.log, [b"other"], leader_epoch=3)
    assert not end(world.log, work)
    assert ends(world.log) == [10, 10, 10]


def end(log: PartitionLog, work: SegmentRepair) -> bool:
    return LogRepair(log).end(work.finish(), found_epochs=work.found_epochs, now_ms=0)


def test_epochs_are_saved_before_the_damage_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between leaves a log that knows the epochs, and damage that is repaired like any other."""
    hurt(world, 10)
    work = world.begun()
    work.put(world.bytes_of(10, 11))
    cleaned = work.finish()
    rename = PosixDisk.rename

    def refuse(disk: PosixDisk, source: str, target: str) -> None:
        if target.endswith(EPOCH_FILE):
            return rename(disk, source, target)
        raise DiskFullError(source, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(PosixDisk, "rename", refuse)
        with pytest.raises(DiskFullError):
            LogRepair(world.log).end(cleaned, found_epochs=work.found_epochs, now_ms=0)
    world.log.close(clean=False)
    world.log = open_log(world.disk, world.directory).log
    assert [each.base_offset for each in world.log.damaged] == [10]
    assert ends(world.log) == [10, 20, 30]
    world.repair()
    assert world.is_whole()


@pytest.mark.parametrize(
    ("offset", "base", "end"), [(0, None, 0), (3, None, 9), (5, 3, 9), (9, 3, 9), (12, None, 15), (15, 12, 15)]
)
def test_ranges_that_touch_are_one_run(offset: int, base: int | None, end: int) -> None:
    """The start of the damage that ends at an offset, and the end of the damage that begins there."""
    ranges = DamagedRanges(SimDisk(), "/log")
    for first, behind in ((3, 5), (5, 9), (12, 15)):
        ranges.add(
            DamagedRange(
                segment_base_offset=0, base_offset=first, end_offset=behind, position=first, end_position=behind
            )
        )
    assert ranges.run_base(offset) == base
    assert ranges.run_end(offset) == end
