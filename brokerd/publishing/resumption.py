# SPDX-License-Identifier: Apache-2.0
"""How much of a part is published already, and where. Pure.

The published batches carry the publishing producer id of the coordinator, and the sequences of its parts follow each other. So the next
sequence of that producer in the log says how much of a part is there. The parts of a partition are published one after another, each
when the one before is committed. So where the producer is behind the begin of a part, the log has lost records that were committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brokerd.publishing.limits import SEQUENCE_COUNT
from brokerd.publishing.parts import KnownBatch, PublishedPart


@dataclass(frozen=True, slots=True)
class Lost:
    """The log lacks this many records that were published before the part: it was elected uncleanly, or restored from an old copy."""

    records: int


def done_records(base_sequence: int, records: int, next_sequence: int | None) -> int | Lost:
    """Return how many records of a part are in the log.

    Args:
        base_sequence: sequence of the first record of the part.
        records: number of its records, at most `PART_RECORDS_MAX`.
        next_sequence: next sequence of the producer in the log; None: the log does not know the producer. Then nothing of the part is
            there: the log knows the producer of every record that it holds.
    """
    if next_sequence is None:
        return 0
    ahead = (next_sequence - base_sequence) % SEQUENCE_COUNT
    if ahead < SEQUENCE_COUNT // 2:
        # Beyond the part: later parts are published too.
        return min(ahead, records)
    return Lost(SEQUENCE_COUNT - ahead)


class PartSearch:
    """Finds the offsets of a part among batches of its producer. Only `add` changes it.

    Args:
        base_sequence: sequence of the first record.
        records: number of records.

    Attributes:
        first_offset: offset of the first record; None: not seen.
        end_offset: offset after the last record; None: not seen.
    """

    def __init__(self, base_sequence: int, records: int) -> None:
        self._base_sequence = base_sequence
        self._records = records
        self.first_offset: int | None = None
        self.end_offset: int | None = None

    @property
    def found(self) -> PublishedPart | None:
        """Where the part is; None: an end is missing."""
        if self.first_offset is None or self.end_offset is None:
            return None
        return PublishedPart(self.first_offset, self.end_offset)

    def add(self, batches: Iterable[KnownBatch]) -> None:
        """Note batches of the producer."""
        for base_sequence, base_offset, next_offset in batches:
            if base_sequence == self._base_sequence:
                self.first_offset = base_offset
            end_sequence = base_sequence + next_offset - base_offset
            if (end_sequence - self._base_sequence - self._records) % SEQUENCE_COUNT == 0:
                self.end_offset = next_offset
