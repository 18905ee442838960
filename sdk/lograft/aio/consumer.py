# SPDX-License-Identifier: Apache-2.0
"""The asyncio consumer.

It owns the waits of the caller's tasks. Everything runs on the caller's loop; a poll decodes the batches that it returns. One
task at a time should poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.usable import unusable_error
from lograft._consumer.arguments import check_partitions, parse_start
from lograft._consumer.collector import FetchCollector, PollWait
from lograft._consumer.fetch_buffer import Arrival, Cursor
from lograft._consumer.fetcher import Fetcher
from lograft.errors import UnreachableError
from lograft.fetched import FetchedBatch
from lograft.settings import (
    CONNECTION_LIVENESS_MS,
    CONSUMER_DEFAULTS,
    REQUEST_TIMEOUT_MS,
    ConsumerSettings,
    check_range,
    parse_bootstrap,
)
from lograft.types import ConsumerHealth, ConsumerRecord, Position, TopicPartition


class Consumer:
    """Reads records of the partitions that are assigned to it; settings, results and errors as `lograft.Consumer`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        fetch_credit_bytes: int = CONSUMER_DEFAULTS.fetch_credit_bytes,
        max_chunk_bytes: int = CONSUMER_DEFAULTS.max_chunk_bytes,
        on_out_of_range: str = CONSUMER_DEFAULTS.on_out_of_range,
        check_crcs: bool = CONSUMER_DEFAULTS.check_crcs,
        client_rack: str | None = None,
        unreachable_timeout_ms: int = CONSUMER_DEFAULTS.unreachable_timeout_ms,
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
        self._client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
        )
        self._collector = FetchCollector(self._settings, self._give_back)
        self._waiter: asyncio.Future[None] | None = None
        self._fetcher: Fetcher | None = None
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
        fetcher = self._start()
        given = {tp: offset for tp, offset in (offsets or {}).items() if tp in set(wanted)}
        positions = await fetcher.resolve(wanted, given, parse_start(start))
        for tp in self._collector.cursors:
            fetcher.engine.stop(tp)
        for cursor in self._collector.assign(positions):
            self._fetch(cursor)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._collector.cursors)

    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that a poll hands out; see `lograft.Consumer.position`."""
        return self._collector.cursor(tp).position

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """Return the last known high watermark; see `lograft.Consumer.high_watermark`."""
        return self._collector.cursor(tp).high_watermark

    def health(self) -> ConsumerHealth:
        """Return the state of every assigned partition; see `lograft.Consumer.health`."""
        self._check_usable()
        if self._fetcher is None:
            return ConsumerHealth(partitions={}, unreachable_ms=None)
        return self._fetcher.health(list(self._collector.cursors.values()))

    async def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue from an offset; see `lograft.Consumer.seek`."""
        self._start()
        self._fetch(self._collector.seek(tp, offset))

    async def seek_to_time(self, tp: TopicPartition, timestamp_ms: int) -> None:
        """Continue from the first record with this timestamp or a later one; see `lograft.Consumer.seek_to_time`."""
        self._collector.cursor(tp)
        await self.seek(tp, await self._start().find_time_or_end(tp, timestamp_ms))

    async def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Continue from the first readable offset of these partitions; without arguments, of all assigned partitions."""
        for tp, offset in (await self.beginning_offsets(tps or self.assignment)).items():
            await self.seek(tp, offset)

    async def seek_to_end(self, *tps: TopicPartition) -> None:
        """Continue from the high watermark of these partitions; without arguments, of all assigned partitions."""
        for tp, offset in (await self.end_offsets(tps or self.assignment)).items():
            await self.seek(tp, offset)

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the first readable offset of each partition. The partitions need not be assigned."""
        return await self._start().find_position(check_partitions(tps), Position.EARLIEST)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the high watermark (exclusive end of the readable offsets) of each partition. It need not be assigned."""
        return await self._start().find_position(check_partitions(tps), Position.LATEST)

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the first offset with a timestamp (milliseconds since 1970-01-01 UTC) or a later one; None if none exists."""
        return await self._start().find_times(times_ms)

    async def poll_batch(self, timeout_ms: int = 1_000) -> FetchedBatch | None:
        """Return the next batch and move the position past it; see `lograft.Consumer.poll_batch`."""
        wait: PollWait | None = None
        while True:
            self._check_usable()
            fetched = self._collector.next_batch()
            if fetched is not None:
                return fetched
            if wait is None:
                wait = PollWait(self._collector, timeout_ms, self._settings.unreachable_timeout_ms)
            if not await self._wait(wait):
                return None

    async def poll(self, max_records: int = 500, timeout_ms: int = 1_000) -> list[ConsumerRecord]:
        """Return the next records and move the positions past them; see `lograft.Consumer.poll`."""
        check_range("max_records", max_records, 1, 1_000_000_000)
        wait = PollWait(self._collector, timeout_ms, self._settings.unreachable_timeout_ms)
        while True:
            self._check_usable()
            records = self._collector.next_records(max_records)
            if records or not await self._wait(wait):
                return records

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield one record after another until the consumer is closed."""
        while not self._is_closed:
            for record in await self.poll():
                yield record

    async def close(self) -> None:
        """Close the connections. Further calls do nothing."""
        self._is_closed = True
        self._wake()
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            await fetcher.close()

    def after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._is_forked = True
        keep_for_ever(self._fetcher)
        self._fetcher = None
        self._waiter = None

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside

    def _start(self) -> Fetcher:
        self._check_usable()
        if self._fetcher is None:
            self._fetcher = Fetcher(self._client, self._settings, self._deliver, self._report)
        return self._fetcher

    def _check_usable(self) -> None:
        if self._is_closed or self._is_forked:
            raise unusable_error("consumer", is_forked=self._is_forked)

    def _fetch(self, cursor: Cursor) -> None:
        self._start().engine.start(cursor, cursor.generation, cursor.position)

    def _deliver(self, arrival: Arrival) -> None:
        self._collector.put(arrival)
        self._wake()

    def _report(self, outage: UnreachableError | None) -> None:
        self._collector.outage = outage
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, wait: PollWait) -> bool:
        """Wait for an arrival. Return False when the time is up."""
        left_ms = wait.left_ms()
        if left_ms == 0:
            return False
        if self._collector.has_arrivals:
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
        if self._fetcher is not None:
            self._fetcher.engine.give_back(source, size_bytes)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
