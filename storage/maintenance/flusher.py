# SPDX-License-Identifier: Apache-2.0
"""Threads that run the flush groups of many logs.

Group commit has two levels. For one log, at most one group is in flight, and the next group takes everything appended
since. For the logs of one disk, the waiting groups form a round. If there are several, one sync of the file system
(`Disk.sync_filesystem`) covers them. Groups that arrive in the meantime form the next round. If that turns out
expensive (`sync_choice`), files are synced separately, several at once. ADR 6 has the reasons, and says how each way
reports a write error.

Threads: each disk has its own, so that a slow disk delays only its own logs. The owner of the log calls `submit`.
`on_done` runs in a flush thread and must pass the result to the owner (for asyncio: `loop.call_soon_threadsafe`). The
owner then calls `log.end_flush(work)`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from storage.errors import DiskFailedError, StorageError
from storage.files.disk import Disk
from storage.files.sync_choice import SyncChoice
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

OnDone = Callable[[FlushWork, BaseException | None], None]
"""(the group, its error or None); called once for each submitted group, in a flush thread."""

DEFAULT_THREAD_COUNT: Final = 4
"""Flush threads of a disk. fdatasync waits for the device without the interpreter lock, so a few threads keep the device busy."""

FEW_GROUPS: Final = 4
"""Most groups of a round that its thread reports before it starts the next round; with more, another thread starts that."""

_Item = tuple[FlushWork, OnDone]
_Done = tuple[FlushWork, OnDone, BaseException | None]


class GroupFlusher:
    """Flush threads of some disks. The number of logs bounds their queues, because a log has at most one group in flight.

    Args:
        thread_count: threads of each disk; they start with its first group.
    """

    def __init__(self, thread_count: int = DEFAULT_THREAD_COUNT) -> None:
        assert thread_count >= 1, f"thread_count {thread_count}"
        self._thread_count = thread_count
        self._lanes: dict[int, _Lane] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, log: PartitionLog, on_done: OnDone) -> FlushWork | None:
        """Flush everything appended to a log so far, in a thread.

        Returns:
            The group. None if nothing needs a flush, or if a group is in flight; then submit again after its
            `end_flush`.

        Raises:
            DiskFailedError, LogClosedError: as in `PartitionLog.begin_flush`.
        """
        assert not self._closed, "the flusher is closed"
        work = log.begin_flush()
        if work is not None:
            disk = work.disk
            lane = self._lanes.get(id(disk)) or self._open_lane(disk)
            lane.queue.put((work, on_done))
        return work

    def _open_lane(self, disk: Disk) -> _Lane:
        with self._lock:
            return self._lanes.setdefault(id(disk), _Lane(disk, self._thread_count, len(self._lanes)))

    def close(self) -> None:
        """Finish all submitted groups and end the threads. Blocks for as long as the disks take."""
        if self._closed:
            return
        self._closed = True
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.join()


class _Lane:
    """The queue and the threads of one disk.

    Attributes:
        disk: the disk; the reference keeps its `id` unique.
        queue: waiting groups; None: one thread must end.
    """

    def __init__(self, disk: Disk, thread_count: int, number: int) -> None:
        self.disk = disk
        self.queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._choice = SyncChoice(thread_count)
        # Held while a thread takes groups and during a round, so that the next round gathers.
        self._turn = threading.Lock()
        self._threads = [
            # Daemon threads: a process that ends without `close` must not hang. What is not flushed was not
            # acknowledged.
            threading.Thread(target=self._run, name=f"lograft-flush-{number}-{thread}", daemon=True)
            for thread in range(thread_count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Make the threads end after the groups that wait now."""
        for _ in self._threads:
            self.queue.put(None)

    def join(self) -> None:
        """Wait for the threads to end."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._turn:
                while True:
                    item = self.queue.get()
                    if item is None:
                        return
                    if not self._choice.is_shared(self.queue.qsize() + 1, now_s=time.monotonic()):
                        done = None
                        break
                    done = self._sync([item, *self._take_waiting()])
                    if len(done) > FEW_GROUPS:
                        break
                    # Reporting these costs less processor time than passing the turn to another thread.
                    _report(done)
            _report(self._sync([item]) if done is None else done)

    def _sync(self, items: Sequence[_Item]) -> list[_Done]:
        started_s = time.monotonic()
        done, was_shared = run_groups(items)
        now_s = time.monotonic()
        if len(items) == 1:
            self._choice.note_apart(now_s - started_s)
        elif was_shared:
            self._choice.note_shared(now_s - started_s, len(items), now_s=now_s)
        else:
            self._choice.note_impossible()
        return done

    def _take_waiting(self) -> list[_Item]:
        """Take all waiting groups; a sign to end stays in the queue for its thread."""
        taken: list[_Item] = []
        while True:
            try:
                item = self.queue.get_nowait()
            except queue.Empty:
                return taken
            if item is None:
                self.queue.put(None)
                return taken
            taken.append(item)


def _report(done: Sequence[_Done]) -> None:
    for work, on_done, error in done:
        try:
            on_done(work, error)
        except Exception:
            # The owner is gone (for example, its event loop is closed); the other logs still need this thread.
            logger.exception("thread=%s action=report-flush", threading.current_thread().name)


class Round(NamedTuple):
    """The result of running some groups.

    Attributes:
        done: each group with its callback and its error.
        was_shared: True if one sync of the file system covered all of them; False if the system has no such call.
    """

    done: list[tuple[FlushWork, OnDone, BaseException | None]]
    was_shared: bool


def run_groups(items: Sequence[_Item]) -> Round:
    """Run flush groups of one disk; one sync covers several of them.

    A failed assertion goes to the owner as an error too, and `end_flush` refuses a group that was not run.
    """
    was_shared, error = _sync_together([work for work, _ in items]) if len(items) > 1 else (False, None)
    done = [(work, on_done, error if error is not None else _run_one(work)) for work, on_done in items]
    return Round(done, was_shared)


def _sync_together(works: Sequence[FlushWork]) -> tuple[bool, BaseException | None]:
    """Sync the file system of some groups once, or twice if leader-epoch checkpoints must be replaced.

    The second sync replaces one sync of each directory: a failover begins an epoch in thousands of logs at once.

    Returns:
        False if the system has no such call and nothing was synced; and the error of the sync, which is that of all
        groups. A group without space for its checkpoint has its own error.
    """
    disk, directory = works[0].disk, works[0].directory
    try:
        good = [work for work in works if _tried(work, work.write_checkpoint)]
        if not disk.sync_filesystem(directory):
            return False, None
        with_epochs = [work for work in good if work.covers_epochs]
        if with_epochs:
            for work in with_epochs:
                work.take_checkpoint()
            disk.sync_filesystem(directory)
    except Exception as error:
        for work in works:
            work.error = error if isinstance(error, StorageError) else None
        return True, error
    for work in good:
        work.note_synced()
    return True, None


def _tried(work: FlushWork, step: Callable[[], None]) -> bool:
    """Run a step of one group; note its error, unless the whole disk failed."""
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
