# SPDX-License-Identifier: Apache-2.0
"""What the keyed worker said, and what its compacted log must hold after it was ended. Pure.

Laws
    Every offset from the log start to the log end is covered. A record that is there was put there. The newest record of each key at or
    above the log start is there, or was a tombstone. A reader of the whole log ends with the same values as a reader of
    everything that was ever put: no deleted value is back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Put(NamedTuple):
    """One record as it was announced: its key, who put it, and whether it deletes."""

    key: int
    generation: int
    is_tombstone: bool


class Found(NamedTuple):
    """One record as it was read: its key's bytes and its value's; None deletes."""

    key: bytes
    value: bytes | None


@dataclass(slots=True, kw_only=True)
class KeyedLedger:
    """Everything that one compacted log was told, over all its workers.

    Attributes:
        puts: every record that was acknowledged, by offset; what compaction removed too.
        announced: records of an append that was not answered.
        end_offset: the log end that was answered last, exclusive.
        start_offset: the log start that was answered last, inclusive.
        starting_offset: the log start that a removal without an answer may have brought; else `start_offset`.
        passes: compaction passes that ended well, over all workers.
        problems: what the worker itself found wrong.
    """

    puts: dict[int, Put] = field(default_factory=dict[int, Put])
    announced: list[Put] = field(default_factory=list[Put])
    end_offset: int = 0
    start_offset: int = 0
    starting_offset: int = 0
    passes: int = 0
    problems: list[str] = field(default_factory=list[str])

    def take(self, line: str, generation: int) -> None:
        """Take in one line of a worker; words of the other log, and a line that was cut, are passed over."""
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
        """Return what is wrong with the records that the log holds after its worker was killed.

        Args:
            found: every record from the log start on, by offset.
            start_offset: the log start that was found (inclusive).
            end_offset: the log end that was found (exclusive).
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
        """Start again with what a reopened log holds: it is all flushed."""
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
