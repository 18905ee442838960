# SPDX-License-Identifier: Apache-2.0
"""A table for tests of `lograft.offsets`, without a key over the records: what is written twice is there twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from lograft import ConsumerRecord, FetchedBatch
from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, event, select
from sqlalchemy.exc import OperationalError

METADATA = MetaData()
INVOICES = Table(
    "invoices",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("partition_id", Integer),
    Column("record_offset", BigInteger),
    Column("value", String(200)),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


def rows_of(records: Sequence[ConsumerRecord]) -> list[dict[str, object]]:
    """Return the rows of records."""
    return [
        {"partition_id": each.partition, "record_offset": each.offset, "value": (each.value or b"").decode()}
        for each in records
    ]


def rows_of_batch(batch: FetchedBatch) -> list[dict[str, object]]:
    """Return the rows of a batch."""
    return rows_of(batch.records())


def stored(engine: Engine) -> list[str]:
    """Return the values in the table, sorted."""
    with engine.connect() as connection:
        return sorted(connection.execute(select(INVOICES.c.value)).scalars())


def next_offsets(engine: Engine) -> dict[tuple[str, int], tuple[int, int]]:
    """Return next offset and epoch of each row of offsets, by name and partition."""
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT name, partition_id, next_offset, epoch FROM lograft_offsets").all()
    return {(name, number): (offset, epoch) for name, number, offset, epoch in rows}


def locked() -> OperationalError:
    """Return the error of a database that is locked."""
    cause = sqlite3.OperationalError("database is locked")
    cause.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return OperationalError("COMMIT", {}, cause)


def fail_statements(engine: Engine, is_bad: Callable[[str], bool]) -> None:
    """Let the statements fail of which the function says so."""

    def before(connection: object, cursor: object, statement: str, *_: object) -> None:
        if is_bad(statement):
            raise locked()

    event.listen(engine, "before_cursor_execute", before)


def lose_answers_to_commits(engine: Engine, count: int) -> None:
    """Let the next commits take effect, and report an error all the same."""
    left = [count]

    def before(connection: object) -> None:
        if left[0]:
            left[0] -= 1
            connection.connection.dbapi_connection.commit()  # type: ignore[attr-defined]
            raise locked()

    event.listen(engine, "commit", before)
