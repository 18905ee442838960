# SPDX-License-Identifier: Apache-2.0
"""Ranges of offsets of records, claims, and the errors of databases that pass."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql
import pytest
from lograft import ConsumerRecord, TopicPartition
from lograft.errors import InvalidSettingError, OffsetsFencedError, TransactionFailedError, UsageError
from lograft.offsets.failures import is_temporary
from lograft.offsets.ranges import Claim, Claims, OffsetRange, ranges_of
from lograft.offsets.table import check_name
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

A, B = TopicPartition("a", 0), TopicPartition("a", 1)
ID = b"1" * 16


def record(offset: int, partition: int = 0) -> ConsumerRecord:
    """Return a record."""
    return ConsumerRecord("a", partition, offset, 0, None, b"", ())


def test_range_reaches_from_the_first_record_past_the_last() -> None:
    """Order does not matter, and gaps are part of a range."""
    assert ranges_of([record(7), record(3), record(5, 1)]) == {A: OffsetRange(3, 8), B: OffsetRange(5, 6)}
    assert ranges_of(record(4)) == {A: OffsetRange(4, 5)}
    assert ranges_of([]) == {}


def test_only_records_and_batches_have_a_range() -> None:
    """Something else is named in the error."""
    with pytest.raises(UsageError, match="not 'abc'"):
        ranges_of(["abc"])  # type: ignore[list-item]


def test_move_stands_on_the_claim_of_its_partition() -> None:
    """A move has key and epoch of the claim; without a claim or an assignment, the partition is another consumer's."""
    claims = Claims()
    claims.assigned([A, B])
    claims.claimed({A: Claim((ID, 0), 4)})
    assert claims.waiting == {B}
    (move,) = claims.moves({A: OffsetRange(3, 8)}, {A: 8})
    assert (move.key, move.epoch, move.first_offset, move.next_offset) == ((ID, 0), 4, 3, 8)
    for ranges, positions in (({B: OffsetRange(0, 1)}, {B: 1}), ({A: OffsetRange(3, 8)}, {})):
        with pytest.raises(OffsetsFencedError) as caught:
            claims.moves(ranges, positions)
        assert caught.value.partitions == tuple(ranges)
    claims.forget([A])
    with pytest.raises(OffsetsFencedError):
        claims.moves({A: OffsetRange(3, 8)}, {A: 8})


def test_assignment_ends_an_earlier_claim() -> None:
    """A partition that comes again is claimed again."""
    claims = Claims()
    claims.claimed({A: Claim((ID, 0), 4)})
    claims.assigned([A])
    assert claims.waiting == {A}
    assert not claims.held


def test_records_past_the_position_are_refused() -> None:
    """Once the consumer has gone back, records that it gave before would leave a gap."""
    claims = Claims()
    claims.claimed({A: Claim((ID, 0), 1)})
    with pytest.raises(TransactionFailedError, match="went back to offset 3"):
        claims.moves({A: OffsetRange(5, 9)}, {A: 3})


def _sqlite(code: int) -> OperationalError:
    cause = sqlite3.OperationalError("x")
    cause.sqlite_errorcode = code
    return OperationalError("", {}, cause)


def _mysql(number: int, kind: type[DBAPIError] = OperationalError) -> DBAPIError:
    return kind("", {}, pymysql.err.OperationalError(number, "x"))


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (_sqlite(sqlite3.SQLITE_BUSY), True),
        (_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), True),
        (_sqlite(sqlite3.SQLITE_FULL), False),
        (OperationalError("", {}, psycopg.errors.DeadlockDetected()), True),
        (OperationalError("", {}, psycopg.errors.SerializationFailure()), True),
        (OperationalError("", {}, psycopg.errors.AdminShutdown()), True),
        (OperationalError("", {}, psycopg.OperationalError("connection refused")), True),
        (OperationalError("", {}, psycopg.errors.DiskFull()), True),
        (ProgrammingError("", {}, psycopg.errors.UndefinedTable()), False),
        (IntegrityError("", {}, psycopg.errors.UniqueViolation()), False),
        (_mysql(1213), True),
        (_mysql(1205), True),
        (_mysql(2013), True),
        (_mysql(1045), False),
        (_mysql(0, InterfaceError), True),
        (PoolTimeoutError(), True),
        (DBAPIError("", {}, Exception(), connection_invalidated=True), True),
        (ValueError(), False),
    ],
)
def test_errors_that_pass_are_known_for_each_driver(error: Any, is_one: bool) -> None:
    """Deadlocks, conflicts, locks and lost connections pass; wrong statements, rights and full disks of SQLite do not."""
    assert is_temporary(error) is is_one


@pytest.mark.parametrize("name", ["", " a", "a ", "a\n", "x" * 201])
def test_name_that_databases_compare_differently_is_refused(name: str) -> None:
    """Names have no spaces at their ends, no control characters, and 1 to 200 characters."""
    with pytest.raises(InvalidSettingError, match="printable"):
        check_name(name)
    assert check_name("billing, north") == "billing, north"
