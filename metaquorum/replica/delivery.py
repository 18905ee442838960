# SPDX-License-Identifier: Apache-2.0
"""Delivery of the committed log to one listener.

Owns the listener's place in the log and the order of batches and activation. Runs in short slices on the event loop,
so that replaying a long log at start does not hold up the quorum.
Law: batches come in offset order without gaps; `on_activate` comes after everything below the start of the epoch, and
`on_deactivate` after everything that was committed when the leadership ended: who waits for that learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property

from metaquorum.metadata.image_format import LoadedImage
from metaquorum.metadata.listener import MetadataListener, QuorumLeader, joined
from metaquorum.replica.log_store import LogStore

SLICE_BYTES = 256 * 1024
"""Bytes of log that one slice decodes."""

STANDBY_LAG_MS = 20
"""Longest time, in milliseconds, that a commit waits for others before a listener that may lag is told of it."""


class ListenerFeed:
    """Feeds one listener.

    Args:
        listener: who is fed.
        log: where batches are read.
        on_failure: told once when the listener or the log raised; nothing is delivered after that.
    """

    def __init__(self, listener: MetadataListener, log: LogStore, on_failure: Callable[[BaseException], None]) -> None:
        self._listener = listener
        self._log = log
        self._on_failure = on_failure
        self._next_offset = listener.applied_offset
        self._commit_offset = 0
        self._activation: tuple[int, int] | None = None
        self._deactivation_offset: int | None = None
        self._is_active = False
        self._scheduled: asyncio.Handle | None = None
        self._is_lagging = False
        self._is_closed = False
        if self._next_offset < log.log_start_offset:
            raise ValueError(
                f"listener stands at {self._next_offset}, the log starts at {log.log_start_offset}:"
                " load a snapshot first"
            )

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The loop that this object lives on. Taken once: Python 3.11 makes a system call whenever it is asked for it."""
        return asyncio.get_running_loop()

    @property
    def next_offset(self) -> int:
        """Offset (exclusive) below which everything was delivered."""
        return self._next_offset

    def install(self, loaded: LoadedImage) -> None:
        """Give the image of a snapshot in the place of everything below its offset.

        What an earlier leadership of this node committed and was not delivered is gone from the log.
        """
        if self._deactivation_offset is not None:
            self._end_leadership()
        if self._is_closed:
            return
        self._next_offset = loaded.image.metadata_offset
        self._commit_offset = max(self._commit_offset, self._next_offset)
        self._guard(lambda: self._listener.on_snapshot(loaded))

    def announce(self, leader: QuorumLeader) -> None:
        """Tell who leads."""
        if not self._is_closed:
            self._guard(lambda: self._listener.on_leader(leader))

    def advance(self, commit_offset: int) -> None:
        """Everything below commit_offset (exclusive) may be delivered: at once, unless the listener may lag and leads nothing."""
        self._commit_offset = commit_offset
        if self._is_active or self._activation is not None or not self._listener.may_lag:
            self._schedule()
        elif self._scheduled is None and not self._is_closed:
            self._is_lagging = True
            self._scheduled = self._loop.call_later(STANDBY_LAG_MS / 1_000, self._run_slice)

    def hurry(self) -> None:
        """Deliver now what waits for others: somebody has come who waits for it."""
        if self._is_lagging:
            self._schedule()

    def activate(self, quorum_epoch: int, start_offset: int) -> None:
        """Tell that this node leads, once everything below start_offset (exclusive) is delivered."""
        self._activation = (quorum_epoch, start_offset)
        self._schedule()

    def deactivate(self) -> None:
        """Tell that this node leads no more, if that it leads was told, once everything committed so far is delivered."""
        self._activation = None
        if not self._is_active or self._is_closed or self._deactivation_offset is not None:
            return
        if self._next_offset >= self._commit_offset:
            self._end_leadership()
        else:
            self._deactivation_offset = self._commit_offset
            self._schedule()

    def finish_leadership(self) -> None:
        """Deliver now what a leadership that has ended committed, and tell its end; a leader's uncommitted bytes bound it."""
        while self._deactivation_offset is not None and not self._is_closed:
            self._guard(self._deliver)

    def close(self) -> None:
        """Deliver nothing more; an active listener is told that it leads no more."""
        self._activation = None
        if self._is_active and not self._is_closed:
            self._end_leadership()
        self._is_closed = True
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _schedule(self) -> None:
        if self._is_lagging and self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        self._is_lagging = False
        if self._scheduled is None and not self._is_closed:
            self._scheduled = self._loop.call_soon(self._run_slice)

    def _run_slice(self) -> None:
        self._scheduled = None
        self._is_lagging = False
        if not self._is_closed:
            self._guard(self._deliver)

    def _deliver(self) -> None:
        # What was committed after the end of a leadership is for a listener that knows of that end.
        last_offset = self._commit_offset if self._deactivation_offset is None else self._deactivation_offset
        if self._next_offset < last_offset:
            batches = self._log.read_committed(self._next_offset, SLICE_BYTES, commit_offset=last_offset)
            assert batches, f"nothing to read from {self._next_offset} to {last_offset}"
            for batch in joined(batches) if self._listener.may_lag else batches:
                assert batch.base_offset == self._next_offset, f"gap: {batch.base_offset} after {self._next_offset}"
                self._listener.on_commit(batch)
                self._next_offset = batch.next_offset
        if self._deactivation_offset is not None and self._next_offset >= self._deactivation_offset:
            self._end_leadership()
        if self._activation is not None and not self._is_active and self._next_offset >= self._activation[1]:
            quorum_epoch = self._activation[0]
            self._activation = None
            self._is_active = True
            self._listener.on_activate(quorum_epoch)
        if self._next_offset < self._commit_offset:
            self._schedule()

    def _end_leadership(self) -> None:
        self._is_active = False
        self._deactivation_offset = None
        self._guard(self._listener.on_deactivate)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            # An image that missed a batch, or a controller that missed its deposition, is wrong from here on.
            self._is_closed = True
            self._on_failure(error)
