# SPDX-License-Identifier: Apache-2.0
"""Waits for the bytes of a memory budget.

Owns the futures of those that wait. Must not decide who is next: the core does. One event loop.
"""

from __future__ import annotations

import asyncio

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused
from brokerd.memory.budget import Grant, MemoryBudget


class MemoryGate:
    """One budget, and those that wait for it.

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
        """Take bytes if there is room and nobody waits; None otherwise."""
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
