# SPDX-License-Identifier: Apache-2.0
"""What databases differ in: isolation levels, deadlocks, the table, and case of names. On private servers of each."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from lograft.errors import InvalidSettingError, OffsetsFencedError, TransactionFailedError
from lograft.offsets.failures import is_temporary
from lograft.offsets.ranges import AlreadyStoredError, Move
from lograft.offsets.rows import OffsetRows, Wanted
from lograft.offsets.table import create_table, offsets_table
from lograft.types import TopicPartition
from sqlalchemy import Connection, Engine, MetaData, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from integration_tests.harness.databases import DATABASES, running_database, why_missing

TP = TopicPartition("orders", 3)
KEY = (b"\x01" * 16, 3)
OTHER = (b"\x02" * 16, 3)
TABLE = offsets_table(MetaData())


def wanted(key: tuple[bytes, int] = KEY, start: int = 0) -> Wanted:
    """Return a partition to claim."""
    return Wanted(tp=TP, key=key, start=start)


def move(first: int, following: int, *, epoch: int = 1, key: tuple[bytes, int] = KEY) -> Move:
    """Return a change of a row."""
    return Move(tp=TP, key=key, epoch=epoch, first_offset=first, next_offset=following)


@pytest.fixture(scope="module", params=DATABASES)
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database, or a skip that says why there is none."""
    missing = why_missing(request.param)
    if missing:
        pytest.skip(missing)
    with running_database(request.param) as url:
        yield url


@pytest.fixture
def engine(server: str) -> Iterator[Engine]:
    """An engine of the database with an empty table of offsets."""
    made = create_engine(server)
    with made.begin() as connection:
        TABLE.drop(connection, checkfirst=True)
        create_table(connection, TABLE)
    yield made
    made.dispose()


def refusal(rows: OffsetRows, connection: Connection) -> Exception:
    """Return the error of a move under epoch 1."""
    with pytest.raises((OffsetsFencedError, DBAPIError)) as caught:
        rows.move(connection, [move(0, 10)])
    return caught.value


def claim(engine: Engine, rows: OffsetRows, partitions: Sequence[Wanted]) -> None:
    """Claim partitions."""
    with engine.begin() as connection:
        claimed = rows.claim(connection, partitions, rows.read(connection, [each.key for each in partitions]))
        assert claimed is not None


@pytest.mark.process
def test_rows_are_read_claimed_and_moved(engine: Engine) -> None:
    """A first claim makes the row with its start; a second one raises the epoch and keeps the offset."""
    first, second = OffsetRows(TABLE, "billing", "one"), OffsetRows(TABLE, "billing", "two")
    claim(engine, first, [wanted(start=5)])
    with engine.begin() as connection:
        first.move(connection, [move(5, 1 << 40)])
    claim(engine, second, [wanted(start=0), wanted(OTHER)])
    with engine.begin() as connection:
        rows = second.read(connection, [KEY, OTHER])
        assert {key: (row.next_offset, row.epoch, row.owner) for key, row in rows.items()} == {
            KEY: (1 << 40, 2, "two"),
            OTHER: (0, 1, "two"),
        }
        assert first.read(connection, [(b"\x03" * 16, 0)]) == {}


@pytest.mark.process
def test_names_that_differ_in_case_are_different(engine: Engine) -> None:
    """MariaDB compares text without regard to case, unless the table says otherwise."""
    claim(engine, OffsetRows(TABLE, "billing", "one"), [wanted(start=5)])
    claim(engine, OffsetRows(TABLE, "Billing", "one"), [wanted(start=7)])
    with engine.begin() as connection:
        assert OffsetRows(TABLE, "billing", "").read(connection, [KEY])[KEY].next_offset == 5


@pytest.mark.process
def test_claim_counts_on_the_row_that_it_has_read(engine: Engine) -> None:
    """Another claim in between makes it fail, whether the row was there or not."""
    first, second = OffsetRows(TABLE, "billing", "one"), OffsetRows(TABLE, "billing", "two")
    claim(engine, first, [wanted()])
    with pytest.raises(IntegrityError), engine.begin() as connection:
        second.claim(connection, [wanted()], {})
    with engine.begin() as connection:
        seen = second.read(connection, [KEY])
    claim(engine, first, [wanted()])
    with engine.connect() as connection:
        assert second.claim(connection, [wanted()], seen) is None


@pytest.mark.process
@pytest.mark.parametrize("level", [None, "REPEATABLE READ", "SERIALIZABLE"])
def test_late_transaction_is_refused_in_every_isolation_level(engine: Engine, level: str | None) -> None:
    """The late transaction has seen the old row before the new claim. It is refused, or fails and is refused when it is repeated."""
    if engine.dialect.name == "sqlite" and level == "REPEATABLE READ":
        pytest.skip("SQLite has no such level")
    late_engine = engine if level is None else engine.execution_options(isolation_level=level)
    old, new = OffsetRows(TABLE, "billing", "one"), OffsetRows(TABLE, "billing", "two")
    claim(engine, old, [wanted()])
    with late_engine.connect() as connection:
        # A snapshot, where the level has one.
        assert old.read(connection, [KEY])[KEY].epoch == 1
        if engine.dialect.name != "postgresql" and level == "SERIALIZABLE":
            # Its reads lock the row, so that nobody can claim meanwhile.
            connection.rollback()
        claim(engine, new, [wanted()])
        error = refusal(old, connection)
        if not isinstance(error, OffsetsFencedError):
            assert is_temporary(error)
            connection.rollback()
            error = refusal(old, connection)
        assert isinstance(error, OffsetsFencedError)
        assert "belongs to two since epoch 2" in error.message
        connection.rollback()


@pytest.mark.process
def test_records_that_are_stored_are_refused(engine: Engine) -> None:
    """The offset only moves forward from the first record, also past a gap; a row that is gone is another owner's."""
    rows = OffsetRows(TABLE, "billing", "one")
    claim(engine, rows, [wanted()])
    with engine.begin() as connection:
        rows.move(connection, [move(0, 10)])
    with engine.begin() as connection:
        rows.move(connection, [move(12, 20)])
    with engine.connect() as connection:
        with pytest.raises(AlreadyStoredError, match="below offset 20"):
            rows.move(connection, [move(19, 30)])
        connection.rollback()
        with pytest.raises(OffsetsFencedError, match="not in the database"):
            rows.move(connection, [move(0, 1, key=OTHER)])
    with engine.begin() as connection:
        assert rows.read(connection, [KEY])[KEY].next_offset == 20


@pytest.mark.process
def test_deadlock_and_lock_timeout_are_errors_that_pass(engine: Engine) -> None:
    """Two transactions block each other on the application's own rows, and one of them fails with such an error."""
    if engine.dialect.name == "sqlite":
        pytest.skip("a transaction of SQLite has the whole database; test_sql_offsets shows its lock")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS things"))
        connection.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY, value INTEGER)"))
        connection.execute(text("INSERT INTO things VALUES (1, 0), (2, 0)"))
    both = threading.Barrier(2, timeout=60)

    def update(first: int, second: int) -> BaseException | None:
        try:
            with engine.begin() as connection:
                connection.execute(text(f"UPDATE things SET value = 1 WHERE id = {first}"))
                both.wait()
                connection.execute(text(f"UPDATE things SET value = 1 WHERE id = {second}"))
        except DBAPIError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = [each for each in pool.map(update, (1, 2), (2, 1)) if each is not None]
    assert len(errors) == 1
    assert is_temporary(errors[0])


@pytest.mark.process
def test_database_that_is_away_is_an_error_that_passes(server: str) -> None:
    """Nobody listens at the port: the driver's error counts as one that passes."""
    if server.startswith("sqlite"):
        pytest.skip("SQLite has no server")
    away = create_engine(server.rpartition(":")[0] + ":1/" + server.rpartition("/")[2])
    with pytest.raises(DBAPIError) as caught:
        away.connect()
    assert is_temporary(caught.value)


@pytest.mark.process
def test_autocommit_is_refused(engine: Engine, server: str) -> None:
    """Records and offsets would be two transactions, however AUTOCOMMIT was set."""
    rows = OffsetRows(TABLE, "billing", "one")
    alone = create_engine(server, isolation_level="AUTOCOMMIT")
    for each in (engine.execution_options(isolation_level="AUTOCOMMIT"), alone):
        with each.connect() as connection, pytest.raises(InvalidSettingError, match="AUTOCOMMIT"):
            rows.claim(connection, [wanted((b"%016d" % id(each), 0))], {})
    alone.dispose()


def test_already_stored_says_where_to_go_on() -> None:
    """The error has partition and offset, and is one that passes."""
    error = AlreadyStoredError(TP, 20)
    assert isinstance(error, TransactionFailedError)
    assert (error.tp, error.next_offset) == (TP, 20)
