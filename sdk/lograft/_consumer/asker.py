# SPDX-License-Identifier: Apache-2.0
"""Asks coordinators whether decisions are complete, for a consumer with `isolation="committed-together"`.

It owns the questions under way and one timer. What to ask, when, and what an answer changes is the collector's
(`holding_collector.py`), which it touches under the consumer's lock. It runs on the consumer's event loop. A coordinator has
one question under way at most, so one that does not answer delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_error
from lograft._client.stubs import ingest_service
from lograft._consumer.fetch_buffer import Cursor
from lograft._consumer.fetcher import Fetcher
from lograft._consumer.holding_collector import HoldingCollector
from lograft._consumer.together import Answer, Question, Watermark
from lograft.errors import LograftError, ProtocolError
from lograft.v1 import ingest_pb2

logger = logging.getLogger(__name__)

ASK_MS: Final = 6_000
"""Milliseconds for a question, all attempts together. A broker gives a coordinator 5,000."""

ATTEMPT_MS: Final = 2_000
"""Most milliseconds for one broker while another can be asked."""


class PublishedAsker:
    """Does what the collector wants. Belongs to the event loop on which it is made.

    Args:
        collector: the collector.
        lock: returns what guards it.
        fetcher: the consumer's connection and engine.
        fetch: fetches partitions from their positions.
        wake: called when a poll has something to do, without the lock.
    """

    def __init__(
        self,
        collector: HoldingCollector,
        *,
        lock: Callable[[], AbstractContextManager[object]],
        fetcher: Fetcher,
        fetch: Callable[[Sequence[Cursor]], None],
        wake: Callable[[], None],
    ) -> None:
        self._collector = collector
        self._lock = lock
        self._fetcher = fetcher
        self._fetch = fetch
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._timer_ms: int | None = None
        self._is_closed = False

    def soon(self) -> None:
        """Look soon what there is to do. It may be called with the lock, on the loop."""
        self._arm(0)

    async def close(self) -> None:
        """End all questions."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _arm(self, at_ms: int) -> None:
        """Look at a monotonic time, if not before."""
        if self._is_closed or (self._timer_ms is not None and self._timer_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = at_ms - monotonic_ms()
        if delay_ms <= 0:
            self._timer = self._loop.call_soon(self._turn)
        else:
            self._timer = self._loop.call_later(delay_ms / 1000, self._turn)
        self._timer_ms = at_ms

    def _turn(self) -> None:
        self._timer = self._timer_ms = None
        if self._is_closed:
            return
        with self._lock():
            is_overdue = self._collector.expire()
            stops = self._collector.take_stops()
            questions = self._collector.questions()
            next_ms = self._collector.next_ms()
        for tp in stops:
            self._fetcher.engine.stop(tp)
        for question in questions:
            task = self._loop.create_task(self._ask(question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if next_ms is not None:
            self._arm(next_ms)
        if is_overdue:
            self._wake()

    async def _ask(self, question: Question) -> None:
        answers: Sequence[Answer]
        try:
            answers = await self._answers(question)
        except LograftError as error:
            answers = [error] * len(question.places)
        except Exception as cause:
            logger.exception("a question about published records failed")
            answers = [ProtocolError(f"a question about published records failed: {cause!r}")] * len(question.places)
        with self._lock():
            again = self._collector.answered(question, answers)
        self._fetch(again)
        self._wake()
        self.soon()

    async def _answers(self, question: Question) -> list[Answer]:
        cluster = self._fetcher.cluster
        request = ingest_pb2.GetPublishedRequest(
            cluster_id=cluster.cluster_id,
            partitions=[
                ingest_pb2.PublishedPartition(
                    topic_id=place.topic_id, partition=place.partition, producer_id=place.producer_id
                )
                for _, place in question.places
            ],
        )
        response = await cluster.ask(
            lambda channel: ingest_service(channel).GetPublished, request, timeout_ms=ASK_MS, attempt_ms=ATTEMPT_MS
        )
        if len(response.partitions) != len(question.places):
            raise ProtocolError(
                f"a broker gave {len(response.partitions)} answers to a question about {len(question.places)} partitions"
            )
        return list(map(_answer, response.partitions))


def _answer(entry: ingest_pb2.PublishedUpTo) -> Answer:
    if entry.HasField("error"):
        return decode_error(entry.error)
    return Watermark(entry.sequence if entry.HasField("sequence") else entry.end_sequence, entry.end_sequence)
