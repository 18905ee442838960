# SPDX-License-Identifier: Apache-2.0
"""Runs of batches that a leader appends with one write. The model test compares them with single appends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from storage.errors import DiskFullError, OutOfOrderOffsetError, OutOfOrderSequenceError
from storage.files.disk import Buffer
from storage.log.partition_log import PartitionLog
from storage.segment.segment import Segment
from storage.testing.builders import ProducerStamp, append, headed, make_batch, open_log, read_all, read_values
from storage.testing.sim_disk import Refusal, SimDisk
from storage.types import Appended, HeadedBatch


def run_of(*values: bytes, base_sequence: int = 0, producer_id: int = 7) -> list[HeadedBatch]:
    """Return batches of one record each that continue each other."""
    return [
        headed(make_batch([value], producer=ProducerStamp(producer_id=producer_id, base_sequence=base_sequence + at)))
        for at, value in enumerate(values)
    ]


def append_all(log: PartitionLog, run: list[HeadedBatch]) -> list[Appended]:
    """Append a whole run."""
    appended: list[Appended] = []
    while len(appended) < len(run):
        appended += log.append_run_as_leader(run[len(appended) :], leader_epoch=3, now_ms=0)
    return appended


def test_run_is_stored_as_single_appends_are(disk: SimDisk, log: PartitionLog) -> None:
    """Offsets, bytes, segments and producer state are those of one append for each batch."""
    values = [b"%d" % number * (number % 90 + 1) for number in range(60)]
    appended = append_all(log, run_of(*values))
    assert appended == [Appended(at, at + 1, False) for at in range(60)]
    other = open_log(disk, "/data/other").log
    for at, value in enumerate(values):
        append(other, [value], leader_epoch=3, producer=ProducerStamp(producer_id=7, base_sequence=at))
    assert log.segment_count == other.segment_count > 1
    # The header has the CRC of the rest.
    assert [each.header for each in read_all(log)] == [each.header for each in read_all(other)]
    assert read_values(log) == values
    known, others = log.producers.find(7), other.producers.find(7)
    assert known is not None
    assert others is not None
    assert (log.last_epoch, known.batches()) == (3, others.batches())


def test_run_takes_one_write_for_each_segment(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches a segment takes of a run, it takes them in one write."""
    writes: list[int] = []
    write = Segment.append_bytes

    def counted(segment: Segment, parts: Sequence[Buffer]) -> None:
        writes.append(len(parts))
        write(segment, parts)

    monkeypatch.setattr(Segment, "append_bytes", counted)
    append_all(log, run_of(*[b"x" * 100] * 20))
    assert len(writes) == log.segment_count
    assert sum(writes) == 40


def test_duplicate_comes_alone(log: PartitionLog) -> None:
    """A batch that the log has is answered with its offsets, and nothing else of the run is appended by that call."""
    first = append_all(log, run_of(b"a", b"b", b"c"))
    again = run_of(b"a", b"b", b"c", b"d")
    assert log.append_run_as_leader(again, leader_epoch=3, now_ms=0) == [Appended(*first[0][:2], True)]
    assert append_all(log, again) == [*[Appended(*each[:2], True) for each in first], Appended(3, 4, False)]
    assert read_values(log) == [b"a", b"b", b"c", b"d"]


def test_run_ends_before_a_batch_that_does_not_continue_it(log: PartitionLog) -> None:
    """A gap in the sequences or another producer ends the run; what follows is checked as the first batch of the next one."""
    run = [*run_of(b"a", b"b"), *run_of(b"d", base_sequence=3), *run_of(b"e", base_sequence=4)]
    assert log.append_run_as_leader(run, leader_epoch=3, now_ms=0) == [Appended(0, 1, False), Appended(1, 2, False)]
    with pytest.raises(OutOfOrderSequenceError):
        log.append_run_as_leader(run[2:], leader_epoch=3, now_ms=0)
    # Only the first batch of a run may leave sequences out.
    assert len(log.append_run_as_leader(run[2:], leader_epoch=3, now_ms=0, may_skip=True)) == 2
    run = [*run_of(b"f", base_sequence=5), *run_of(b"other", producer_id=8)]
    assert log.append_run_as_leader(run, leader_epoch=3, now_ms=0) == [Appended(4, 5, False)]
    assert read_values(log) == [b"a", b"b", b"d", b"e", b"f"]


def test_refused_run_changes_nothing(disk: SimDisk, log: PartitionLog) -> None:
    """After a full disk or a stale leader epoch the log is as before, and takes the same run."""
    append_all(log, run_of(b"a"))
    disk.refuse("append", ".log", Refusal.FULL)
    following = run_of(b"b", b"c", base_sequence=1)
    with pytest.raises(DiskFullError, match="free space"):
        append_all(log, following)
    with pytest.raises(OutOfOrderOffsetError):
        log.append_run_as_leader(following, leader_epoch=2, now_ms=0)
    assert log.log_end_offset == 1
    assert append_all(log, following) == [Appended(1, 2, False), Appended(2, 3, False)]
    assert read_values(log) == [b"a", b"b", b"c"]
