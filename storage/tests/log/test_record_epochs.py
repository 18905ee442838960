# SPDX-License-Identifier: Apache-2.0
"""Leader epochs of records, as a leader's stream and a follower's subscription request them."""

from __future__ import annotations

import pytest

from storage.errors import OffsetOutOfRangeError
from storage.log.partition_log import PartitionLog
from storage.testing.builders import append, open_log, read_all
from storage.testing.sim_disk import SimDisk
from storage.tests.support import LOG, kill
from storage.types import EpochEnd


def fill(log: PartitionLog) -> None:
    """Records of epoch 1 to 4, of epoch 3 to 10, of epoch 4 to 12, in several segments."""
    for epoch, count in ((1, 2), (3, 3), (4, 1)):
        for _ in range(count):
            append(log, [b"x" * 200, b"y" * 200], leader_epoch=epoch)
    assert log.segment_count > 2


def test_log_without_records_has_no_last_record_epoch(disk: SimDisk, log: PartitionLog) -> None:
    """A new log, one whose leader appended nothing, one with all records removed, a restarted one: before and after an opening."""
    assert log.last_record_epoch is None
    log.assign_epoch(1)
    assert (log.last_epoch, log.last_record_epoch) == (1, None)
    fill(log)
    log.truncate_prefix(12, 0)
    assert (log.log_start_offset, log.last_epoch, log.last_record_epoch) == (12, 4, None)
    log.flush()
    kill(disk)
    log = open_log(disk, LOG).log
    assert (log.log_start_offset, log.last_record_epoch) == (12, None)
    log.restart_at(20)
    assert log.last_record_epoch is None
    append(log, [b"x"], leader_epoch=2)
    assert log.last_record_epoch == 2


def test_last_record_epoch_is_not_that_of_an_epoch_without_records(log: PartitionLog) -> None:
    """A follower subscribes with the epoch of its last record, also after a truncation."""
    fill(log)
    log.assign_epoch(9)
    assert (log.last_epoch, log.last_record_epoch) == (9, 4)
    log.truncate_suffix(10)
    assert (log.last_epoch, log.last_record_epoch) == (3, 3)
    log.truncate_prefix(7, 0)
    assert log.last_record_epoch == 3


def test_run_of_one_epoch_ends_where_the_next_begins(log: PartitionLog) -> None:
    """From any offset, across segments; an epoch without records ends nothing; at the log end nothing follows."""
    fill(log)
    ends = {0: 4, 3: 4, 4: 10, 9: 10, 10: 12, 11: 12, 12: 12}
    assert {offset: log.epoch_end_at(offset) for offset in ends} == ends
    log.assign_epoch(9)
    assert {offset: log.epoch_end_at(offset) for offset in ends} == ends
    assert log.end_offset_for_epoch(3) == EpochEnd(3, 10)
    for offset in (0, 4, 10):
        batches = read_all(log, offset=offset, end_offset=log.epoch_end_at(offset), max_bytes=100_000)
        assert {batch.header.leader_epoch for batch in batches} == {log.epoch_at(offset)}
        assert batches[-1].next_offset == ends[offset]


def test_run_outside_of_the_log_is_refused(log: PartitionLog) -> None:
    """Below the log start and above the log end, as for a read."""
    fill(log)
    log.truncate_prefix(5, 0)
    assert log.epoch_end_at(5) == 10
    for offset in (4, 13):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.epoch_end_at(offset)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (5, 12)
