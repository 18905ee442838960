# SPDX-License-Identifier: Apache-2.0
"""A simulated process: it has an event loop, and a machine with a disk that outlives it.

Owns the life of the process. Does not know what it runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from integration_tests.simulation.virtual_loop import RIGHT_CLOCK, Clock, VirtualLoop
from metaquorum.testing.scheduler import Scheduler
from storage.testing.sim_disk import SimDisk


class SimProcess:
    """One process of a simulated machine, from its start to its end.

    Args:
        scheduler: virtual time.
        machine: name of the machine, which is its host name.
        number: number of processes that the machine had before.
        disk: the disk of the machine; None for a client.
        rng: source of chance for threads and the disk.
        work_ms_max: longest time of work in a thread, in milliseconds.
        flush_ms_max: longest time of a flush, in milliseconds.
        on_fault: called for an exception that no code caught.
        clock: clock of the machine.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        machine: str,
        number: int,
        disk: SimDisk | None,
        rng: random.Random,
        work_ms_max: int,
        flush_ms_max: int,
        on_fault: Callable[[str], None],
        clock: Clock = RIGHT_CLOCK,
    ) -> None:
        self.name = f"{machine}/{number}"
        self.machine = machine
        self.disk = disk
        self.loop = VirtualLoop(scheduler, self, rng, work_ms_max=work_ms_max, clock=clock)
        self._rng = rng
        self._flush_ms_max = flush_ms_max
        self._on_fault = on_fault
        self._main: asyncio.Task[Any] | None = None

    @property
    def is_alive(self) -> bool:
        """True until the process is killed or has ended."""
        return not self.loop.is_dead

    def run(self, work: Coroutine[Any, Any, None], on_end: Callable[[BaseException | None], None]) -> None:
        """Start the main task. `on_end` is called at its end, unless the process was killed."""

        def ended(task: asyncio.Task[None]) -> None:
            on_end(None if task.cancelled() else task.exception())

        def begin() -> None:
            self._main = self.loop.create_task(work, name=self.name)
            self._main.add_done_callback(ended)

        self.loop.call_soon(begin)

    def flush(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run a flush in a thread. It takes effect at its beginning or its end, at random; `done` is called on the loop."""
        delay_ms = self._rng.randint(0, self._flush_ms_max)
        is_early = self._rng.random() < 0.5
        outcome: list[BaseException | None] = []

        def carry_out() -> None:
            try:
                work()
            except Exception as error:
                outcome.append(error)
            else:
                outcome.append(None)

        def end() -> None:
            if not is_early:
                carry_out()
            self.loop.call_soon(done, outcome[0])

        if is_early:
            carry_out()
        self.loop.run_in_thread(delay_ms, end)

    def note_fault(self, message: str, error: BaseException | None) -> None:
        """Report a fault (see `LoopOwner`)."""
        self._on_fault(f"{self.name}: {message}: {error!r}")


def current_process() -> SimProcess:
    """Return the process whose loop runs now."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), f"{loop} is no simulated loop"
    assert isinstance(loop.owner, SimProcess)
    return loop.owner
