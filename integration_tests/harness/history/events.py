# SPDX-License-Identifier: Apache-2.0
"""A history: what clients asked and what they were told, one JSON object a line, in the order in which it happened.

Owns the form of a line (docs/workload.md), the writer and the reader. Must not know clusters, clients or what is right.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HISTORY_FILE = "history.jsonl"
"""Name of the file in the directory of a run."""
FLUSH_S = 1.0
"""Seconds after which a written line is in the file, whatever becomes of this process."""


class Type(Enum):
    """What an event says of its operation."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    """It did not take effect, and never will."""
    INFO = "info"
    """The outcome is unknown, or it never ends."""


class Kind(Enum):
    """What an operation does."""

    SEND = "send"
    ASSIGN = "assign"
    """A consumer starts again, at `offsets_by_partition`."""
    POLL = "poll"
    END = "end"
    """Asks for the ends of partitions."""
    READ = "read"
    """Reads a partition from its start to its end after all faults."""
    FAULT = "fault"
    """Something was hurt or healed; not judged."""


TYPES = {each.value: each for each in Type}
KINDS = {each.value: each for each in Kind}
Records = Mapping[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line. Invocation and completion of an operation have the same `op`; what a kind does not need is left out.

    Attributes:
        op: number of the operation.
        process: who does it. One process has one operation of a kind that reads under way at a time; sends overlap.
        type: invocation, or how it ended.
        kind: what it does.
        time_ns: nanoseconds of the monotonic clock of the machine.
        partition: of a send or a read, as "topic-number".
        values: of the invocation of a send, in order; a value is sent once in a history.
        offsets: of the completion of a send, one for each value; None: not known.
        records: of a poll or a read: for each partition (offset, value), as they came.
        offsets_by_partition: of an assign: first offsets wanted; of an end or a read: ends, exclusive.
        text: error, or fault.
    """

    op: int
    process: str
    type: Type
    kind: Kind
    time_ns: int
    partition: str = ""
    values: Sequence[str] = ()
    offsets: Sequence[int | None] = ()
    records: Records = field(default_factory=dict[str, Sequence[Sequence[Any]]])
    offsets_by_partition: Mapping[str, int] = field(default_factory=dict[str, int])
    text: str = ""

    def to_line(self) -> str:
        """JSON without a line end."""
        line: dict[str, object] = {
            "op": self.op,
            "process": self.process,
            "type": self.type.value,
            "kind": self.kind.value,
            "time_ns": self.time_ns,
        }
        for name in ("partition", "values", "offsets", "records", "offsets_by_partition", "text"):
            value = getattr(self, name)
            if value:
                line[name] = value
        return json.dumps(line, separators=(",", ":"))


def parse_line(line: str) -> Event:
    """Turn a line into an event.

    Raises:
        ValueError: it is no line of a history.
    """
    try:
        found: dict[str, Any] = json.loads(line)
        found["type"], found["kind"] = TYPES[found["type"]], KINDS[found["kind"]]
        return Event(**found)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no line of a history: {line[:200]!r}: {error!r}") from error


def read_history(path: Path) -> Iterator[Event]:
    """Give the events of a file; a last line without its end, which a kill leaves, is left out."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield parse_line(line)


class HistoryFile:
    """Writes a history as it happens; any number of threads. The time of an event is taken as it is written.

    So times rise from line to line, an invocation is older than what it asks for, a completion younger than its answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", buffering=1024 * 1024)
        self._lock = threading.Lock()
        self._op_count = 0
        self._flushed_s = time.monotonic()

    def begin(self, process: str, kind: Kind, **fields: Any) -> int:
        """Write an invocation; returns the number of the operation."""
        with self._lock:
            op = self._op_count
            self._op_count += 1
            self._write(op, process, Type.INVOKE, kind, fields)
        return op

    def end(self, op: int, process: str, type: Type, kind: Kind, **fields: Any) -> int:
        """Write a completion; returns its time in nanoseconds."""
        with self._lock:
            return self._write(op, process, type, kind, fields)

    def note_fault(self, text: str) -> None:
        """Write what was hurt or healed."""
        with self._lock:
            self._write(self._op_count, "nemesis", Type.INFO, Kind.FAULT, {"text": text})
            self._op_count += 1

    def flush(self) -> None:
        """Have everything so far in the file."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Have everything in the file. Further events are errors."""
        with self._lock:
            self._file.close()

    def _write(self, op: int, process: str, type: Type, kind: Kind, fields: dict[str, Any]) -> int:
        now_ns = time.monotonic_ns()
        event = Event(op=op, process=process, type=type, kind=kind, time_ns=now_ns, **fields)
        self._file.write(event.to_line() + "\n")
        if now_ns / 1e9 - self._flushed_s > FLUSH_S:
            self._file.flush()
            self._flushed_s = now_ns / 1e9
        return now_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
