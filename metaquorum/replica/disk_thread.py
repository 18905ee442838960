# SPDX-License-Identifier: Apache-2.0
"""One thread that waits for the disk instead of the event loop, one piece of work after the other.

Owns the thread and its queue. The queue is bounded because its owner has at most one flush and one write of the vote under way. The
thread does not know what it runs. An executor would need two futures, two locks and a task for each piece, which costs as much as a
flush of 0.1 ms.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]


class DiskThread:
    """The thread; it runs until `close`.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_closed = False
        # A daemon: a process whose disk hangs for good can still exit. Unflushed records were not acknowledged.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Run `work` in the thread after all earlier work, then `done` on the event loop with its exception or None."""
        assert not self._is_closed, "the disk thread is closed"
        self._queue.put((work, done))

    def settle(self) -> None:
        """Block until all earlier work has run in the thread. The `done` callbacks run later, on the event loop."""
        has_run = threading.Event()
        self.submit(has_run.set, _nothing)
        has_run.wait()

    async def close(self) -> None:
        """Wait for all submitted work and its `done` callbacks, then end the thread. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        await asyncio.shield(self._ended)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            self._loop.call_soon_threadsafe(done, error)
        self._loop.call_soon_threadsafe(self._ended.set_result, None)


def _nothing(error: BaseException | None) -> None:
    """Check that the work of `settle` has not failed."""
    assert error is None, "setting an event failed"
