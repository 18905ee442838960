# SPDX-License-Identifier: Apache-2.0
"""Runs the core of one hosted replica: events in, effects out in their order, its timer, and events that wait.

Owns the order and the timer. Must not know what an effect does.

Laws
    Effects are carried out in the order in which the core gives them; an append comes last, because it is an event itself.
    While the core waits for a cut of the log (`pause`), it gets no event, save those that end the replica. What was flushed
    before the cut is not told behind it: the end of the cut says what is.
Source: docs/replication.md, "Contract of the shells".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from brokerd.clock import monotonic_ms
from brokerd.partition.effects import AppendBatches, Effect
from brokerd.partition.events import Event, LogFlushed, ReplicaRemoved, StorageFailed, Tick
from brokerd.partition.replica import PartitionReplica

_NEVER_HELD: Final = frozenset((StorageFailed, ReplicaRemoved))


class CoreRunner:
    """See the module docstring.

    Args:
        core: the core.
        carry_out: carries an effect out.
        after: called when all effects of an event are carried out, but for an append.
    """

    __slots__ = ("_after", "_carry_out", "_core", "_held", "_is_paused", "_loop", "_timer", "_timer_due_ms")

    def __init__(
        self, core: PartitionReplica, carry_out: Callable[[Effect], None], after: Callable[[Event], None]
    ) -> None:
        self._core = core
        self._carry_out = carry_out
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        # Made with the first event that has to wait: a broker holds many idle partitions.
        self._held: deque[Event] | None = None
        self._is_paused = False

    def step(self, event: Event) -> None:
        """Give an event to the core, now or when it is not paused any more."""
        if self._is_paused and type(event) not in _NEVER_HELD:
            if type(event) is not LogFlushed:
                self._held = self._held or deque()
                self._held.append(event)
            return
        append: AppendBatches | None = None
        for effect in self._core.step(event, monotonic_ms()):
            if type(effect) is AppendBatches:
                append = effect
            else:
                self._carry_out(effect)
        self._after(event)
        if append is not None:
            self._carry_out(append)
        self._arm()

    def pause(self) -> None:
        """Hold events back until `resume`."""
        self._is_paused = True

    def resume(self, event: Event) -> None:
        """Give the event that was waited for, and then what was held back; one of those may pause again."""
        self._is_paused = False
        self.step(event)
        held = self._held
        while held and not self._is_paused:
            self.step(held.popleft())

    def close(self) -> None:
        """Let no timer ring any more, and drop what is held back."""
        self._held = None
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        deadline_ms = self._core.deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_due_ms <= deadline_ms:
                return  # it is set anew when it rings
            self._timer.cancel()
        self._timer_due_ms = deadline_ms
        self._timer = self._loop.call_later(max(deadline_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.step(Tick())
