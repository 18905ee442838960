# SPDX-License-Identifier: Apache-2.0
"""What the keyed worker reported, and what its compacted log must have after it was killed. Pure.

Laws
    Every offset from the log start to the log end is covered. Every record in the log was put there. The newest record of each key at
    or above the log start exists, or was a tombstone. A reader of the whole log ends with the same values as a reader of everything
    that was ever put: no deleted value comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Put(NamedTuple):
    """One record as announced: its key, the generation that put it, and whether it deletes."""

    key: int
    generation: int
    is_tombstone: bool


class Found(NamedTuple):
    """One record as read: the bytes of its key and value; None deletes."""

    key: bytes
    value: bytes | None


@dataclass(slots=True, kw_only=True)
class KeyedLedger:
    """Everything that one compacted log was told, by all its workers.

    Attributes:
        puts: every acknowledged record by offset, including those that compaction removed.
        announced: records of an append without an answer.
        end_offset: the last answered log end, exclusive.
        start_offset: the last answered log start, inclusive.
        starting_offset: the log start that a removal without an answer may have caused; else `start_offset`.
        passes: successful compaction passes of all workers.
        problems: problems that the worker itself found.
    """

    puts: dict[int, Put] = field(default_factory=dict[int, Put])
    announced: list[Put] = field(default_factory=list[Put])
    end_offset: int = 0
    start_offset: int = 0
    starting_offset: int = 0
    passes: int = 0
    problems: list[str] = field(default_factory=list[str])

    def take(self, line: str, generation: int) -> None:
        """Note one line of a worker. Lines about the other log, and a line that was cut off, are ignored."""
        if not line.endswith("\n"):
            return
        word, _, rest = line.rstrip("\n").partition(" ")
        match word:
            case "put":
                self.announced = [Put(int(key.rstrip("-")), generation, key.endswith("-")) for key in rest.split(" ")]
            case "keyed-end":
                self._take_end(int(rest))
            case "keyed-delete":
                self.starting_offset = max(self.start_offset, int(rest))
            case "keyed-start":
                self.start_offset = self.starting_offset = int(rest)
            case "passes":
                self.passes += 1
            case "problem":
                self.problems.append(rest)
            case _:
                pass

    def _take_end(self, end_offset: int) -> None:
        if self.end_offset + len(self.announced) != end_offset:
            self.problems.append(f"keyed: {end_offset} follows {self.end_offset} + {len(self.announced)}")
        self.puts |= dict(enumerate(self.announced, self.end_offset))
        self.end_offset, self.announced = end_offset, []

    def compare(self, found: dict[int, Found], *, start_offset: int, end_offset: int) -> list[str]:
        """Return the problems with the records in the log after its worker was killed.

        Args:
            found: every record from the log start on, by offset.
            start_offset: the log start (inclusive).
            end_offset: the log end (exclusive).
        """
        problems = list(self.problems)
        if not self.start_offset <= start_offset <= self.starting_offset:
            problems.append(f"keyed: the log starts at {start_offset}, not {self.start_offset}/{self.starting_offset}")
        if end_offset not in (self.end_offset, self.end_offset + len(self.announced)):
            problems.append(f"keyed: the log ends at {end_offset}, not {self.end_offset} (+ {len(self.announced)})")
        puts = self._history(start_offset, end_offset)
        problems += [
            f"keyed: offset {offset} holds {record}, not {puts.get(offset)}"
            for offset, record in found.items()
            if not _is_of(record, puts.get(offset), offset)
        ]
        newest = {put.key: (offset, put) for offset, put in sorted(puts.items())}
        problems += [
            f"keyed: the newest record of key {key} at {offset} is gone"
            for key, (offset, put) in newest.items()
            if offset not in found and not put.is_tombstone
        ]
        read = {record.key: (offset, record.value) for offset, record in sorted(found.items())}
        alive = {b"key-%d" % key: offset for key, (offset, put) in newest.items() if not put.is_tombstone}
        problems += [
            f"keyed: {key!r} has the value of offset {offset}, its newest is at {alive.get(key, 'none: deleted')}"
            for key, (offset, value) in read.items()
            if value is not None and alive.get(key) != offset
        ]
        return problems

    def _history(self, start_offset: int, end_offset: int) -> dict[int, Put]:
        history = self.puts | dict(enumerate(self.announced, self.end_offset))
        return {offset: put for offset, put in history.items() if start_offset <= offset < end_offset}

    def settle(self, *, start_offset: int, end_offset: int) -> None:
        """Start again from the content of a reopened log: all of it is flushed."""
        self.puts = self._history(start_offset, end_offset)
        self.end_offset, self.announced = end_offset, []
        self.start_offset = self.starting_offset = start_offset
        self.problems = []


def _is_of(record: Found, put: Put | None, offset: int) -> bool:
    if put is None or record.key != b"key-%d" % put.key:
        return False
    if record.value is None:
        return put.is_tombstone
    return not put.is_tombstone and record.value.startswith(b"%d/%d/" % (put.generation, offset))
