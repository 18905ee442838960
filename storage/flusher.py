# SPDX-License-Identifier: Apache-2.0
"""Threads that run flush groups of many logs.

Group commit falls out of one rule: a log has at most one group in flight, and the next group takes everything that was
appended meanwhile. Which of fdatasync per file, syncfs or a shared journal is best for many logs is measured later;
callers see none of it.

Threads: `submit` is called by the owner of the log; `on_done` runs in a flush thread and must hand over to the
owner (for asyncio: `loop.call_soon_threadsafe`), who then calls `log.end_flush(work)`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from .flush import FlushWork
from .log import PartitionLog

logger = logging.getLogger(__name__)

OnDone = Callable[[FlushWork, BaseException | None], None]
"""(the group, why it failed or None); called once for each submitted group, in a flush thread."""

DEFAULT_THREAD_COUNT = 4
"""fdatasync waits for the device without the interpreter lock, so that a few threads keep it busy."""


class GroupFlusher:
    """Flush threads. Their queue is bounded by the number of logs: each has one group in flight at most."""

    def __init__(self, thread_count: int = DEFAULT_THREAD_COUNT) -> None:
        assert thread_count >= 1, f"thread_count {thread_count}"
        self._queue: queue.SimpleQueue[tuple[FlushWork, OnDone] | None] = queue.SimpleQueue()
        self._threads = [
            # Daemons: a process that ends without `close` must not hang; what is not flushed was not acknowledged.
            threading.Thread(target=self._run, name=f"lograft-flush-{number}", daemon=True)
            for number in range(thread_count)
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def submit(self, log: PartitionLog, on_done: OnDone) -> FlushWork | None:
        """Flush everything appended to a log so far, in a thread.

        Returns:
            The group; None if nothing needs a flush or one is in flight (then submit again after its `end_flush`).

        Raises:
            DiskFailedError, LogClosedError: see `PartitionLog.begin_flush`.
        """
        assert not self._closed, "the flusher is closed"
        work = log.begin_flush()
        if work is not None:
            self._queue.put((work, on_done))
        return work

    def close(self) -> None:
        """Finish all submitted groups and end the threads; blocks for as long as the disk takes."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, on_done = item
            error: BaseException | None = None
            try:
                work.run()
            except Exception as failure:
                # A broken law too goes to the owner: `end_flush` refuses a group that was not done.
                error = failure
            try:
                on_done(work, error)
            except Exception:
                # The owner is gone (its event loop is closed, say); the other logs still need this thread.
                logger.exception("thread=%s action=report-flush", threading.current_thread().name)
