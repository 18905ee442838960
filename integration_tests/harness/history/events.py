# SPDX-License-Identifier: Apache-2.0
"""A history: the requests and answers of clients, one JSON object per line, in the order in which they happened.

Owns the form of a line (docs/workload.md), the writer and the reader. Does not know clusters or clients, and does not judge.
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
"""Name of the history file in the directory of a run."""
FLUSH_S = 1.0
"""Seconds after which a written line is in the file even if this process is killed."""


class Type(Enum):
    """The stage or the outcome of an operation."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    """It did not take effect and never will."""
    INFO = "info"
    """The outcome is unknown, or the operation never ends."""


class Kind(Enum):
    """The kind of an operation."""

    SEND = "send"
    ASSIGN = "assign"
    """A consumer starts again at `offsets_by_partition`."""
    POLL = "poll"
    END = "end"
    """Asks for the ends of partitions."""
    READ = "read"
    """Reads a partition from start to end after all faults."""
    FAULT = "fault"
    """A fault or its healing; not judged."""


TYPES = {each.value: each for each in Type}
KINDS = {each.value: each for each in Kind}
Records = Mapping[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line. Invocation and completion of an operation have the same `op`. Fields that a kind does not need are left out.

    Attributes:
        op: number of the operation.
        process: the client. A process has at most one reading operation of each kind under way; sends overlap.
        type: invocation, or how the operation ended.
        kind: kind of the operation.
        time_ns: nanoseconds of the machine's monotonic clock.
        partition: of a send or a read: the partition as "topic-number".
        values: of the invocation of a send: the values in order. A value is sent once in a history.
        offsets: of the completion of a send: one offset for each value; None: not known.
        records: of a poll or a read: (offset, value) pairs of each partition, in the order of arrival.
        offsets_by_partition: of an assign: the first offsets wanted. Of an end or a read: the ends, exclusive.
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
        """Return the event as JSON without a line end."""
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
    """Return the event of a line.

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
    """Yield the events of a file. An incomplete last line, which a kill leaves, is skipped."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield parse_line(line)


class HistoryFile:
    """Writes a history as it happens, from any number of threads. It takes the time of an event when it writes it.

    So times rise from line to line. An invocation is earlier than its request, and a completion is later than its answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", buffering=1024 * 1024)
        self._lock = threading.Lock()
        self._op_count = 0
        self._flushed_s = time.monotonic()

    def begin(self, process: str, kind: Kind, **fields: Any) -> int:
        """Write an invocation and return the number of the operation."""
        with self._lock:
            op = self._op_count
            self._op_count += 1
            self._write(op, process, Type.INVOKE, kind, fields)
        return op

    def end(self, op: int, process: str, type: Type, kind: Kind, **fields: Any) -> int:
        """Write a completion and return its time in nanoseconds."""
        with self._lock:
            return self._write(op, process, type, kind, fields)

    def note_fault(self, text: str) -> None:
        """Write a fault or its healing."""
        with self._lock:
            self._write(self._op_count, "nemesis", Type.INFO, Kind.FAULT, {"text": text})
            self._op_count += 1

    def flush(self) -> None:
        """Write everything so far to the file."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Write everything to the file and close it. Further events are errors."""
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
