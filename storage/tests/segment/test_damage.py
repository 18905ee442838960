# SPDX-License-Identifier: Apache-2.0
"""Damaged bytes: quarantined wherever they are found, and everything around them is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from lograft.wire.batch import RecordBatch

from storage.files.checkpoints import encode_lines, replace_file
from storage.files.disk import SECTOR_BYTES
from storage.testing.builders import ProducerStamp, append, make_batch, open_log, read_all
from storage.testing.sim_disk import Refusal, SimDisk
from storage.tests.support import FIRST, LARGE, LOG, flip, kill, position_of, readable, write_log
from storage.types import DamagedRange


@pytest.mark.parametrize("where", ["payload", "crc", "length", "magic", "base offset", "delta"])
@pytest.mark.parametrize("number", [0, 5, 11])
def test_damage_below_the_flushed_offset_is_kept_apart_and_the_rest_served(
    disk: SimDisk, where: str, number: int
) -> None:
    """A damaged flushed batch is lost for exactly its offset; nothing is truncated, and offsets are not reused."""
    batches = write_log(disk)
    at = {"payload": 70, "crc": 18, "length": 10, "magic": 16, "base offset": 3, "delta": 23}[where]
    flip(disk, FIRST, position_of(batches, number) + at)
    log = open_log(disk, LOG, LARGE).log
    served, lost = readable(log)
    assert served == [offset for offset in range(12) if offset != number]
    assert lost == [(number, number + 1)]
    assert log.log_end_offset == 12
    assert append(log, [b"value-12" * 3]).base_offset == 12
    assert readable(log) == ([*served, 12], lost)
    log.close()
    again = open_log(disk, LOG, LARGE)
    assert again.report.clean
    assert [(damaged.base_offset, damaged.end_offset) for damaged in again.report.damaged] == lost
    assert readable(again.log) == ([*served, 12], lost)


def test_damage_above_the_recovery_point_with_whole_batches_behind_is_not_cut(disk: SimDisk) -> None:
    """Bytes that were written and changed, before good ones, are damage even if they were not flushed."""
    batches = write_log(disk, flush=False)
    flip(disk, FIRST, position_of(batches, 5) + 70)
    opened = open_log(disk, LOG, LARGE)
    assert readable(opened.log) == ([0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11], [(5, 6)])
    assert opened.report.cut_offset is None
    start = position_of(batches, 5)
    assert opened.report.damaged == (
        DamagedRange(
            segment_base_offset=0,
            base_offset=5,
            end_offset=6,
            position=start,
            end_position=start + batches[5].header.size_bytes,
        ),
    )


def test_two_damaged_ranges(disk: SimDisk) -> None:
    """Each range is quarantined alone; neighbours with broken headers join."""
    batches = write_log(disk)
    flip(disk, FIRST, position_of(batches, 2) + 70)
    flip(disk, FIRST, position_of(batches, 7) + 16)
    flip(disk, FIRST, position_of(batches, 8) + 16)
    log = open_log(disk, LOG, LARGE).log
    assert readable(log) == ([0, 1, 3, 4, 5, 6, 9, 10, 11], [(2, 3), (7, 9)])
    assert log.truncate_suffix(8) == 7
    assert readable(log) == ([0, 1, 3, 4, 5, 6], [(2, 3)])
    assert [damaged.base_offset for damaged in log.damaged] == [2]


@pytest.mark.parametrize("at", [2, 9, 11, 16, 24, 75])
@pytest.mark.parametrize("place", [0, 3])
def test_damaged_sealed_segment_is_found_when_it_is_read(disk: SimDisk, at: int, place: int) -> None:
    """A start does not walk segments below the recovery point; the first read finds their damage."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(log, [b"value-%02d" % number * 3])
    log.close()
    second = sorted(name for name in disk.list_directory(LOG) if name.endswith(".log"))[1]
    size_bytes = RecordBatch(disk.read_file(f"{LOG}/{second}")).header.size_bytes
    flip(disk, f"{LOG}/{second}", place * size_bytes + at)
    opened = open_log(disk, LOG)
    assert opened.report.clean
    base_offset = int(second[:20]) + place
    assert opened.report.damaged == ()
    expected = [offset for offset in range(40) if offset != base_offset]
    assert readable(opened.log) == (expected, [(base_offset, base_offset + 1)])
    assert opened.log.find_timestamp(0, end_offset=40) is not None


def test_cut_sealed_segment_loses_its_end_only(disk: SimDisk) -> None:
    """A sealed segment that lost bytes at its end is served up to there, and the whole next one too."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(log, [b"value-%02d" % number * 3], timestamp_ms=number)
    log.close()
    bases = sorted(int(name[:20]) for name in disk.list_directory(LOG) if name.endswith(".log"))
    disk.cut(f"{LOG}/{bases[1]:020d}.log", 300)
    log = open_log(disk, LOG).log
    served, lost = readable(log)
    assert lost == [(bases[1] + 3, bases[2])]
    assert served == [offset for offset in range(40) if not lost[0][0] <= offset < lost[0][1]]
    found = log.find_timestamp(lost[0][0], end_offset=40)
    assert found is not None
    assert found.offset == bases[2]


def test_time_look_up_passes_over_damage(disk: SimDisk) -> None:
    """A batch that cannot be decoded is quarantined, and the search continues behind it."""
    log = open_log(disk, LOG, LARGE).log
    for number in range(6):
        append(log, [b"value-%02d" % number * 3], timestamp_ms=100 + number)
    batches = read_all(log)
    log.close()
    flip(disk, FIRST, position_of(batches, 3) + 70)
    log = open_log(disk, LOG, LARGE).log
    found = log.find_timestamp(103, end_offset=6)
    assert found is not None
    assert found.offset == 4
    assert readable(log) == ([0, 1, 2, 4, 5], [(3, 4)])


def test_damage_that_cannot_be_saved_is_still_reported(disk: SimDisk) -> None:
    """Reads do not depend on writes: without space for the list the range is known in memory."""
    batches = write_log(disk)
    flip(disk, FIRST, position_of(batches, 5) + 70)
    log = open_log(disk, LOG, LARGE).log
    disk.refuse("append", "damaged-ranges", Refusal.FULL)
    assert readable(log)[1] == [(5, 6)]


def test_without_the_first_read_check_damage_is_left_to_the_reader(disk: SimDisk) -> None:
    """The check can be switched off; then the bytes are served as they are."""
    batches = write_log(disk)
    flip(disk, FIRST, position_of(batches, 5) + 70)
    log = open_log(disk, LOG, replace(LARGE, verify_first_read=False)).log
    assert len(log.read(0, 10**6).data) == position_of(batches, 12)
    assert log.damaged == ()


@pytest.mark.parametrize("make_value", [bytes, lambda data: b"\x00" * 5 + bytes(data) + b"\x00" * 9])
def test_batch_stored_as_a_value_is_not_taken_for_one_of_the_log(
    disk: SimDisk, make_value: Callable[[bytearray], bytes]
) -> None:
    """Users may store batches as values. If the outer batch is damaged, the inner one is not served instead."""
    log = open_log(disk, LOG, LARGE).log
    append(log, [b"value-00" * 3])
    inner = make_batch([b"inner"])
    inner[0:8] = (3).to_bytes(8, "big")
    append(log, [make_value(inner)])
    append(log, [b"value-02" * 3])
    append(log, [b"value-03" * 3])
    log.flush()
    batches = read_all(log)
    kill(disk)
    flip(disk, FIRST, position_of(batches, 1) + 16)
    log = open_log(disk, LOG, LARGE).log
    assert readable(log) == ([0, 2, 3], [(1, 2)])


def test_wide_damage_over_many_sectors_is_passed_over(disk: SimDisk) -> None:
    """Damage larger than the search chunk is skipped up to the next whole batch."""
    log = open_log(disk, LOG, replace(LARGE, segment_bytes=2**30)).log
    append(log, [b"value-00" * 3])
    append(log, [b"x" * 3_000_000])
    append(log, [b"value-02" * 3])
    log.flush()
    batches = read_all(log)
    kill(disk)
    disk.corrupt(FIRST, position_of(batches, 1), b"\x55" * (2_500_000 // SECTOR_BYTES * SECTOR_BYTES))
    log = open_log(disk, LOG, LARGE).log
    assert readable(log) == ([0, 2], [(1, 2)])


@pytest.mark.parametrize("at", [2, 9, 16, 75])
@pytest.mark.parametrize("to_offset", [5, 6, 8])
def test_truncation_near_damage_that_nobody_has_seen_yet(disk: SimDisk, at: int, to_offset: int) -> None:
    """The new end is a batch boundary that the log itself shows, and records below it stay the same."""
    batches = write_log(disk)
    log = open_log(disk, LOG, LARGE).log
    log.close()
    flip(disk, FIRST, position_of(batches, 5) + at)
    log = open_log(disk, LOG, LARGE).log
    assert log.truncate_suffix(to_offset) == to_offset
    served, lost = readable(log)
    assert served == [offset for offset in range(to_offset) if offset != 5]
    assert lost == [(5, 6)] * (to_offset > 5)
    append(log, [b"value-%02d" % to_offset * 3])
    log.close()
    assert readable(open_log(disk, LOG, LARGE).log) == ([*served, to_offset], lost)


def test_truncation_into_known_damage_drops_all_of_it(disk: SimDisk) -> None:
    """A range that cannot be divided is dropped as a whole, together with its line in the file."""
    batches = write_log(disk)
    for number in (5, 6, 7):
        flip(disk, FIRST, position_of(batches, number) + 16)
    log = open_log(disk, LOG, LARGE).log
    assert readable(log)[1] == [(5, 8)]
    assert disk.exists(f"{LOG}/damaged-ranges")
    assert log.truncate_suffix(7) == 5
    assert not disk.exists(f"{LOG}/damaged-ranges")
    assert readable(log) == ([0, 1, 2, 3, 4], [])


def test_damage_in_the_way_of_replay_is_passed_over(disk: SimDisk) -> None:
    """Producers and epochs are rebuilt around a damaged batch, each header once."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(
            log,
            [b"value-%02d" % number * 3],
            leader_epoch=number // 10,
            producer=ProducerStamp(producer_id=1, base_sequence=number),
        )
    log.close()
    names = disk.list_directory(LOG)
    for name in names:
        if name.endswith(".snapshot") or name == "leader-epoch-checkpoint":
            disk.remove(f"{LOG}/{name}")
    second = sorted(name for name in names if name.endswith(".log"))[1]
    flip(disk, f"{LOG}/{second}", 16)
    log = open_log(disk, LOG).log
    lost = int(second[:20])
    assert readable(log) == ([n for n in range(40) if n != lost], [(lost, lost + 1)])
    assert all(log.epoch_at(offset) == offset // 10 for offset in range(40) if offset != lost)
    stamp = ProducerStamp(producer_id=1, base_sequence=30)
    assert append(log, [b"value-30" * 3], leader_epoch=3, producer=stamp).base_offset == 30


def test_unreadable_list_of_damage_is_found_again(disk: SimDisk) -> None:
    """The list is a cache: invalid lines are ignored, and a read finds the damage again."""
    batches = write_log(disk)
    flip(disk, FIRST, position_of(batches, 5) + 70)
    log = open_log(disk, LOG, LARGE).log
    expected = readable(log)
    log.close()
    replace_file(disk, f"{LOG}/damaged-ranges", encode_lines(["a b c d e", "1 2"]))
    opened = open_log(disk, LOG, LARGE)
    assert opened.report.damaged == ()
    assert readable(opened.log) == expected


def test_replaced_middle_bytes_of_a_segment_that_is_open(disk: SimDisk) -> None:
    """A segment that lost its end during use raises a typed error, and returns no short data."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(log, [b"value-%02d" % number * 3])
    log.flush()
    batches = read_all(log)
    second = log.segments[1]
    disk.cut(second.path, 300)
    served, lost = readable(log)
    assert lost == [(second.base_offset + 3, second.end_offset)]
    assert len(served) + second.end_offset - second.base_offset - 3 == len(batches)
