# SPDX-License-Identifier: Apache-2.0
"""Prints sections and reports: tables for people, one line of JSON for each row for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import islice

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from storage.inspect.findings import Finding, LogReport
from storage.inspect.sections import RecordHeaders, Row, Section

TABLE_ROWS = 1_000
"""Most rows of a table without `--limit`; JSON has no default limit."""

CELL_LETTERS = 200
"""Most letters of one table cell; JSON shows everything."""

SHORT_LETTERS = 29
"""A table column is never broken if its cells have at most this many letters; longer columns share the rest of the line."""

LOG_COLUMNS = ("log", "segments", "records", "offsets", "bytes", "findings")
FINDING_COLUMNS = ("severity", "file", "offsets", "bytes", "problem")


def print_section(section: Section, *, as_json: bool, limit: int | None) -> None:
    """Print one section; a table says when it leaves out rows."""
    if as_json:
        for row in islice(section.rows, limit):
            print_json({"type": section.kind, **_members(section.columns, row)})
        return
    rows = iter(section.rows)
    most = TABLE_ROWS if limit is None else limit
    titles = [column.replace("_", " ") for column in section.columns]
    print_table(section.title, titles, islice(rows, most))
    if next(rows, None) is not None:
        Console().print(f"... more than {most} rows: choose with --offset and --end, or use --limit or --json")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print a table; leave out columns without values, and break titles after each word."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    used = [slot for slot in range(len(columns)) if not cells or any(row[slot] != "-" for row in cells)]
    console = Console()
    widths = {slot: max(map(len, (*columns[slot].split(), *(row[slot] for row in cells)))) for slot in used}
    # Short columns are not broken, unless they alone are too wide for the terminal.
    short = {slot for slot in used if widths[slot] <= SHORT_LETTERS}
    fits = sum(widths[slot] if slot in short else SHORT_LETTERS for slot in used) + 3 * len(used) < console.width
    table = Table(title=escape(title), title_justify="left")
    for slot in used:
        heading = "\n".join(columns[slot].split()) if slot in short else columns[slot]
        table.add_column(heading, overflow="fold", no_wrap=fits and slot in short)
    for row in cells:
        table.add_row(*(escape(row[slot]) for slot in used))
    console.print(table)


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def print_error(message: str) -> None:
    """Print one line to standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]lograft log: error:[/] {escape(message)}")


def report_as_json(report: LogReport, findings: Sequence[Finding]) -> dict[str, object]:
    """Return a report as a JSON object."""
    return {
        "type": "log",
        "path": report.path,
        "segment_count": report.segment_count,
        "batch_count": report.batch_count,
        "record_count": report.record_count,
        "verified_bytes": report.verified_bytes,
        "log_start_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "flushed_offset": report.flushed_offset,
        "is_clean": report.is_clean,
        "findings": [_finding_as_json(finding) for finding in findings],
    }


def report_row(report: LogReport) -> Row:
    """Return a report as a row of `LOG_COLUMNS`."""
    counts: dict[str, int] = {}
    for finding in report.findings:
        counts[finding.severity.value] = counts.get(finding.severity.value, 0) + 1
    return (
        report.path,
        report.segment_count,
        report.record_count,
        f"{report.log_start_offset} to {report.log_end_offset}",
        report.verified_bytes,
        ", ".join(f"{count} {severity}" for severity, count in counts.items()) or "none",
    )


def finding_row(finding: Finding) -> Row:
    """Return a finding as a row of `FINDING_COLUMNS`; the ends of its ranges are exclusive."""
    offsets = None if finding.base_offset is None else f"{finding.base_offset} to {finding.end_offset}"
    places = None if finding.position is None else f"{finding.position} to {finding.end_position}"
    return (finding.severity.value, finding.file, offsets, places, finding.message)


def _finding_as_json(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity.value,
        "file": finding.file,
        "message": finding.message,
        "base_offset": finding.base_offset,
        "end_offset": finding.end_offset,
        "position": finding.position,
        "end_position": finding.end_position,
    }


def _members(columns: Sequence[str], row: Row) -> dict[str, object]:
    members: dict[str, object] = {}
    for column, cell in zip(columns, row, strict=True):
        members |= _member(column, cell)
    return members


def _member(name: str, cell: object) -> dict[str, object]:
    """Return the JSON members for a cell: bytes as text, or as base64 under a name that says so; headers as a list of objects."""
    if isinstance(cell, RecordHeaders):
        return {name: [{"key": key, **_member("value", value)} for key, value in cell.pairs]}
    if isinstance(cell, bytes):
        try:
            return {name: cell.decode()}
        except UnicodeDecodeError:
            return {f"{name}_base64": base64.b64encode(cell).decode()}
    return {name: cell}


def _cell(cell: object) -> str:
    if cell is None:
        return "-"
    text = cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else str(cell)
    printable = "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return printable if len(printable) <= CELL_LETTERS else f"{printable[:CELL_LETTERS]}..."
