# SPDX-License-Identifier: Apache-2.0
"""The output of `dump`: sections of rows. Each section becomes a table, or one line of JSON for each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Row = tuple[object, ...]
"""Cells in the order of the columns; None: no value. Bytes are shown as text if they are UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeaders:
    """The headers of one record, in order; None stands for a null value."""

    pairs: tuple[tuple[str, bytes | None], ...]

    def __str__(self) -> str:
        return ", ".join(f"{key}={'null' if value is None else _text(value)}" for key, value in self.pairs)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows of one kind. `rows` can be iterated once, and reads the file during that.

    Attributes:
        kind: kind of a row, for JSON: "batch", "segment", ...
        title: title of the table.
        columns: names of the cells, with underscores and units.
        rows: the rows.
    """

    kind: str
    title: str
    columns: tuple[str, ...]
    rows: Iterable[Row]
