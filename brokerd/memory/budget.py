# SPDX-License-Identifier: Apache-2.0
"""A memory budget: how many bytes are held, which requests wait for bytes, and the wait itself.

`MemoryBudget` decides which request is next, and never waits. `MemoryGate` waits, on one event loop, and decides
nothing. Neither knows what the bytes are for.

Laws
    A grant is released once.
    Requests are granted in the order of arrival, so that a small one never overtakes a large one.
    At most `limit_bytes` are held. The exception is a request larger than the whole budget, which is granted alone.
Source: Kafka, `queued.max.request.bytes` and its memory pool (KIP-72).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Enum

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused


class GrantState(Enum):
    """State of a grant."""

    WAITING = "waiting"
    HELD = "held"
    GIVEN_BACK = "given back"


class Grant:
    """Bytes of a budget for one holder. Only the budget changes the state."""

    __slots__ = ("size_bytes", "state")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.state = GrantState.WAITING

    @property
    def is_held(self) -> bool:
        """True while the holder may use the bytes."""
        return self.state is GrantState.HELD


class MemoryBudget:
    """Counts the bytes of held grants, and keeps the order of waiting ones. Only its gate writes it.

    Args:
        limit_bytes: most bytes held at the same time; above 0.
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
        """Most bytes held at the same time."""
        return self._limit_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes held now; above the limit only for one request that is larger than the whole budget."""
        return self._held_bytes

    @property
    def holder_count(self) -> int:
        """Number of held grants."""
        return self._holder_count

    @property
    def waiter_count(self) -> int:
        """Number of waiting grants."""
        return len(self._waiting)

    def ask(self, size_bytes: int) -> Grant:
        """Request bytes. The grant is held at once, or waits in turn until a `give_back` returns it.

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
        """Release a held grant, or remove a waiting one; return the grants that become held, in their order."""
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
    """Waits for the bytes of one budget; owns the futures of the waiters.

    Args:
        name: what the bytes are for, in messages.
        limit_bytes: most bytes held at the same time.

    Attributes:
        budget: the core; only this gate writes it.
    """

    def __init__(self, name: str, limit_bytes: int) -> None:
        self._name = name
        self._waiting: dict[Grant, asyncio.Future[None]] = {}
        self.budget = MemoryBudget(limit_bytes)

    def try_take(self, size_bytes: int) -> Grant | None:
        """Return a grant if there is room and no other request waits; None otherwise."""
        grant = self.budget.ask(size_bytes)
        if grant.is_held:
            return grant
        self.give_back(grant)
        return None

    async def take(self, size_bytes: int, *, timeout_ms: int) -> Grant:
        """Return a grant, waiting in turn. A cancelled waiter leaves the queue.

        Raises:
            RefusedError: OVERLOADED, if there was no room within `timeout_ms` milliseconds.
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
        """Release a grant, once; waiters that fit now continue."""
        for granted in self.budget.give_back(grant):
            # A waiter that is being cancelled holds the bytes until it releases them.
            waiter = self._waiting.get(granted)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
