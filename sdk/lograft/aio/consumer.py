# SPDX-License-Identifier: Apache-2.0
"""The asyncio consumer.

Owns the waits of the caller's tasks. Everything runs on the caller's loop; decoding happens in the poll that asks for
it. One task at a time should poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._consumer.collector import ConsumerBook, PollWait, check_partitions
from lograft._consumer.fetch_buffer import Arrival, Cursor
from lograft._consumer.fetcher import ConsumerLink
from lograft.consumer import parse_start
from lograft.errors import ClientClosedError, ForkedClientError, UnreachableError
from lograft.fetched import FetchedBatch
from lograft.settings import (
    CONNECTION_LIVENESS_MS,
    REQUEST_TIMEOUT_MS,
    UNREACHABLE_TIMEOUT_MS,
    ConsumerSettings,
    check_range,
    parse_bootstrap,
)
from lograft.types import ConsumerHealth, ConsumerRecord, Position, TopicPartition


class Consumer:
    """Reads records of the partitions that it is given; arguments, results and errors as `lograft.Consumer`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        fetch_credit_bytes: int = 8 * 1024 * 1024,
        max_chunk_bytes: int = 1024 * 1024,
        on_out_of_range: str = "error",
        check_crcs: bool = True,
        client_rack: str | None = None,
        unreachable_timeout_ms: int = UNREACHABLE_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
    ) -> None:
        self._settings = ConsumerSettings(
            fetch_credit_bytes=fetch_credit_bytes,
            max_chunk_bytes=max_chunk_bytes,
            on_out_of_range=on_out_of_range,
            check_crcs=check_crcs,
            client_rack=client_rack,
            unreachable_timeout_ms=unreachable_timeout_ms,
        )
        check_range("request_timeout_ms", request_timeout_ms, 1, 3_600_000)
        self._timeout_ms = request_timeout_ms
        self._client = parse_bootstrap(bootstrap, cluster_id, connection_liveness_ms=connection_liveness_ms)
        self._book = ConsumerBook(self._settings, self._give_back)
        self._waiter: asyncio.Future[None] | None = None
        self._link: ConsumerLink | None = None
        self._is_closed = False
        self._is_forked = False
        on_fork(self)

    async def assign(
        self,
        tps: Iterable[TopicPartition],
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        start: str = "earliest",
    ) -> None:
        """Read exactly these partitions from now on; see `lograft.Consumer.assign`."""
        wanted = check_partitions(tps)
        link = self._start()
        given = {tp: offset for tp, offset in (offsets or {}).items() if tp in set(wanted)}
        positions = await link.resolve(wanted, given, parse_start(start))
        for tp in self._book.cursors:
            link.engine.stop(tp)
        for cursor in self._book.assign(positions):
            self._fetch(cursor)

    @property
    def assignment(self) -> list[TopicPartition]:
        """Partitions that are assigned."""
        return list(self._book.cursors)

    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that will be handed out."""
        return self._book.cursor(tp).position

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """Return the end of the readable offsets (exclusive) as last seen; None: nothing has come yet."""
        return self._book.cursor(tp).high_watermark

    def health(self) -> ConsumerHealth:
        """Describe how it stands with every assigned partition; see `lograft.Consumer.health`."""
        self._check_usable()
        if self._link is None:
            return ConsumerHealth(partitions={}, unreachable_ms=None)
        return self._link.health(list(self._book.cursors.values()))

    async def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from an offset."""
        self._start()
        self._fetch(self._book.seek(tp, offset))

    async def seek_to_time(self, tp: TopicPartition, timestamp_ms: int) -> None:
        """Go on from the first record with a timestamp or a later one, or from the end when there is none."""
        self._book.cursor(tp)
        await self.seek(tp, await self._start().find_time_or_end(tp, timestamp_ms))

    async def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Go on from the first readable offset; without arguments: of all assigned partitions."""
        for tp, offset in (await self.beginning_offsets(tps or self.assignment)).items():
            await self.seek(tp, offset)

    async def seek_to_end(self, *tps: TopicPartition) -> None:
        """Go on with what becomes readable from now on; without arguments: of all assigned partitions."""
        for tp, offset in (await self.end_offsets(tps or self.assignment)).items():
            await self.seek(tp, offset)

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the first readable offset of partitions, assigned or not."""
        return await self._start().find_position(check_partitions(tps), Position.EARLIEST)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the end of the readable offsets (exclusive) of partitions, assigned or not."""
        return await self._start().find_position(check_partitions(tps), Position.LATEST)

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the first offset with a timestamp or a later one; None: there is none."""
        return await self._start().find_times(times_ms)

    async def poll_batch(self, timeout_ms: int = 1_000) -> FetchedBatch | None:
        """Return the next batch and move the position behind it; see `lograft.Consumer.poll_batch`."""
        wait: PollWait | None = None
        while True:
            self._check_usable()
            fetched = self._book.next_batch()
            if fetched is not None:
                return fetched
            if wait is None:
                wait = PollWait(self._book, timeout_ms, self._settings.unreachable_timeout_ms)
            if not await self._wait(wait):
                return None

    async def poll(self, max_records: int = 500, timeout_ms: int = 1_000) -> list[ConsumerRecord]:
        """Return the next records and move the positions behind them; see `lograft.Consumer.poll`."""
        check_range("max_records", max_records, 1, 1_000_000_000)
        wait = PollWait(self._book, timeout_ms, self._settings.unreachable_timeout_ms)
        while True:
            self._check_usable()
            records = self._book.next_records(max_records)
            if records or not await self._wait(wait):
                return records

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Give record after record, without end, until the consumer is closed."""
        while not self._is_closed:
            for record in await self.poll():
                yield record

    async def close(self) -> None:
        """Let the connections go. Further calls do nothing."""
        self._is_closed = True
        self._wake()
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def after_fork(self) -> None:
        """Called in a forked child: refuse to work from now on."""
        self._is_forked = True
        keep_for_ever(self._link)
        self._link = None
        self._waiter = None

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside

    def _start(self) -> ConsumerLink:
        self._check_usable()
        if self._link is None:
            self._link = ConsumerLink(self._client, self._settings, self._deliver, self._report, self._timeout_ms)
        return self._link

    def _check_usable(self) -> None:
        if self._is_forked:
            raise ForkedClientError("this consumer was made before a fork; make a new one in the child")
        if self._is_closed:
            raise ClientClosedError("the consumer is closed")

    def _fetch(self, cursor: Cursor) -> None:
        self._start().engine.start(cursor, cursor.generation, cursor.position)

    def _deliver(self, arrival: Arrival) -> None:
        self._book.put(arrival)
        self._wake()

    def _report(self, outage: UnreachableError | None) -> None:
        self._book.outage = outage
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, wait: PollWait) -> bool:
        """Wait for an arrival; False: the time is up."""
        left_ms = wait.left_ms()
        if left_ms == 0:
            return False
        if self._book.has_arrivals:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(left_ms / 1000, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        return True

    def _give_back(self, source: object, size_bytes: int) -> None:
        if self._link is not None:
            self._link.engine.give_back(source, size_bytes)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
