# SPDX-License-Identifier: Apache-2.0
"""Faults that the proofs must find. A worker that is asked to puts one of them in place of the real code."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from lograft.offsets.ranges import Move, Records, ranges_of
from lograft.offsets.rows import Key, OffsetRows, Row, Wanted
from lograft.offsets.sql import SqlOffsets
from sqlalchemy import Connection, update


def _two_transactions() -> None:
    """Records are committed first, and the offsets in a second transaction."""

    @contextmanager
    def transaction(self: Any, records: Records, using: object = None) -> Generator[Connection]:
        del using
        moves = self._prepare(ranges_of(records))
        with self._engine.begin() as connection:
            yield connection
        with self._engine.begin() as connection:
            self._rows.move(connection, moves)

    _replace(SqlOffsets, "_transaction", transaction)


def _offsets_first() -> None:
    """The offsets are committed first, and the records in a second transaction."""

    @contextmanager
    def transaction(self: Any, records: Records, using: object = None) -> Generator[Connection]:
        del using
        moves = self._prepare(ranges_of(records))
        with self._engine.begin() as connection:
            self._rows.move(connection, moves)
        with self._engine.begin() as connection:
            yield connection

    _replace(SqlOffsets, "_transaction", transaction)


def _no_fence() -> None:
    """Offsets are overwritten whoever has the partition."""
    _replace(OffsetRows, "move", _move(has_epoch=False, has_offset=False))


def _no_epoch() -> None:
    """Only the offset protects a partition, not the epoch of its owner."""
    _replace(OffsetRows, "move", _move(has_epoch=False, has_offset=True))


def _move(*, has_epoch: bool, has_offset: bool) -> Callable[[Any, Connection, Sequence[Move]], None]:
    def move(self: Any, connection: Connection, moves: Sequence[Move]) -> None:
        columns = self._table.c
        for each in moves:
            conditions = [self._is(each.key)]
            conditions += [columns.epoch == each.epoch] if has_epoch else []
            conditions += [columns.next_offset <= each.first_offset] if has_offset else []
            done = connection.execute(update(self._table).where(*conditions).values(next_offset=each.next_offset))
            if done.rowcount != 1:
                self._refuse(connection, each)

    return move


def _late_claim() -> None:
    """A claim counts whatever has happened since the coordinator confirmed it."""

    def claim(self: Any, connection: Connection, wanted: Sequence[Wanted], seen: Mapping[Key, Row]) -> object:
        if not all(each.key in seen for each in wanted):
            return real(self, connection, wanted, seen)
        columns = self._table.c
        for each in wanted:
            changes = {"epoch": columns.epoch + 1, "owner": self._owner}
            connection.execute(update(self._table).where(self._is(each.key)).values(**changes))
        return self.read(connection, [each.key for each in wanted])

    real: Any = OffsetRows.claim
    _replace(OffsetRows, "claim", claim)


def _replace(owner: type, name: str, function: object) -> None:
    setattr(owner, name, function)


MUTANTS: Final[Mapping[str, Callable[[], None]]] = {
    "two-transactions": _two_transactions,
    "offsets-first": _offsets_first,
    "no-fence": _no_fence,
    "no-epoch": _no_epoch,
    "late-claim": _late_claim,
}

KILLS_FIND: Final = ("two-transactions", "offsets-first")
"""Mutants that the kills find."""

TWO_OWNERS_FIND: Final = ("no-fence", "no-epoch", "late-claim")
"""Mutants that two owners at once find."""
