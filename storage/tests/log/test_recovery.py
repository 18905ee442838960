# SPDX-License-Identifier: Apache-2.0
"""Openings after a crash: torn tails, missing files and caches, and which segments are walked.

Also: what an open log refuses after its file or its disk has changed.
"""

from __future__ import annotations

import random

import pytest

from storage.errors import CorruptLogError, DiskFailedError, OffsetOutOfRangeError
from storage.testing.builders import append, open_log, read_all, read_values
from storage.testing.sim_disk import Crash, Refusal, SimDisk
from storage.tests.support import FIRST, LARGE, LOG, flip, kill, position_of, readable, write_log


@pytest.mark.parametrize("cut_bytes", [1, 40, 61, 90, 120])
def test_torn_tail_is_cut(disk: SimDisk, cut_bytes: int) -> None:
    """Above the recovery point an incomplete last batch is a torn tail: the log ends before it."""
    batches = write_log(disk, flush=False)
    disk.cut(FIRST, position_of(batches, 12) - cut_bytes)
    opened = open_log(disk, LOG, LARGE)
    assert readable(opened.log) == (list(range(12 - (1 if cut_bytes <= 100 else 2))), [])
    assert opened.report.cut_offset == opened.log.log_end_offset
    assert opened.report.undecidable_bytes == 0
    assert append(opened.log, [b"next"]).base_offset == opened.log.log_end_offset - 1


def test_damaged_last_batch_above_the_recovery_point_is_a_torn_tail(disk: SimDisk) -> None:
    """No whole batch follows. It was never acknowledged as flushed, and is truncated."""
    batches = write_log(disk, flush=False)
    flip(disk, FIRST, position_of(batches, 11) + 70)
    opened = open_log(disk, LOG, LARGE)
    assert readable(opened.log) == (list(range(11)), [])
    assert opened.report.cut_bytes == batches[11].header.size_bytes


def test_garbage_and_zeros_behind_the_end_are_cut(disk: SimDisk) -> None:
    """Bytes behind the last batch that are not a batch are removed before any append."""
    for garbage in (bytes(1_000), random.Random(5).randbytes(1_000), b"\x10" * 3):
        directory = f"/data/{garbage[:1].hex()}{len(garbage)}"
        log = open_log(disk, directory, LARGE).log
        append(log, [b"a"])
        log.flush()
        log.close(clean=False)
        disk.open_file(f"{directory}/{0:020d}.log").append([garbage])
        opened = open_log(disk, directory, LARGE)
        assert opened.report.cut_bytes == len(garbage)
        append(opened.log, [b"b"])
        opened.log.close(clean=False)
        assert read_values(open_log(disk, directory, LARGE).log) == [b"a", b"b"]


@pytest.mark.parametrize("left", [0, 5])
def test_missing_end_below_the_flushed_offset_keeps_its_offsets(disk: SimDisk, left: int) -> None:
    """A file that lost flushed bytes at its end is reported, and the log continues behind the lost offsets."""
    batches = write_log(disk)
    disk.cut(FIRST, position_of(batches, left))
    opened = open_log(disk, LOG, LARGE)
    assert readable(opened.log) == (list(range(left)), [(left, 12)])
    assert opened.log.segment_count == 2
    append(opened.log, [b"value-12" * 3])
    opened.log.flush()
    kill(disk)
    again = open_log(disk, LOG, LARGE)
    assert readable(again.log) == ([*range(left), 12], [(left, 12)])


@pytest.mark.parametrize("flush", [True, False])
def test_lost_recovery_point_checks_everything(disk: SimDisk, flush: bool) -> None:
    """Without it everything is verified; a torn tail of the last segment is truncated, and nothing below it is."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(log, [b"value-%02d" % number * 3])
    if flush:
        log.flush()
    batches = read_all(log)
    kill(disk)
    disk.corrupt(f"{LOG}/recovery-point", 0, bytes(1_024))
    bases = sorted(int(name[:20]) for name in disk.list_directory(LOG) if name.endswith(".log"))
    flip(disk, f"{LOG}/{bases[1]:020d}.log", 75)
    last = f"{LOG}/{bases[-1]:020d}.log"
    disk.cut(last, disk.size_bytes(last) - 1)
    opened = open_log(disk, LOG)
    assert opened.report.recovery_point is None
    assert opened.report.scanned_from_offset == 0
    assert len(opened.report.rebuilt_segments) == len(bases)
    assert readable(opened.log) == ([n for n in range(39) if n != bases[1]], [(bases[1], bases[1] + 1)])
    assert len(batches) == 40


@pytest.mark.parametrize("torn_bytes", [0, 10])
def test_segment_that_accepts_appends_again_loses_its_indexes(disk: SimDisk, torn_bytes: int) -> None:
    """They describe a longer segment. It may get that size and end again, with other batches; no crash may bring them back then."""
    log = open_log(disk, LOG).log
    while log.segment_count == 1:
        append(log, [b"x" * 300])
    first = log.segments[0]
    caches = [path.removeprefix(f"{LOG}/") for path in first.file_names() if not path.endswith(".log")]
    end_offset, size_bytes = first.end_offset, first.size_bytes
    kill(disk)
    disk.remove(f"{LOG}/{end_offset:020d}.log")
    disk.cut(FIRST, size_bytes // end_offset + torn_bytes)
    assert set(caches) & set(disk.list_directory(LOG))
    disk.sync_directory(LOG)
    assert open_log(disk, LOG).log.log_end_offset == 1
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    assert not set(caches) & set(disk.list_directory(LOG))


def test_lost_segment_files_are_refused(disk: SimDisk) -> None:
    """A flushed log without any segment does not count as a new one."""
    write_log(disk)
    disk.remove(FIRST)
    with pytest.raises(CorruptLogError, match="flushed up to 12"):
        open_log(disk, LOG, LARGE)


def test_lost_middle_segment_is_reported_for_its_range(disk: SimDisk) -> None:
    """A missing sealed segment loses exactly its offsets."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(log, [b"value-%02d" % number * 3])
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    kill(disk)
    disk.remove(f"{LOG}/{bases[1]:020d}.log")
    served, lost = readable(open_log(disk, LOG).log)
    assert lost == [(bases[1], bases[2])]
    assert served == [offset for offset in range(40) if not bases[1] <= offset < bases[2]]


def test_overlapping_segments_are_refused(disk: SimDisk) -> None:
    """No crash makes two segments overlap: the log is not opened, and its files are closed."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(log, [b"value-%02d" % number * 3])
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    kill(disk)
    disk.rename(f"{LOG}/{bases[-1]:020d}.log", f"{LOG}/{bases[-1] - 1:020d}.log")
    disk.corrupt(f"{LOG}/recovery-point", 0, bytes(1_024))
    with pytest.raises(CorruptLogError, match="reaches to"):
        open_log(disk, LOG)


def test_lost_epoch_checkpoint_is_rebuilt_from_headers(disk: SimDisk) -> None:
    """Leader epochs are in the batches: after a clean or unclean close, in old segments or in the last one."""
    for clean in (True, False):
        directory = f"/data/{clean}"
        log = open_log(disk, directory).log
        for number in range(40):
            append(log, [b"x" * 30], leader_epoch=number // 9)
        log.flush()
        log.close(clean=clean)
        disk.remove(f"{directory}/leader-epoch-checkpoint")
        log = open_log(disk, directory).log
        assert [log.epoch_at(offset) for offset in range(40)] == [number // 9 for number in range(40)]


def test_epoch_damage_outside_the_crc_does_not_stop_recovery(disk: SimDisk) -> None:
    """A leader epoch that goes back (no CRC covers it) is ignored; the batch is served."""
    log = open_log(disk, LOG, LARGE).log
    for number in range(6):
        append(log, [b"value-%02d" % number * 3], leader_epoch=3)
    batches = read_all(log)
    kill(disk)
    disk.corrupt(FIRST, position_of(batches, 4) + 12, (1).to_bytes(4, "big"))
    log = open_log(disk, LOG, LARGE).log
    assert readable(log) == (list(range(6)), [])
    assert log.last_epoch == 3


def test_temporary_files_are_removed(disk: SimDisk) -> None:
    """The next opening removes the leftovers of an interrupted replacement; other files stay."""
    open_log(disk, LOG).log.close()
    for name in ("leader-epoch-checkpoint.tmp", "00000000000000000000.index.tmp", "notes.txt"):
        disk.create_file(f"{LOG}/{name}").close()
    open_log(disk, LOG)
    assert [name for name in disk.list_directory(LOG) if name.endswith((".tmp", ".txt"))] == ["notes.txt"]


def test_recovery_reads_only_from_the_recovery_point(disk: SimDisk) -> None:
    """With large batches it reads only the bytes above the recovery point and some chunks of headers below."""
    log = open_log(disk, LOG, LARGE).log
    for number in range(8):
        append(log, [bytes([number]) * 100_000])
    log.flush()
    append(log, [b"tail" * 1_000])
    kill(disk)
    report = open_log(disk, LOG, LARGE).report
    assert report.scanned_from_offset == 8
    assert report.scanned_bytes < 9 * 16 * 1024 + 5_000


def test_failing_disk_during_recovery_is_reported(disk: SimDisk) -> None:
    """A recovery that cannot make the log durable fails."""
    write_log(disk, flush=False)
    disk.refuse("sync", ".log", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        open_log(disk, LOG, LARGE)


def test_garbage_behind_a_complete_sealed_segment_hides_nothing(disk: SimDisk) -> None:
    """Bytes behind the last record of a sealed segment belong to no record; the next segment continues."""
    log = open_log(disk, LOG).log
    for number in range(40):
        append(log, [b"value-%02d" % number * 3])
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    kill(disk)
    for base_offset in bases[:-1]:
        disk.open_file(f"{LOG}/{base_offset:020d}.log").append([b"\x10garbage" * 30])
    for _ in range(2):
        log = open_log(disk, LOG).log
        assert readable(log) == (list(range(40)), [])
        kill(disk)


def test_foreign_writer_is_noticed_before_an_append(disk: SimDisk) -> None:
    """If another process has grown the file, an append would be where no index expects it: it is refused."""
    log = open_log(disk, LOG, LARGE).log
    append(log, [b"value-00" * 3])
    disk.open_file(FIRST).append([b"foreign"])
    with pytest.raises(CorruptLogError, match="its batches end at"):
        append(log, [b"value-01" * 3])


def test_truncation_on_a_failing_disk_fails_the_log(disk: SimDisk) -> None:
    """After a truncation that could not be made durable, nothing writes to the log."""
    log = open_log(disk, LOG, LARGE).log
    for number in range(4):
        append(log, [b"value-%02d" % number * 3])
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_suffix(-1)
    disk.refuse("truncate", ".log", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        log.truncate_suffix(2)
    with pytest.raises(DiskFailedError):
        append(log, [b"x"])
