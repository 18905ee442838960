# SPDX-License-Identifier: Apache-2.0
"""Schedules the opening of logs: which of many waiting logs are opened now.

Owns the order, and the number at a time. Making a log takes five syncs and as much processor time as creating its
topic. While thousands of topics were being created, opening all their logs at the same time halved the rate. So few are
opened then, and those that a request waits for come first. Does not know how a log is opened.
"""

from __future__ import annotations

import asyncio
from typing import Final

from brokerd.limits import LOG_OPEN_TASKS

BURST_OPEN_TASKS: Final = 1
"""Logs that are opened at the same time while partitions are being created."""

BURST_QUIET_MS: Final = 50
"""Milliseconds without a new partition after which the burst counts as over."""


class OpeningTurns:
    """Gives logs their turn to be opened. Belongs to one event loop. A key stands for one log, which waits once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[object, asyncio.Future[None]] = {}
        self._urgent: dict[object, asyncio.Future[None]] = {}
        self._open_count = 0
        self._burst_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def note_new(self) -> None:
        """Note that a partition was created just now."""
        self._burst_until_s = self._loop.time() + BURST_QUIET_MS / 1000

    def end_burst(self) -> None:
        """End the burst: no more new partitions are expected."""
        self._burst_until_s = 0.0
        self._give()

    def hurry(self, key: object) -> None:
        """Move a log before the others, because a request waits for it; does nothing if it already has its turn."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self._urgent[key] = waiting
            self._give()

    async def take(self, key: object) -> None:
        """Wait for a turn; `give_back` ends it."""
        turn = self._waiting[key] = self._loop.create_future()
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(key, None)
            self._urgent.pop(key, None)
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """End a turn."""
        self._open_count -= 1
        self._give()

    def _give(self) -> None:
        self._give_from(self._urgent, LOG_OPEN_TASKS)
        is_burst = self._loop.time() < self._burst_until_s
        self._give_from(self._waiting, BURST_OPEN_TASKS if is_burst else LOG_OPEN_TASKS)
        if is_burst and self._waiting and self._timer is None:
            self._timer = self._loop.call_at(self._burst_until_s, self._on_timer, self._burst_until_s)

    def _give_from(self, waiting: dict[object, asyncio.Future[None]], most: int) -> None:
        while waiting and self._open_count < most:
            turn = waiting.pop(next(iter(waiting)))
            if not turn.done():
                self._open_count += 1
                turn.set_result(None)

    def _on_timer(self, until_s: float) -> None:
        self._timer = None
        if until_s >= self._burst_until_s:
            # An event loop may call a little early (uvloop rounds to milliseconds). Waiting for the rest would spin.
            self._burst_until_s = 0.0
        self._give()
