# SPDX-License-Identifier: Apache-2.0
"""A budget of memory: how many bytes are held, who waits for some, and the wait itself.

`MemoryBudget` decides who is next and never waits. `MemoryGate` waits, on one event loop, and decides nothing. Neither knows what
the bytes are for.

Laws: a grant is given back once. Requests are granted in the order in which they came, so a small one never overtakes a large
one. At most `limit_bytes` are held, except by a request that is larger than all of it, which is granted alone.
Source: Kafka, `queued.max.request.bytes` and its memory pool (KIP-72).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Enum

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused


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
    """Counts the bytes of the grants that are held, and keeps the order of those that wait. Its writer is the gate before it.

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


class MemoryGate:
    """Waits for the bytes of one budget; owns the futures of those that wait.

    Args:
        name: what the bytes are for, in messages.
        limit_bytes: most bytes that are held at once.

    Attributes:
        budget: the core; its writer is this gate.
    """

    def __init__(self, name: str, limit_bytes: int) -> None:
        self._name = name
        self._waiting: dict[Grant, asyncio.Future[None]] = {}
        self.budget = MemoryBudget(limit_bytes)

    def try_take(self, size_bytes: int) -> Grant | None:
        """Take bytes if there is room and no other request waits; None otherwise."""
        grant = self.budget.ask(size_bytes)
        if grant.is_held:
            return grant
        self.give_back(grant)
        return None

    async def take(self, size_bytes: int, *, timeout_ms: int) -> Grant:
        """Take bytes, waiting in turn. A waiter that is cancelled leaves.

        Raises:
            RefusedError: OVERLOADED, there was no room within `timeout_ms` milliseconds.
        """
        grant = self.budget.ask(size_bytes)
        if grant.is_held:
            return grant
        granted = self._waiting[grant] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await granted
        except TimeoutError:
            self.give_back(grant)
            message = (
                f"no room for {size_bytes} bytes of {self._name} within {timeout_ms} ms: this broker may hold "
                f"{self.budget.limit_bytes}, and {self.budget.waiter_count} others wait"
            )
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=1_000) from None
        except BaseException:
            self.give_back(grant)
            raise
        finally:
            del self._waiting[grant]
        return grant

    def give_back(self, grant: Grant) -> None:
        """Give bytes back, once; those that wait and now fit go on."""
        for granted in self.budget.give_back(grant):
            # A waiter that is being cancelled holds the bytes until it gives them back.
            waiter = self._waiting.get(granted)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
