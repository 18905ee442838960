# SPDX-License-Identifier: Apache-2.0
"""Flushes of the metadata log: one at a time in the disk thread. Each is reported on the event loop when it is done.

Owns the order of the requested flushes. Decides nothing: the core requests flushes and gets the reports. Law: a flush is reported
only after its work has run and the log has taken its result; a failed flush is never reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from metaquorum.replica.disk_thread import DiskThread
from metaquorum.replica.log_store import LogStore
from storage.log.flush import FlushWork


class LogFlusher:
    """Flushes one log.

    Args:
        log: the log.
        disk: the disk thread.
        on_flushed: gets the id of each flush that is done.
        on_failure: gets the reason of a failure; nothing is flushed after that.
    """

    def __init__(
        self,
        log: LogStore,
        disk: DiskThread,
        *,
        on_flushed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._disk = disk
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        # Normally one is under way; after a truncation the core forgets it and requests another one.
        self._flush_ids: deque[int] = deque()
        self._is_stopped = False

    def flush(self, flush_id: int) -> None:
        """Put everything appended so far on stable storage, after a flush that is under way."""
        self._flush_ids.append(flush_id)
        if len(self._flush_ids) == 1:
            self._begin()

    def stop(self) -> None:
        """Start no further flush. The one under way is still reported."""
        self._is_stopped = True

    def _begin(self) -> None:
        work = self._log.begin_flush()
        if work is None:
            self._end(None, None)
        else:
            self._disk.submit(work.run, partial(self._end, work))

    def _end(self, work: FlushWork | None, error: BaseException | None) -> None:
        try:
            if error is not None:
                raise error
            if work is not None:
                self._log.end_flush(work)
            flush_id = self._flush_ids.popleft()
            has_more = bool(self._flush_ids)
            # The core may request another flush at once, which starts if none waits.
            self._on_flushed(flush_id)
            if has_more and not self._is_stopped:
                self._begin()
        except Exception as failure:
            self._on_failure(failure)
