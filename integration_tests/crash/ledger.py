# SPDX-License-Identifier: Apache-2.0
"""What a worker reported, and what its log must have after it was killed: the oracle of the proofs with real processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

REMOVED = -1
"""Generation of a record below the log start."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Everything that one log was told, by all its workers.

    Attributes:
        generations: generation of the record at each offset, from offset 0 on; `REMOVED` below the log start.
        flushed_offset: end of what was acknowledged as flushed, exclusive.
        start_offset: the last answered log start, inclusive.
        starting_offset: the highest log start that a removal without an answer may have caused; else `start_offset`.
        announced: records of an append without an answer.
        truncating_to: target of a truncation without an answer; None if there is none.
        lines: number of lines noted.
        removals: answers that moved the log start.
        problems: problems that the worker itself found.
    """

    generations: list[int] = field(default_factory=list[int])
    flushed_offset: int = 0
    start_offset: int = 0
    starting_offset: int = 0
    announced: int = 0
    truncating_to: int | None = None
    lines: int = 0
    removals: int = 0
    problems: list[str] = field(default_factory=list[str])

    def take(self, line: str, generation: int) -> None:
        """Note one line of a worker of a generation. The last line may be cut off and is then ignored."""
        word, _, number = line.rstrip("\n").partition(" ")
        if not line.endswith("\n"):
            return
        self.lines += 1
        match word:
            case "append":
                self.announced = int(number)
            case "truncate":
                self.truncating_to = int(number)
                self.flushed_offset = min(self.flushed_offset, self.truncating_to)
            case "end":
                self._take_end(int(number), generation)
            case "flushed":
                self.flushed_offset = int(number)
            case "delete" | "retain":
                self.starting_offset = max(self.start_offset, int(number))
            case "start":
                self._take_start(int(number))
            case "problem":
                self.problems.append(number)
            case _:
                pass

    def _take_start(self, start_offset: int) -> None:
        if not self.start_offset <= start_offset <= self.starting_offset:
            self.problems.append(f"log start {start_offset}, not in {self.start_offset} to {self.starting_offset}")
        self.removals += start_offset > self.start_offset
        self.start_offset = self.starting_offset = start_offset

    def _take_end(self, end_offset: int, generation: int) -> None:
        if self.truncating_to is not None:
            # A truncation drops whole batches, so the log may end a little lower.
            self.flushed_offset = min(self.flushed_offset, end_offset)
        del self.generations[end_offset:]
        self.generations += [generation] * (end_offset - len(self.generations))
        self.announced, self.truncating_to = 0, None

    def compare(
        self, values: list[bytes], generation: int, batch_records_max: int, *, start_offset: int = 0
    ) -> list[str]:
        """Return the problems with the values in a log after its worker was killed: nothing may be missing.

        Args:
            values: all values from the log start on.
            generation: generation of the killed worker.
            batch_records_max: records of the largest batch. A truncation may end that far below its target.
            start_offset: the log start (inclusive).
        """
        history = self.generations + [generation] * self.announced
        least = len(self.generations)
        end_offset = start_offset + len(values)
        if self.truncating_to is not None:
            least = max(0, self.truncating_to - batch_records_max)
        problems = list(self.problems)
        if not self.start_offset <= start_offset <= self.starting_offset:
            problems.append(f"the log starts at {start_offset}, not in {self.start_offset} to {self.starting_offset}")
        if end_offset < max(least, self.flushed_offset - (batch_records_max if self.truncating_to is not None else 0)):
            problems.append(f"the log ends at {end_offset}, not {least}; {self.flushed_offset} were flushed")
        if end_offset not in (len(self.generations), len(history)) and self.truncating_to is None:
            problems.append(f"the log ends at {end_offset}: neither {len(self.generations)} nor {len(history)}")
        for offset, value in enumerate(values[: max(0, len(history) - start_offset)], start_offset):
            if not value.startswith(b"%d/%d/" % (history[offset], offset)):
                problems.append(f"offset {offset} holds {value[:30]!r}, not generation {history[offset]}")
                break
        return problems

    def settle(self, values: list[bytes], *, start_offset: int = 0) -> None:
        """Start again from the content of a reopened log: all of it is flushed."""
        self.generations = [REMOVED] * start_offset + [int(value.partition(b"/")[0]) for value in values]
        self.flushed_offset = len(self.generations)
        self.start_offset = self.starting_offset = start_offset
        self.announced, self.truncating_to = 0, None
        self.problems = []
