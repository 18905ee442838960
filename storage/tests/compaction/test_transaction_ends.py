# SPDX-License-Identifier: Apache-2.0
"""Decisions on the ends of transactions: first their records, then time, then the memory of the producer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from lograft.wire.batch import BatchHeader, encode_batch, read_header
from lograft.wire.header import ABORT_BIT, CONTROL_BIT, DELETE_HORIZON_BIT, TRANSACTIONAL_BIT
from lograft.wire.limits import MAX_TIMESTAMP_MS

from storage.compaction.owner import LogCompaction
from storage.compaction.survivors import TombstoneRule
from storage.compaction.transaction_ends import EndDecision, TransactionEnds, is_end
from storage.errors import DataLossError
from storage.testing.builders import open_log, read_all
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.compaction.support import COMPACT, LOG, compact, put, roll
from storage.tests.compaction.test_transactions_and_compaction import end, new_log, send

RULE = TombstoneRule(now_ms=1_000, retention_ms=500, end_offset=100)
LATE = replace(RULE, now_ms=1_500)
UNKNOWN = TransactionEnds(frozenset())


def header_of(bits: int, offset: int, *, producer_id: int = 1, horizon_ms: int | None = None) -> BatchHeader:
    batch = encode_batch([b"x"], base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    header = read_header(batch)._replace(attributes=bits)
    if horizon_ms is None:
        return header
    return header._replace(attributes=bits | DELETE_HORIZON_BIT, base_timestamp_ms=horizon_ms)


def end_at(offset: int, **changes: int) -> BatchHeader:
    return header_of(CONTROL_BIT | TRANSACTIONAL_BIT, offset, **changes)


def test_only_a_transactional_control_batch_is_an_end() -> None:
    """Commits and aborts are ends; other control batches and records are not."""
    assert is_end(end_at(1))
    assert is_end(header_of(CONTROL_BIT | TRANSACTIONAL_BIT | ABORT_BIT, 1))
    assert not is_end(header_of(CONTROL_BIT, 1))
    assert not is_end(header_of(TRANSACTIONAL_BIT, 1))


def test_an_end_waits_for_its_records() -> None:
    """Only for records of its own producer and transaction; records outside transactions do not count."""
    ends = TransactionEnds(frozenset())
    ends.note_left(header_of(TRANSACTIONAL_BIT, 1))
    ends.note_left(header_of(0, 2, producer_id=2))
    assert ends.decide(end_at(3, producer_id=2), RULE) == EndDecision(True, 1_500, 1_500)
    assert ends.decide(end_at(4), RULE) == EndDecision(True, None, None)
    assert ends.decide(end_at(5), RULE) == EndDecision(True, 1_500, 1_500)


def test_an_end_gets_a_horizon_waits_and_goes() -> None:
    """The first decision without records sets the horizon; at the horizon the end is removed. An infinite time is a timestamp."""
    assert UNKNOWN.decide(end_at(4), RULE) == EndDecision(True, 1_500, 1_500)
    assert UNKNOWN.decide(end_at(4), replace(RULE, retention_ms=2**62)).delete_horizon_ms == MAX_TIMESTAMP_MS
    marked = end_at(4, horizon_ms=1_500)
    assert UNKNOWN.decide(marked, replace(RULE, now_ms=1_499)) == EndDecision(True, 1_500, 1_500)
    assert UNKNOWN.decide(marked, LATE) == EndDecision(False, None, None)


def test_where_records_may_be_left_an_end_stays() -> None:
    """Beyond the end of the cleaned part it gets no horizon, and is not removed after its horizon either."""
    assert UNKNOWN.decide(end_at(99), RULE) == EndDecision(True, 1_500, 1_500)
    assert UNKNOWN.decide(end_at(100), RULE) == EndDecision(True, None, None)
    assert UNKNOWN.decide(end_at(100, horizon_ms=1), RULE) == EndDecision(True, 1, None)


def test_the_newest_end_of_a_known_producer_stays() -> None:
    """So does an end that may be the newest one; neither makes a log due."""
    ends = TransactionEnds(frozenset({1}))
    marked = end_at(4, horizon_ms=1_500)
    assert ends.decide(marked, LATE) == EndDecision(True, 1_500, None)
    ends.note_end(marked)
    assert ends.decide(marked, LATE) == EndDecision(True, 1_500, None)
    ends.note_end(end_at(9))
    ends.note_end(header_of(TRANSACTIONAL_BIT, 10))
    ends.note_end(end_at(11, producer_id=2))
    ends.note_end(end_at(2))
    assert ends.decide(marked, LATE) == EndDecision(False, None, None)
    assert ends.decide(end_at(9, horizon_ms=1_500), LATE) == EndDecision(True, 1_500, None)
    assert ends.decide(end_at(11, producer_id=2, horizon_ms=1_500), LATE) == EndDecision(False, None, None)


def test_behind_damage_no_end_gets_its_time() -> None:
    """The skipped segment may hold records of its transaction; without the end they would be open again."""
    disk = SimDisk()
    log = new_log(disk)
    send(log, 1, 0, [(b"k", b"in a transaction")])
    roll(log)
    end(log, 1, abort=False)
    put(log, [(b"k", b"newer")])
    roll(log)
    log.close()
    disk.corrupt(f"{LOG}/{0:020d}.log", 70, b"\xff")
    log = open_log(disk, LOG, COMPACT).log
    with pytest.raises(DataLossError):
        log.read(0, 1_000)
    for now_ms in (100, 10**6):
        compact(log, now_ms=now_ms)
    (found,) = [batch.header for batch in read_all(log, offset=1) if batch.header.is_control]
    assert (found.base_offset, found.delete_horizon_ms) == (1, None)


def test_an_end_without_records_survives_an_unclean_restart() -> None:
    """The batch holds its horizon, and the log still knows which transactions are open."""
    disk = SimDisk()
    log = new_log(disk)
    send(log, 1, 0, [(b"k", b"1")])
    end(log, 1, abort=True)
    put(log, [(b"k", b"2")])
    roll(log)
    compact(log, now_ms=100)
    log.close(clean=False)
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    log = open_log(disk, LOG, COMPACT).log
    (found,) = [batch.header for batch in read_all(log) if batch.header.is_control]
    assert (found.delete_horizon_ms, found.is_abort) == (1_100, True)
    assert LogCompaction(log).facts(log.log_end_offset).stable_end_offset == log.log_end_offset
