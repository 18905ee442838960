# SPDX-License-Identifier: Apache-2.0
"""A client of the simulated quorum that reads, and checks that its reads are linearizable.

Owns the waiting reads, and the promises of all earlier answers. The log only grows, so the result of a read is a number: how much of
the log is committed. Laws, which together are linearizability of such a register:

* a read shows at least what was acknowledged to any client before it was sent;
* a read shows at least what an earlier read has shown whose answer came before it was sent.

`Checker` checks that a read shows nothing uncommitted (high watermarks never fall, committed records stay).
Source: Herlihy and Wing, "Linearizability" (1990), for a register whose values are ordered.
"""

from __future__ import annotations

from collections import Counter

from metaquorum.raft.types import LOG_BEGIN, Offset
from metaquorum.testing.invariants import require


class ReadChecker:
    """The promises so far, and the reads under way."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._next_id = 1
        self._promised_offset = LOG_BEGIN
        self._floors: dict[int, Offset] = {}

    def promise(self, offset: Offset) -> None:
        """Note that a client learned that everything below this offset (exclusive) is committed."""
        self._promised_offset = max(self._promised_offset, offset)

    def begin(self) -> int:
        """Note that a read is sent; return its id."""
        read_id = self._next_id
        self._next_id += 1
        self._floors[read_id] = self._promised_offset
        return read_id

    def end(self, read_id: int, read_offset: Offset, committed_end_offset: Offset) -> None:
        """Check the answer of a read.

        Args:
            read_id: its id.
            read_offset: end of what it shows (exclusive).
            committed_end_offset: end of what is committed now (exclusive), as the world knows it.
        """
        floor = self._floors.pop(read_id, None)
        require(floor is not None, "a read is answered once", read_id)
        assert floor is not None, "required above"
        require(read_offset >= floor, "reads are linearizable", (read_id, read_offset, floor))
        require(read_offset <= committed_end_offset, "reads show what is committed", (read_id, read_offset))
        self.promise(read_offset)
        self._counts["linearizable read"] += 1

    def reject(self, read_id: int) -> None:
        """Note that a read was refused, so it has shown nothing."""
        require(self._floors.pop(read_id, None) is not None, "a read is answered once", read_id)
        self._counts["read refused"] += 1
