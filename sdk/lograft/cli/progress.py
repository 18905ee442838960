# SPDX-License-Identifier: Apache-2.0
"""A progress bar with rates on standard error, where that is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from lograft.cli.output import format_size

if TYPE_CHECKING:
    from rich.progress import Progress

UPDATE_S: Final = 0.1
"""Seconds between two updates."""


class Meter:
    """Counts records and bytes, and shows how far and how fast it goes.

    Args:
        what: name of what is done.
        total: number of records or bytes (`by_bytes`) to come; None: not known.
        by_bytes: True if the bar counts bytes instead of records.
        is_shown: False shows nothing.
    """

    def __init__(self, what: str, total: int | None, *, by_bytes: bool = False, is_shown: bool = True) -> None:
        self.records: int = 0
        self.size_bytes: int = 0
        self._what = what
        self._total = total
        self._by_bytes = by_bytes
        self._is_shown = is_shown and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: Any = None
        self._started_s = time.monotonic()
        self._next_s = 0.0

    def __enter__(self) -> Meter:
        if self._is_shown:
            # Only here, because it takes a tenth of a second.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%" if self._total is not None else ""),
                TextColumn("{task.fields[rates]}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=self._total, rates="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._show()
            self._progress.stop()

    def add(self, records: int, size_bytes: int) -> None:
        """Count records and bytes that are done."""
        self.records += records
        self.size_bytes += size_bytes
        if self._progress is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + UPDATE_S
            self._show()

    def show(self, done: int, total: int | None, text: str) -> None:
        """Show how far something is that others count.

        Args:
            done: what is done, in any unit.
            total: what is to be done, in the same unit; None: not known.
            text: what the line says instead of rates.
        """
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, rates=text)

    def rates(self) -> str:
        """Return records and bytes per second since the beginning."""
        seconds = max(time.monotonic() - self._started_s, 0.001)
        return f"{self.records / seconds:,.0f} records/s, {format_size(int(self.size_bytes / seconds))}/s"

    def _show(self) -> None:
        if self._progress is not None and (self.records or self.size_bytes):
            done = self.size_bytes if self._by_bytes else self.records
            self._progress.update(self._task, completed=done, rates=self.rates())
