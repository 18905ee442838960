# SPDX-License-Identifier: Apache-2.0
"""Flushes of the metadata log: one at a time in the disk thread, each reported on the event loop when it is done.

Owns the order of the flushes that were asked for. Decides nothing: the core asks, and is told. Law: a flush is reported only
after its work was run and taken back by the log; a failed one never is.
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
        disk: the thread.
        on_flushed: told the id of a flush when it is done.
        on_failure: told why one failed; nothing is flushed after that.
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
        # The core has one under way, but a truncation makes it forget that one and ask for another.
        self._flush_ids: deque[int] = deque()
        self._is_stopped = False

    def flush(self, flush_id: int) -> None:
        """Put everything appended so far on stable storage, after the flush under way."""
        self._flush_ids.append(flush_id)
        if len(self._flush_ids) == 1:
            self._begin()

    def stop(self) -> None:
        """Begin no more; the one under way is taken back when it is done."""
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
            # It may ask for another one at once, which begins if none waits.
            self._on_flushed(flush_id)
            if has_more and not self._is_stopped:
                self._begin()
        except Exception as failure:
            self._on_failure(failure)
