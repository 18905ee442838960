# SPDX-License-Identifier: Apache-2.0
"""Prints results: tables, JSON, errors."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table. None appears as "-"."""
    table = Table(title=escape(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else escape(str(cell)) for cell in row))
    Console().print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair on each line. None appears as "-"."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {'-' if value is None else value}")


def print_error(message: str) -> None:
    """Print one line to standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]lograft: error:[/] {escape(message)}")


def print_note(message: str) -> None:
    """Print one line to standard error that is not an error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold]lograft: note:[/] {escape(message)}")


def bytes_as_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under `name`, or as base64 under `<name>_base64` if they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
