# SPDX-License-Identifier: Apache-2.0
"""Compares what a topic has with what it must have, by key: each record once, and those of a key in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lograft.types import ConsumerRecord

SHOWN_MAX: Final = 5
"""Maximum number of records that a problem lists."""

Sequences = Mapping[bytes, Sequence[bytes]]
"""Values by key, in order."""


def sequences(records: Iterable[ConsumerRecord]) -> dict[bytes, list[bytes]]:
    """Return the values of each key in the order of their partition and offset."""
    found: dict[bytes, list[bytes]] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        found.setdefault(record.key or b"", []).append(record.value or b"")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a topic differs from what it must have.

    Attributes:
        missing: records that it must have and has not.
        doubled: records that it has more often than it must.
        foreign: records that it must not have at all.
        moved: keys whose records are all there, in another order.
        examples: some of them, for people.
    """

    missing: int = 0
    doubled: int = 0
    foreign: int = 0
    moved: int = 0
    examples: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """True if there is no difference."""
        return not (self.missing or self.doubled or self.foreign or self.moved)

    def __str__(self) -> str:
        counts = (
            f"{self.missing} missing, {self.doubled} doubled, {self.foreign} foreign, {self.moved} keys out of order"
        )
        return f"{counts}{': ' if self.examples else ''}{'; '.join(self.examples)}"


def compare(wanted: Sequences, found: Sequences, *, in_order: bool = True) -> Difference:
    """Compare the values of each key.

    Args:
        wanted: what there must be.
        found: what there is.
        in_order: False if the order within a key does not matter.
    """
    missing = doubled = foreign = moved = 0
    examples: list[str] = []
    for key in sorted({*wanted, *found}):
        must, has = wanted.get(key, ()), found.get(key, ())
        if must == has or list(must) == list(has):
            continue
        needed, present = Counter(must), Counter(has)
        lost, extra = needed - present, present - needed
        missing += lost.total()
        twice = Counter({value: count for value, count in extra.items() if value in needed})
        doubled += twice.total()
        foreign += extra.total() - twice.total()
        if lost or extra:
            what = [("missing", lost), ("doubled", twice), ("foreign", extra - twice)]
            examples += [f"{name} {key[:40]!r}: {sorted(each)[0][:60]!r}" for name, each in what if each]
        elif in_order:
            moved += 1
            examples.append(f"key {key[:40]!r} is out of order")
    return Difference(
        missing=missing, doubled=doubled, foreign=foreign, moved=moved, examples=tuple(examples[:SHOWN_MAX])
    )
