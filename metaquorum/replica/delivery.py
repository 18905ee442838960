# SPDX-License-Identifier: Apache-2.0
"""Delivery of the committed log to one listener.

Owns the listener's position in the log, and the order of batches and activation. It runs in short slices on the event loop, so the
replay of a long log at the start does not delay the quorum.
Law: batches come in offset order without gaps. `on_activate` comes after everything below the start of the epoch. `on_deactivate`
comes after everything that was committed when the leadership ended, so callers that wait for those commits learn of them.
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

SETTLE_MS = 100
"""Longest time in milliseconds after a commit until the listener does the work that it has postponed."""

STANDBY_LAG_MS = 20
"""Longest time in milliseconds that a commit waits for further ones before a listener that may lag gets it."""


class ListenerFeed:
    """Delivers batches and leadership changes to one listener.

    Args:
        listener: the listener.
        log: log from which batches are read.
        on_failure: called once when the listener or the log raised; nothing is delivered after that.
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
        self._settling: asyncio.Handle | None = None
        self._is_lagging = False
        self._is_closed = False
        if self._next_offset < log.log_start_offset:
            raise ValueError(
                f"listener stands at {self._next_offset}, the log starts at {log.log_start_offset}:"
                " load a snapshot first"
            )

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of this object. Cached, because Python 3.11 makes a system call for each look-up."""
        return asyncio.get_running_loop()

    @property
    def next_offset(self) -> int:
        """Offset (exclusive) below which everything was delivered."""
        return self._next_offset

    def install(self, loaded: LoadedImage) -> None:
        """Deliver the image of a snapshot, which replaces everything below its offset.

        Undelivered commits of an earlier leadership of this node are no longer in the log, so that leadership ends first.
        """
        if self._deactivation_offset is not None:
            self._end_leadership()
        if self._is_closed:
            return
        self._next_offset = loaded.image.metadata_offset
        self._commit_offset = max(self._commit_offset, self._next_offset)
        self._guard(lambda: self._listener.on_snapshot(loaded))

    def announce(self, leader: QuorumLeader) -> None:
        """Deliver the known leader."""
        if not self._is_closed:
            self._guard(lambda: self._listener.on_leader(leader))

    def advance(self, commit_offset: int) -> None:
        """Deliver everything below `commit_offset` (exclusive): soon, or a little later if the listener may lag and does not lead."""
        self._commit_offset = commit_offset
        if self._is_active or self._activation is not None or not self._listener.may_lag:
            self._schedule()
        elif self._scheduled is None and not self._is_closed:
            self._is_lagging = True
            self._scheduled = self._loop.call_later(STANDBY_LAG_MS / 1_000, self._run_slice)

    def hurry(self) -> None:
        """Deliver now what a listener that may lag has not received: a caller waits for it."""
        if self._is_lagging:
            self._schedule()

    def activate(self, quorum_epoch: int, start_offset: int) -> None:
        """Activate the listener once everything below `start_offset` (exclusive) is delivered."""
        self._activation = (quorum_epoch, start_offset)
        self._schedule()

    def deactivate(self) -> None:
        """Deactivate an active listener once everything committed so far is delivered; cancel an activation under way."""
        self._activation = None
        if not self._is_active or self._is_closed or self._deactivation_offset is not None:
            return
        if self._next_offset >= self._commit_offset:
            self._end_leadership()
        else:
            self._deactivation_offset = self._commit_offset
            self._schedule()

    def finish_leadership(self) -> None:
        """Deliver the commits of an ended leadership and its end now. The leader's limit of uncommitted bytes bounds the work."""
        while self._deactivation_offset is not None and not self._is_closed:
            self._guard(self._deliver)

    def close(self) -> None:
        """Deliver nothing more, but deactivate an active listener."""
        self._activation = None
        if self._is_active and not self._is_closed:
            self._end_leadership()
        self._settle()
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

    def _settle(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if not self._is_closed:
            self._guard(self._listener.settle)

    def _deliver(self) -> None:
        # The listener must learn that a leadership has ended before it gets later commits.
        last_offset = self._commit_offset if self._deactivation_offset is None else self._deactivation_offset
        if self._next_offset < last_offset:
            batches = self._log.read_committed(self._next_offset, SLICE_BYTES, commit_offset=last_offset)
            assert batches, f"nothing to read from {self._next_offset} to {last_offset}"
            for batch in joined(batches) if self._listener.may_lag else batches:
                assert batch.base_offset == self._next_offset, f"gap: {batch.base_offset} after {self._next_offset}"
                self._listener.on_commit(batch)
                self._next_offset = batch.next_offset
            if self._settling is None:
                self._settling = self._loop.call_later(SETTLE_MS / 1_000, self._settle)
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
            # An image that missed a batch is wrong from here on, and so is a controller that missed the end of its leadership.
            self._is_closed = True
            self._on_failure(error)
