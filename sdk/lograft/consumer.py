# SPDX-License-Identifier: Apache-2.0
"""The blocking consumer.

It owns the lock and the waits of the caller's thread. Everything else runs on the background event loop (`_client.runtime`), where
`_consumer.shared` does for it what it does for the asyncio consumer. The loop puts arriving chunks into the collector, and the
caller's thread decodes them. One thread at a time should use a consumer: calls from several threads run one after the other.

Callbacks run in the thread that polls: while it waits for the loop, it carries out the calls that the loop asks for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lograft._client.clock import monotonic_ms
from lograft._client.forks import loading, on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import STOP_TIMEOUT_S, acquire_runtime, on_exit, release_runtime, wait_if_ending
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
    from lograft._client.background_loop import Runtime
    from lograft._groups.offsets import OffsetsForDecision

T = TypeVar("T")

_Call = tuple[Callable[..., object], tuple[object, ...], "asyncio.Future[None]"]


class _CallerLock:
    """Serialises the caller's threads. Once the process ends, a daemon thread hears of no error, because the consumer has left."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        if kind is not None:
            wait_if_ending()


class Consumer:
    """Reads records of partitions that are assigned to it, or that its group gives it.

        with Consumer("localhost:9640", group="billing") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                process(record.value)

        with Consumer("localhost:9640") as consumer:
            consumer.assign([TopicPartition("events", 0)])
            while (batch := consumer.poll_batch(timeout_ms=1_000)) is not None:
                process(batch.values())

    Args:
        bootstrap: brokers to ask first: "host:port", several separated by commas, or a list.
        group: group id, 1 to 255 bytes, for `subscribe`, `commit` and `committed`; None: no group.
        instance_id: name of this consumer that outlives its process (a static member), 1 to 255 bytes. The next process with
            the name takes the partitions over without a rebalance.
        auto_commit: commit the positions every `auto_commit_interval_ms`, before partitions are given up, and at the end. What
            a poll returned counts as processed when the next poll begins.
        auto_commit_interval_ms: milliseconds between two automatic commits, 100 to 86,400,000.
        reset: where to begin in a partition for which the group has positively no offset: "earliest", "latest", "none" (polls
            raise `NoCommittedOffsetError`), or a `timedelta`: records of the last so-and-so long.
        assignor: assignor that the group should use, "uniform" or "range"; None: no preference.
        processing_limit_ms: milliseconds that the application may take between two polls, 1,000 to 86,400,000. After it the
            group gives the partitions to others.
        key_deserializer: makes the key of a record of its bytes. It is not called for a missing key.
        value_deserializer: the same for values; not called for tombstones. Batches stay as they are.
        on_partition_end: called in a poll with a partition and an offset, when everything below the offset was handed out and
            nothing more is readable.
        on_caught_up: called in a poll when all assigned partitions are at their ends.
        cluster_id: the id that the cluster must have; None accepts any cluster.
        connection_liveness_ms: milliseconds without a byte from the broker after which a connection has failed, 4,000 to
            60,000.
        prefetch_bytes: bytes that all partitions together may have ahead of the application, 1,024 to 1 GiB: received and not
            handed out, or on the way. The brokers share them; a batch that is larger than the share of its broker still comes.
        max_chunk_bytes: bytes of one message from a broker, 1,024 to 4 MiB.
        on_out_of_range: what happens when a position does not exist (any more): "error" raises, "earliest" and "latest"
            continue from that offset.
        check_crcs: verify the checksum of every batch.
        client_rack: rack of this consumer, 1 to 249 characters. The consumer reads a partition whose leader is in another rack
            from an in-sync follower in this rack, if one exists. None reads from leaders only.
        unreachable_timeout_ms: milliseconds without anything from any assigned partition after which a poll raises
            `UnreachableError`, 100 to 86,400,000.
        isolation: "committed" hands out every committed record. "committed-together" hands out records of an ingest or transaction
            only when all of them can be read, in all their partitions; until then their partition waits, and the others go on.
        isolation_timeout_ms: milliseconds of such a wait after which a poll raises `IsolationTimeoutError`, 100 to 86,400,000.
        request_timeout_ms: milliseconds for a lookup of topics or offsets, 1 to 3,600,000.
        client_id: name of the program for operators, 1 to 249 letters, digits, dots, underscores and hyphens. Brokers get it at
            the front of gRPC's user agent, and descriptions of a group show it for each member. None: "lograft-python" there.

    Raises:
        InvalidSettingError: a setting is out of range.

    Source: Kafka's KafkaConsumer for the verbs, KIP-848 for groups (docs/groups.md, "What a client does").
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
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        # `_lock` only guards the collector; no thread holds it while it waits for the loop.
        self._caller = _CallerLock()
        self._shared.lock = self._lock
        self._shared.wake = self._wake
        self._shared.on_loop = self._on_loop
        self._shared.call_application = self._ask_caller
        self._calls: SimpleQueue[_Call | None] | None = None
        self._is_closing = False
        self._runtime: Runtime | None = None
        on_fork(self, Consumer._after_fork)
        on_exit(self, Consumer._leave)

    # -- where to read

    def assign(
        self,
        tps: Iterable[TopicPartition],
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        start: str | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Read exactly these partitions from now on.

        With a group and `auto_commit`, everything that was handed out of the former ones is committed first, for at most 5,000
        milliseconds.

        Args:
            tps: the partitions; an empty list reads nothing.
            offsets: the first offset to read, for some or all of the partitions.
            start: where the other partitions begin: "earliest" or "latest". None: "earliest"; of a consumer with a group at
                the committed offset, and without one where `reset` says.
            topic_ids: ids of some or all of the topics, by name, for offsets that were kept outside. Of a topic with another id,
                polls raise `UnknownTopicError`: it was deleted and created again.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
            UsageError: the consumer is subscribed.
            LograftError: the client could not look up the offsets.
        """
        wanted = check_partitions(tps)
        with self._caller:
            self._shared.check_usable()
            position = None if start is None else parse_start(start)
            self._run(self._shared.assign(wanted, offsets or {}, position, topic_ids))

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        on_assigned: Callable[[Sequence[TopicPartition]], Any] | None = None,
        on_revoked: Callable[[Sequence[TopicPartition]], Any] | None = None,
        on_lost: Callable[[Sequence[TopicPartition]], Any] | None = None,
    ) -> None:
        """Join the group, or as a member want other topics. It returns at once; polls report what the group gives.

        Args:
            topics: names of topics; one that does not exist is joined when it is created.
            pattern: RE2 expression that must match a whole topic name; new topics that match are joined too.
            listener: hears what the consumer gets and loses; see `RebalanceListener`. It replaces an earlier one.
            on_assigned: in place of a listener, a function for its call of this name.
            on_revoked: the same.
            on_lost: the same.

        Raises:
            UsageError: no group is set, nothing is wanted, or partitions are assigned.
        """
        chosen = make_listener(listener, on_assigned, on_revoked, on_lost)
        with self._caller:
            self._run(self._shared.subscribe(topics, pattern, chosen))

    def unsubscribe(self) -> None:
        """Give everything up, with the listener's `on_revoked`, and leave the group for good, also as a static member.

        With `auto_commit` everything that was handed out is committed before, for at most 5,000 milliseconds. Without a subscription
        the consumer reads nothing any more.

        Raises:
            Exception: what `on_revoked` raises; the consumer has left all the same.
        """
        with self._caller:
            self._serve(self._shared.unsubscribe())

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
        with self._lock:
            return list(self._shared.collector.cursors)

    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that a poll hands out.

        Raises:
            NotAssignedError: the partition is not assigned.
        """
        with self._lock:
            return self._shared.collector.cursor(tp).position

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """Return the last known high watermark, the exclusive end of the readable offsets; None before anything came.

        Raises:
            NotAssignedError: the partition is not assigned.
        """
        with self._lock:
            return self._shared.collector.cursor(tp).high_watermark

    def lag(self, *tps: TopicPartition) -> dict[TopicPartition, Lag]:
        """Return how far the consumer is behind, in records and seconds. No broker is asked.

        Args:
            tps: assigned partitions; none: all.

        Raises:
            NotAssignedError: a partition is not assigned.
        """
        with self._lock:
            return self._shared.lag(check_assigned(self._shared.collector, tps))

    @property
    def is_caught_up(self) -> bool:
        """True if the application has everything that was readable in all assigned partitions, as far as is known."""
        with self._lock:
            return self._shared.is_caught_up

    def health(self) -> ConsumerHealth:
        """Return for every assigned partition where it is read, since when nothing comes, and why. No broker is asked.

        Raises:
            ClientClosedError: the consumer is closed.
        """
        self._shared.check_usable()
        with self._lock:
            cursors = [copy(cursor) for cursor in self._shared.collector.cursors.values()]
        runtime = self._runtime
        if runtime is None:
            return ConsumerHealth(partitions={}, unreachable_ms=None)

        async def look() -> ConsumerHealth:
            return self._shared.health(cursors)

        return runtime.run(look())

    @overload
    def seek(self, tp: TopicPartition, offset: int) -> None: ...
    @overload
    def seek(self, tp: Mapping[TopicPartition, int]) -> None: ...
    def seek(self, tp: TopicPartition | Mapping[TopicPartition, int], offset: int | None = None) -> None:
        """Continue from an offset, or with a mapping from the offsets of several partitions.

        Raises:
            NotAssignedError: a partition is not assigned.
            UsageError: an offset is not valid.
        """
        with self._caller:
            self._run(self._shared.seek(one_or_many(tp, offset, "offset")))

    @overload
    def seek_to_time(self, tp: TopicPartition, timestamp_ms: int) -> None: ...
    @overload
    def seek_to_time(self, tp: Mapping[TopicPartition, int]) -> None: ...
    def seek_to_time(self, tp: TopicPartition | Mapping[TopicPartition, int], timestamp_ms: int | None = None) -> None:
        """Continue from the first record with this timestamp or a later one, or from the end if none exists.

        Args:
            tp: an assigned partition, or a mapping of several to their times.
            timestamp_ms: milliseconds since 1970-01-01 UTC.

        Raises:
            NotAssignedError: a partition is not assigned.
            LograftError: the client could not look up the offset.
        """
        with self._caller:
            self._run(self._shared.seek_to_times(one_or_many(tp, timestamp_ms, "timestamp")))

    def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Continue from the first readable offset of these partitions; without arguments, of all assigned partitions.

        Raises:
            NotAssignedError: a partition is not assigned.
            LograftError: the client could not look up the offset within `request_timeout_ms`.
        """
        self.seek(self.beginning_offsets(tps or self.assignment))

    def seek_to_end(self, *tps: TopicPartition) -> None:
        """Continue from the high watermark of these partitions; without arguments, of all assigned partitions.

        Raises:
            NotAssignedError: a partition is not assigned.
            LograftError: the client could not look up the offset within `request_timeout_ms`.
        """
        self.seek(self.end_offsets(tps or self.assignment))

    def pause(self, *tps: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`; without arguments, of all assigned partitions.

        The others flow on. What was fetched of a paused partition is dropped, and fetched again later.

        Raises:
            NotAssignedError: a partition is not assigned.
        """
        with self._caller:
            self._run(self._shared.pause(self._assigned(tps)))

    def resume(self, *tps: TopicPartition) -> None:
        """Read paused partitions again, from their positions; without arguments, all of them.

        Raises:
            NotAssignedError: a partition is not assigned.
        """
        with self._caller:
            self._run(self._shared.resume(self._assigned(tps)))

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        with self._lock:
            return self._shared.paused()

    def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the first readable offset of each partition. The partitions need not be assigned.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
            LograftError: no answer came within `request_timeout_ms`.
        """
        return self._find(check_partitions(tps), Position.EARLIEST)

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the high watermark (exclusive end of the readable offsets) of each partition. It need not be assigned.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
            LograftError: no answer came within `request_timeout_ms`.
        """
        return self._find(check_partitions(tps), Position.LATEST)

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Return the ids (16 bytes) of the topics of partitions. A topic that is deleted and created again has another id.

        Of a partition that is read, it is the id of the topic that is read.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
        """
        wanted = check_partitions(tps)
        with self._caller:
            return self._run(self._shared.topic_ids(wanted))

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the first offset with a timestamp (milliseconds since 1970-01-01 UTC) or a later one; None if none exists.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
            LograftError: no answer came within `request_timeout_ms`.
        """

        async def find() -> dict[TopicPartition, int | None]:
            return await self._shared.fetcher().find_times(times_ms)

        with self._caller:
            return self._run(find())

    # -- committed offsets

    def commit(self, offsets: OffsetsToCommit | None = None, *, timeout_ms: int | None = None) -> None:
        """Commit offsets of the group, and wait for the answer.

        Args:
            offsets: the next offsets to read, as numbers or `OffsetAndMetadata`; or a record or a batch up to which everything
                of its partition is processed. None: all positions, that is, everything that was handed out.
            timeout_ms: milliseconds to wait, with all retries; None: `request_timeout_ms`.

        Raises:
            UsageError: no group is set, or an offset is not valid.
            MembershipLostError: a partition is not this consumer's any more. Others may process its records again.
            GroupNotEmptyError: the group has members, and this consumer is none of them.
            RequestTimeoutError: no answer came in time. The offsets may be committed all the same.
        """
        with self._caller:
            self._shared.check_usable()
            with self._lock:
                wanted = self._shared.to_commit(offsets)
            self._run(self._shared.commit(wanted, timeout_ms))

    def _for_decision(
        self, offsets: OffsetsToCommit | None
    ) -> tuple[Mapping[TopicPartition, OffsetAndMetadata], OffsetsForDecision]:
        """Return offsets that count with a transaction. Raises as `Transaction.send_offsets`."""
        with self._caller:
            self._shared.check_usable()
            with self._lock:
                wanted = self._shared.to_commit(offsets)
            return wanted, self._run(self._shared.for_decision(wanted))

    def commit_async(
        self,
        offsets: OffsetsToCommit | None = None,
        on_done: Callable[[Mapping[TopicPartition, OffsetAndMetadata], LograftError | None], Any] | None = None,
    ) -> None:
        """Commit offsets in the background, with retries. Offsets of a partition are never stored out of order.

        Args:
            offsets: see `commit`. Positions are those of now.
            on_done: called with the offsets and the error, if any, in a later poll. Errors are logged in any case.

        Raises:
            UsageError: no group is set, or an offset is not valid.
        """
        with self._caller:
            self._shared.check_usable()
            with self._lock:
                wanted = self._shared.to_commit(offsets)
            self._start().loop.call_soon_threadsafe(self._shared.commit_soon, wanted, on_done)

    @overload
    def committed(self, tps: TopicPartition) -> OffsetAndMetadata | None: ...
    @overload
    def committed(
        self, tps: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    def committed(
        self, tps: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> OffsetAndMetadata | dict[TopicPartition, OffsetAndMetadata | None] | None:
        """Look up the committed offset of a partition, or of several. None: the group positively has none.

        Args:
            tps: a partition, or several; None: the assigned ones. They need not be assigned.

        Raises:
            UsageError: no group is set.
            LograftError: no coordinator answered within `request_timeout_ms`.
        """
        with self._caller:
            self._shared.check_usable()
            if isinstance(tps, TopicPartition):
                return self._run(self._shared.committed([tps]))[tps]
            wanted = self.assignment if tps is None else check_partitions(tps)
            return self._run(self._shared.committed(wanted))

    # -- reading

    def poll_batch(self, timeout_ms: int = 1_000) -> FetchedBatch | None:
        """Return the next batch and move the position past it. This is the fastest way to read.

        Args:
            timeout_ms: milliseconds to wait for a batch; 0 does not wait.

        Returns:
            The batch, or None when no batch came in time.

        Raises:
            OffsetOutOfRangeError: the position does not exist (any more), and `on_out_of_range` is "error".
            NoCommittedOffsetError: the group has no offset, and `reset` is "none".
            CorruptDataError: a batch is damaged.
            UnreachableError: no assigned partition gave anything for `unreachable_timeout_ms`. A poll that begins during such
                an outage first waits for its own time. The next poll continues from the same positions.
            IsolationTimeoutError: a partition waits for the rest of a decision for `isolation_timeout_ms`. It is raised once, then the
                wait goes on.
            InstanceFencedError: a newer process has the instance id.
            LograftError: a partition cannot be read. Polls raise this again until a seek moves the position of the partition.
        """
        with self._caller:
            got = self._poll(self._shared.take_batch, timeout_ms)
            self._shared.end_poll(got)
            return got

    def poll(self, max_records: int = 500, timeout_ms: int = 1_000) -> list[ConsumerRecord]:
        """Return the next records and move the positions past them.

        Args:
            max_records: the largest number of records, at least 1.
            timeout_ms: milliseconds to wait for the first record; 0 does not wait.

        Returns:
            The records; an empty list when none came in time.

        Raises:
            DeserializationError: a deserializer failed for the first of these records.
            LograftError: as `poll_batch`.
        """
        check_range("max_records", max_records, 1, 1_000_000_000)
        with self._caller:
            got = self._poll(lambda: self._shared.take_records(max_records), timeout_ms)
            self._shared.end_poll(got)
            return got

    def consume(self, count: int = 1, timeout_ms: int = 1_000) -> list[ConsumerRecord]:
        """Return `count` records, or those that have come when the time is up.

        Args:
            count: number of records, at least 1.
            timeout_ms: milliseconds for all of them; 0 does not wait.

        Returns:
            The records. They are fewer also where the group takes partitions away meanwhile, or a failure follows them.

        Raises:
            LograftError: as `poll`, if no record precedes the failure.
        """
        check_range("count", count, 1, 1_000_000_000)
        deadline_ms = monotonic_ms() + timeout_ms
        got: list[ConsumerRecord] = []
        with self._caller:
            try:
                while len(got) < count:
                    left_ms = max(0, deadline_ms - monotonic_ms())
                    more = self._poll(partial(self._shared.take_records, count - len(got)), left_ms, is_first=not got)
                    if not more:
                        break
                    got += more
                    self._shared.hold(got)
            except LograftError as error:
                # What precedes the failure is handed out; the next call raises it again.
                if not got:
                    raise
                with self._lock:
                    self._shared.collector.tell_again(error)
            finally:
                self._shared.end_poll(got)
        return got

    def records(self, timeout_ms: int | None = None) -> Iterator[ConsumerRecord]:
        """Yield one record after another. The position moves with each of them; a loop may end anywhere.

        Args:
            timeout_ms: milliseconds without a record after which the iteration ends; None: it ends when the consumer is closed.

        Raises:
            LograftError: as `poll`. The iteration ends with it; start another one.
        """
        return self._iterate(timeout_ms)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield one record after another until the consumer is closed. The position moves with each of them.

        Raises:
            LograftError: as `poll`. The iteration ends with it; start another one.
        """
        return self._iterate(None)

    def close(self) -> None:
        """Commit (with `auto_commit`), give everything up with `on_revoked`, leave the group, and close the connections.

        The commit and the leave take at most 5,000 milliseconds each. If one fails, that is logged and raises nothing. A static
        member says that it will be back, and its partitions wait for it until its session ends. Further calls do nothing. A
        `with` block that ends with an error does not commit what the last poll returned.

        Raises:
            Exception: what `on_revoked` raises; the consumer is closed all the same.
        """
        self._close(is_failed=False)

    def _leave(self, started_s: float) -> None:
        """Leave the group and close the connections at the end of the process. A daemon thread that still polls keeps waiting."""
        del started_s
        runtime = self._runtime
        if runtime is not None and not self._is_closing and not self._shared.is_forked:
            with suppress(TimeoutError):
                # Nobody says whether what was handed out last is processed.
                runtime.run(self._shared.close(is_failed=True, is_quiet=True), timeout_s=STOP_TIMEOUT_S)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(is_failed=error is not None)

    # -- inside

    def _close(self, *, is_failed: bool) -> None:
        with self._lock:
            if self._is_closing or self._shared.is_forked:
                return
            self._is_closing = True
            self._shared.is_closed = True
            runtime = self._runtime
            self._arrived.notify_all()
        if runtime is not None:
            try:
                self._serve(self._shared.close(is_failed=is_failed))
            finally:
                release_runtime(runtime)

    def _iterate(self, timeout_ms: int | None) -> Iterator[ConsumerRecord]:
        shared = self._shared
        while not self._is_closing:
            # The fast way, if a record is there and nothing else is to be done.
            with self._lock:
                record = shared.step()
            if record is None:
                with self._caller:
                    record = self._poll(shared.take_record, 1_000 if timeout_ms is None else timeout_ms)
                    shared.end_poll(record)
            if record is not None:
                yield record
            elif timeout_ms is not None:
                return

    def _poll(self, take: Callable[[], T], timeout_ms: int, *, is_first: bool = True) -> T:
        """Take what is there, after the news of the group. Wait for it if nothing is there.

        Args:
            take: takes records or a batch.
            timeout_ms: milliseconds to wait.
            is_first: False for a further part of what one call hands out. It ends at news of the group: records of partitions
                that are given up must be with the application before.
        """
        shared = self._shared
        if is_first:
            shared.begin_poll()
        wait: PollWait | None = None
        while True:
            if shared.has_news and (is_first or not shared.has_group_news) and not shared.is_closed:
                self._serve(shared.catch_up())
            with self._lock:
                shared.check_usable()
                got = take()
                if got or (shared.has_group_news and not is_first):
                    return got
                if wait is None:
                    wait = PollWait(shared.collector, timeout_ms, shared.settings.unreachable_timeout_ms)
                if shared.has_news:
                    continue
                left_ms = wait.left_ms()
                if left_ms == 0:
                    return got
                if not shared.collector.has_arrivals:
                    self._arrived.wait(left_ms / 1000)

    def _find(self, tps: list[TopicPartition], position: Position) -> dict[TopicPartition, int]:
        async def find() -> dict[TopicPartition, int]:
            return await self._shared.fetcher().find_position(tps, position)

        with self._caller:
            return self._run(find())

    def _assigned(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        with self._lock:
            return check_assigned(self._shared.collector, tps)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        try:
            self._shared.check_usable()
            runtime = self._start()
        except BaseException:
            work.close()
            raise
        return runtime.run(work)

    def _serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and carry out the calls of the application that it asks for, here."""
        runtime = self._start()
        calls: SimpleQueue[_Call | None] = SimpleQueue()
        before, self._calls = self._calls, calls
        future = runtime.submit(work)
        future.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get()) is not None:
                self._carry_out(runtime, *call)
            return future.result()
        except BaseException:
            future.cancel()
            wait_if_ending()
            raise
        finally:
            self._calls = before

    def _carry_out(
        self,
        runtime: Runtime,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        answer: asyncio.Future[None],
    ) -> None:
        try:
            function(*arguments)
        except Exception as error:
            # The loop finishes its step, and then raises it where the poll is.
            runtime.loop.call_soon_threadsafe(_fail, answer, error)
        else:
            runtime.loop.call_soon_threadsafe(_finish, answer)

    async def _ask_caller(self, function: Callable[..., object], *arguments: object) -> None:
        """Have a function of the application called in the thread that polls. Runs on the loop."""
        calls = self._calls
        assert calls is not None, "no thread of the application waits"
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        calls.put((function, arguments, answer))
        await answer

    def _start(self) -> Runtime:
        if self._runtime is None:
            self._runtime = acquire_runtime()
        return self._runtime

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        runtime = self._runtime
        if runtime is None:
            return
        if runtime.is_current_thread():
            function(*arguments)
        else:
            runtime.loop.call_soon_threadsafe(function, *arguments)

    def _wake(self) -> None:
        with self._lock:
            self._arrived.notify()

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._caller = _CallerLock()
        self._shared.lock = self._lock
        self._shared.after_fork()
        keep_for_ever((self._runtime, self._calls))
        self._runtime = None


def _finish(answer: asyncio.Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)


def _fail(answer: asyncio.Future[None], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
