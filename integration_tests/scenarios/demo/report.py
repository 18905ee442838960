# SPDX-License-Identifier: Apache-2.0
"""The output of the demo: a table for each comparison, and one line with the result.

Owns the form. Does not decide whether the sides are equal: `facts` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lograft.spark.jobs.phases import Phase, shares
from rich import box
from rich.console import Console
from rich.table import Table

from integration_tests.scenarios.demo.facts import Comparison, Tally


def comparison_table(title: str, lines: Sequence[Comparison]) -> Table:
    """Return a table with one row for each partition, and the sum."""
    table = Table(title=title, title_justify="left", show_footer=True, box=box.SIMPLE_HEAVY, pad_edge=False)
    wanted = sum((line.wanted for line in lines), Tally())
    found = sum((line.found for line in lines), Tally())
    table.add_column("partition", "all", justify="right")
    table.add_column("source", f"{wanted.count:,}", justify="right", no_wrap=True)
    table.add_column("replayed", f"{found.count:,}", justify="right", no_wrap=True)
    table.add_column("source checksum", _checksum(wanted), no_wrap=True)
    table.add_column("replayed checksum", _checksum(found), no_wrap=True)
    table.add_column("", _verdict(all(line.is_equal for line in lines)), no_wrap=True)
    for line in lines:
        table.add_row(
            str(line.partition),
            f"{line.wanted.count:,}",
            f"{line.found.count:,}",
            _checksum(line.wanted),
            _checksum(line.found),
            _verdict(line.is_equal),
        )
    return table


def time_table(parts: Sequence[Phase], record_count: int) -> Table:
    """Return a table of where the time of an ingest went: Spark's own time, and Lograft's."""
    spark_s, ours_s = shares(list(parts))
    table = Table(
        title="where the time went", title_justify="left", show_footer=True, box=box.SIMPLE_HEAVY, pad_edge=False
    )
    table.add_column("", f"Spark {spark_s:.1f} s, Lograft {ours_s:.1f} s")
    table.add_column("Spark", f"{spark_s:.2f}", justify="right", no_wrap=True)
    table.add_column("Lograft", f"{ours_s:.2f}", justify="right", no_wrap=True)
    for each in parts:
        seconds = f"{each.seconds:.2f}"
        table.add_row(each.what, "" if each.is_ours else seconds, seconds if each.is_ours else "")
    if ours_s > 0:
        table.add_row(f"{record_count / ours_s:,.0f} records/s", "", "")
    return table


def moment(timestamp_ms: int) -> str:
    """Return a timestamp in milliseconds as text, UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def print_verdict(console: Console, comparisons: Sequence[Comparison], *, record_count: int, seconds: float) -> bool:
    """Print whether everything is equal.

    Returns:
        True if it is.
    """
    different = [line for line in comparisons if not line.is_equal]
    if different:
        console.print(f"[bold red]DIFFERENT[/]: {len(different)} of {len(comparisons)} comparisons failed")
        return False
    console.print(
        f"[bold green]EQUAL[/]: {record_count:,} records in, {record_count:,} records out, "
        f"counts and checksums the same ({seconds:.1f} s)",
        soft_wrap=True,
    )
    return True


def _checksum(tally: Tally) -> str:
    return f"{tally.checksum:016x}"


def _verdict(is_equal: bool) -> str:
    return "[green]equal[/]" if is_equal else "[bold red]DIFFERS[/]"
