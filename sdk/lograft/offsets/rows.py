# SPDX-License-Identifier: Apache-2.0
"""The rows of one name in the table of offsets: read, claim, move. The statements run in a transaction of the caller.

It is the only writer of the table.

Theory of operation. A row has the next offset of a partition, and the epoch of its present owner. A claim raises the epoch. A
transaction of the owner moves the offset only where the epoch is still its own, and only forward from the first of its records. Both
conditions stand in the UPDATE itself, so the database decides, under its own row lock and at the newest committed version of the row
(also in MariaDB's REPEATABLE READ, where a SELECT would see an older one). So a former owner whose transaction comes late changes
nothing, and records that are stored already are not stored again.

The rows of a transaction are taken in the order of topic id and partition, so that two of them cannot block each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import ColumnElement, CursorResult, Table, and_, insert, select, update
from sqlalchemy.engine import Connection

from lograft.errors import InvalidSettingError, OffsetsFencedError
from lograft.offsets.ranges import AlreadyStoredError, Move
from lograft.types import TopicPartition

Key = tuple[bytes, int]
"""Topic id and number of a partition."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the database has of a partition.

    Attributes:
        next_offset: offset of the first record that is not stored.
        epoch: number of the last claim, from 1.
        owner: who has claimed it, for people.
    """

    next_offset: int
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A partition to claim.

    Attributes:
        tp: the partition.
        key: its topic id and number.
        start: its first offset if the database has none.
    """

    tp: TopicPartition
    key: Key
    start: int


class OffsetRows:
    """The rows of one name, for one owner."""

    def __init__(self, table: Table, name: str, owner: str) -> None:
        self._table = table
        self._name = name
        self._owner = owner

    def read(self, connection: Connection, keys: Iterable[Key]) -> dict[Key, Row]:
        """Return the rows of partitions; those that do not exist are left out."""
        wanted = set(keys)
        columns = self._table.c
        ids = sorted({topic_id.hex() for topic_id, _ in wanted})
        found = connection.execute(
            select(columns.topic_id, columns.partition_id, columns.next_offset, columns.epoch, columns.owner).where(
                columns.name == self._name, columns.topic_id.in_(ids)
            )
        )
        rows = {
            (bytes.fromhex(topic_id), number): Row(next_offset, epoch, owner)
            for topic_id, number, next_offset, epoch, owner in found
        }
        return {key: row for key, row in rows.items() if key in wanted}

    def claim(self, connection: Connection, wanted: Sequence[Wanted], seen: Mapping[Key, Row]) -> dict[Key, Row] | None:
        """Become the owner of partitions, and return their rows; None if another owner has claimed one since `seen`.

        After None the caller rolls back.

        Raises:
            IntegrityError: another owner has made one of the rows since `seen`.
        """
        columns = self._table.c
        for each in sorted(wanted, key=lambda item: item.key):
            row = seen.get(each.key)
            if row is None:
                connection.execute(
                    insert(self._table).values(
                        name=self._name,
                        topic_id=each.key[0].hex(),
                        partition_id=each.key[1],
                        topic=each.tp.topic,
                        next_offset=each.start,
                        epoch=1,
                        owner=self._owner,
                    )
                )
            elif not _changes(
                connection.execute(
                    update(self._table)
                    .where(self._is(each.key), columns.epoch == row.epoch)
                    .values(epoch=row.epoch + 1, owner=self._owner, topic=each.tp.topic)
                )
            ):
                return None
            _check_transaction(connection)
        # Its own changes are visible to a transaction, with what a former owner stored before them.
        return self.read(connection, [each.key for each in wanted])

    def move(self, connection: Connection, moves: Sequence[Move]) -> None:
        """Move the offsets of partitions past records.

        Raises:
            OffsetsFencedError: a partition has another owner by now.
            AlreadyStoredError: records are stored already.
        """
        columns = self._table.c
        for each in sorted(moves, key=lambda item: item.key):
            done = connection.execute(
                update(self._table)
                .where(self._is(each.key), columns.epoch == each.epoch, columns.next_offset <= each.first_offset)
                .values(next_offset=each.next_offset)
            )
            if not _changes(done):
                self._refuse(connection, each)
            _check_transaction(connection)

    def _refuse(self, connection: Connection, move: Move) -> None:
        columns = self._table.c
        # A locking read sees the newest version in every isolation level.
        found = connection.execute(
            select(columns.next_offset, columns.epoch, columns.owner).where(self._is(move.key)).with_for_update()
        ).first()
        if found is None:
            raise OffsetsFencedError(f"the offset of {move.tp} is not in the database any more", partitions=[move.tp])
        next_offset, epoch, owner = found
        if epoch != move.epoch:
            raise OffsetsFencedError(
                f"{move.tp} belongs to {owner} since epoch {epoch}; this consumer had epoch {move.epoch}",
                partitions=[move.tp],
            )
        raise AlreadyStoredError(move.tp, next_offset)

    def _is(self, key: Key) -> ColumnElement[bool]:
        columns = self._table.c
        return and_(columns.name == self._name, columns.topic_id == key[0].hex(), columns.partition_id == key[1])


def _changes(result: CursorResult[tuple[object, ...]]) -> bool:
    return result.rowcount == 1


def _check_transaction(connection: Connection) -> None:
    """Raise an error if each statement is a transaction of its own: then offsets and records would be two."""
    raw = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        is_alone = not getattr(raw, "in_transaction", True)
    else:
        is_alone = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        # SQLAlchemy before 2.0.43, and some dialects, cannot tell.
        with suppress(AttributeError, NotImplementedError):
            is_alone = is_alone or (raw is not None and connection.dialect.detect_autocommit_setting(raw))
    if is_alone:
        raise InvalidSettingError("offsets need transactions: the engine or connection is set to AUTOCOMMIT")
