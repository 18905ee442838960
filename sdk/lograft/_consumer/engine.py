# SPDX-License-Identifier: Apache-2.0
"""Keeps every assigned partition flowing, from its leader or from a follower in the consumer's rack.

This module owns the streams to brokers, the retries, and the meaning of an ended route: a new leader, a reset, or a failure
that the application must see. A refusal by a follower only means that the leader is asked for a while. The engine must not
decode or keep arrivals: it passes them to the consumer. It runs on one event loop.

A retriable failure never ends a partition. The engine tries again, with pauses of at most a second, until the consumer stops
fetching the partition. When nothing has come from any partition for `unreachable_timeout_ms`, the engine reports an outage. It
repeats the report with current facts every second until something comes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.codec import decode_error
from lograft._consumer.fetch_buffer import Arrival, Chunk, Cursor, Failure, PrefetchBudget, Reset
from lograft._consumer.nearest import ReadPlace, read_place
from lograft._consumer.offsets import find_offsets
from lograft._consumer.stream import FetchStream, PartitionFetcher
from lograft._consumer.troubles import Troubles
from lograft.errors import (
    ClientClosedError,
    FatalError,
    LeaderNotAvailableError,
    LograftError,
    OffsetOutOfRangeError,
    PartitionTrouble,
    UnknownTopicError,
    UnreachableError,
)
from lograft.settings import (
    FOLLOWER_RETRY_MS,
    MAX_REPORTED_TROUBLES,
    REQUEST_TIMEOUT_MS,
    STALL_REFRESH_MS,
    TROUBLE_LOG_MS,
    UNKNOWN_TOPIC_WAIT_MS,
    ConsumerSettings,
)
from lograft.types import OffsetQuery, Position, TopicPartition
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.frames import FetchFrame

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Seconds between two checks for silent streams."""

_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})


class FetchEngine:
    """Fetches the assigned partitions of one consumer, and reports outages. Belongs to one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        deliver: Callable[[Arrival], None],
        report: Callable[[UnreachableError | None], None],
    ) -> None:
        """Start without connecting.

        Args:
            cluster: the connection to the cluster.
            settings: the consumer's settings.
            deliver: gets all arrivals, in order.
            report: gets an outage, every update of it, and None at its end.
        """
        self._cluster = cluster
        self._settings = settings
        self._deliver = deliver
        self._report = report
        self._budget = PrefetchBudget(settings.prefetch_bytes)
        self._troubles = Troubles()
        self._outage_check: asyncio.TimerHandle | None = None
        self._is_outage = False
        self._trouble_logged_ms: int | None = None
        self._loop = asyncio.get_running_loop()
        self._fetchers: dict[TopicPartition, PartitionFetcher] = {}
        self._streams: dict[int, FetchStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._asked_ms = 0
        self._is_closed = False
        cluster.add_listener(self._on_metadata)

    def start(self, cursor: Cursor, generation: int, offset: int) -> None:
        """Fetch a partition from an offset on, and drop everything under way for it."""
        trouble = self._troubles.of(cursor.tp)
        self.stop(cursor.tp)
        if self._is_closed:
            return
        if trouble is not None:
            # A seek does not end the trouble. It keeps its start time.
            self._troubles.begin(cursor.tp, trouble.since_ms, trouble.error)
        fetcher = PartitionFetcher(cursor, generation, offset, self._cluster.backoff())
        fetcher.topic_id = cursor.topic_id
        self._fetchers[cursor.tp] = fetcher
        if self._tick is None:
            self._tick = self._loop.call_later(TICK_S, self._on_tick)
        self._route(fetcher)

    def stop(self, tp: TopicPartition) -> None:
        """Stop fetching a partition."""
        fetcher = self._fetchers.pop(tp, None)
        if fetcher is None:
            return
        self._troubles.forget(tp)
        self._check_outage()
        if fetcher.retry is not None:
            fetcher.retry.cancel()
        if fetcher.stream is not None:
            fetcher.stream.unbind(fetcher)

    def give_back(self, source: object, size_bytes: int) -> None:
        """Return bytes that the consumer has used to the stream from which they came."""
        if isinstance(source, FetchStream):
            source.give_back(size_bytes)

    async def close(self) -> None:
        """Stop fetching and close all streams."""
        self._is_closed = True
        if self._tick is not None:
            self._tick.cancel()
        if self._outage_check is not None:
            self._outage_check.cancel()
        for tp in list(self._fetchers):
            self.stop(tp)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(
            *(stream.close() for stream in self._streams.values()), *self._tasks, return_exceptions=True
        )

    # -- finding leaders and followers

    def _place(self, fetcher: PartitionFetcher) -> ReadPlace | None:
        tp = fetcher.cursor.tp
        rack = self._settings.client_rack if monotonic_ms() >= fetcher.follower_after_ms else None
        return read_place(self._cluster.view, tp.topic, tp.partition, rack=rack)

    def _leave_follower(self, fetcher: PartitionFetcher) -> None:
        """Read from the leader for `FOLLOWER_RETRY_MS`."""
        fetcher.follower_after_ms = monotonic_ms() + FOLLOWER_RETRY_MS
        if fetcher.stream is not None:
            fetcher.stream.unbind(fetcher)
        self._route(fetcher)

    def _route(self, fetcher: PartitionFetcher) -> None:
        fetcher.retry = None
        if self._is_closed or fetcher.stream is not None or not self._is_current(fetcher):
            return
        if self._cluster.is_leaving:
            self._note_trouble(fetcher, ClientClosedError("the event loop of this client is ending"))
            return
        tp = fetcher.cursor.tp
        self._note_trouble(fetcher)
        place = self._place(fetcher)
        if place is None:
            is_missing = self._cluster.is_missing(tp.topic, tp.partition)
            if is_missing and cursor_is_free(fetcher.cursor) and self._is_gone(fetcher):
                self._fail(fetcher, UnknownTopicError(f"{tp} does not exist (any more)"))
                return
            self._note_trouble(fetcher, LeaderNotAvailableError(f"{tp} has no leader, as far as is known"))
            self._cluster.request_refresh()
            self._retry_later(fetcher, None)
            return
        stream = self._streams.get(place.broker_id)
        if stream is not None and stream.address != place.address:
            self._move(stream)
            stream = None
        if stream is None or stream.is_closed:
            stream = FetchStream(
                self, self._cluster, self._settings, self._budget, broker_id=place.broker_id, address=place.address
            )
            self._streams[place.broker_id] = stream
        fetcher.place = place
        stream.bind(fetcher)

    def _is_current(self, fetcher: PartitionFetcher) -> bool:
        return self._fetchers.get(fetcher.cursor.tp) is fetcher

    def _retry_later(self, fetcher: PartitionFetcher, error: LograftError | None) -> None:
        if fetcher.retry is not None or self._is_closed:
            return
        at_least_ms = (error.retry_after_ms or 0) if error is not None else 0
        delay_ms = fetcher.backoff.next_delay_ms(at_least_ms=at_least_ms)
        fetcher.retry = self._loop.call_later(delay_ms / 1000, self._route, fetcher)

    def _move(self, stream: FetchStream) -> None:
        """Take the partitions off a stream whose broker has another address, and close the stream."""
        del self._streams[stream.broker_id]
        for fetcher in list(self._fetchers.values()):
            if fetcher.stream is stream:
                stream.unbind(fetcher)
                self._retry_later(fetcher, None)
        self._spawn(stream.close())

    def _spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_metadata(self) -> None:
        """Move each partition to the broker that it should be read from now. This also ends a wait for a broker."""
        for fetcher in list(self._fetchers.values()):
            place = self._place(fetcher)
            stream = fetcher.stream
            if place is None:
                continue
            if stream is not None:
                if stream.broker_id != place.broker_id:
                    # The old broker may be frozen or unreachable, and would then never end the route.
                    stream.unbind(fetcher)
                    self._route(fetcher)
            elif fetcher.retry is not None and place != fetcher.avoided:
                fetcher.retry.cancel()
                self._route(fetcher)

    # -- what streams report

    def on_bound(self, fetcher: PartitionFetcher, opened: log_pb2.FetchRouteOpened) -> None:
        """See `StreamOwner`."""
        tp = fetcher.cursor.tp
        leader = self._cluster.leader(tp.topic, tp.partition)
        is_other = fetcher.topic_id is not None and fetcher.topic_id != opened.topic_id
        is_behind = leader is not None and opened.leader_epoch < leader.leader_epoch
        if fetcher.is_at_follower and (is_other or is_behind):
            self._leave_follower(fetcher)
            return
        if is_other and fetcher.stream is not None and self._may_come_back(fetcher):
            # The broker has another topic of this name. It may be behind, and of a group's partitions the coordinator will say
            # which exist.
            fetcher.stream.unbind(fetcher)
            self._note_trouble(fetcher, UnknownTopicError(f"topic {tp.topic!r} was deleted and created again"))
            self._cluster.request_refresh()
            self._retry_later(fetcher, None)
            return
        if is_other:
            self._fail(
                fetcher,
                UnknownTopicError(
                    f"topic {tp.topic!r} was deleted and created again; its old offsets mean nothing: seek"
                ),
            )
            return
        if is_behind and fetcher.stream is not None:
            # A former leader that does not know of its successor yet.
            fetcher.stream.unbind(fetcher)
            self._retry_later(fetcher, None)
            return
        fetcher.topic_id = opened.topic_id
        fetcher.unknown_since_ms = None
        fetcher.avoided = None
        fetcher.backoff.reset()

    def on_chunk(self, fetcher: PartitionFetcher, stream: FetchStream, frame: FetchFrame) -> None:
        """See `StreamOwner`."""
        fetcher.fetch_offset = frame.next_offset
        self._note_progress(fetcher)
        self._deliver(
            Chunk(
                cursor=fetcher.cursor,
                generation=fetcher.generation,
                body=frame.body,
                next_offset=frame.next_offset,
                high_watermark=frame.high_watermark,
                source=stream,
                topic_id=fetcher.topic_id or b"",
            )
        )

    def on_mark(self, fetcher: PartitionFetcher, stream: FetchStream, mark: log_pb2.FetchMark) -> None:
        """See `StreamOwner`."""
        fetcher.fetch_offset = max(fetcher.fetch_offset, mark.next_offset)
        self._note_progress(fetcher)
        self._deliver(
            Chunk(
                cursor=fetcher.cursor,
                generation=fetcher.generation,
                body=b"",
                next_offset=mark.next_offset,
                high_watermark=mark.high_watermark,
                source=stream,
            )
        )

    def on_route_end(self, fetcher: PartitionFetcher, error: errors_pb2.PartitionError) -> None:
        """See `StreamOwner`."""
        tp = fetcher.cursor.tp
        cause = decode_error(error)
        logger.info("%s: route ended: %s", tp, cause)
        self._note_trouble(fetcher, cause)
        if fetcher.is_at_follower:
            if error.HasField("leader"):
                self._cluster.take_hint(tp.topic, tp.partition, error.leader)
            if cause.code.refresh_metadata:
                self._cluster.request_refresh()
            self._leave_follower(fetcher)
            return
        if isinstance(cause, OffsetOutOfRangeError):
            self._out_of_range(fetcher, cause)
            return
        is_gone = cause.code in _UNKNOWN and cursor_is_free(fetcher.cursor) and self._is_gone(fetcher)
        if is_gone or cause.code.fatal:
            self._fail(fetcher, cause)
            return
        fetcher.avoided = self._place(fetcher)
        if error.HasField("leader") and self._cluster.take_hint(tp.topic, tp.partition, error.leader):
            self._route(fetcher)
            return
        if cause.code.refresh_metadata:
            self._cluster.request_refresh()
        self._retry_later(fetcher, cause)

    def on_stream_end(self, stream: FetchStream, fetchers: Sequence[PartitionFetcher], error: LograftError) -> None:
        """See `StreamOwner`."""
        if self._streams.get(stream.broker_id) is stream:
            del self._streams[stream.broker_id]
        self.on_room()
        if fetchers:
            logger.info("fetch stream from %s ended: %s", stream.address, error)
            self._cluster.request_refresh()
        for fetcher in fetchers:
            self._note_trouble(fetcher, error)
            if fetcher.is_at_follower:
                self._leave_follower(fetcher)
            elif isinstance(error, FatalError):
                self._fail(fetcher, error)
            else:
                fetcher.avoided = fetcher.place
                self._retry_later(fetcher, error)

    def on_room(self) -> None:
        """See `StreamOwner`."""
        for stream in self._streams.values():
            stream.grant()

    def _is_gone(self, fetcher: PartitionFetcher) -> bool:
        """True once brokers have not known the partition for `UNKNOWN_TOPIC_WAIT_MS`. It may be new, or a broker may lag behind."""
        at_ms = monotonic_ms()
        if fetcher.unknown_since_ms is None:
            fetcher.unknown_since_ms = at_ms
        return at_ms - fetcher.unknown_since_ms >= UNKNOWN_TOPIC_WAIT_MS

    def _may_come_back(self, fetcher: PartitionFetcher) -> bool:
        """True for a partition of a group, and for `UNKNOWN_TOPIC_WAIT_MS` for one whose topic id the application has given."""
        cursor = fetcher.cursor
        return cursor.is_from_group or (cursor.topic_id is not None and not self._is_gone(fetcher))

    def _fail(self, fetcher: PartitionFetcher, error: LograftError) -> None:
        if self._is_current(fetcher):
            self.stop(fetcher.cursor.tp)
        self._deliver(Failure(cursor=fetcher.cursor, generation=fetcher.generation, error=error))

    def _out_of_range(self, fetcher: PartitionFetcher, error: OffsetOutOfRangeError) -> None:
        policy = self._settings.on_out_of_range
        if policy == "error":
            self._fail(fetcher, error)
            return
        known = error.log_start_offset if policy == "earliest" else error.high_watermark
        if known is not None:
            self._reset(fetcher, known)
        else:
            self._spawn(self._look_up_reset(fetcher, Position(policy)))

    async def _look_up_reset(self, fetcher: PartitionFetcher, position: Position) -> None:
        tp = fetcher.cursor.tp
        query = OffsetQuery(topic=tp.topic, partition=tp.partition, position=position)
        try:
            (offset,) = await find_offsets(self._cluster, [query], timeout_ms=REQUEST_TIMEOUT_MS)
        except LograftError as error:
            self._fail(fetcher, error)
            return
        self._reset(fetcher, offset or 0)

    def _reset(self, fetcher: PartitionFetcher, offset: int) -> None:
        if not self._is_current(fetcher):
            return
        logger.warning(
            "%s: offset %d is out of range, going on from %d", fetcher.cursor.tp, fetcher.fetch_offset, offset
        )
        fetcher.fetch_offset = offset
        self._deliver(Reset(cursor=fetcher.cursor, generation=fetcher.generation, offset=offset))
        self._route(fetcher)

    def _on_tick(self) -> None:
        self._tick = None
        if self._is_closed or not self._fetchers:
            return
        self._tick = self._loop.call_later(TICK_S, self._on_tick)
        at_ms = monotonic_ms()
        for stream in list(self._streams.values()):
            if stream.is_stalled(at_ms) and at_ms - self._asked_ms >= STALL_REFRESH_MS:
                # The broker may be frozen or cut off, and the watch may run over the same broker.
                self._asked_ms = at_ms
                self._cluster.request_refresh(avoid=stream.address)
            if stream.is_stalled(at_ms):
                for fetcher in stream.fetchers():
                    self._note_trouble(fetcher, since_ms=stream.heard_ms)
            stream.check_silence(at_ms)
        if self._settings.client_rack is not None:
            self._on_metadata()  # time alone may let a follower be asked again
        if self._is_outage:
            self._report_outage(at_ms)
        self._log_troubles(at_ms)

    def topic_id_of(self, tp: TopicPartition) -> bytes | None:
        """Return the id of the topic that a partition is read from; None before its first binding."""
        fetcher = self._fetchers.get(tp)
        return None if fetcher is None else fetcher.topic_id

    # -- troubles

    def place_of(self, tp: TopicPartition) -> tuple[int | None, str | None]:
        """Return the leader's node id, and the address of the broker that serves the partition or served it last."""
        leader = self._cluster.leader(tp.topic, tp.partition)
        fetcher = self._fetchers.get(tp)
        place = None if fetcher is None else fetcher.place
        address = place.address if place is not None else None if leader is None else leader.address
        return None if leader is None else leader.broker_id, address

    def trouble_of(self, tp: TopicPartition) -> PartitionTrouble | None:
        """Return why nothing comes from a partition; None while something comes, or when it is not fetched."""
        trouble = self._troubles.of(tp)
        if trouble is None:
            return None
        leader_id, address = self.place_of(tp)
        duration_ms = monotonic_ms() - trouble.since_ms
        fetcher = self._fetchers.get(tp)
        is_follower = fetcher is not None and fetcher.stream is not None and fetcher.is_at_follower
        if leader_id is None:
            waits_for = "a leader"
        elif is_follower:
            waits_for = f"a follower at {address}"
        else:
            waits_for = f"its leader, broker {leader_id} at {address}"
        return PartitionTrouble(
            topic=tp.topic,
            partition=tp.partition,
            leader_id=leader_id,
            address=address,
            since_ms=time.time_ns() // 1_000_000 - duration_ms,
            duration_ms=duration_ms,
            waits_for=waits_for,
            error=trouble.error,
        )

    @property
    def unreachable_ms(self) -> int | None:
        """For how many milliseconds nothing has come from any partition; None while something comes, or without partitions."""
        since_ms = self._troubles.all_since_ms
        return None if since_ms is None else monotonic_ms() - since_ms

    def _note_trouble(
        self, fetcher: PartitionFetcher, error: LograftError | None = None, *, since_ms: int | None = None
    ) -> None:
        if self._is_current(fetcher):
            self._troubles.begin(fetcher.cursor.tp, monotonic_ms() if since_ms is None else since_ms, error)
            self._check_outage()

    def _note_progress(self, fetcher: PartitionFetcher) -> None:
        if self._troubles.end(fetcher.cursor.tp):
            self._check_outage()

    def _check_outage(self) -> None:
        """Report the end of an outage, or plan a check for the time at which a new one is due."""
        unreachable_ms = self.unreachable_ms
        if unreachable_ms is None:
            if self._is_outage:
                self._is_outage = False
                logger.info("records can be fetched again")
                self._report(None)
        elif not self._is_outage and self._outage_check is None and not self._is_closed:
            left_ms = max(0, self._settings.unreachable_timeout_ms - unreachable_ms)
            self._outage_check = self._loop.call_later(left_ms / 1000, self._on_outage_due)

    def _on_outage_due(self) -> None:
        self._outage_check = None
        unreachable_ms = self.unreachable_ms
        if unreachable_ms is not None and unreachable_ms >= self._settings.unreachable_timeout_ms:
            self._is_outage = True
            self._report_outage(monotonic_ms())
        else:
            # The outage that this check was planned for is over. A new one, if any, is due later.
            self._check_outage()

    def _report_outage(self, at_ms: int) -> None:
        since_ms = self._troubles.all_since_ms
        assert since_ms is not None, "no outage"
        found = map(self.trouble_of, self._troubles.partitions()[:MAX_REPORTED_TROUBLES])
        troubles = [trouble for trouble in found if trouble is not None]
        self._report(UnreachableError(troubles, partition_count=len(self._troubles), duration_ms=at_ms - since_ms))

    def _log_troubles(self, at_ms: int) -> None:
        since_ms = self._troubles.oldest_since_ms
        if since_ms is None or at_ms - since_ms < self._settings.unreachable_timeout_ms:
            return
        if self._trouble_logged_ms is None or at_ms - self._trouble_logged_ms >= TROUBLE_LOG_MS:
            self._trouble_logged_ms = at_ms
            trouble = self.trouble_of(self._troubles.partitions()[0])
            count = len(self._troubles)
            logger.warning(
                "%d of %d partitions give nothing: for %d ms %s", count, len(self._fetchers), at_ms - since_ms, trouble
            )


def cursor_is_free(cursor: Cursor) -> bool:
    """Return True for a partition that the application assigned. Of others, the coordinator of the group says that they are gone."""
    return not cursor.is_from_group
