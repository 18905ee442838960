# SPDX-License-Identifier: Apache-2.0
"""The blocking consumer.

It owns the lock and the waits of the caller's thread. Streams run on the background event loop (`_client.runtime`), which
puts arriving chunks into the collector. The caller's thread decodes them. One thread at a time should use a consumer: calls
from several threads run one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from types import TracebackType
from typing import Any, TypeVar

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import STOP_TIMEOUT_S, Runtime, on_exit, open_on_runtime, release_runtime
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

T = TypeVar("T")


class Consumer:
    """Reads records of the partitions that are assigned to it.

        with Consumer("localhost:9640") as consumer:
            consumer.assign([TopicPartition("events", 0)])
            while (batch := consumer.poll_batch(timeout_ms=1_000)) is not None:
                process(batch.values())

    Args:
        bootstrap: brokers to ask first: "host:port", several separated by commas, or a list.
        cluster_id: the id that the cluster must have; None accepts any cluster.
        connection_liveness_ms: milliseconds without a byte from the broker after which a connection has failed, 4,000 to
            60,000.
        fetch_credit_bytes: bytes that each broker may send ahead of the application, 1,024 to 1 GiB. A batch that is larger
            still comes.
        max_chunk_bytes: bytes of one message from a broker, 1,024 to 4 MiB.
        on_out_of_range: what happens when a position does not exist (any more): "error" raises, "earliest" and "latest"
            continue from that offset.
        check_crcs: verify the checksum of every batch.
        client_rack: rack of this consumer, 1 to 249 characters. The consumer reads a partition whose leader is in another rack
            from an in-sync follower in this rack, if one exists. None reads from leaders only.
        unreachable_timeout_ms: milliseconds without anything from any assigned partition after which a poll raises
            `UnreachableError`, 100 to 86,400,000.
        request_timeout_ms: milliseconds for a lookup of topics or offsets, 1 to 3,600,000.

    Raises:
        InvalidSettingError: a setting is out of range.
    """

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
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        # Serialises the caller's threads. `_lock` only guards the collector; no thread holds it while it waits for the loop.
        self._caller = threading.RLock()
        self._is_closed = False
        self._is_forked = False
        self._runtime: Runtime | None = None
        self._fetcher: Fetcher | None = None
        on_fork(self)
        on_exit(self)

    # -- where to read

    def assign(
        self,
        tps: Iterable[TopicPartition],
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        start: str = "earliest",
    ) -> None:
        """Read exactly these partitions from now on.

        Args:
            tps: the partitions; an empty list reads nothing.
            offsets: the first offset to read, for some or all of the partitions.
            start: where the other partitions begin: "earliest" or "latest".

        Raises:
            UnknownTopicError: a topic or partition does not exist.
            LograftError: the client could not look up the offsets.
        """
        wanted = check_partitions(tps)
        with self._caller:
            self._check_usable()
            position = parse_start(start)
            given = {tp: offset for tp, offset in (offsets or {}).items() if tp in set(wanted)}
            positions = self._run(lambda fetcher: fetcher.resolve(wanted, given, position))
            with self._lock:
                old = list(self._collector.cursors)
                cursors = self._collector.assign(positions)
            self._restart(old, cursors)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        with self._lock:
            return list(self._collector.cursors)

    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that a poll hands out.

        Raises:
            NotAssignedError: the partition is not assigned.
        """
        with self._lock:
            return self._collector.cursor(tp).position

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """Return the last known high watermark, the exclusive end of the readable offsets; None before anything came.

        Raises:
            NotAssignedError: the partition is not assigned.
        """
        with self._lock:
            return self._collector.cursor(tp).high_watermark

    def health(self) -> ConsumerHealth:
        """Return for every assigned partition where it is read, since when nothing comes, and why. No broker is asked."""
        self._check_usable()
        with self._lock:
            cursors = [copy(cursor) for cursor in self._collector.cursors.values()]
        fetcher, runtime = self._fetcher, self._runtime
        if fetcher is None or runtime is None:
            return ConsumerHealth(partitions={}, unreachable_ms=None)

        async def look() -> ConsumerHealth:
            return fetcher.health(cursors)

        return runtime.run(look())

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue from an offset.

        Raises:
            NotAssignedError: the partition is not assigned.
            UsageError: the offset is not valid.
        """
        with self._caller:
            self._check_usable()
            with self._lock:
                cursor = self._collector.seek(tp, offset)
            self._restart([], [cursor])

    def seek_to_time(self, tp: TopicPartition, timestamp_ms: int) -> None:
        """Continue from the first record with this timestamp or a later one, or from the end if none exists.

        Args:
            tp: an assigned partition.
            timestamp_ms: milliseconds since 1970-01-01 UTC.

        Raises:
            NotAssignedError: the partition is not assigned.
            LograftError: the client could not look up the offset.
        """
        self._seek_to(tp, lambda fetcher: fetcher.find_time_or_end(tp, timestamp_ms))

    def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Continue from the first readable offset of these partitions; without arguments, of all assigned partitions."""
        for tp, offset in self.beginning_offsets(tps or self.assignment).items():
            self.seek(tp, offset)

    def seek_to_end(self, *tps: TopicPartition) -> None:
        """Continue from the high watermark of these partitions; without arguments, of all assigned partitions."""
        for tp, offset in self.end_offsets(tps or self.assignment).items():
            self.seek(tp, offset)

    def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the first readable offset of each partition. The partitions need not be assigned."""
        return self._find(check_partitions(tps), Position.EARLIEST)

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the high watermark (exclusive end of the readable offsets) of each partition. It need not be assigned."""
        return self._find(check_partitions(tps), Position.LATEST)

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the first offset with a timestamp (milliseconds since 1970-01-01 UTC) or a later one; None if none exists."""
        with self._caller:
            return self._run(lambda fetcher: fetcher.find_times(times_ms))

    # -- reading

    def poll_batch(self, timeout_ms: int = 1_000) -> FetchedBatch | None:
        """Return the next batch and move the position past it. This is the fastest way to read.

        Args:
            timeout_ms: milliseconds to wait for a batch; 0 does not wait.

        Returns:
            The batch, or None when no batch came in time.

        Raises:
            OffsetOutOfRangeError: the position does not exist (any more), and `on_out_of_range` is "error".
            CorruptDataError: a batch is damaged.
            UnreachableError: no assigned partition gave anything for `unreachable_timeout_ms`. A poll that begins during such
                an
                outage first waits for its own time. The next poll continues from the same positions.
            LograftError: a partition cannot be read. Polls raise this again until a seek moves the position of the partition.
        """
        with self._caller:
            wait = self._wait(timeout_ms)
            while True:
                with self._lock:
                    self._check_usable()
                    fetched = self._collector.next_batch()
                    if fetched is not None:
                        return fetched
                    left_ms = wait.left_ms()
                    if left_ms == 0:
                        return None
                    if not self._collector.has_arrivals:
                        self._arrived.wait(left_ms / 1000)

    def poll(self, max_records: int = 500, timeout_ms: int = 1_000) -> list[ConsumerRecord]:
        """Return the next records and move the positions past them.

        Args:
            max_records: the largest number of records, at least 1.
            timeout_ms: milliseconds to wait for the first record; 0 does not wait.

        Returns:
            The records; an empty list when none came in time.

        Raises:
            LograftError: as `poll_batch`.
        """
        check_range("max_records", max_records, 1, 1_000_000_000)
        with self._caller:
            wait = self._wait(timeout_ms)
            while True:
                with self._lock:
                    self._check_usable()
                    records = self._collector.next_records(max_records)
                    if records:
                        return records
                    left_ms = wait.left_ms()
                    if left_ms == 0:
                        return []
                    if not self._collector.has_arrivals:
                        self._arrived.wait(left_ms / 1000)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield one record after another until the consumer is closed. Positions move in steps of up to 500 records."""
        while not self._is_closed:
            yield from self.poll()

    def close(self) -> None:
        """Close the connections. Further calls do nothing."""
        with self._lock:
            if self._is_closed or self._is_forked:
                return
            self._is_closed = True
            fetcher, runtime = self._fetcher, self._runtime
            self._arrived.notify_all()
        if fetcher is not None and runtime is not None:
            try:
                runtime.run(fetcher.close())
            finally:
                release_runtime(runtime)

    def leave(self, started_s: float) -> None:
        """Close the connections at the end of the process. A daemon thread that still polls keeps waiting."""
        del started_s
        fetcher, runtime = self._fetcher, self._runtime
        if fetcher is not None and runtime is not None and not self._is_closed and not self._is_forked:
            with suppress(TimeoutError):
                runtime.run(fetcher.close(), timeout_s=STOP_TIMEOUT_S)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside

    def _find(self, tps: list[TopicPartition], position: Position) -> dict[TopicPartition, int]:
        with self._caller:
            return self._run(lambda fetcher: fetcher.find_position(tps, position))

    def _seek_to(self, tp: TopicPartition, look_up: Callable[[Fetcher], Coroutine[Any, Any, int]]) -> None:
        with self._caller:
            with self._lock:
                self._collector.cursor(tp)
            self.seek(tp, self._run(look_up))

    def _run(self, work: Callable[[Fetcher], Coroutine[Any, Any, T]]) -> T:
        self._check_usable()
        fetcher, runtime = self._start()
        return runtime.run(work(fetcher))

    def _start(self) -> tuple[Fetcher, Runtime]:
        if self._fetcher is None or self._runtime is None:
            self._fetcher, self._runtime = open_on_runtime(
                lambda: Fetcher(self._client, self._settings, self._deliver, self._report)
            )
        return self._fetcher, self._runtime

    def _restart(self, old: list[TopicPartition], cursors: list[Cursor]) -> None:
        """Tell the loop to stop fetching some partitions and to fetch others from their positions."""
        fetcher, runtime = self._start()
        starts = [(cursor, cursor.generation, cursor.position) for cursor in cursors]

        def restart() -> None:
            for tp in old:
                fetcher.engine.stop(tp)
            for cursor, generation, offset in starts:
                fetcher.engine.start(cursor, generation, offset)

        runtime.loop.call_soon_threadsafe(restart)

    def _deliver(self, arrival: Arrival) -> None:
        with self._lock:
            self._collector.put(arrival)
            self._arrived.notify()

    def _report(self, outage: UnreachableError | None) -> None:
        with self._lock:
            self._collector.outage = outage
            self._arrived.notify()

    def _wait(self, timeout_ms: int) -> PollWait:
        with self._lock:
            return PollWait(self._collector, timeout_ms, self._settings.unreachable_timeout_ms)

    def _give_back(self, source: object, size_bytes: int) -> None:
        fetcher, runtime = self._fetcher, self._runtime
        if fetcher is not None and runtime is not None:
            runtime.loop.call_soon_threadsafe(fetcher.engine.give_back, source, size_bytes)

    def _check_usable(self) -> None:
        if self._is_closed or self._is_forked:
            raise unusable_error("consumer", is_forked=self._is_forked)

    def after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._caller = threading.RLock()
        self._is_forked = True
        keep_for_ever((self._fetcher, self._runtime))
        self._fetcher = None
        self._runtime = None
