# SPDX-License-Identifier: Apache-2.0
"""`lograft.offsets` on SQLite with a real broker: restart, failures, two owners, groups, topics that come again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from lograft import Admin, Consumer, ConsumerRecord, Producer, RebalanceListener, TopicPartition
from lograft.errors import (
    InvalidSettingError,
    NoCommittedOffsetError,
    OffsetOutOfRangeError,
    OffsetsFencedError,
    TransactionFailedError,
    UnknownTopicError,
    UsageError,
)
from lograft.offsets import SqlOffsets, offsets_table
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, insert
from sqlalchemy.orm import Session
from tests.offsets.tables import (
    INVOICES,
    METADATA,
    fail_statements,
    lose_answers_to_commits,
    next_offsets,
    rows_of,
    rows_of_batch,
    stored,
)

MakeTopic = Callable[..., str]
DEADLINE_S = 60
_numbers = itertools.count()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A SQLite database with the tables."""
    made = create_engine(f"sqlite:///{tmp_path / 'database.sqlite'}")
    METADATA.create_all(made)
    tables = MetaData()
    offsets_table(tables)
    tables.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"sql-group-{next(_numbers)}"


@pytest.fixture
def fill(bootstrap: str) -> Iterator[Callable[..., list[str]]]:
    """Sends numbered records to the partitions of a topic, and returns their values."""
    with Producer(bootstrap) as producer:

        def send(topic: str, count: int, *, start: int = 0, partitions: int = 1) -> list[str]:
            values = [f"{number:05d}" for number in range(start, start + count)]
            for number, value in enumerate(values):
                producer.send(topic, value.encode(), partition=number % partitions)
            producer.flush()
            return values

        yield send


def poll(consumer: Consumer, max_records: int = 10) -> list[ConsumerRecord]:
    """Poll until records come."""
    end_s = time.monotonic() + DEADLINE_S
    while not (records := consumer.poll(max_records, timeout_ms=200)):
        assert time.monotonic() < end_s, "no records came"
    return records


def store(offsets: SqlOffsets, records: Sequence[ConsumerRecord]) -> None:
    """Store records with their offsets."""
    with offsets.transaction(records) as connection:
        connection.execute(insert(INVOICES), rows_of(records))


def fail(offsets: SqlOffsets, records: Sequence[ConsumerRecord], using: Connection | None = None) -> None:
    """Write records in a transaction whose block then fails."""
    with offsets.transaction(records) if using is None else offsets.transaction(records, using) as connection:
        connection.execute(insert(INVOICES), rows_of(records))
        raise ZeroDivisionError


def drain(consumer: Consumer, offsets: SqlOffsets, engine: Engine, values: Sequence[str]) -> None:
    """Store until all values are there, and again what failed for a while; then they are there once."""
    end_s = time.monotonic() + DEADLINE_S
    while len(stored(engine)) < len(values):
        assert time.monotonic() < end_s, "not all records came"
        records = consumer.poll(10, timeout_ms=200)
        if records:
            try:
                store(offsets, records)
            except TransactionFailedError:
                continue
    assert stored(engine) == list(values)


def test_next_process_goes_on_where_the_last_transaction_ended(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """What was polled and not stored comes again; what was stored does not."""
    topic = make_topic(2)
    values = fill(topic, 40, partitions=2)
    tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign(tps)
        store(offsets, poll(consumer))
        assert poll(consumer)
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign(tps)
        drain(consumer, offsets, engine, values)
    assert next_offsets(engine) == {("billing", 0): (20, 2), ("billing", 1): (20, 2)}


def test_group_member_goes_on_from_the_database(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]], group: str
) -> None:
    """The database decides where to read, not the group's committed offset; a second group takes over under a higher epoch."""
    topic = make_topic(2)
    values = fill(topic, 40, partitions=2)
    heard: list[str] = []

    class Listener(RebalanceListener):
        def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            heard.append(f"assigned {len(partitions)}")

        def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            heard.append(f"revoked {len(partitions)}")
            if pending:
                store(offsets, pending)

    pending: list[ConsumerRecord] = []
    with Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.subscribe([topic], listener=Listener())
        store(offsets, poll(consumer))
        pending += poll(consumer)
    assert (heard[0], heard[-1]) == ("assigned 2", "revoked 2")
    assert len(stored(engine)) == 10 + len(pending)
    with Consumer(bootstrap, group=f"{group}-again", auto_commit=False) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.subscribe(topic)
        drain(consumer, offsets, engine, values)
    assert next_offsets(engine) == {("billing", 0): (20, 2), ("billing", 1): (20, 2)}


def test_failed_block_stores_nothing_and_its_records_come_again(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """An error of the application rolls back and comes out as it is; the next poll gives the same records."""
    topic = make_topic(1)
    values = fill(topic, 20)
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign([TopicPartition(topic, 0)])
        first = poll(consumer)
        with pytest.raises(ZeroDivisionError):
            fail(offsets, first)
        assert stored(engine) == []
        again = poll(consumer)
        assert [each.offset for each in again] == [each.offset for each in first]
        store(offsets, again)
        drain(consumer, offsets, engine, values)


def test_records_from_before_a_failure_are_refused(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """Who polls twice, fails with the first records and stores the second ones would leave a gap; that is refused."""
    topic = make_topic(1)
    values = fill(topic, 30)
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign([TopicPartition(topic, 0)])
        first, second = poll(consumer), poll(consumer)
        with pytest.raises(ZeroDivisionError):
            fail(offsets, first)
        with pytest.raises(TransactionFailedError, match="went back"):
            store(offsets, second)
        drain(consumer, offsets, engine, values)


def test_commit_whose_answer_is_lost_takes_effect_once(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """The consumer goes back, the database refuses the records as stored, and the consumer goes on behind them."""
    topic = make_topic(1)
    values = fill(topic, 30)
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign([TopicPartition(topic, 0)])
        lose_answers_to_commits(engine, 1)
        with pytest.raises(TransactionFailedError, match="locked"):
            store(offsets, poll(consumer))
        assert len(stored(engine)) == 10
        again = poll(consumer, 15)
        assert again[0].offset == 0
        with pytest.raises(TransactionFailedError, match="below offset 10 are stored already"):
            store(offsets, again)
        assert poll(consumer, 1)[0].offset == 10
        consumer.seek(TopicPartition(topic, 0), 10)
        drain(consumer, offsets, engine, values)


def test_newest_claim_wins(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """A second consumer of the name takes over at once, also before it has stored anything. The first one stores nothing more."""
    topic = make_topic(1)
    values = fill(topic, 30)
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap) as old, Consumer(bootstrap) as new:
        before, after = SqlOffsets(engine, old, name="billing"), SqlOffsets(engine, new, name="billing")
        before.assign([tp])
        store(before, poll(old))
        late = poll(old)
        after.assign([tp])
        with pytest.raises(OffsetsFencedError, match="since epoch 2; this consumer had epoch 1") as caught:
            store(before, late)
        assert caught.value.partitions == (tp,)
        with pytest.raises(OffsetsFencedError):
            before.rewind()
        drain(new, after, engine, values)


def test_claim_that_another_one_has_overtaken_is_confirmed_again(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]], group: str
) -> None:
    """A claim counts only on the row that it has read, so the member looks again, and the coordinator confirms it again."""
    topic = make_topic(1)
    values = fill(topic, 20)
    statements: list[str] = []
    with Consumer(bootstrap) as other, Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        before = SqlOffsets(engine, other, name="billing")

        def overtake(connection: object, cursor: object, statement: str, *_: object) -> None:
            if "lograft_offsets" in statement:
                statements.append(statement.split(None, 1)[0])
                if statements == ["SELECT", "INSERT"]:
                    before.assign([TopicPartition(topic, 0)])

        event.listen(engine, "before_cursor_execute", overtake)
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.subscribe([topic])
        records = poll(consumer)
        # Its own look, the other claim, its own failed claim, and the second attempt.
        assert statements == ["SELECT", "INSERT", "SELECT", "INSERT", "SELECT", "SELECT", "UPDATE", "SELECT"]
        assert next_offsets(engine)["billing", 0] == (0, 2)
        with pytest.raises(OffsetsFencedError):
            store(before, poll(other))
        store(offsets, records)
        drain(consumer, offsets, engine, values)


def test_claim_that_fails_is_made_up_for(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]], group: str
) -> None:
    """The database is away when partitions come: the first transaction claims them, and no record is skipped."""
    topic = make_topic(1)
    values = fill(topic, 30)
    is_away = [True]
    fail_statements(engine, lambda _: is_away[0])
    with Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.subscribe([topic])
        with pytest.raises(TransactionFailedError, match="locked"):
            store(offsets, poll(consumer))
        is_away[0] = False
        with pytest.raises(TransactionFailedError, match="claimed only now"):
            store(offsets, poll(consumer))
        drain(consumer, offsets, engine, values)


def test_without_a_start_the_application_seeks(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]], group: str
) -> None:
    """With reset "none", polls raise until a seek; then the partition is claimed with its first records."""
    topic = make_topic(1)
    values = fill(topic, 30)
    tp = TopicPartition(topic, 0)
    for first in (20, None):
        with Consumer(bootstrap, group=group, auto_commit=False, reset="none") as consumer:
            offsets = SqlOffsets(engine, consumer, name="billing")
            offsets.subscribe([topic])
            if first is not None:
                with pytest.raises(NoCommittedOffsetError):
                    poll(consumer)
                consumer.seek(tp, first)
                drain(consumer, offsets, engine, values[20:])
                fill(topic, 5, start=30)
            else:
                drain(consumer, offsets, engine, [*values[20:], *(f"{number:05d}" for number in range(30, 35))])


def test_topic_that_comes_again_is_read_from_its_start(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """Offsets belong to topic ids: a running consumer stops, and the next one begins at the first record of the new topic."""
    topic = make_topic(1)
    values = fill(topic, 20)
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign([tp])
        drain(consumer, offsets, engine, values)
        admin.delete_topic(topic)
        admin.create_topic(topic)
        more = fill(topic, 25, start=100)
        # A broker judges the offset before it names the topic.
        with pytest.raises((UnknownTopicError, OffsetOutOfRangeError)):
            poll(consumer)
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign([tp])
        drain(consumer, offsets, engine, [*values, *more])


def test_assignment_with_a_topic_id_reads_no_other_topic(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, fill: Callable[..., list[str]]
) -> None:
    """Between the look-up of an offset and the first fetch, a topic may come again under its name."""
    topic = make_topic(1)
    fill(topic, 5)
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap) as consumer:
        ids = consumer.topic_ids([tp])
        assert ids == {tp: admin.describe_topic(topic).topic_id}
        consumer.assign([tp], offsets={tp: 2}, topic_ids={topic: ids[tp]})
        assert poll(consumer)[0].offset == 2
        consumer.assign([tp], offsets={tp: 2}, topic_ids={topic: b"\0" * 16})
        with pytest.raises(UnknownTopicError, match="created again"):
            poll(consumer)


def test_own_session_connection_and_transaction(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """Offsets go into a Session or Connection of the application, and into a transaction that it ends itself."""
    topic = make_topic(1)
    values = fill(topic, 30)
    with Consumer(bootstrap) as consumer, Session(engine) as session, engine.connect() as connection:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign([TopicPartition(topic, 0)])
        records = poll(consumer)
        with offsets.transaction(records, session) as same:
            assert same is session
            same.execute(insert(INVOICES), rows_of(records))
        records = poll(consumer)
        with pytest.raises(ZeroDivisionError):
            fail(offsets, records, connection)
        assert len(stored(engine)) == 10
        records = poll(consumer)
        with offsets.transaction(records, connection):
            connection.execute(insert(INVOICES), rows_of(records))
        assert stored(engine) == values[:20]
        records = poll(consumer)
        with session.begin():
            session.execute(insert(INVOICES), rows_of(records))
            offsets.write(session, records)
            session.rollback()
        offsets.rewind()
        records = poll(consumer)
        with session.begin():
            session.execute(insert(INVOICES), rows_of(records))
            offsets.write(session, records)
        assert stored(engine) == values
        with pytest.raises(TransactionFailedError, match="stored already"):
            offsets.write(connection, records)
        connection.rollback()


def test_batches_are_stored_like_records(
    bootstrap: str, make_topic: MakeTopic, engine: Engine, fill: Callable[..., list[str]]
) -> None:
    """`poll_batch` gives what a transaction takes, alone or in a list."""
    topic = make_topic(1)
    values = fill(topic, 30)
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.assign([TopicPartition(topic, 0)])
        end_s = time.monotonic() + DEADLINE_S
        while len(stored(engine)) < len(values) and time.monotonic() < end_s:
            batch = consumer.poll_batch(timeout_ms=200)
            if batch is not None:
                with offsets.transaction([batch]) as connection:
                    connection.execute(insert(INVOICES), rows_of_batch(batch))
    assert stored(engine) == values
    assert next_offsets(engine) == {("billing", 0): (30, 1)}


def test_wrong_use_is_refused(bootstrap: str, make_topic: MakeTopic, engine: Engine, group: str) -> None:
    """A consumer that commits by itself, an engine without transactions, a start that does not exist."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap, group=group) as consumer, pytest.raises(InvalidSettingError, match="auto_commit=False"):
        SqlOffsets(engine, consumer, name="billing")
    with Consumer(bootstrap) as consumer:
        with pytest.raises(InvalidSettingError, match="AUTOCOMMIT"):
            SqlOffsets(engine.execution_options(isolation_level="AUTOCOMMIT"), consumer, name="a").assign([tp])
        with pytest.raises(UsageError, match="latest"):
            SqlOffsets(engine, consumer, name="a").assign([tp], start="end")
        with pytest.raises(UsageError, match="no group"):
            SqlOffsets(engine, consumer, name="a").subscribe([topic])


def test_table_is_created_once(bootstrap: str, tmp_path: Path) -> None:
    """`create_table` may be called by every process at its start, and takes another name."""
    engine = create_engine(f"sqlite:///{tmp_path / 'other.sqlite'}")
    with Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing", table="positions")
        offsets.create_table()
        offsets.create_table()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM positions").scalar() == 0
    engine.dispose()
