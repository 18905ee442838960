# SPDX-License-Identifier: Apache-2.0
"""The asyncio consumer.

It owns the waits of the caller's tasks. Everything runs on the caller's loop; a poll decodes the batches that it returns. One
task at a time should poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lograft._client.clock import monotonic_ms
from lograft._client.forks import loading, on_fork
from lograft._consumer.arguments import check_partitions, make_listener, one_or_many, parse_start
from lograft._consumer.collector import Deserializer, OffsetsToCommit, PollWait, check_assigned
from lograft.errors import LograftError
from lograft.fetched import FetchedBatch
from lograft.settings import (
    AUTO_COMMIT_INTERVAL_MS,
    CONNECTION_LIVENESS_MS,
    CONSUMER_DEFAULTS,
    PROCESSING_LIMIT_MS,
    REQUEST_TIMEOUT_MS,
    ConsumerSettings,
    check_range,
    parse_bootstrap,
    parse_group,
)
from lograft.types import (
    ConsumerHealth,
    ConsumerRecord,
    GroupMembership,
    Lag,
    OffsetAndMetadata,
    Position,
    RebalanceListener,
    TopicPartition,
)

if TYPE_CHECKING:
    from lograft._groups.offsets import OffsetsForDecision

T = TypeVar("T", bound="list[ConsumerRecord] | FetchedBatch | ConsumerRecord | None")


class Consumer:
    """Reads records of partitions that are assigned to it, or that its group gives it; see `lograft.Consumer`.

    Settings, results and errors are those of `lograft.Consumer`. Callbacks may be coroutine functions.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        group: str | None = None,
        instance_id: str | None = None,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = AUTO_COMMIT_INTERVAL_MS,
        reset: str | timedelta = "earliest",
        assignor: str | None = None,
        processing_limit_ms: int = PROCESSING_LIMIT_MS,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        on_partition_end: Callable[[TopicPartition, int], Any] | None = None,
        on_caught_up: Callable[[], Any] | None = None,
        cluster_id: str | None = None,
        prefetch_bytes: int = CONSUMER_DEFAULTS.prefetch_bytes,
        max_chunk_bytes: int = CONSUMER_DEFAULTS.max_chunk_bytes,
        on_out_of_range: str = CONSUMER_DEFAULTS.on_out_of_range,
        check_crcs: bool = CONSUMER_DEFAULTS.check_crcs,
        client_rack: str | None = None,
        unreachable_timeout_ms: int = CONSUMER_DEFAULTS.unreachable_timeout_ms,
        isolation: str = CONSUMER_DEFAULTS.isolation,
        isolation_timeout_ms: int = CONSUMER_DEFAULTS.isolation_timeout_ms,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
        client_id: str | None = None,
    ) -> None:
        with loading():
            # gRPC comes with it, so that a program that only imports the class does not wait for it.
            from lograft._consumer.shared import SharedConsumer
        settings = ConsumerSettings(
            prefetch_bytes=prefetch_bytes,
            max_chunk_bytes=max_chunk_bytes,
            on_out_of_range=on_out_of_range,
            check_crcs=check_crcs,
            client_rack=client_rack,
            unreachable_timeout_ms=unreachable_timeout_ms,
            isolation=isolation,
            isolation_timeout_ms=isolation_timeout_ms,
        )
        client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
            client_id=client_id,
        )
        self._shared = SharedConsumer(
            client,
            settings,
            parse_group(
                group,
                instance_id=instance_id,
                auto_commit=auto_commit,
                auto_commit_interval_ms=auto_commit_interval_ms,
                reset=reset,
                assignor=assignor,
                processing_limit_ms=processing_limit_ms,
            ),
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            on_partition_end=on_partition_end,
            on_caught_up=on_caught_up,
        )
        self._shared.wake = self._wake
        self._waiter: asyncio.Future[None] | None = None
        self._is_closing = False
        on_fork(self, Consumer._after_fork)

    # -- where to read

    async def assign(
        self,
        tps: Iterable[TopicPartition],
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        start: str | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Read exactly these partitions from now on; see `lograft.Consumer.assign`."""
        wanted = check_partitions(tps)
        self._shared.check_usable()
        await self._shared.assign(wanted, offsets or {}, None if start is None else parse_start(start), topic_ids)

    async def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        on_assigned: Callable[[Sequence[TopicPartition]], Any] | None = None,
        on_revoked: Callable[[Sequence[TopicPartition]], Any] | None = None,
        on_lost: Callable[[Sequence[TopicPartition]], Any] | None = None,
    ) -> None:
        """Join the group, or want other topics; see `lograft.Consumer.subscribe`."""
        await self._shared.subscribe(topics, pattern, make_listener(listener, on_assigned, on_revoked, on_lost))

    async def unsubscribe(self) -> None:
        """Give everything up and leave the group; see `lograft.Consumer.unsubscribe`."""
        await self._shared.unsubscribe()

    @property
    def auto_commit(self) -> bool:
        """True if the consumer has a group and commits by itself."""
        return self._shared.group is not None and self._shared.group.auto_commit

    @property
    def subscription(self) -> tuple[str, ...]:
        """The names of topics that the consumer is subscribed to."""
        subscription = self._shared.subscription
        return () if subscription is None else subscription.topics

    @property
    def membership(self) -> GroupMembership | None:
        """Where the consumer is in its group; None without a subscription."""
        return self._shared.membership()

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._shared.collector.cursors)

    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that a poll hands out; see `lograft.Consumer.position`."""
        return self._shared.collector.cursor(tp).position

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """Return the last known high watermark; see `lograft.Consumer.high_watermark`."""
        return self._shared.collector.cursor(tp).high_watermark

    def lag(self, *tps: TopicPartition) -> dict[TopicPartition, Lag]:
        """Return how far the consumer is behind; see `lograft.Consumer.lag`."""
        return self._shared.lag(check_assigned(self._shared.collector, tps))

    @property
    def is_caught_up(self) -> bool:
        """True if the application has everything that was readable in all assigned partitions, as far as is known."""
        return self._shared.is_caught_up

    def health(self) -> ConsumerHealth:
        """Return the state of every assigned partition; see `lograft.Consumer.health`."""
        self._shared.check_usable()
        return self._shared.health(list(self._shared.collector.cursors.values()))

    @overload
    async def seek(self, tp: TopicPartition, offset: int) -> None: ...
    @overload
    async def seek(self, tp: Mapping[TopicPartition, int]) -> None: ...
    async def seek(self, tp: TopicPartition | Mapping[TopicPartition, int], offset: int | None = None) -> None:
        """Continue from an offset, or from the offsets of several partitions; see `lograft.Consumer.seek`."""
        await self._shared.seek(one_or_many(tp, offset, "offset"))

    @overload
    async def seek_to_time(self, tp: TopicPartition, timestamp_ms: int) -> None: ...
    @overload
    async def seek_to_time(self, tp: Mapping[TopicPartition, int]) -> None: ...
    async def seek_to_time(
        self, tp: TopicPartition | Mapping[TopicPartition, int], timestamp_ms: int | None = None
    ) -> None:
        """Continue from the first record with a timestamp or a later one; see `lograft.Consumer.seek_to_time`."""
        await self._shared.seek_to_times(one_or_many(tp, timestamp_ms, "timestamp"))

    async def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Continue from the first readable offset of these partitions; without arguments, of all assigned partitions."""
        await self._shared.seek(await self.beginning_offsets(tps or self.assignment))

    async def seek_to_end(self, *tps: TopicPartition) -> None:
        """Continue from the high watermark of these partitions; without arguments, of all assigned partitions."""
        await self._shared.seek(await self.end_offsets(tps or self.assignment))

    async def pause(self, *tps: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`; without arguments, of all assigned partitions."""
        await self._shared.pause(check_assigned(self._shared.collector, tps))

    async def resume(self, *tps: TopicPartition) -> None:
        """Read paused partitions again, from their positions; without arguments, all of them."""
        await self._shared.resume(check_assigned(self._shared.collector, tps))

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return self._shared.paused()

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the first readable offset of each partition. The partitions need not be assigned."""
        self._shared.check_usable()
        return await self._shared.fetcher().find_position(check_partitions(tps), Position.EARLIEST)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the high watermark (exclusive end of the readable offsets) of each partition. It need not be assigned."""
        self._shared.check_usable()
        return await self._shared.fetcher().find_position(check_partitions(tps), Position.LATEST)

    async def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Return the ids (16 bytes) of the topics of partitions; see `lograft.Consumer.topic_ids`."""
        self._shared.check_usable()
        return await self._shared.topic_ids(check_partitions(tps))

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the first offset with a timestamp (milliseconds since 1970-01-01 UTC) or a later one; None if none exists."""
        self._shared.check_usable()
        return await self._shared.fetcher().find_times(times_ms)

    # -- committed offsets

    async def commit(self, offsets: OffsetsToCommit | None = None, *, timeout_ms: int | None = None) -> None:
        """Commit offsets and wait for the answer; see `lograft.Consumer.commit`."""
        self._shared.check_usable()
        await self._shared.commit(self._shared.to_commit(offsets), timeout_ms)

    async def _for_decision(
        self, offsets: OffsetsToCommit | None
    ) -> tuple[Mapping[TopicPartition, OffsetAndMetadata], OffsetsForDecision]:
        """Return offsets that count with a transaction. Raises as `lograft.Transaction.send_offsets`."""
        self._shared.check_usable()
        wanted = self._shared.to_commit(offsets)
        return wanted, await self._shared.for_decision(wanted)

    def commit_async(
        self,
        offsets: OffsetsToCommit | None = None,
        on_done: Callable[[Mapping[TopicPartition, OffsetAndMetadata], LograftError | None], Any] | None = None,
    ) -> None:
        """Commit offsets in the background; see `lograft.Consumer.commit_async`."""
        self._shared.check_usable()
        self._shared.commit_soon(self._shared.to_commit(offsets), on_done)

    @overload
    async def committed(self, tps: TopicPartition) -> OffsetAndMetadata | None: ...
    @overload
    async def committed(
        self, tps: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    async def committed(
        self, tps: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> OffsetAndMetadata | dict[TopicPartition, OffsetAndMetadata | None] | None:
        """Look up the committed offset of a partition, or of several; see `lograft.Consumer.committed`."""
        self._shared.check_usable()
        if isinstance(tps, TopicPartition):
            return (await self._shared.committed([tps]))[tps]
        return await self._shared.committed(self.assignment if tps is None else check_partitions(tps))

    # -- reading

    async def poll_batch(self, timeout_ms: int = 1_000) -> FetchedBatch | None:
        """Return the next batch and move the position past it; see `lograft.Consumer.poll_batch`."""
        got = await self._poll(self._shared.take_batch, timeout_ms)
        self._shared.end_poll(got)
        return got

    async def poll(self, max_records: int = 500, timeout_ms: int = 1_000) -> list[ConsumerRecord]:
        """Return the next records and move the positions past them; see `lograft.Consumer.poll`."""
        check_range("max_records", max_records, 1, 1_000_000_000)
        got = await self._poll(lambda: self._shared.take_records(max_records), timeout_ms)
        self._shared.end_poll(got)
        return got

    async def consume(self, count: int = 1, timeout_ms: int = 1_000) -> list[ConsumerRecord]:
        """Return `count` records, or those that have come when the time is up; see `lograft.Consumer.consume`."""
        check_range("count", count, 1, 1_000_000_000)
        deadline_ms = monotonic_ms() + timeout_ms
        got: list[ConsumerRecord] = []
        try:
            while len(got) < count:
                left_ms = max(0, deadline_ms - monotonic_ms())
                more = await self._poll(partial(self._shared.take_records, count - len(got)), left_ms, is_first=not got)
                if not more:
                    break
                got += more
                self._shared.hold(got)
        except LograftError as error:
            # What precedes the failure is handed out; the next call raises it again.
            if not got:
                raise
            self._shared.collector.tell_again(error)
        finally:
            self._shared.end_poll(got)
        return got

    def records(self, timeout_ms: int | None = None) -> AsyncIterator[ConsumerRecord]:
        """Yield one record after another; see `lograft.Consumer.records`."""
        return self._iterate(timeout_ms)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield one record after another until the consumer is closed."""
        return self._iterate(None)

    async def close(self) -> None:
        """Commit, leave the group and close the connections; see `lograft.Consumer.close`. Further calls do nothing."""
        await self._close(is_failed=False)

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._shared.after_fork()
        self._waiter = None

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(is_failed=error is not None)

    # -- inside

    async def _close(self, *, is_failed: bool) -> None:
        if self._is_closing or self._shared.is_forked:
            return
        self._is_closing = True
        self._wake()
        await self._shared.close(is_failed=is_failed)

    async def _iterate(self, timeout_ms: int | None) -> AsyncIterator[ConsumerRecord]:
        shared = self._shared
        while not self._is_closing:
            # The fast way, without a coroutine for each record.
            record = shared.step()
            if record is None:
                record = await self._poll(shared.take_record, 1_000 if timeout_ms is None else timeout_ms)
                shared.end_poll(record)
            if record is not None:
                yield record
            elif timeout_ms is not None:
                return

    async def _poll(self, take: Callable[[], T], timeout_ms: int, *, is_first: bool = True) -> T:
        """Take what is there, after the news of the group. Wait for it if nothing is there.

        Args:
            take: takes records or a batch.
            timeout_ms: milliseconds to wait.
            is_first: False for a further part of what one call hands out. It ends at news of the group: records of partitions
                that are given up must be with the application before.
        """
        shared = self._shared
        shared.check_usable()
        if is_first:
            shared.begin_poll()
        wait: PollWait | None = None
        while True:
            if shared.has_news and (is_first or not shared.has_group_news):
                await shared.catch_up()
            shared.check_usable()
            got = take()
            if got or (shared.has_group_news and not is_first):
                return got
            if wait is None:
                wait = PollWait(shared.collector, timeout_ms, shared.settings.unreachable_timeout_ms)
            if shared.has_news:
                continue
            if not await self._wait(wait):
                return got

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, wait: PollWait) -> bool:
        """Wait for an arrival or for news. Return False when the time is up."""
        left_ms = wait.left_ms()
        if left_ms == 0:
            return False
        if self._shared.collector.has_arrivals:
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


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
