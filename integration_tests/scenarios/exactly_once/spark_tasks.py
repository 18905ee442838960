# SPDX-License-Identifier: Apache-2.0
"""What the tasks of an ingest do: they make the records, and fail, wait or change the order of rows where a script says so.

Tasks and proof speak by files in a directory: a task notes what it has come to, and waits for a file that the proof makes.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

pa: Any = importlib.import_module("pyarrow")

SCHEMA: Final = "key binary, value binary"
PIECE_ROWS: Final = 250
PART: Final = 0.9
"""Share of its rows that an attempt has given away when it waits or fails on the way. The sink joins batches up to 4 MiB before it
sends, so the first 90 % must be more."""

VALUE_BYTES: Final = 1_100
WAIT_TIMEOUT_S: Final = 300.0
CHECK_INTERVAL_S: Final = 0.02

PART_WAY: Final = "part"
END: Final = "end"
SEALED: Final = "sealed"
POINTS: Final = (PART_WAY, END, SEALED)
"""Where a job can wait: first attempts when they have given away most of their rows, or all but the last ones; the driver without Spark
also when all attempts are sealed."""

BEGAN: Final = "began"
FAILED: Final = "failed"
ENDED: Final = "ended"


class Unwanted(Exception):
    """The failure that a script asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What goes wrong in the tasks of one run.

    Attributes:
        directory: where tasks leave their notes.
        fails_below: attempts with a lower number fail when they have given away most of their rows.
        failing: tasks of which attempts fail; empty: all of them.
        waits_at: one of POINTS; empty: nowhere.
        waiting: tasks whose first attempts wait; empty: all of them.
        shuffles: True if each attempt has its rows in another order.
    """

    directory: str
    fails_below: int = 0
    failing: tuple[int, ...] = ()
    waits_at: str = ""
    waiting: tuple[int, ...] = ()
    shuffles: bool = False

    def without_faults(self) -> Script:
        """Return the script of a rerun."""
        return Script(directory=self.directory)

    def fails(self, task: int, attempt: int) -> bool:
        """Return True if an attempt fails."""
        return attempt < self.fails_below and (not self.failing or task in self.failing)

    def waits(self, point: str, task: int, attempt: int) -> bool:
        """Return True if an attempt waits at a point."""
        return attempt == 0 and self.waits_at == point and (not self.waiting or task in self.waiting)


def script_of(fields: Mapping[str, Any]) -> Script:
    """Return the script whose fields came as JSON."""
    return Script(**{**fields, "failing": tuple(fields["failing"]), "waiting": tuple(fields["waiting"])})


def key_of(number: int) -> bytes:
    """Return the key of a record."""
    return b"k%d" % number


def value_of(number: int) -> bytes:
    """Return the value of a record."""
    return (b"%d " % number).ljust(VALUE_BYTES, b".")


def records_wanted(count: int) -> dict[bytes, list[bytes]]:
    """Return what a topic must have after an ingest of so many records."""
    return {key_of(number): [value_of(number)] for number in range(count)}


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes in a directory. Tasks write them, once each; the proof reads them, and opens the gate."""

    directory: Path

    def write(self, what: str, task: int, attempt: int) -> None:
        """Note that an attempt has come to something, with the process that it runs in."""
        name = self.directory / f"{what}-{task}-{attempt}"
        waiting = name.with_suffix(".new")
        waiting.write_text(str(os.getpid()))
        waiting.replace(name)

    def of(self, what: str) -> list[tuple[int, int]]:
        """Return task and attempt of the notes of a kind."""
        names = [each.name.split("-") for each in self.directory.glob(f"{what}-*") if not each.suffix]
        return sorted((int(task), int(attempt)) for _, task, attempt in names)

    def process_id(self, what: str, task: int, attempt: int) -> int:
        """Return the process that has written a note."""
        return int((self.directory / f"{what}-{task}-{attempt}").read_text())

    def open_gate(self) -> None:
        """Let everybody go on who waits."""
        (self.directory / "go").touch()

    def clear(self) -> None:
        """Remove all notes, and close the gate."""
        for each in self.directory.iterdir():
            each.unlink()

    def wait_gate(self) -> None:
        """Wait until the gate is open. Raises TimeoutError if it stays closed."""
        gate, pause = self.directory / "go", threading.Event()
        deadline_s = time.monotonic() + WAIT_TIMEOUT_S
        while not gate.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nobody opened {gate} within {WAIT_TIMEOUT_S} s")
            pause.wait(CHECK_INTERVAL_S)


def batches(numbers: Sequence[int], script: Script, task: int, attempt: int) -> Iterator[Any]:
    """Yield the rows of an attempt, as its script says."""
    notes = Notes(Path(script.directory))
    notes.write(BEGAN, task, attempt)
    rows = list(numbers)
    if script.shuffles:
        random.Random(attempt + 1).shuffle(rows)
    part, end = int(len(rows) * PART), max(0, len(rows) - PIECE_ROWS)
    yield from _pieces(rows[:part])
    if script.fails(task, attempt):
        notes.write(FAILED, task, attempt)
        raise Unwanted(f"attempt {attempt} of task {task} fails, as it shall")
    _wait(notes, script, PART_WAY, task, attempt)
    yield from _pieces(rows[part:end])
    _wait(notes, script, END, task, attempt)
    yield from _pieces(rows[max(part, end) :])
    notes.write(ENDED, task, attempt)


def make_rows(fields: Mapping[str, Any]) -> Any:
    """Return the function that Spark runs in each task, from batches of numbers to batches of records."""

    def run(numbered: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task has a context"
        numbers = [number for batch in numbered for number in batch.column(0).to_pylist()]
        yield from batches(numbers, script_of(fields), context.partitionId(), context.attemptNumber())

    return run


def fields_of(script: Script) -> dict[str, Any]:
    """Return the fields of a script for JSON."""
    return dataclasses.asdict(script)


def _wait(notes: Notes, script: Script, point: str, task: int, attempt: int) -> None:
    if script.waits(point, task, attempt):
        notes.write(point, task, attempt)
        notes.wait_gate()


def _pieces(rows: Sequence[int]) -> Iterator[Any]:
    for start in range(0, len(rows), PIECE_ROWS):
        piece = rows[start : start + PIECE_ROWS]
        columns = [pa.array([make(number) for number in piece], pa.binary()) for make in (key_of, value_of)]
        yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])
