# SPDX-License-Identifier: Apache-2.0
"""Offsets of an asyncio consumer in a SQL database: the twin of `sql`, whose docstring explains it.

The statements are the same: SQLAlchemy runs them on the synchronous side of an asyncio connection.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, TypeVar, overload

from sqlalchemy import MetaData
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from lograft.aio.consumer import Consumer
from lograft.errors import (
    LograftError,
    MembershipLostError,
    NoCommittedOffsetError,
    NotAssignedError,
    OffsetsFencedError,
    RetriableError,
    TransactionFailedError,
    UsageError,
)
from lograft.offsets.ranges import AlreadyStoredError, Claim, Claims, Move, OffsetRange, Records, ranges_of
from lograft.offsets.rows import Key, OffsetRows, Row, Wanted
from lograft.offsets.sql import (
    CLAIM_ATTEMPTS,
    check_consumer,
    connection_of,
    owner_text,
    raise_if_temporary,
    wanted_of,
)
from lograft.offsets.table import DEFAULT_TABLE, check_name, create_table, has_table, offsets_table
from lograft.types import RebalanceListener, TopicPartition

logger: Final = logging.getLogger(__name__)

T = TypeVar("T", bound="AsyncConnection | AsyncSession")


class SqlOffsets:
    """Keeps the offsets of one `lograft.aio.Consumer` in a SQL database; see `lograft.offsets.SqlOffsets`.

        async with offsets.transaction(records) as connection:
            await connection.execute(insert(invoices), [...])

    Arguments, results and errors are those of `lograft.offsets.SqlOffsets`, with an `AsyncEngine`, `AsyncConnection` and
    `AsyncSession`. Everything that asks a broker or the database is a coroutine. Listeners may be coroutine functions.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        consumer: Consumer,
        *,
        name: str,
        table: str = DEFAULT_TABLE,
        schema: str | None = None,
    ) -> None:
        check_consumer(is_auto_committing=consumer.auto_commit)
        self._engine = engine
        self._consumer = consumer
        self._table = offsets_table(MetaData(), table, schema=schema)
        self._rows = OffsetRows(self._table, check_name(name), owner_text())
        self._claims = Claims()

    async def create_table(self) -> None:
        """Create the table of offsets, if it does not exist."""
        try:
            async with self._engine.begin() as connection:
                await connection.run_sync(create_table, self._table)
        except DBAPIError:
            # Another process may have created it at the same time.
            async with self._engine.connect() as connection:
                if not await connection.run_sync(has_table, self._table):
                    raise

    # -- where to read

    async def assign(self, tps: Iterable[TopicPartition], *, start: str = "earliest") -> None:
        """Take partitions over, and read exactly these from the stored offsets; see `lograft.offsets.SqlOffsets.assign`."""
        wanted = list(tps)
        self._claims.forget([*self._claims.held, *self._claims.waiting])
        if start not in ("earliest", "latest"):
            raise UsageError(f'start is "earliest" or "latest", not {start!r}')
        ids = await self._consumer.topic_ids(wanted)
        find = self._consumer.beginning_offsets if start == "earliest" else self._consumer.end_offsets
        rows = await self._claim(await find(wanted), ids, is_member=False)
        await self._consumer.assign(
            wanted,
            offsets={tp: row.next_offset for tp, row in rows.items()},
            topic_ids={tp.topic: topic_id for tp, topic_id in ids.items()},
        )

    async def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the consumer's group, and read what it assigns from the stored offsets; see `lograft.offsets.SqlOffsets.subscribe`."""
        claiming = _ClaimingListener(self._take_assigned, self._claims, listener or RebalanceListener())
        await self._consumer.subscribe(topics, pattern=pattern, listener=claiming)

    # -- records and offsets

    @overload
    def transaction(self, records: Records) -> AbstractAsyncContextManager[AsyncConnection]: ...
    @overload
    def transaction(self, records: Records, using: T) -> AbstractAsyncContextManager[T]: ...
    def transaction(
        self, records: Records, using: AsyncConnection | AsyncSession | None = None
    ) -> AbstractAsyncContextManager[AsyncConnection | AsyncSession]:
        """Return an asynchronous context manager; see `lograft.offsets.SqlOffsets.transaction`."""
        return self._transaction(records, using)

    async def write(self, transaction: AsyncConnection | AsyncSession, records: Records) -> None:
        """Move the offsets past records, in a transaction that you end yourself; see `lograft.offsets.SqlOffsets.write`."""
        moves = await self._prepare(ranges_of(records))
        try:
            await self._move(transaction, moves)
        except SQLAlchemyError as error:
            raise_if_temporary(error)
            raise

    async def rewind(self) -> None:
        """Read on from the stored offsets; see `lograft.offsets.SqlOffsets.rewind`."""
        held = dict(self._claims.held)
        try:
            async with self._engine.begin() as connection:
                rows = await connection.run_sync(self._rows.read, [claim.key for claim in held.values()])
        except SQLAlchemyError as error:
            raise_if_temporary(error)
            raise
        fenced: list[TopicPartition] = []
        for tp, claim in held.items():
            row = rows.get(claim.key)
            if row is None or row.epoch != claim.epoch:
                fenced.append(tp)
            else:
                await self._seek(tp, row.next_offset)
        if fenced:
            raise OffsetsFencedError(f"other consumers have {', '.join(map(str, fenced))} by now", partitions=fenced)

    # -- inside

    @asynccontextmanager
    async def _transaction(
        self, records: Records, using: AsyncConnection | AsyncSession | None
    ) -> AsyncGenerator[AsyncConnection | AsyncSession]:
        ranges = ranges_of(records)
        moves = await self._prepare(ranges)
        try:
            if using is None:
                async with self._engine.begin() as connection:
                    yield connection
                    await self._move(connection, moves)
            else:
                try:
                    yield using
                    await self._move(using, moves)
                    await using.commit()
                except BaseException:
                    with suppress(DBAPIError):
                        await using.rollback()
                    raise
        except BaseException as error:
            await self._go_back(ranges, error)
            raise_if_temporary(error)
            raise

    async def _move(self, transaction: AsyncConnection | AsyncSession, moves: Sequence[Move]) -> None:
        def move(session: Session) -> None:
            self._rows.move(connection_of(session), moves)

        if isinstance(transaction, AsyncSession):
            await transaction.run_sync(move)
        else:
            await transaction.run_sync(self._rows.move, moves)

    async def _prepare(self, ranges: Mapping[TopicPartition, OffsetRange]) -> list[Move]:
        """Return what to store, or move the consumer back to the first records."""
        late = [tp for tp in ranges if tp in self._claims.waiting]
        try:
            if late:
                await self._claim_assigned({tp: ranges[tp].first_offset for tp in late})
                raise TransactionFailedError(f"{', '.join(map(str, late))}: claimed only now: poll again")
            return self._claims.moves(ranges, self._positions(ranges))
        except Exception as error:
            await self._go_back(
                {tp: each for tp, each in ranges.items() if tp not in late or tp in self._claims.waiting}, error
            )
            raise

    def _positions(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for tp in tps:
            with suppress(NotAssignedError):
                found[tp] = self._consumer.position(tp)
        return found

    async def _go_back(self, ranges: Mapping[TopicPartition, OffsetRange], error: BaseException) -> None:
        for tp, position in self._positions(ranges).items():
            if isinstance(error, AlreadyStoredError) and error.tp == tp:
                await self._seek(tp, error.next_offset)
            elif ranges[tp].first_offset < position:
                await self._seek(tp, ranges[tp].first_offset)

    async def _seek(self, tp: TopicPartition, offset: int) -> None:
        # A consumer that is closed or has lost the partition needs no position.
        with suppress(LograftError):
            await self._consumer.seek(tp, offset)

    # -- inside: claims

    async def _take_assigned(self, tps: Sequence[TopicPartition]) -> None:
        """Claim what the group has assigned. What cannot be claimed now waits for the transaction with its first records."""
        self._claims.assigned(tps)
        health = self._consumer.health().partitions
        starts: dict[TopicPartition, int | None] = {
            tp: None if isinstance(health[tp].error, NoCommittedOffsetError) else position
            for tp, position in self._positions(tps).items()
        }
        try:
            await self._claim_assigned(starts)
        except (RetriableError, OffsetsFencedError) as error:
            logger.warning("%s: not claimed yet: %s", ", ".join(map(str, tps)), error)

    async def _claim_assigned(self, starts: Mapping[TopicPartition, int | None]) -> None:
        try:
            rows = await self._claim(starts, await self._consumer.topic_ids(starts), is_member=True)
        except MembershipLostError as error:
            raise OffsetsFencedError(f"other members have the partitions by now: {error}") from error
        for tp, row in rows.items():
            await self._seek(tp, row.next_offset)

    async def _claim(
        self, starts: Mapping[TopicPartition, int | None], ids: Mapping[TopicPartition, bytes], *, is_member: bool
    ) -> dict[TopicPartition, Row]:
        """Become the owner of partitions in the database, and return their rows. Those without row and start are left out."""
        keys: dict[TopicPartition, Key] = {tp: (ids[tp], tp.partition) for tp in starts}
        try:
            for _ in range(CLAIM_ATTEMPTS):
                async with self._engine.begin() as connection:
                    seen = await connection.run_sync(self._rows.read, list(keys.values()))
                wanted = wanted_of(starts, keys, seen)
                if is_member and wanted:
                    # The coordinator refuses it if the partitions have another owner by now.
                    await self._consumer.commit({each.tp: each.start for each in wanted})
                claimed = await self._try_claim(wanted, seen)
                if claimed is not None:
                    rows = {each.tp: claimed[each.key] for each in wanted}
                    self._claims.claimed({tp: Claim(keys[tp], row.epoch) for tp, row in rows.items()})
                    return rows
        except SQLAlchemyError as error:
            raise_if_temporary(error)
            raise
        raise TransactionFailedError(f"others claimed the same partitions {CLAIM_ATTEMPTS} times: poll again")

    async def _try_claim(self, wanted: Sequence[Wanted], seen: Mapping[Key, Row]) -> dict[Key, Row] | None:
        try:
            async with self._engine.connect() as connection:
                claimed = await connection.run_sync(self._rows.claim, wanted, seen)
                if claimed is not None:
                    await connection.commit()
                return claimed
        except IntegrityError:
            return None


class _ClaimingListener(RebalanceListener):
    """Claims what the group assigns, then tells the application's own listener."""

    def __init__(
        self, take: Callable[[Sequence[TopicPartition]], Awaitable[None]], claims: Claims, then: RebalanceListener
    ) -> None:
        self._take = take
        self._claims = claims
        self._then = then

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            await self._take(partitions)
        finally:
            await _finished(self._then.on_assigned(partitions))

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            await _finished(self._then.on_revoked(partitions))
        finally:
            self._claims.forget(partitions)

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._claims.forget(partitions)
        await _finished(self._then.on_lost(partitions))


async def _finished(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result
