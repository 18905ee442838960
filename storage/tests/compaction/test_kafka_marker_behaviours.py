# SPDX-License-Identifier: Apache-2.0
"""Acceptance behaviour of Kafka's cleaner for the ends of transactions, named after the original test."""

from __future__ import annotations

import random

from lograft.wire.batch import check_crc, iter_batches

from storage.compaction.owner import LogCompaction
from storage.log.partition_log import PartitionLog
from storage.testing.builders import open_log, read_all
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.compaction.support import COMPACT, LOG, compact, roll
from storage.tests.compaction.test_transactions_and_compaction import end, new_log, send

RETENTION_MS = COMPACT.delete_retention_ms


def left(log: PartitionLog) -> tuple[list[int], list[int]]:
    """Return the offsets of the remaining user records and of the remaining ends; check every batch."""
    records: list[int] = []
    ends: list[int] = []
    data = log.read(0, 10**6).data
    for position, header in iter_batches(data):
        check_crc(data[position : position + header.size_bytes], header)
    for batch in read_all(log):
        (ends if batch.header.is_control else records).extend(record.offset for record in batch.records())
    return records, ends


def test_13_commit_marker_removal() -> None:
    """The marker survives while records of its transaction do, survives one more pass, and is removed after the horizon.

    LogCleanerTest.testCommitMarkerRemoval. A filler then covers its offset, and the sequences stay known.
    """
    disk = SimDisk()
    log = new_log(disk)
    send(log, 1, 0, [(b"1", b"a")])
    send(log, 1, 1, [(b"2", b"a"), (b"3", b"a")])
    assert end(log, 1, abort=False) == 3
    send(log, 1, 3, [(b"2", b"b")])
    assert end(log, 1, abort=False) == 5
    roll(log)
    compact(log, now_ms=100)
    assert left(log) == ([0, 2, 4], [3, 5])
    # Time alone is no reason: records of both transactions are left.
    send(log, 1, 4, [(b"1", b"c"), (b"3", b"c")])
    assert end(log, 1, abort=False) == 8
    roll(log)
    now_ms = 100 * RETENTION_MS
    outcome = compact(log, now_ms=now_ms)
    assert left(log) == ([4, 6, 7], [3, 5, 8])
    assert outcome is not None
    assert outcome.next_horizon_ms == now_ms + RETENTION_MS
    assert compact(log, now_ms=now_ms + RETENTION_MS - 1) is None
    assert left(log) == ([4, 6, 7], [3, 5, 8])
    assert compact(log, now_ms=now_ms + RETENTION_MS) is not None
    assert left(log) == ([4, 6, 7], [5, 8])
    assert compact(log, now_ms=now_ms * 10) is None
    log.close(clean=False)
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    for name in disk.list_directory(LOG):
        if name.endswith(".snapshot"):
            disk.remove(f"{LOG}/{name}")
    log = open_log(disk, LOG, COMPACT).log
    assert left(log) == ([4, 6, 7], [5, 8])
    assert LogCompaction(log).facts(log.log_end_offset).stable_end_offset == log.log_end_offset
    assert send(log, 1, 1, [(b"2", b"a"), (b"3", b"a")]) == 1
    assert send(log, 1, 6, [(b"4", b"d")]) == 9


def test_13_abort_marker_removal() -> None:
    """The first pass removes the records of an aborted transaction; its marker then waits for its horizon."""
    log = new_log(SimDisk())
    send(log, 1, 0, [(b"k", b"committed")])
    end(log, 1, abort=False)
    send(log, 1, 1, [(b"k", b"aborted"), (b"l", b"aborted")])
    assert end(log, 1, abort=True) == 4
    send(log, 1, 3, [(b"m", b"x")])
    end(log, 1, abort=False)
    roll(log)
    compact(log, now_ms=100)
    assert left(log) == ([0, 5], [1, 4, 6])
    compact(log, now_ms=100 + RETENTION_MS)
    assert left(log) == ([0, 5], [1, 6])


def test_13_the_newest_marker_of_a_known_producer_stays() -> None:
    """It remembers the producer's epoch. Once the log has forgotten the producer, the next pass removes it like any other."""
    log = new_log(SimDisk())
    send(log, 1, 0, [(b"k", b"1")])
    assert end(log, 1, abort=False) == 1
    send(log, 2, 0, [(b"k", b"2")])
    assert end(log, 2, abort=False) == 3
    roll(log)
    compact(log, now_ms=100)
    assert compact(log, now_ms=100 + RETENTION_MS) is not None
    assert left(log) == ([2], [1, 3])
    assert compact(log, now_ms=10 * RETENTION_MS) is None, "nothing that is kept for its memory makes a log due"
    log.producers.expire(10**12, 1)
    send(log, 3, 0, [(b"k", b"3")])
    end(log, 3, abort=False)
    roll(log)
    compact(log, now_ms=11 * RETENTION_MS)
    assert left(log) == ([4], [3, 5])
