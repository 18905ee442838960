# SPDX-License-Identifier: Apache-2.0
"""Threads that run flush groups of many logs.

Group commit has two levels. Of one log: at most one group is in flight, and the next takes everything that was appended
meanwhile. Of many logs: when at least `GROUP_MIN` groups of one disk wait, one thread takes all of them and syncs the whole
file system once (`Disk.sync_filesystem`) instead of each file; what comes meanwhile makes the next such round. Few
groups are synced file by file, several at once. Why, and how each way reports a write error: ADR 6.

Threads: `submit` is called by the owner of the log; `on_done` runs in a flush thread and must hand over to the
owner (for asyncio: `loop.call_soon_threadsafe`), who then calls `log.end_flush(work)`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

from .errors import DiskFailedError, StorageError
from .flush import FlushWork
from .log import PartitionLog

logger = logging.getLogger(__name__)

OnDone = Callable[[FlushWork, BaseException | None], None]
"""(the group, why it failed or None); called once for each submitted group, in a flush thread."""

DEFAULT_THREAD_COUNT: Final = 4
"""fdatasync waits for the device without the interpreter lock, so that a few threads keep it busy."""

GROUP_MIN: Final = 16
"""Waiting groups from which on one sync of the file system is cheaper than one of each file (measured: ADR 6)."""

_Item = tuple[FlushWork, OnDone]


class GroupFlusher:
    """Flush threads. Their queue is bounded by the number of logs: each has one group in flight at most."""

    def __init__(self, thread_count: int = DEFAULT_THREAD_COUNT) -> None:
        assert thread_count >= 1, f"thread_count {thread_count}"
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
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
            items = [item]
            if self._queue.qsize() + 1 >= GROUP_MIN:
                items += self._take_waiting()
            for work, on_done, error in run_groups(items):
                try:
                    on_done(work, error)
                except Exception:
                    # The owner is gone (its event loop is closed, say); the other logs still need this thread.
                    logger.exception("thread=%s action=report-flush", threading.current_thread().name)

    def _take_waiting(self) -> list[_Item]:
        """Take everything that waits; a sign to end stays for its thread."""
        taken: list[_Item] = []
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return taken
            if item is None:
                self._queue.put(None)
                return taken
            taken.append(item)


def run_groups(items: Sequence[_Item]) -> list[tuple[FlushWork, OnDone, BaseException | None]]:
    """Run flush groups, those of one disk with one sync where they are many; return each with its error.

    A broken law too goes to the owner as an error: `end_flush` refuses a group that was not done.
    """
    by_disk: dict[int, list[_Item]] = {}
    for item in items:
        by_disk.setdefault(id(item[0].disk), []).append(item)
    done: list[tuple[FlushWork, OnDone, BaseException | None]] = []
    for same_disk in by_disk.values():
        error = _sync_together([work for work, _ in same_disk]) if len(same_disk) >= GROUP_MIN else None
        for work, on_done in same_disk:
            done.append((work, on_done, error if error is not None else _run_one(work)))
    return done


def _sync_together(works: Sequence[FlushWork]) -> BaseException | None:
    """Sync the file system of some groups once, or twice where leader-epoch checkpoints are to be replaced.

    The second sync takes the place of one sync of each directory: a failover begins an epoch in thousands of logs at once.

    Returns:
        Why the sync failed: the error of all groups. A group whose checkpoint found no space has an error of its own.
    """
    disk, directory = works[0].disk, works[0].directory
    try:
        good = [work for work in works if _tried(work, work.write_checkpoint)]
        if not disk.sync_filesystem(directory):
            return None
        with_epochs = [work for work in good if work.covers_epochs]
        if with_epochs:
            for work in with_epochs:
                work.take_checkpoint()
            disk.sync_filesystem(directory)
    except Exception as error:
        for work in works:
            work.error = error if isinstance(error, StorageError) else None
        return error
    for work in good:
        work.note_synced()
    return None


def _tried(work: FlushWork, step: Callable[[], None]) -> bool:
    """Take a step of one group; note its error, unless the whole disk failed."""
    try:
        step()
    except DiskFailedError:
        raise
    except StorageError as error:
        work.error = error
        return False
    return True


def _run_one(work: FlushWork) -> BaseException | None:
    if work.is_done or work.error is not None:
        return work.error
    try:
        work.run()
    except Exception as error:
        return error
    return None
