# SPDX-License-Identifier: Apache-2.0
"""What a worker said, and what its log must hold after it was ended: the oracle of the proofs with real processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Everything that one log was told, over all its workers.

    Attributes:
        generations: the generation of the record at each offset.
        flushed_offset: acknowledged as flushed, exclusive.
        announced: records of an append that was not answered.
        truncating_to: where a truncation that was not answered cuts; None if there is none.
        lines: how many lines were taken in.
    """

    generations: list[int] = field(default_factory=list[int])
    flushed_offset: int = 0
    announced: int = 0
    truncating_to: int | None = None
    lines: int = 0

    def take(self, line: str, generation: int) -> None:
        """Take in one line of a worker of a generation; the last one may be cut in its middle and is then passed over."""
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
            case _:
                pass

    def _take_end(self, end_offset: int, generation: int) -> None:
        if self.truncating_to is not None:
            # Whole batches go: the log may end a little lower.
            self.flushed_offset = min(self.flushed_offset, end_offset)
        del self.generations[end_offset:]
        self.generations += [generation] * (end_offset - len(self.generations))
        self.announced, self.truncating_to = 0, None

    def compare(self, values: list[bytes], generation: int, batch_records_max: int) -> list[str]:
        """Return what is wrong with the values that a log holds after its worker was killed: nothing may be missing.

        Args:
            values: all of them, from offset 0 on.
            generation: of the worker that was killed.
            batch_records_max: records of the largest batch: so far below its target a truncation may cut.
        """
        history = self.generations + [generation] * self.announced
        least = len(self.generations)
        if self.truncating_to is not None:
            least = max(0, self.truncating_to - batch_records_max)
        problems: list[str] = []
        if len(values) < max(least, self.flushed_offset - (batch_records_max if self.truncating_to is not None else 0)):
            problems.append(f"{len(values)} records are left of {least}, {self.flushed_offset} were flushed")
        if len(values) not in (len(self.generations), len(history)) and self.truncating_to is None:
            problems.append(f"{len(values)} records: neither {len(self.generations)} nor {len(history)}")
        for offset, value in enumerate(values[: len(history)]):
            if not value.startswith(b"%d/%d/" % (history[offset], offset)):
                problems.append(f"offset {offset} holds {value[:30]!r}, not generation {history[offset]}")
                break
        return problems

    def settle(self, values: list[bytes]) -> None:
        """Begin anew with what a reopened log holds: it is all flushed."""
        self.generations = [int(value.partition(b"/")[0]) for value in values]
        self.flushed_offset = len(values)
        self.announced, self.truncating_to = 0, None
