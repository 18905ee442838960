# SPDX-License-Identifier: Apache-2.0
"""The event loop of one simulated process: asyncio in virtual time.

Owns the ready queue, the timers and the threads of the process. Work for an executor runs on the same thread a random moment later.
Does not know what runs on it.

Laws
    Nothing runs after `kill`, and nothing while the process is paused. Events that come during a pause run in their order after it.
    All order comes from the scheduler, so a run depends on its seed alone.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from metaquorum.testing.scheduler import Scheduler

Callback = Callable[..., object]
_T = TypeVar("_T")

TURN_CALLBACKS_MAX: Final = 100_000
"""Maximum callbacks of one loop within one millisecond. More mean that some code spins."""


_current: VirtualLoop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks of a machine.

    Attributes:
        rate: their speed; 1.0 is right.
        offset_ms: the monotonic clock at the beginning of the world.
        wall_offset_ms: how far the wall clock is ahead at that time.
    """

    rate: float = 1.0
    offset_ms: int = 0
    wall_offset_ms: int = 0

    def local_ms(self, now_ms: int) -> float:
        """Return the monotonic clock at a virtual time."""
        return now_ms if self.rate == 1.0 and self.offset_ms == 0 else self.offset_ms + now_ms * self.rate

    def virtual_ms(self, local_ms: float) -> int:
        """Return the first virtual time at which the monotonic clock shows this value."""
        if self.rate == 1.0:
            return math.ceil(local_ms - self.offset_ms - 1e-6)
        # Not a moment earlier: a task that checks the clock then would find time left, and wait again for nothing.
        return math.ceil((local_ms - self.offset_ms) / self.rate + 1e-6)


RIGHT_CLOCK: Final = Clock()


def current_loop() -> VirtualLoop | None:
    """Return the loop that runs now, or for which a thread runs."""
    return _current


@contextmanager
def _as_current(loop: VirtualLoop) -> Generator[None]:
    global _current
    before, _current = _current, loop
    try:
        yield
    finally:
        _current = before


class LoopOwner(Protocol):
    """The process of a loop."""

    name: str

    def note_fault(self, message: str, error: BaseException | None) -> None:
        """Note an exception that no code caught."""
        ...


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process, in virtual time.

    Args:
        scheduler: virtual time.
        owner: the process.
        rng: source of chance for the time of work in threads.
        work_ms_max: longest time of such work, in milliseconds.
        clock: clocks of the machine.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        owner: LoopOwner,
        rng: random.Random,
        *,
        work_ms_max: int,
        clock: Clock = RIGHT_CLOCK,
    ) -> None:
        self.scheduler = scheduler
        self.owner = owner
        self.clock = clock
        self._rng = rng
        self._work_ms_max = work_ms_max
        self._ready: deque[asyncio.Handle] = deque()
        self._is_due = False
        self._is_dead = False
        self._paused_until_ms = 0
        # Callbacks that still run before the coming pause, 0 if none is coming; and the end of that pause.
        self._steps_to_pause = 0
        self._pause_to_ms = 0
        self._turn_ms = -1
        self._turn_count = 0
        # Executors with one thread run their work one after the other; the time at which each is free.
        self._free_at_ms: dict[object, int] = {}
        # Work of threads that became due while the process was paused.
        self._held: deque[Callable[[], object]] = deque()

    @property
    def is_dead(self) -> bool:
        """True after the process was killed."""
        return self._is_dead

    @property
    def is_paused(self) -> bool:
        """True while the process is stopped."""
        return self.scheduler.now_ms < self._paused_until_ms

    def kill(self) -> None:
        """Run nothing any more."""
        self._is_dead = True
        self._ready.clear()
        self._held.clear()

    def pause(self, until_ms: int, *, after_steps: int = 0) -> None:
        """Run nothing before a time, as SIGSTOP does. `after_steps` callbacks still run before the pause begins."""
        if after_steps == 0:
            self._pause_now(until_ms)
        else:
            self._steps_to_pause, self._pause_to_ms = after_steps, until_ms

    def _pause_now(self, until_ms: int) -> None:
        self._steps_to_pause = 0
        self._paused_until_ms = max(self._paused_until_ms, until_ms)
        self.scheduler.after(max(0, until_ms - self.scheduler.now_ms), self._go_on)

    def resume(self) -> None:
        """Run again."""
        self._paused_until_ms = self._steps_to_pause = 0
        self._go_on()

    def moment_ms(self) -> int:
        """Return a random time of work in a thread, in milliseconds."""
        return self._rng.randint(0, self._work_ms_max)

    def deliver(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Deliver something from outside after `delay_ms`. It waits while the process is paused."""

        def arrive() -> None:
            if not self._is_dead:
                self.call_soon(action)

        self.scheduler.after(delay_ms, arrive)

    # What asyncio needs from a loop.

    def time(self) -> float:
        """Return the machine's monotonic clock in seconds."""
        return self.clock.local_ms(self.scheduler.now_ms) / 1000

    def call_soon(self, callback: Callback, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Call back in the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_dead:
            self._ready.append(handle)
            self._wake()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back after `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at a time of `time`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def ring() -> None:
            if not self._is_dead and not handle.cancelled():
                self._ready.append(handle)
                self._wake()

        if not self._is_dead:
            self.scheduler.after(max(0, self.clock.virtual_ms(when * 1000) - self.scheduler.now_ms), ring)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        """Run a coroutine."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run blocking work outside the loop. An executor with one thread keeps the order."""
        future = self.create_future()
        delay_ms = self.moment_ms()
        if getattr(executor, "_max_workers", 0) == 1:
            at_ms = max(self.scheduler.now_ms + delay_ms, self._free_at_ms.get(executor, 0))
            self._free_at_ms[executor] = at_ms
            delay_ms = at_ms - self.scheduler.now_ms
        self.run_in_thread(delay_ms, lambda: self._work(future, func, args))
        return future

    def run_in_thread(self, delay_ms: int, work: Callable[[], object]) -> None:
        """Run blocking work outside the loop after `delay_ms`, or later if the process is paused then."""

        def run() -> None:
            if self._is_dead:
                return
            # It queues behind work that is held already and continues in this millisecond.
            if self.is_paused or self._held:
                self._held.append(work)
            else:
                with _as_current(self):
                    work()

        self.scheduler.after(delay_ms, run)

    def _work(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except Exception as error:
            self.call_soon(_fail, future, error)
        else:
            self.call_soon(_succeed, future, result)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report the exception to the owner."""
        # Unfinished tasks at the end of the world are no fault.
        if not self._is_dead and context.get("exception") is not None:
            self.owner.note_fault(str(context.get("message")), context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report the exception to the owner."""
        self.call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer calls nothing."""

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return True until the process is killed."""
        return not self._is_dead

    def is_closed(self) -> bool:
        """Return True after the process was killed."""
        return self._is_dead

    # Turns.

    def _go_on(self) -> None:
        if self.is_paused or self._is_dead:
            return
        held = len(self._held)
        with _as_current(self):
            for _ in range(held):
                if self._held:
                    self._held.popleft()()
        self._wake()

    def _wake(self) -> None:
        # The end of a pause wakes the loop too.
        if not self._is_due and self._ready and not self._is_dead and not self.is_paused:
            self._is_due = True
            self.scheduler.after(0, self._run_ready)

    def _run_ready(self) -> None:
        self._is_due = False
        if self._is_dead:
            return
        if self.is_paused:
            return
        count = len(self._ready)
        self._check_turn(count)
        asyncio._set_running_loop(self)
        try:
            with _as_current(self):
                self._run_some(count)
        finally:
            asyncio._set_running_loop(None)
        self._wake()

    def _run_some(self, count: int) -> None:
        for _ in range(count):
            if not self._ready:
                return  # one of the callbacks killed the process
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            if self._steps_to_pause:
                self._steps_to_pause -= 1
                if self._steps_to_pause == 0:
                    self._pause_now(self._pause_to_ms)
                    return

    def _check_turn(self, count: int) -> None:
        if self._turn_ms != self.scheduler.now_ms:
            self._turn_ms, self._turn_count = self.scheduler.now_ms, 0
        self._turn_count += count
        assert self._turn_count <= TURN_CALLBACKS_MAX, f"{self.owner.name} spins: {self._ready[0]}"


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
