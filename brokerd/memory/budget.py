# SPDX-License-Identifier: Apache-2.0
"""The core of one budget of memory: how many bytes are held, and who waits for some, in turn.

Owns the bytes of the grants that are held, and the order of those that wait. Must not wait, or know what the bytes are for:
`brokerd.memory.gate` waits.

Laws: a grant is given back once. Requests are granted in the order in which they came, so a small one never overtakes a large
one. At most `limit_bytes` are held, except by a request that is larger than all of it, which is granted alone.
Source: Kafka, `queued.max.request.bytes` and its memory pool (KIP-72).
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum


class GrantState(Enum):
    """Where a grant is on its way."""

    WAITING = "waiting"
    HELD = "held"
    GIVEN_BACK = "given back"


class Grant:
    """Bytes of a budget, asked for by one holder. Its budget alone changes the state."""

    __slots__ = ("size_bytes", "state")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.state = GrantState.WAITING

    @property
    def is_held(self) -> bool:
        """True while the bytes may be used."""
        return self.state is GrantState.HELD


class MemoryBudget:
    """See the module docstring.

    Args:
        limit_bytes: most bytes that are held at once; above 0.
    """

    __slots__ = ("_held_bytes", "_holder_count", "_limit_bytes", "_waiting")

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0, f"a budget of {limit_bytes} bytes"
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._holder_count = 0
        self._waiting: OrderedDict[Grant, None] = OrderedDict()

    @property
    def limit_bytes(self) -> int:
        """Most bytes that are held at once."""
        return self._limit_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that are held; above the limit only by one request that is larger than all of it."""
        return self._held_bytes

    @property
    def holder_count(self) -> int:
        """Grants that are held."""
        return self._holder_count

    @property
    def waiter_count(self) -> int:
        """Grants that wait."""
        return len(self._waiting)

    def ask(self, size_bytes: int) -> Grant:
        """Ask for bytes; the grant is held at once, or waits in turn until `give_back` of others names it.

        Args:
            size_bytes: 0 or more.
        """
        assert size_bytes >= 0, f"{size_bytes} bytes"
        grant = Grant(size_bytes)
        if not self._waiting and self._fits(size_bytes):
            self._hold(grant)
        else:
            self._waiting[grant] = None
        return grant

    def give_back(self, grant: Grant) -> list[Grant]:
        """Take bytes back, or let one that waits leave; return the grants that are held from now on, in their order."""
        if grant.state is GrantState.WAITING:
            del self._waiting[grant]
        else:
            assert grant.state is GrantState.HELD, "bytes of a budget were given back twice"
            self._held_bytes -= grant.size_bytes
            self._holder_count -= 1
        grant.state = GrantState.GIVEN_BACK
        granted: list[Grant] = []
        while self._waiting:
            first = next(iter(self._waiting))
            if not self._fits(first.size_bytes):
                break
            del self._waiting[first]
            self._hold(first)
            granted.append(first)
        return granted

    def _fits(self, size_bytes: int) -> bool:
        return self._holder_count == 0 or self._held_bytes + size_bytes <= self._limit_bytes

    def _hold(self, grant: Grant) -> None:
        grant.state = GrantState.HELD
        self._held_bytes += grant.size_bytes
        self._holder_count += 1
