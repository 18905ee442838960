# SPDX-License-Identifier: Apache-2.0
"""Journals of a group proof: what each process was told and what it did, one JSON object a line, at the time at which it happened.

Owns the form of a line. A line goes to the kernel before its writer goes on, so a kill loses at most what the process has not begun to
use. Times are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import heapq
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

SUFFIX = ".jsonl"


class Kind(Enum):
    """What a line is about, and who writes it."""

    SUBSCRIBING = "subscribing"
    """A member is about to join. `instance`: its instance id, or None."""
    ASSIGNED = "assigned"
    """A member got partitions. `starts`: first offset by partition."""
    POLLED = "polled"
    """A poll returned records. `began_ns`: when it began; `records`: first and last offset by partition."""
    COMMITTING = "committing"
    """A member is about to commit `offsets`, by partition."""
    COMMITTED = "committed"
    """The coordinator acknowledged `offsets`."""
    REFUSED = "refused"
    """A commit failed, or its outcome is unknown. `text`: the error."""
    REVOKED = "revoked"
    """A member gives `partitions` up: the end of its callback. `is_committed`: False if the commit in it failed."""
    LOST = "lost"
    """A member was told that it has lost `partitions`."""
    BUSY = "busy"
    """The application of a member asks for no records for `busy_ms`."""
    WRONG = "wrong"
    """A member saw what cannot be. `text` says what."""
    ERROR = "error"
    """A poll raised an error. `text`: the error."""
    LEFT = "left"
    """A member has closed its consumer."""
    ACKED = "acked"
    """The producer's batch was acknowledged. `partition`, `base`, `count`."""
    READY = "ready"
    """The proof: all members are there, and faults begin."""
    ROUND = "round"
    """The proof: a round begins. `text`: the nemesis."""
    KILLED = "killed"
    """The proof: `target` was killed and has ended."""
    STOPPED = "stopped"
    """The proof: SIGSTOP was sent to `target`."""
    CONTINUED = "continued"
    """The proof: SIGCONT is about to be sent to `target`."""
    LEAVING = "leaving"
    """The proof: SIGTERM is about to be sent to `target`."""
    BROKER_HURT = "broker-hurt"
    """The proof: broker `target` is about to be killed."""
    BROKER_WELL = "broker-well"
    """The proof: the brokers are whole again."""
    STEADY_BEGINS = "steady-begins"
    """The proof: from now on only `allowed` may get or lose partitions."""
    STEADY_ENDS = "steady-ends"
    """The proof: that is over."""
    STANDSTILL = "standstill"
    """The proof's own process did not run since `began_ns`."""
    ASKING = "asking"
    """The proof is about to ask for all committed offsets. One question is under way at a time."""
    TOLD = "told"
    """The coordinator's answer: committed `offsets`."""
    ENDS = "ends"
    """The proof: `offsets` are the ends of all partitions, and everything must have been delivered."""


KINDS = {each.value: each for each in Kind}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        time_ns: when it happened.
        writer: the process that wrote it.
        kind: what it is about.
        fields: what its kind adds.
    """

    time_ns: int
    writer: str
    kind: Kind
    fields: dict[str, Any]

    def by_partition(self, name: str) -> dict[int, Any]:
        """Return a field with partitions as keys, which JSON has made texts."""
        return {int(partition): value for partition, value in self.fields[name].items()}


class Journal:
    """The journal of one process. Any thread may write.

    Args:
        directory: directory of all journals.
        writer: name of the process, and of its file.
    """

    def __init__(self, directory: Path, writer: str) -> None:
        self._file = os.open(directory / f"{writer}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: Kind, time_ns: int | None = None, **fields: Any) -> None:
        """Write a line.

        Args:
            kind: its kind.
            time_ns: when it happened; None: now.
            fields: what its kind adds.
        """
        line = {"t": time.monotonic_ns() if time_ns is None else time_ns, "k": kind.value, **fields}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield the lines of a file in the order of their times. An incomplete last line, which a kill leaves, is skipped."""
    entries: list[Entry] = []
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                fields: dict[str, Any] = json.loads(line)
                entries.append(Entry(fields.pop("t"), path.stem, KINDS[fields.pop("k")], fields))
    # A poll is noted at its end, and its line may come after one of another thread.
    entries.sort(key=lambda entry: entry.time_ns)
    yield from entries


def read_journals(directory: Path) -> Iterator[Entry]:
    """Yield the lines of all journals in a directory in the order of their times."""
    files = [read_journal(path) for path in sorted(directory.glob(f"*{SUFFIX}"))]
    yield from heapq.merge(*files, key=lambda entry: entry.time_ns)
