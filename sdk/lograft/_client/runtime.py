# SPDX-License-Identifier: Apache-2.0
"""The background event loop of the blocking clients.

Owns one daemon thread for each process, started when the first blocking client needs it, ended when the last one was
closed. Must not know what runs on it.

Ending matters: gRPC wakes every event loop of a process for every event of any of them, so that an idle loop beside a busy
one costs it a third of its speed (measured).

At the end of the process the clients that are still open leave first (`on_exit`): producers flush, all of them within one time,
and the others let their connections go; then the thread ends.

A forked child has no such thread: it gets a runtime of its own at its first use, and the clients of its parent refuse to work there
(`forks`), because their connections belong to the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, Protocol, TypeVar

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever

T = TypeVar("T")

STOP_TIMEOUT_S: Final = 2.0
"""Seconds that the end of the process waits for the thread."""


class KeptLoop(asyncio.SelectorEventLoop):
    """The event loop of the blocking clients: one for the whole life of the process, whether a thread runs it or not.

    It is never closed. gRPC hands the events of all loops out through one queue; one for a closed loop is an error in whatever
    loop takes it, while one for a loop that nobody runs waits for the next thread. Nor is it closed when it is collected, at the
    end of the process or in a forked child, which has its parent's selector: it would take the parent's file descriptors out of it.
    """

    def __del__(self) -> None:
        """Do nothing; see above."""


class Runtime:
    """An event loop in a thread."""

    def __init__(self, loop: KeptLoop) -> None:
        self.loop = loop
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="lograft", daemon=True)
        self._thread.start()
        self._started.wait()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._started.set)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Args:
            work: the coroutine; it should bound its own time.
            timeout_s: seconds after which it is cancelled; None: never.

        Raises:
            TimeoutError: it did not end in time.
        """
        assert threading.current_thread() is not self._thread, "a blocking call from a callback would wait for itself"
        try:
            return self._run(work, timeout_s)
        except BaseException:
            wait_if_ending()
            raise

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            # Either the wait or the coroutine itself timed out; the second is passed on as it is.
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"no result within {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def is_current_thread(self) -> bool:
        """True on the loop's own thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> bool:
        """Cancel what runs and end the thread; False: it did not end within `STOP_TIMEOUT_S`."""

        async def _cancel_all() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.loop.stop()

        asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop)
        self._thread.join(STOP_TIMEOUT_S)
        return not self._thread.is_alive()


class Leaving(Protocol):
    """A client that has something to do at the end of the process."""

    def leave(self, started_s: float) -> None:
        """Do it, within a bounded time from `started_s` (of the monotonic clock) on; wake no thread of the application."""
        ...


_lock = threading.Lock()
_runtime: Runtime | None = None
_idle_loop: KeptLoop | None = None
"""The loop between two runtimes."""
_ending_thread: int | None = None
"""Thread that ends the process."""
_leaving: weakref.WeakSet[Leaving] = weakref.WeakSet()
_user_count = 0


def open_on_runtime(make: Callable[[], T]) -> tuple[T, Runtime]:
    """Make an object on the loop of this process's runtime, which is started now if need be.

    Returns:
        The object, and the runtime, which is to be given to `release_runtime` once.
    """
    runtime = acquire_runtime()

    async def start() -> T:
        return make()

    try:
        return runtime.run(start()), runtime
    except BaseException:
        release_runtime(runtime)
        raise


def acquire_runtime() -> Runtime:
    """Return this process's runtime, started now if need be; it is to be given to `release_runtime` once."""
    global _runtime, _user_count, _idle_loop
    wait_if_ending()
    with _lock:
        if _runtime is None:
            loop, _idle_loop = _idle_loop, None
            _runtime = Runtime(KeptLoop() if loop is None else loop)
            _user_count = 0
        _user_count += 1
        return _runtime


def release_runtime(runtime: Runtime) -> None:
    """A client needs the runtime no longer; the last one ends it."""
    global _runtime, _user_count
    with _lock:
        if runtime is not _runtime:
            return
        _user_count -= 1
        if _user_count > 0:
            return
        _runtime = None
    _end(runtime)


def _end(runtime: Runtime) -> None:
    """End a runtime, and keep its loop for the next one."""
    global _idle_loop
    if runtime.stop():
        with _lock:
            _idle_loop = runtime.loop


def wait_if_ending() -> None:
    """Wait for ever in a daemon thread when the process ends: its clients have left, and it is not to hear of that by an error."""
    if _ending_thread is not None and _ending_thread != threading.get_ident():
        threading.Event().wait()


def on_exit(client: Leaving) -> None:
    """Have a client told when the process ends."""
    _leaving.add(client)
    # Once, and before what libraries registered that are loaded later would take away.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _at_exit() -> None:
    """Runs when only daemon threads are left besides this one, and before they are stopped."""
    global _runtime, _ending_thread
    _ending_thread = threading.get_ident()
    started_s = time.monotonic()
    for client in list(_leaving):
        client.leave(started_s)
    with _lock:
        runtime, _runtime = _runtime, None
    if runtime is not None:
        _end(runtime)


class _Child:
    """What a forked child begins with: no runtime, and nobody to leave."""

    def after_fork(self) -> None:
        global _runtime, _lock, _idle_loop, _ending_thread
        keep_for_ever((_runtime, _idle_loop))
        _lock = threading.Lock()
        _runtime = _idle_loop = _ending_thread = None
        _leaving.clear()


_child: Final = _Child()
on_fork(_child)
