# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests of compaction: logs of keyed records, passes over them in one thread, and the expected result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lograft.wire.batch import BatchRecord, check_batch, encode_batch
from lograft.wire.limits import MAX_BATCH_BYTES, MAX_RECORDS_PER_BATCH

from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass, PassOutcome
from storage.compaction.plan import find_range
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, ProducerStamp, open_log, read_all
from storage.testing.sim_disk import SimDisk
from storage.types import Appended

LOG = "/data/log"
COMPACT = replace(SMALL, segment_bytes=600, compact=True, min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000)
"""Settings of a compacted log that is due whenever anything is dirty."""

_AGES = itertools.count(1)

Pair = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


def new_log(disk: SimDisk | None = None, **changes: object) -> PartitionLog:
    """A new compacted log, with some settings changed."""
    disk = disk or SimDisk()
    disk.make_directory("/data")
    return open_log(disk, LOG, replace(COMPACT, **changes)).log


def put(
    log: PartitionLog,
    pairs: Sequence[Pair],
    *,
    producer: ProducerStamp | None = None,
    timestamp_ms: int = 10,
    leader_epoch: int = 0,
    control: bool = False,
) -> Appended:
    """Append one batch of keyed records as a leader does."""
    batch = encode_batch(
        [value for _, value in pairs],
        keys=[key for key, _ in pairs],
        timestamps_ms=timestamp_ms,
        producer_id=producer.producer_id if producer is not None else -1,
        producer_epoch=producer.producer_epoch if producer is not None else -1,
        base_sequence=producer.base_sequence if producer is not None else -1,
        control=control,
    )
    header = check_batch(batch, max_bytes=MAX_BATCH_BYTES, allow_control=control)
    return log.append_as_leader(batch, header, leader_epoch=leader_epoch, now_ms=0)


def roll(log: PartitionLog) -> None:
    """Seal the active segment, so that a pass may take it."""
    assert log.roll_if_due(next(_AGES) * 10**17)
    log.flush()


def no_pace(size_bytes: int) -> None:
    """No rate limit."""
    assert size_bytes > 0


def begin(log: PartitionLog, *, now_ms: int = 100, max_keys: int = MAX_RECORDS_PER_BATCH) -> CompactionPass | None:
    """Begin a pass if the log is due."""
    rules = LogCompaction(log).rules
    assert rules is not None
    chosen = find_range(LogCompaction(log).facts(log.log_end_offset), rules, now_ms)
    if chosen is None:
        return None
    task = LogCompaction(log).begin(chosen, now_ms=now_ms, max_keys=max_keys)
    return CompactionPass(log.disk, task, no_pace)


def compact(log: PartitionLog, *, now_ms: int = 100, max_keys: int = MAX_RECORDS_PER_BATCH) -> PassOutcome | None:
    """Run one pass; None if the log was not due."""
    found = begin(log, now_ms=now_ms, max_keys=max_keys)
    if found is None:
        return None
    found.build()
    for group in found.groups():
        cleaned = found.clean(group)
        if cleaned is not None:
            assert log.swap(cleaned, now_ms=now_ms)
    outcome = found.outcome()
    LogCompaction(log).end(outcome)
    return outcome


def records(log: PartitionLog) -> list[BatchRecord]:
    """Return all records of a log; check that every offset is covered."""
    batches = read_all(log)
    offset = log.log_start_offset
    for batch in batches:
        assert batch.base_offset <= offset < batch.next_offset
        offset = batch.next_offset
    assert offset == log.log_end_offset
    return [record for batch in batches for record in batch.records() if record.offset >= log.log_start_offset]


def pairs(log: PartitionLog) -> dict[int, Pair]:
    """Return key and value of every record, by offset."""
    return {record.offset: (record.key, record.value) for record in records(log)}


@dataclass
class Newest:
    """What a log must show of some records: a reader from the start ends with the newest value of each key."""

    values: dict[bytes, bytes | None]

    @classmethod
    def of(cls, found: Sequence[BatchRecord]) -> Newest:
        """Replay records; a deleted key counts as one that never existed."""
        values: dict[bytes, bytes | None] = {}
        for record in found:
            if record.key is not None:
                values[record.key] = record.value
        return cls({key: value for key, value in values.items() if value is not None})
