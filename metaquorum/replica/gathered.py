# SPDX-License-Identifier: Apache-2.0
"""Consecutive small proposals that are not written yet; they become one batch of the log.

Owns their records, and the limits of such a batch. A batch costs every node a header, a checksum, a read, a write of the image and an
index entry, however few records it has. Knows no log: its owner writes the gathered proposals before it reads, flushes, truncates or
appends anything else, so the difference is invisible. Proposals that were not written when the process ends were never flushed, so
never acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from metaquorum.raft.effects import AppendAsLeader

MAX_PROPOSAL_BYTES: Final = 64 * 1024
"""A proposal with more bytes of records becomes a batch of its own."""

MAX_PROPOSAL_RECORDS: Final = 1_000
"""A proposal with more records becomes a batch of its own."""

MAX_GATHERED_BYTES: Final = 256 * 1024
"""Largest number of bytes of records in one batch of gathered proposals."""

BATCH_OVERHEAD_BYTES: Final = 128
"""Largest number of bytes that a batch takes besides its records and their lengths."""

RECORD_OVERHEAD_BYTES: Final = 5
"""Largest number of bytes that a record takes besides its own bytes."""


def gathered_size(records: Sequence[bytes]) -> int | None:
    """Return an upper bound of a proposal's bytes in the log; None if it must be a batch of its own."""
    if len(records) > MAX_PROPOSAL_RECORDS:
        return None
    size_bytes = sum(map(len, records))
    if size_bytes > MAX_PROPOSAL_BYTES:
        return None
    return size_bytes + len(records) * RECORD_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES


class GatheredProposals:
    """Records of consecutive proposals of one epoch."""

    __slots__ = ("_effect", "_records", "_size_bytes")

    def __init__(self) -> None:
        self._effect: AppendAsLeader | None = None
        self._records: list[bytes] = []
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return self._effect is not None

    def has_room(self, effect: AppendAsLeader, records: Sequence[bytes]) -> bool:
        """Return whether a proposal may join the batch."""
        gathered = self._effect
        if gathered is None:
            return True
        size_bytes = self._size_bytes + sum(map(len, records))
        return gathered.quorum_epoch == effect.quorum_epoch and size_bytes <= MAX_GATHERED_BYTES

    def add(self, effect: AppendAsLeader, records: Sequence[bytes]) -> None:
        """Add a proposal to the batch."""
        gathered = self._effect
        assert gathered is None or gathered.next_offset == effect.base_offset, f"{effect} does not follow {gathered}"
        assert effect.next_offset - effect.base_offset == len(records), f"{len(records)} records for {effect}"
        self._effect = effect if gathered is None else replace(gathered, next_offset=effect.next_offset)
        self._records.extend(records)
        self._size_bytes += sum(map(len, records))

    def take(self) -> tuple[AppendAsLeader, list[bytes]]:
        """Remove and return all records, with the offsets and the epoch of their batch."""
        effect, records = self._effect, self._records
        assert effect is not None, "nothing was gathered"
        self._effect, self._records, self._size_bytes = None, [], 0
        return effect, records
