# SPDX-License-Identifier: Apache-2.0
"""Offsets of a blocking consumer in a SQL database.

It owns the order of work: claim, seek, records and offsets in one transaction, back to the first record after a failure. `rows` has the
statements, `ranges` the claims. `aio` is its twin for asyncio.

Theory of operation. *Fencing.* The row of each partition has an epoch. Whoever begins to read a partition raises it (a claim), and a
transaction counts only under the epoch of the last claim. With `assign`, the newest claim wins. In a group, only the member that the
coordinator calls the owner may claim. The group's own epochs cannot order claims: a group without members and offsets is removed, and
its epochs begin anew at 1. So a claim reads the row, then has the coordinator confirm the ownership (a commit, which a former owner is
refused), then raises the epoch only if no other claim came since it read the row. If two members claim, the one that the coordinator
confirmed later has the later claim, however long either was held up in between.

*Failures.* A transaction that fails moves the consumer back to the first of its records, without asking the database. If it has
taken effect all the same (the answer to the commit was lost), the same records are refused as stored already, and the consumer goes on
behind them.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, TypeVar, overload

from sqlalchemy import MetaData
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from lograft.consumer import Consumer
from lograft.errors import (
    InvalidSettingError,
    LograftError,
    MembershipLostError,
    NoCommittedOffsetError,
    NotAssignedError,
    OffsetsFencedError,
    RetriableError,
    TransactionFailedError,
    UsageError,
)
from lograft.offsets.failures import is_temporary
from lograft.offsets.ranges import AlreadyStoredError, Claim, Claims, Move, OffsetRange, Records, ranges_of
from lograft.offsets.rows import Key, OffsetRows, Row, Wanted
from lograft.offsets.table import DEFAULT_TABLE, NAME_MAX_LENGTH, check_name, create_table, has_table, offsets_table
from lograft.types import RebalanceListener, TopicPartition

logger: Final = logging.getLogger(__name__)

CLAIM_ATTEMPTS: Final = 10
"""Times that a claim is tried while others claim the same partitions. Each failure means that another claim has succeeded."""

T = TypeVar("T", bound="Connection | Session")


class SqlOffsets:
    """Keeps the offsets of one consumer in a SQL database, in one transaction with what you make of the records.

        offsets = SqlOffsets(engine, consumer, name="billing")
        offsets.subscribe(["orders"])
        while True:
            records = consumer.poll()
            with offsets.transaction(records) as connection:
                connection.execute(insert(invoices), [...])

    It has one consumer, and belongs to the thread that polls it.

    Args:
        engine: the database, with transactions: not in AUTOCOMMIT.
        consumer: the consumer, which is neither subscribed nor assigned yet, and made with `auto_commit=False` if it has a group.
        name: under which the offsets are kept, 1 to 200 characters: the same in all members of a group and in each run.
        table: name of the table.
        schema: schema of the table; None: the default one.

    Raises:
        InvalidSettingError: the name is not valid, or the consumer commits by itself.
    """

    def __init__(
        self,
        engine: Engine,
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

    def create_table(self) -> None:
        """Create the table of offsets, if it does not exist."""
        try:
            with self._engine.begin() as connection:
                create_table(connection, self._table)
        except DBAPIError:
            # Another process may have created it at the same time.
            with self._engine.connect() as connection:
                if not has_table(connection, self._table):
                    raise

    # -- where to read

    def assign(self, tps: Iterable[TopicPartition], *, start: str = "earliest") -> None:
        """Take partitions over from any other consumer of this name, and read exactly these from the stored offsets.

        Args:
            tps: the partitions.
            start: where partitions begin that have no stored offset: "earliest" or "latest".

        Raises:
            UnknownTopicError: a topic or partition does not exist.
            TransactionFailedError: the database is away, or another consumer takes the same partitions at the same time.
            LograftError: the client could not look up the offsets.
        """
        wanted = list(tps)
        self._claims.forget([*self._claims.held, *self._claims.waiting])
        if start not in ("earliest", "latest"):
            raise UsageError(f'start is "earliest" or "latest", not {start!r}')
        ids = self._consumer.topic_ids(wanted)
        find = self._consumer.beginning_offsets if start == "earliest" else self._consumer.end_offsets
        rows = self._claim(find(wanted), ids, is_member=False)
        self._consumer.assign(
            wanted,
            offsets={tp: row.next_offset for tp, row in rows.items()},
            topic_ids={tp.topic: topic_id for tp, topic_id in ids.items()},
        )

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the consumer's group. Partitions that it assigns are read from the stored offsets.

        A partition without a stored offset begins where the consumer would: at the group's committed offset, else where `reset` says.

        Args:
            topics: see `Consumer.subscribe`.
            pattern: see `Consumer.subscribe`.
            listener: hears what the consumer gets, after the seek to the stored offsets, and what it loses. `on_revoked` may still
                store records.

        Raises:
            UsageError: the consumer has no group, nothing is wanted, or partitions are assigned.
        """
        claiming = _ClaimingListener(self._take_assigned, self._claims, listener or RebalanceListener())
        self._consumer.subscribe(topics, pattern=pattern, listener=claiming)

    # -- records and offsets

    @overload
    def transaction(self, records: Records) -> AbstractContextManager[Connection]: ...
    @overload
    def transaction(self, records: Records, using: T) -> AbstractContextManager[T]: ...
    def transaction(
        self, records: Records, using: Connection | Session | None = None
    ) -> AbstractContextManager[Connection | Session]:
        """Return a context manager: what its block does and the offsets of the records are committed together, or not at all.

        If anything fails, in the block or in the database, everything is rolled back, and the consumer goes back to the first of the
        records. The next poll gives them again.

        Args:
            records: a record, a batch, or several, all from polls of the consumer. The offsets move past the last of each partition.
            using: a Connection or Session of your own to use and commit; None: a connection of the engine.

        Raises:
            TransactionFailedError: it may succeed later: poll again.
            OffsetsFencedError: another consumer has a partition by now.
        """
        return self._transaction(records, using)

    def write(self, transaction: Connection | Session, records: Records) -> None:
        """Move the offsets past records, in a transaction that you end yourself. Write your own tables before.

        After a rollback, and after a commit that failed, call `rewind`.

        Raises:
            TransactionFailedError: roll back, call `rewind`, and poll again.
            OffsetsFencedError: another consumer has a partition by now: roll back.
        """
        moves = self._prepare(ranges_of(records))
        try:
            self._rows.move(connection_of(transaction), moves)
        except SQLAlchemyError as error:
            raise_if_temporary(error)
            raise

    def rewind(self) -> None:
        """Read on from the stored offsets.

        Raises:
            TransactionFailedError: the database is away.
            OffsetsFencedError: another consumer has a partition by now. The others are read from their stored offsets.
        """
        held = dict(self._claims.held)
        try:
            with self._engine.begin() as connection:
                rows = self._rows.read(connection, [claim.key for claim in held.values()])
        except SQLAlchemyError as error:
            raise_if_temporary(error)
            raise
        fenced: list[TopicPartition] = []
        for tp, claim in held.items():
            row = rows.get(claim.key)
            if row is None or row.epoch != claim.epoch:
                fenced.append(tp)
            else:
                self._seek(tp, row.next_offset)
        if fenced:
            raise OffsetsFencedError(f"other consumers have {', '.join(map(str, fenced))} by now", partitions=fenced)

    # -- inside

    @contextmanager
    def _transaction(self, records: Records, using: Connection | Session | None) -> Generator[Connection | Session]:
        ranges = ranges_of(records)
        moves = self._prepare(ranges)
        try:
            if using is None:
                with self._engine.begin() as connection:
                    yield connection
                    self._rows.move(connection, moves)
            else:
                try:
                    yield using
                    self._rows.move(connection_of(using), moves)
                    using.commit()
                except BaseException:
                    with suppress(DBAPIError):
                        using.rollback()
                    raise
        except BaseException as error:
            self._go_back(ranges, error)
            raise_if_temporary(error)
            raise

    def _prepare(self, ranges: Mapping[TopicPartition, OffsetRange]) -> list[Move]:
        """Return what to store, or move the consumer back to the first records."""
        late = [tp for tp in ranges if tp in self._claims.waiting]
        try:
            if late:
                self._claim_assigned({tp: ranges[tp].first_offset for tp in late})
                raise TransactionFailedError(f"{', '.join(map(str, late))}: claimed only now: poll again")
            return self._claims.moves(ranges, self._positions(ranges))
        except Exception as error:
            self._go_back(
                {tp: each for tp, each in ranges.items() if tp not in late or tp in self._claims.waiting}, error
            )
            raise

    def _positions(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for tp in tps:
            with suppress(NotAssignedError):
                found[tp] = self._consumer.position(tp)
        return found

    def _go_back(self, ranges: Mapping[TopicPartition, OffsetRange], error: BaseException) -> None:
        for tp, position in self._positions(ranges).items():
            if isinstance(error, AlreadyStoredError) and error.tp == tp:
                self._seek(tp, error.next_offset)
            elif ranges[tp].first_offset < position:
                self._seek(tp, ranges[tp].first_offset)

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        # A consumer that is closed or has lost the partition needs no position.
        with suppress(LograftError):
            self._consumer.seek(tp, offset)

    # -- inside: claims

    def _take_assigned(self, tps: Sequence[TopicPartition]) -> None:
        """Claim what the group has assigned. What cannot be claimed now waits for the transaction with its first records."""
        self._claims.assigned(tps)
        health = self._consumer.health().partitions
        starts: dict[TopicPartition, int | None] = {
            tp: None if isinstance(health[tp].error, NoCommittedOffsetError) else position
            for tp, position in self._positions(tps).items()
        }
        try:
            self._claim_assigned(starts)
        except (RetriableError, OffsetsFencedError) as error:
            logger.warning("%s: not claimed yet: %s", ", ".join(map(str, tps)), error)

    def _claim_assigned(self, starts: Mapping[TopicPartition, int | None]) -> None:
        try:
            rows = self._claim(starts, self._consumer.topic_ids(starts), is_member=True)
        except MembershipLostError as error:
            raise OffsetsFencedError(f"other members have the partitions by now: {error}") from error
        for tp, row in rows.items():
            self._seek(tp, row.next_offset)

    def _claim(
        self, starts: Mapping[TopicPartition, int | None], ids: Mapping[TopicPartition, bytes], *, is_member: bool
    ) -> dict[TopicPartition, Row]:
        """Become the owner of partitions in the database, and return their rows. Those without row and start are left out."""
        keys: dict[TopicPartition, Key] = {tp: (ids[tp], tp.partition) for tp in starts}
        try:
            for _ in range(CLAIM_ATTEMPTS):
                with self._engine.begin() as connection:
                    seen = self._rows.read(connection, keys.values())
                wanted = wanted_of(starts, keys, seen)
                if is_member and wanted:
                    # The coordinator refuses it if the partitions have another owner by now.
                    self._consumer.commit({each.tp: each.start for each in wanted})
                claimed = self._try_claim(wanted, seen)
                if claimed is not None:
                    rows = {each.tp: claimed[each.key] for each in wanted}
                    self._claims.claimed({tp: Claim(keys[tp], row.epoch) for tp, row in rows.items()})
                    return rows
        except SQLAlchemyError as error:
            raise_if_temporary(error)
            raise
        raise TransactionFailedError(f"others claimed the same partitions {CLAIM_ATTEMPTS} times: poll again")

    def _try_claim(self, wanted: Sequence[Wanted], seen: Mapping[Key, Row]) -> dict[Key, Row] | None:
        try:
            with self._engine.connect() as connection:
                claimed = self._rows.claim(connection, wanted, seen)
                if claimed is not None:
                    connection.commit()
                return claimed
        except IntegrityError:
            return None


class _ClaimingListener(RebalanceListener):
    """Claims what the group assigns, then tells the application's own listener."""

    def __init__(
        self, take: Callable[[Sequence[TopicPartition]], None], claims: Claims, then: RebalanceListener
    ) -> None:
        self._take = take
        self._claims = claims
        self._then = then

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            self._take(partitions)
        finally:
            self._then.on_assigned(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            self._then.on_revoked(partitions)
        finally:
            self._claims.forget(partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._claims.forget(partitions)
        self._then.on_lost(partitions)


def check_consumer(*, is_auto_committing: bool) -> None:
    """Raise an error for a consumer that commits by itself.

    If the database could not be reached at the first assignment, the group would have an offset past records that are not stored.
    """
    if is_auto_committing:
        raise InvalidSettingError("make the consumer with auto_commit=False: the offsets are in the database")


def owner_text() -> str:
    """Return who claims, for people who look into the table: host, process, and a random word."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{uuid.uuid4().hex[:12]}"[:NAME_MAX_LENGTH]


def connection_of(transaction: Connection | Session) -> Connection:
    """Return the connection of a transaction, after what the Session has to write: the offsets' rows are locked last."""
    if isinstance(transaction, Session):
        transaction.flush()
        return transaction.connection()
    return transaction


def wanted_of(
    starts: Mapping[TopicPartition, int | None], keys: Mapping[TopicPartition, Key], seen: Mapping[Key, Row]
) -> list[Wanted]:
    """Return the partitions to claim, each with its stored offset as its start if there is one."""
    wanted: list[Wanted] = []
    for tp, start in starts.items():
        row = seen.get(keys[tp])
        offset = start if row is None else row.next_offset
        if offset is not None:
            wanted.append(Wanted(tp=tp, key=keys[tp], start=offset))
    return wanted


def raise_if_temporary(error: BaseException) -> None:
    """Raise what the application gets for an error of the database that passes."""
    if is_temporary(error):
        raise TransactionFailedError(
            f"the database did not commit: poll again ({str(error).splitlines()[0]})"
        ) from error
