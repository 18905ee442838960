# SPDX-License-Identifier: Apache-2.0
"""The background event loop of the blocking clients, and the thread that runs it. `runtime` says when they exist."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from lograft._client.runtime import STOP_TIMEOUT_S, wait_if_ending

T = TypeVar("T")


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
