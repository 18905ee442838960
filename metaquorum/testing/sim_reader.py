# SPDX-License-Identifier: Apache-2.0
"""A client of the simulated quorum that reads, and checks that its reads are linearizable.

Owns the reads that wait and what every earlier answer has promised. The log only grows, so a read is a number: how much of it
is committed. Laws, which together are linearizability of such a register:

* a read shows at least what was acknowledged to anybody before it was sent;
* a read shows at least what a read that was answered before it was sent has shown.

That it shows nothing that is not committed is checked by `Checker` (high watermarks never fall, committed records stay).
Source: Herlihy and Wing, "Linearizability" (1990), for a register whose values are ordered.
"""

from __future__ import annotations

from collections import Counter

from metaquorum.raft.types import LOG_BEGIN, Offset
from metaquorum.testing.invariants import require


class ReadChecker:
    """What was promised, and the reads under way."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._next_id = 1
        self._promised_offset = LOG_BEGIN
        self._floors: dict[int, Offset] = {}

    def promise(self, offset: Offset) -> None:
        """Somebody was told that everything below this offset (exclusive) is committed."""
        self._promised_offset = max(self._promised_offset, offset)

    def begin(self) -> int:
        """Send a read; returns its id."""
        read_id = self._next_id
        self._next_id += 1
        self._floors[read_id] = self._promised_offset
        return read_id

    def end(self, read_id: int, read_offset: Offset, committed_end_offset: Offset) -> None:
        """A read is answered.

        Args:
            read_id: its id.
            read_offset: end of what it shows (exclusive).
            committed_end_offset: end of what is committed by now, as the world knows it.
        """
        floor = self._floors.pop(read_id, None)
        require(floor is not None, "a read is answered once", read_id)
        assert floor is not None, "required above"
        require(read_offset >= floor, "reads are linearizable", (read_id, read_offset, floor))
        require(read_offset <= committed_end_offset, "reads show what is committed", (read_id, read_offset))
        self.promise(read_offset)
        self._counts["linearizable read"] += 1

    def reject(self, read_id: int) -> None:
        """A read was refused: it has shown nothing."""
        require(self._floors.pop(read_id, None) is not None, "a read is answered once", read_id)
        self._counts["read refused"] += 1
