# SPDX-License-Identifier: Apache-2.0
"""What `dump` gives: sections of rows, which become a table each, or a line of JSON each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Row = tuple[object, ...]
"""Cells in the order of the columns; None: nothing to say. Bytes are shown as text if they are UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeaders:
    """The headers of one record, in order; a value of None is a null."""

    pairs: tuple[tuple[str, bytes | None], ...]

    def __str__(self) -> str:
        return ", ".join(f"{key}={'null' if value is None else _text(value)}" for key, value in self.pairs)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows of one kind; `rows` is walked once, and reads the file as it goes.

    Attributes:
        kind: what a row is, for JSON: "batch", "segment", ...
        title: what the table is about.
        columns: names of the cells, with underscores and units.
        rows: the rows.
    """

    kind: str
    title: str
    columns: tuple[str, ...]
    rows: Iterable[Row]
