# SPDX-License-Identifier: Apache-2.0
"""The background event loop of the blocking clients.

It owns one daemon thread for each process. The first blocking client starts the thread, and closing the last client ends it. It
must not know what runs on the loop.

The thread must end, because gRPC wakes every event loop of a process for every event of any of them. An idle loop costs a busy
one a third of its speed (measured).

At the end of the process, the clients that are still open leave first (`on_exit`): producers flush, all within one time, and
the other clients close their connections. Then the thread ends.

A forked child has no such thread. It starts its own runtime at the first use. The parent's clients refuse to work in the child
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
from typing import Any, Final, TypeVar

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever

T = TypeVar("T")

STOP_TIMEOUT_S: Final = 2.0
"""Longest wait for the thread to end, in seconds."""


class KeptLoop(asyncio.SelectorEventLoop):
    """The event loop of the blocking clients. A process keeps it for its whole life, whether a thread runs it or not.

    Nothing ever closes it. gRPC delivers the events of all loops through one queue. An event for a closed loop raises an error
    in the loop that takes it, but an event for a loop without a thread waits for the next thread. Garbage collection must not
    close the loop either, at the end of the process or in a forked child. The child has its parent's selector, and closing it
    would remove the parent's file descriptors from that selector.
    """

    def __del__(self) -> None:
        """Do nothing, so that garbage collection does not close the loop."""


class Runtime:
    """An event loop that runs in a thread."""

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
            work: the coroutine. It should limit its own time.
            timeout_s: seconds after which the coroutine is cancelled; None sets no limit.

        Raises:
            TimeoutError: the coroutine did not end in time.
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
            # Either this wait timed out or the coroutine raised TimeoutError itself. The second is passed on.
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
        """Cancel all tasks and end the thread. Return False if it did not end within `STOP_TIMEOUT_S`."""

        async def _cancel_all() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.loop.stop()

        asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop)
        self._thread.join(STOP_TIMEOUT_S)
        return not self._thread.is_alive()


_lock = threading.Lock()
_runtime: Runtime | None = None
_idle_loop: KeptLoop | None = None
"""The loop, while no runtime uses it."""
_ending_thread: int | None = None
"""Identifier of the thread that ends the process."""
_leave: weakref.WeakKeyDictionary[Any, Callable[[Any, float], None]] = weakref.WeakKeyDictionary()
"""What to call at the end of the process, by client. The functions are those of classes, so that they keep no client alive."""
_user_count = 0


def open_on_runtime(make: Callable[[], T]) -> tuple[T, Runtime]:
    """Make an object on the loop of this process's runtime, and start the runtime if none runs.

    Returns:
        The object and the runtime. The caller gives the runtime to `release_runtime` once.
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
    """Return this process's runtime, and start it if none runs. The caller gives it to `release_runtime` once."""
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
    """Return a runtime that a client no longer needs. The last client ends it."""
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
    """In a daemon thread, wait for ever once the process ends. Its clients have left, and it must see no error because of that."""
    if _ending_thread is not None and _ending_thread != threading.get_ident():
        threading.Event().wait()


def on_exit(client: T, leave: Callable[[T, float], None]) -> None:
    """Call `leave(client, started_s)` at the end of the process, if the client still exists.

    Args:
        client: a client that has work to do then.
        leave: function of its class that does the work within a bounded time from `started_s` (seconds of the monotonic clock).
            It must not wake a thread of the application.
    """
    _leave[client] = leave
    # Registered once, and after everything registered so far: it must run before libraries shut down what it needs.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _at_exit() -> None:
    """Let all clients leave. Python calls this when only daemon threads run besides this one, before it stops them."""
    global _runtime, _ending_thread
    _ending_thread = threading.get_ident()
    started_s = time.monotonic()
    for client, leave in list(_leave.items()):
        leave(client, started_s)
    with _lock:
        runtime, _runtime = _runtime, None
    if runtime is not None:
        _end(runtime)


class _Child:
    """Resets this module in a forked child: no runtime, and no client that leaves at the end."""

    def after_fork(self) -> None:
        global _runtime, _lock, _idle_loop, _ending_thread
        keep_for_ever((_runtime, _idle_loop))
        _lock = threading.Lock()
        _runtime = _idle_loop = _ending_thread = None
        _leave.clear()


_child: Final = _Child()
on_fork(_child, _Child.after_fork)
