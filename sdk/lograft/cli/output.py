# SPDX-License-Identifier: Apache-2.0
"""Prints results: tables, JSON, errors."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from lograft.cli.table import format_table

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "1;31"
GREEN: Final = "32"
YELLOW: Final = "33"


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, may_go: Sequence[str] = ()
) -> None:
    """Print a table under a title. None appears as "-".

    Args:
        title: what the table shows.
        columns: names of the columns, most important first.
        rows: the cells.
        may_go: columns that a narrow terminal does not show, the first one to go first.
    """
    print(styled(title, BOLD))
    if not rows:
        return
    head, *lines = format_table(columns, rows, width=_width(), may_go=may_go)
    print(styled(head, DIM))
    for line in lines:
        print(line)


def counted(count: int, what: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 topic", "3 topics".

    Args:
        count: the number.
        what: the noun in the singular.
        plural: its plural; None: with an "s".
    """
    return f"{count} {what if count == 1 else plural or what + 's'}"


def format_size(size_bytes: int) -> str:
    """Return a number of bytes in a unit that people read: "812 B", "1.5 MiB"."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 1024 or unit == "PiB":
            break
    return f"{value:.1f} {unit}"


def give_up_output() -> None:
    """Send what is still to be written to standard output nowhere, because its reader has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def styled(text: str, code: str, stream: TextIO | None = None) -> str:
    """Return a text in a style if the stream is a terminal that shows styles.

    Args:
        text: the text.
        code: the numbers of the style, as in `BOLD`.
        stream: where it goes; None: standard output.
    """
    if not (stream or sys.stdout).isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _width() -> int | None:
    """Return the width of the terminal, or what COLUMNS says. None: a file or a pipe gets lines as long as they are."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair on each line. None appears as "-"."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {'-' if value is None else value}")


def print_error(message: str) -> None:
    """Print one line to standard error."""
    print(styled("lograft: error:", RED, sys.stderr), message, file=sys.stderr)


def print_note(message: str) -> None:
    """Print one line to standard error that is not an error."""
    print(styled("lograft: note:", BOLD, sys.stderr), message, file=sys.stderr)


def bytes_as_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under `name`, or as base64 under `<name>_base64` if they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
