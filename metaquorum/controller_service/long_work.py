# SPDX-License-Identifier: Apache-2.0
"""The controller's own commands: take-over, and long work that goes on in slices.

Owns their queue, and how many of them wait for their commit at once. Decides nothing, and knows neither the core nor the quorum.
While followers write a slice the next one is decided, so that neither waits for the other; one more would only make those who
ask for something wait longer behind them. Between two slices the event loop takes its turn. What is done now and then waits for
everything else: a sweep gives partitions leaders.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from metaquorum.controller.commands import PERIODIC_COMMANDS, Command, SweepPartitions
from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS, Outcome

MAX_WORK_ITEMS: Final = 1_000
"""Internal commands that wait for their turn; sweeps are merged, so that few are ever there."""

MAX_SLICES_IN_FLIGHT: Final = 2
"""Internal commands that are decided and not committed."""


class LongWork:
    """Internal commands, in order.

    Args:
        run: decides and appends one; returns the future of its commit, or None when it is to be tried again later.
    """

    def __init__(self, run: Callable[[Command], asyncio.Future[Outcome] | None]) -> None:
        self._run = run
        self._commands: deque[Command] = deque()
        self._uncommitted: list[asyncio.Future[Outcome]] = []
        self._handle: asyncio.Handle | None = None

    def add(self, command: Command) -> None:
        """Add a command; a sweep from the beginning that waits already is enough."""
        if isinstance(command, SweepPartitions) and command in self._commands:
            return
        assert len(self._commands) < MAX_WORK_ITEMS, f"{len(self._commands)} internal commands wait"
        self._commands.append(command)
        self._schedule()

    def has(self, kind: type[Command]) -> bool:
        """Whether a command of this kind waits for its turn."""
        return any(isinstance(each, kind) for each in self._commands)

    def clear(self) -> None:
        """Forget everything: the leadership has ended."""
        self._commands.clear()
        self._uncommitted.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self) -> None:
        if self._commands and self._handle is None and len(self._uncommitted) < MAX_SLICES_IN_FLIGHT:
            self._handle = asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        # What this command adds waits for its own turn of the event loop: the handle is held until it is decided.
        urgent = (each for each in self._commands if not isinstance(each, PERIODIC_COMMANDS))
        command = next(urgent, self._commands[0])
        future = self._run(command)
        if not self._commands:
            # The leadership ended in the middle of it, and everything was forgotten.
            return
        if future is None:
            self._handle = asyncio.get_running_loop().call_later(RETRY_AFTER_MS / 1000, self._run_next)
            return
        self._handle = None
        self._commands.remove(command)
        self._uncommitted.append(future)
        future.add_done_callback(self._committed)
        self._schedule()

    def _committed(self, future: asyncio.Future[Outcome]) -> None:
        if future in self._uncommitted:
            self._uncommitted.remove(future)
            self._schedule()
