# SPDX-License-Identifier: Apache-2.0
"""The controller's internal commands: take-over, and long work in slices.

Owns their queue, and how many of them may wait for their commit at once. Decides nothing, and knows neither the core nor the quorum.
While followers write one slice, the next is decided, so neither side waits for the other. More slices in flight would only delay the
requests of clients behind them. Between two slices the event loop runs other work. Periodic work waits until all other work is done,
because a sweep gives partitions their leaders.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from metaquorum.controller.commands import PERIODIC_COMMANDS, Command, SweepPartitions
from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS, Outcome

MAX_WORK_ITEMS: Final = 1_000
"""Internal commands that may wait for their turn. Sweeps are merged, so there are only ever few."""

MAX_SLICES_IN_FLIGHT: Final = 2
"""Internal commands that may be decided but uncommitted."""


class LongWork:
    """The queue of internal commands.

    Args:
        run: decides and appends one command; returns the future of its commit, or None to try again later.
    """

    def __init__(self, run: Callable[[Command], asyncio.Future[Outcome] | None]) -> None:
        self._run = run
        self._commands: deque[Command] = deque()
        self._uncommitted: list[asyncio.Future[Outcome]] = []
        self._handle: asyncio.Handle | None = None

    def add(self, command: Command) -> None:
        """Add a command. A sweep that already waits in the queue is not added again."""
        if isinstance(command, SweepPartitions) and command in self._commands:
            return
        assert len(self._commands) < MAX_WORK_ITEMS, f"{len(self._commands)} internal commands wait"
        self._commands.append(command)
        self._schedule()

    def has(self, kind: type[Command]) -> bool:
        """Return whether a command of this kind waits for its turn."""
        return any(isinstance(each, kind) for each in self._commands)

    def clear(self) -> None:
        """Drop everything, because the leadership has ended."""
        self._commands.clear()
        self._uncommitted.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self) -> None:
        if self._commands and self._handle is None and len(self._uncommitted) < MAX_SLICES_IN_FLIGHT:
            self._handle = asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        # While this command is decided, the handle stays set: commands that it adds wait for their own turn of the event loop.
        urgent = (each for each in self._commands if not isinstance(each, PERIODIC_COMMANDS))
        command = next(urgent, self._commands[0])
        future = self._run(command)
        if not self._commands:
            # The leadership ended during the command, and `clear` has run.
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
