# SPDX-License-Identifier: Apache-2.0
"""`lograft log dump` and `lograft log verify`: inspect logs on disk, without a server.

`lograft` finds the commands through the entry-point group `lograft.commands`. Exit codes: 0 good; 1 findings, or a
damaged file that cannot be shown; 2 wrong usage, or something unreadable.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from storage.errors import DiskError
from storage.inspect.dump import dump_path
from storage.inspect.findings import Finding
from storage.inspect.formats import MalformedError
from storage.inspect.output import (
    FINDING_COLUMNS,
    LOG_COLUMNS,
    finding_row,
    print_error,
    print_json,
    print_section,
    print_table,
    report_as_json,
    report_row,
)
from storage.inspect.sections import Row
from storage.inspect.targets import UnknownTargetError
from storage.inspect.verify import verify_path

EXIT_FINDINGS = 1
EXIT_USAGE = 2

log_app = typer.Typer(no_args_is_help=True, help="Look at logs on disk, without a server; nothing is ever changed.")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, instead of tables.")]


@contextmanager
def _errors_told() -> Generator[None, None, None]:
    """Print an error in one line, and end the command."""
    try:
        yield
    except (UnknownTargetError, DiskError) as error:
        print_error(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except MalformedError as error:
        print_error(f"the file is damaged: {error}")
        raise typer.Exit(EXIT_FINDINGS) from None


@log_app.command()
def dump(
    path: Annotated[Path, typer.Argument(help="A data directory, the directory of a log, or one of its files.")],
    records: Annotated[bool, typer.Option("--records", help="Show records instead of batches.")] = False,
    batches: Annotated[bool, typer.Option("--batches", help="Show the batches of a log directory.")] = False,
    offset: Annotated[int | None, typer.Option(min=0, help="First offset to show, inclusive.")] = None,
    end: Annotated[int | None, typer.Option(min=0, help="End of the offsets to show, exclusive.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most rows of a table; default 1,000, with --json all.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show a data directory, a log, its batches or records, an index, a snapshot, a seal or a checkpoint."""
    with _errors_told():
        for section in dump_path(str(path), records=records, batches=batches, offset=offset, end_offset=end):
            print_section(section, as_json=as_json, limit=limit)


@log_app.command()
def verify(
    paths: Annotated[list[Path], typer.Argument(help="Data directories, directories of logs, or single files.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Count notes as findings too: torn tails, known damage, stale caches.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Judge every batch, index, snapshot, seal and checkpoint. Exit code 0: all is well; 1: there are findings."""
    rows: list[Row] = []
    findings: list[tuple[str, Finding]] = []
    failed = False
    with _errors_told():
        for path in paths:
            for report in verify_path(str(path)):
                failed = failed or bool(report.failures(strict=strict))
                if as_json:
                    print_json(report_as_json(report, report.findings))
                else:
                    rows.append(report_row(report))
                    findings += [(report.path, finding) for finding in report.findings]
    if not as_json:
        print_table("logs", LOG_COLUMNS, rows)
        for log in dict.fromkeys(log for log, _ in findings):
            print_table(log, FINDING_COLUMNS, [finding_row(finding) for name, finding in findings if name == log])
    raise typer.Exit(EXIT_FINDINGS if failed else 0)
