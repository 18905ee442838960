# SPDX-License-Identifier: Apache-2.0
"""The runtime of the blocking clients: one background event loop for each process.

It owns when that loop runs: the first blocking client starts its thread (`background_loop`), and closing the last client ends it.
It must not know what runs on the loop. asyncio is loaded with the first client, not with an import of its class.

The thread must end, because gRPC wakes every event loop of a process for every event of any of them. An idle loop costs a busy
one a third of its speed (measured).

At the end of the process, the clients that are still open leave first (`on_exit`): producers flush, all within one time, and
the other clients close their connections. Then the thread ends.

A forked child has no such thread. It starts its own runtime at the first use. The parent's clients refuse to work in the child
(`forks`), because their connections belong to the parent.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lograft._client.forks import loading, on_fork
from lograft._client.immortal import keep_for_ever

if TYPE_CHECKING:
    from lograft._client.background_loop import KeptLoop, Runtime

T = TypeVar("T")

STOP_TIMEOUT_S: Final = 2.0
"""Longest wait for the thread to end, in seconds."""


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
    with loading():
        from lograft._client.background_loop import KeptLoop, Runtime
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
    # Registered again, and after everything registered so far: it must run before libraries shut down what it needs.
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


# Without a client there is nothing to leave. But a daemon thread that makes its first one while the process ends has to wait.
atexit.register(_at_exit)


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
