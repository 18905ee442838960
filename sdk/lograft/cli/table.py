# SPDX-License-Identifier: Apache-2.0
"""The text of tables. Pure.

A table has two spaces between its columns and no lines, so that it fits narrow terminals and words can be cut out by `awk`. No
value without a space in it (a name, an address, an id) is ever split. What does not fit is made narrower in this order: columns
that may be left out go, cells with spaces are folded at spaces, and at last each row becomes a block of lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

GAP: Final = "  "
"""What is between two columns."""

NOTHING: Final = "-"
"""How None appears."""


def format_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None, may_go: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a table, the first one with the names of the columns. Numbers stand to the right.

    Args:
        columns: names of the columns, most important first.
        rows: the cells; None appears as "-".
        width: characters that a line may have; None: any number.
        may_go: columns that are left out, in this order, until the others fit.
    """
    names = list(columns)
    cells = [list(row) for row in rows]
    for name in may_go:
        if width is None or _total(_natural(names, cells)) <= width:
            break
        at = names.index(name)
        names.pop(at)
        cells = [row[:at] + row[at + 1 :] for row in cells]
    widths = _natural(names, cells)
    if cells and width is not None and _total(widths) > width:
        folded = _fold(names, cells, widths, width)
        if folded is None:
            return _blocks(names, cells)
        widths = folded
    is_number = [bool(cells) and all(isinstance(row[at], int | None) for row in cells) for at in range(len(names))]
    lines = _lines(names, widths, is_number)
    for row in cells:
        lines += _lines([_text(cell) for cell in row], widths, is_number)
    return lines


def _text(cell: object) -> str:
    return NOTHING if cell is None else str(cell)


def _natural(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int]:
    return [
        max(len(name), *(len(_text(row[at])) for row in rows)) if rows else len(name) for at, name in enumerate(names)
    ]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fold(
    names: Sequence[str], rows: Sequence[Sequence[object]], widths: Sequence[int], width: int
) -> list[int] | None:
    """Return narrower widths at which only spaces are split; None if there are none."""
    words = [
        max(len(word) for text in (names[at], *(_text(row[at]) for row in rows)) for word in (text.split() or [""]))
        for at in range(len(names))
    ]
    if _total(words) > width:
        return None
    found = list(widths)
    while _total(found) > width:
        # The column with the most room gives one character.
        at = max(range(len(found)), key=lambda each: found[each] - words[each])
        found[at] -= 1
    return found


def _lines(texts: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> list[str]:
    pieces = [_folded(text, width) for text, width in zip(texts, widths, strict=True)]
    lines: list[str] = []
    for number in range(max(map(len, pieces), default=0)):
        line = [piece[number] if number < len(piece) else "" for piece in pieces]
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        ]
        lines.append(GAP.join(padded).rstrip())
    return lines


def _folded(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _blocks(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return one block for each row: its first cell, and below it the others with their names."""
    name_width = max(map(len, names))
    lines: list[str] = []
    for row in rows:
        lines.append(f"{names[0]} {_text(row[0])}")
        lines += [f"{GAP}{name:<{name_width}}{GAP}{_text(cell)}" for name, cell in zip(names[1:], row[1:], strict=True)]
    return lines
