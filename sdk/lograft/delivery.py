# SPDX-License-Identifier: Apache-2.0
"""The handle of a sent record.

It owns the waits of threads, coroutines and callbacks for the result of one record. The results themselves are in the outcome
of the record's batch (`_producer.outcomes`).

A handle is two fields, because `send` makes one for each record. Everything else happens when a program asks.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lograft._client.runtime import wait_if_ending
from lograft._producer.buffers import Place
from lograft._producer.outcomes import Outcome
from lograft.errors import LograftError, RequestTimeoutError, UsageError
from lograft.settings import check_range
from lograft.types import RecordReceipt

if TYPE_CHECKING:
    import asyncio

logger: Final = logging.getLogger(__name__)

MAX_WAIT_MS: Final = 86_400_000 * 365
"""Longest `timeout_ms` of `Delivery.result`, in milliseconds."""


class Delivery:
    """A record on its way. `send` returns it; a program that needs no result of single records ignores it.

    Wait for the result in a thread (`result`) or in a coroutine (`await delivery`), or let a function be called
    (`add_done_callback`). Every delivery gets a result: a receipt or an error, at the latest `delivery_timeout_ms` after its
    batch was opened or when the producer is closed. `flush` and `close` report failed batches too, whoever else has seen the error.

    A delivery keeps the outcome of its batch in memory (some hundred bytes, shared by the records of the batch), but neither
    the record nor the producer.
    """

    __slots__ = ("_number", "_outcome", "_timestamp_ms")

    # The producers write these fields, since a constructor in Python costs as much as the rest of the handle. `_number` is the
    # number of slots of the open batch after the append: twice the number of the record, from 1. `_timestamp_ms` is missing if
    # the time marks of the batch have the create time.
    _outcome: Outcome
    _number: int
    _timestamp_ms: int

    @classmethod
    def at(cls, place: Place) -> Delivery:
        """Return the handle of a record at a place in a batch. The producers call this."""
        delivery = cls()
        delivery._outcome = place.outcome
        delivery._number = 2 * place.number
        if place.timestamp_ms is not None:
            delivery._timestamp_ms = place.timestamp_ms
        return delivery

    @property
    def topic(self) -> str:
        """Topic of the record."""
        return self._outcome.topic

    @property
    def partition(self) -> int:
        """Partition of the record."""
        return self._outcome.partition

    def done(self) -> bool:
        """Return True if the result is known, so that `result` does not wait."""
        return self._outcome.find(self._index) is not None

    def result(self, timeout_ms: int | None = None) -> RecordReceipt:
        """Wait until the record is acknowledged, and return its receipt. The producer sends it no earlier because of that.

        Args:
            timeout_ms: milliseconds to wait, 0 to 31,536,000,000. None waits until the result is known.

        Raises:
            LograftError: the record was not delivered; `OutcomeUnknownError` and `RequestTimeoutError` say that it may be in
                the log.
            RequestTimeoutError: `timeout_ms` is up. The record is still on its way: `done()` is False.
            UsageError: the thread that sends the records would wait for itself.
            ForkedClientError: this is a forked child, and the record belongs to its parent.
        """
        if timeout_ms is not None:
            check_range("timeout_ms", timeout_ms, 0, MAX_WAIT_MS)
        if not self.done():
            self._wait(timeout_ms)
        try:
            return self._receipt()
        except LograftError:
            wait_if_ending()
            raise

    def add_done_callback(self, function: Callable[[Delivery], object]) -> None:
        """Call a function with this delivery once the result is known; `result()` then returns or raises without a wait.

        The thread that sends the records calls it: the background thread of a blocking producer, the thread of the event loop
        of an `aio.Producer`. If the result is known already, the calling thread calls it at once. No lock is held. The function
        must be quick and must not wait in a client. An exception that it raises is logged. In a forked child no function of the
        parent is called.
        """
        call = partial(_call_back, function, self)
        if self._outcome.wait(self._index, call) is None:
            call()

    def __await__(self) -> Generator[Any, None, RecordReceipt]:
        """Wait as `result` does, without a time limit, in any event loop."""
        if not self.done():
            import asyncio  # a program that does not wait in a loop does not need it

            loop = asyncio.get_running_loop()
            future = loop.create_future()
            waiting = self._outcome.wait(self._index, partial(_wake, loop, future))
            if waiting is not None:
                try:
                    yield from future
                finally:
                    self._outcome.forget(waiting)
        return self._receipt()

    def __repr__(self) -> str:
        return f"<Delivery to {self.topic}-{self.partition}, {'done' if self.done() else 'under way'}>"

    @property
    def _index(self) -> int:
        return self._number // 2 - 1

    def _wait(self, timeout_ms: int | None) -> None:
        if self._outcome.resolver.thread_id == threading.get_ident():
            raise UsageError("this thread sends the record, so it cannot wait for it: use `await` or add_done_callback")
        # A lock that the call releases: an Event would take three objects more.
        gate = threading.Lock()
        gate.acquire()
        waiting = self._outcome.wait(self._index, gate.release)
        if waiting is None:
            return
        done = False
        try:
            done = gate.acquire(timeout=-1 if timeout_ms is None else min(timeout_ms / 1000, threading.TIMEOUT_MAX))
        finally:
            if not done:
                self._outcome.forget(waiting)
        if not done and not self.done():
            wait_if_ending()
            raise RequestTimeoutError(f"the record has no result after {timeout_ms} ms; it is still on its way")

    def _receipt(self) -> RecordReceipt:
        found = self._outcome.find(self._index)
        assert found is not None, "the result is not known"
        offset, result = found
        if isinstance(result, LograftError):
            raise copy.copy(result)
        if result.error is not None:
            # All records of the batch share the error. Each caller raises a copy, so that tracebacks do not mix.
            raise copy.copy(result.error)
        timestamp_ms: int | None = getattr(self, "_timestamp_ms", None)
        return RecordReceipt(
            topic=result.topic,
            partition=result.partition,
            offset=offset,
            timestamp_ms=self._outcome.timestamp_ms(self._index) if timestamp_ms is None else timestamp_ms,
            durability=result.durability,
            duplicate=result.duplicate,
        )


def _call_back(function: Callable[[Delivery], object], delivery: Delivery) -> None:
    try:
        function(delivery)
    except Exception:
        logger.exception("a callback of %r failed", delivery)


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """End the wait of a coroutine, from any thread."""
    import asyncio

    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        _finish(future)
        return
    # The loop may be closed; then nobody waits any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
