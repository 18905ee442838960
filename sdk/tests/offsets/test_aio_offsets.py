# SPDX-License-Identifier: Apache-2.0
"""`lograft.offsets.aio` on SQLite with a real broker: what `test_sql_offsets` shows of the blocking twin."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from lograft import ConsumerRecord, RebalanceListener, TopicPartition, aio
from lograft.errors import InvalidSettingError, OffsetsFencedError, TransactionFailedError, UsageError
from lograft.offsets.aio import SqlOffsets
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from tests.offsets.tables import INVOICES, METADATA, fail_statements, lose_answers_to_commits, rows_of

MakeTopic = Callable[..., str]
DEADLINE_S = 60


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """A SQLite database with the application's table."""
    made = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'database.sqlite'}")
    async with made.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    yield made
    await made.dispose()


async def fill(bootstrap: str, topic: str, count: int) -> list[str]:
    """Send numbered records, and return their values."""
    values = [f"{number:05d}" for number in range(count)]
    async with aio.Producer(bootstrap) as producer:
        for value in values:
            await producer.send(topic, value.encode())
    return values


async def poll(consumer: aio.Consumer, max_records: int = 10) -> list[ConsumerRecord]:
    """Poll until records come."""
    end_s = time.monotonic() + DEADLINE_S
    while not (records := await consumer.poll(max_records, timeout_ms=200)):
        assert time.monotonic() < end_s, "no records came"
    return records


async def store(
    offsets: SqlOffsets,
    records: Sequence[ConsumerRecord],
    using: AsyncConnection | AsyncSession | None = None,
    *,
    error: Exception | None = None,
) -> None:
    """Store records with their offsets, or raise an error in the block."""
    async with offsets.transaction(records) if using is None else offsets.transaction(records, using) as connection:
        await connection.execute(insert(INVOICES), rows_of(records))
        if error is not None:
            raise error


async def stored(engine: AsyncEngine) -> list[str]:
    """Return the values in the table, sorted."""
    async with engine.connect() as connection:
        return sorted((await connection.execute(INVOICES.select())).scalars("value"))


async def drain(consumer: aio.Consumer, offsets: SqlOffsets, engine: AsyncEngine, values: Sequence[str]) -> None:
    """Store until all values are there; then they are there once."""
    end_s = time.monotonic() + DEADLINE_S
    while len(await stored(engine)) < len(values):
        assert time.monotonic() < end_s, "not all records came"
        records = await consumer.poll(10, timeout_ms=200)
        if records:
            try:
                await store(offsets, records)
            except TransactionFailedError:
                continue
    assert await stored(engine) == list(values)


async def test_assigned_consumer_restarts_fails_and_is_fenced(
    bootstrap: str, make_topic: MakeTopic, engine: AsyncEngine
) -> None:
    """A failed block, a lost answer to a commit, a session, a restart, and a newer claim: each record is stored once."""
    topic = make_topic(1)
    values = await fill(bootstrap, topic, 60)
    tp = TopicPartition(topic, 0)
    async with aio.Consumer(bootstrap) as consumer, aio.Consumer(bootstrap) as other:
        offsets = SqlOffsets(engine, consumer, name="billing")
        await offsets.create_table()
        await offsets.create_table()
        await offsets.assign([tp])
        with pytest.raises(ZeroDivisionError):
            await store(offsets, await poll(consumer), error=ZeroDivisionError())
        assert await stored(engine) == []
        lose_answers_to_commits(engine.sync_engine, 1)
        with pytest.raises(TransactionFailedError, match="locked"):
            await store(offsets, await poll(consumer))
        with pytest.raises(TransactionFailedError, match="stored already"):
            await store(offsets, await poll(consumer))
        async with AsyncSession(engine) as session, engine.connect() as connection:
            await store(offsets, await poll(consumer), session)
            with pytest.raises(ZeroDivisionError):
                await store(offsets, await poll(consumer), connection, error=ZeroDivisionError())
            records = await poll(consumer)
            await session.execute(insert(INVOICES), rows_of(records))
            await offsets.write(session, records)
            await session.rollback()
            await offsets.rewind()
            await store(offsets, await poll(consumer), connection)
        assert await stored(engine) == values[:30]
        late = await poll(consumer)
        newer = SqlOffsets(engine, other, name="billing")
        await newer.assign([tp])
        with pytest.raises(OffsetsFencedError):
            await store(offsets, late)
        with pytest.raises(OffsetsFencedError):
            await offsets.rewind()
        await drain(other, newer, engine, values)


async def test_group_member_claims_what_it_gets(bootstrap: str, make_topic: MakeTopic, engine: AsyncEngine) -> None:
    """The database is away at first; listeners may be coroutine functions, and may store in `on_revoked`."""
    topic = make_topic(2)
    values = await fill(bootstrap, topic, 40)
    heard: list[str] = []
    is_away = [True]
    fail_statements(engine.sync_engine, lambda statement: is_away[0] and "lograft_offsets" in statement)

    class Listener(RebalanceListener):
        async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            heard.append(f"assigned {len(partitions)}")

        def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            heard.append(f"revoked {len(partitions)}")

    async with aio.Consumer(bootstrap, group="aio-sql", auto_commit=False) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        await offsets.subscribe([topic], listener=Listener())
        with pytest.raises(TransactionFailedError):
            await store(offsets, await poll(consumer))
        is_away[0] = False
        await offsets.create_table()
        with pytest.raises(TransactionFailedError, match="claimed only now"):
            await store(offsets, await poll(consumer))
        await drain(consumer, offsets, engine, values)
    assert heard == ["assigned 2", "revoked 2"]


async def test_wrong_use_is_refused(bootstrap: str, make_topic: MakeTopic, engine: AsyncEngine) -> None:
    """As for the blocking twin."""
    topic = make_topic(1)
    async with aio.Consumer(bootstrap, group="aio-auto") as consumer:
        with pytest.raises(InvalidSettingError, match="auto_commit=False"):
            SqlOffsets(engine, consumer, name="billing")
    async with aio.Consumer(bootstrap) as consumer:
        offsets = SqlOffsets(engine, consumer, name="billing")
        with pytest.raises(UsageError, match="latest"):
            await offsets.assign([TopicPartition(topic, 0)], start="end")
