# SPDX-License-Identifier: Apache-2.0
"""Brings sealed batches to the leaders of their partitions and reports the result of each.

This module owns the senders of all partitions, the streams to brokers, producer identities, retries and deadlines. It must not
collect records or know the callers: a `ResultSink` gets every result exactly once. It runs on one event loop.

Identities. All partitions share one identity (a `Session`) until a batch fails that may be in the log. The next batch of its
partition then cannot be numbered under the old identity. So that partition moves to a new session, and the others follow as
soon as none of their sent batches is unresolved. A session without partitions is closed. An attempt of an ingest has one identity that
was given to it (`staging`). Where that cannot be used any more, everything fails.
Source: docs/clients.md; KIP-360 for the recovery from lost batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.codec import decode_error
from lograft._producer.batches import Doubt, SealedBatch
from lograft._producer.sequencer import Acknowledged, GivenUp, PartitionSequencer
from lograft._producer.splitter import split_batch
from lograft._producer.staging import STAGING_UNKNOWN_MS, Staging
from lograft._producer.stream import PartitionSender, ProduceStream, Session
from lograft.errors import (
    FatalError,
    LograftError,
    OutcomeUnknownError,
    RecordTooLargeError,
    RequestTimeoutError,
    UnknownTopicError,
)
from lograft.settings import OLD_LEADER_GRACE_MS, STALL_REFRESH_MS, UNKNOWN_TOPIC_WAIT_MS, ProducerSettings
from lograft.types import BatchReceipt, Durability
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError

logger = logging.getLogger(__name__)

TICK_MS: Final = 50
"""Milliseconds between two checks of deadlines while a batch is unresolved."""

_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})


class ResultSink(Protocol):
    """Gets the results of batches. It separates the delivery of batches from the records of a producer; `Sender` implements it."""

    def on_result(self, batch: SealedBatch, receipt: BatchReceipt) -> None:
        """A batch, or a piece of a split one, is in the log or has failed (`receipt.error`)."""
        ...

    def on_resolved(self, batch: SealedBatch) -> None:
        """A whole sealed batch is resolved, with all its pieces: its memory is free."""
        ...

    def on_limit(self, topic: str, partition: int, max_batch_bytes: int) -> None:
        """The largest batch that a topic accepts is known."""
        ...


class ProduceEngine:
    """Routes each partition's batches to its leader, retries them, and expires them. Belongs to one event loop."""

    def __init__(
        self, cluster: Cluster, settings: ProducerSettings, sink: ResultSink, staging: Staging | None = None
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._sink = sink
        self._staging = staging
        self._loop = asyncio.get_running_loop()
        self._session = Session(None if staging is None else (staging.producer_id, 0))
        self._senders: dict[tuple[str, int], PartitionSender] = {}
        self._waiting: dict[tuple[str, int], PartitionSender] = {}
        self._unresolved = 0
        # Ordered by creation, so that the order in which streams are checked is deterministic.
        self._streams: dict[ProduceStream, None] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._asked_ms = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        cluster.add_listener(self._on_metadata)

    def submit(self, batch: SealedBatch) -> None:
        """Take a sealed batch. The batches of one partition come in the order of sealing."""
        key = (batch.topic, batch.partition)
        sender = self._senders.get(key)
        if sender is None:
            sender = PartitionSender(
                batch.topic if self._staging is None else self._staging.name(batch.topic),
                batch.partition,
                sequencer=PartitionSequencer(is_numbered=self._settings.is_idempotent),
                session=self._session,
                backoff=self._cluster.backoff(),
            )
            self._session.sender_count += 1
            self._senders[key] = sender
        self._unresolved += 1
        if self._tick is None:
            self._tick = self._loop.call_later(TICK_MS / 1000, self._on_tick)
        sender.sequencer.enqueue(batch)
        if sender.stream is not None:
            sender.stream.ready(sender)
        elif sender.retry is None:
            self._route(sender)

    async def close(self) -> None:
        """Fail all unresolved batches and close the streams."""
        self._is_closed = True
        if self._tick is not None:
            self._tick.cancel()
        for sender in self._senders.values():
            for timer in (sender.retry, sender.leaving):
                if timer is not None:
                    timer.cancel()
            self._detach(sender)
            error = OutcomeUnknownError("the producer was closed before the batch was acknowledged")
            while sender.sequencer.queue:
                self._fail_all(sender.sequencer.give_up(), error)
        await asyncio.gather(*(stream.close() for stream in self._streams), *self._closing)

    # -- finding leaders

    def _route(self, sender: PartitionSender) -> None:
        """Bind a partition at its leader, or try again later."""
        sender.retry = None
        is_leaving = self._is_closed or self._cluster.is_leaving
        if is_leaving or sender.sequencer.is_empty or sender.stream is not None:
            return
        if self._staging is not None and sender.sequencer.needs_identity:
            self._drop_all(sender, OutcomeUnknownError("the attempt has failed: a batch before this one was given up"))
            return
        self._refresh_session(sender)
        leader = self._cluster.leader(sender.topic, sender.partition)
        if leader is None:
            if self._cluster.is_missing(sender.topic, sender.partition) and self._is_gone(sender):
                self._drop_all(
                    sender, UnknownTopicError(f"{sender.topic}-{sender.partition} does not exist (any more)")
                )
                return
            self._cluster.request_refresh()
            self._retry_later(sender, None)
            return
        self._waiting.pop((sender.topic, sender.partition), None)
        stream = sender.session.streams.get(leader.broker_id)
        if stream is not None and stream.address != leader.address:
            # The broker has another address. Its partitions are returned and come here again.
            self._close_later(stream)
            stream = None
        if stream is None or stream.is_closed:
            stream = ProduceStream(
                self,
                self._cluster,
                self._settings,
                sender.session,
                leader=leader,
            )
            self._streams[stream] = None
            sender.session.streams[leader.broker_id] = stream
        stream.bind(sender)

    def _retry_later(self, sender: PartitionSender, error: LograftError | None) -> None:
        if error is not None:
            sender.last_error = error
        if sender.retry is not None or self._is_closed:
            return
        at_least_ms = (error.retry_after_ms or 0) if error is not None else 0
        delay_ms = sender.backoff.next_delay_ms(at_least_ms=at_least_ms)
        sender.retry = self._loop.call_later(delay_ms / 1000, self._route, sender)
        self._waiting[(sender.topic, sender.partition)] = sender

    def _on_metadata(self) -> None:
        """Route the partitions that wait for a leader, and move those whose leader has changed."""
        for sender in list(self._waiting.values()):
            leader = self._cluster.leader(sender.topic, sender.partition)
            if sender.retry is not None and leader is not None and leader != sender.avoided:
                sender.retry.cancel()
                self._route(sender)
        for sender in self._senders.values():
            stream = sender.stream
            if stream is None or not self._has_moved(sender, stream):
                continue
            if not stream.is_open:
                self._leave(sender)
            elif sender.leaving is None:
                # The former leader is about to report this itself, after its remaining receipts. A frozen broker never does.
                delay_s = OLD_LEADER_GRACE_MS / 1000
                sender.leaving = self._loop.call_later(delay_s, self._leave_late, sender, stream)

    def _has_moved(self, sender: PartitionSender, stream: ProduceStream) -> bool:
        leader = self._cluster.leader(sender.topic, sender.partition)
        return leader is not None and leader.broker_id != stream.broker_id

    def _leave_late(self, sender: PartitionSender, stream: ProduceStream) -> None:
        sender.leaving = None
        if not self._is_closed and sender.stream is stream and self._has_moved(sender, stream):
            self._leave(sender)

    def _leave(self, sender: PartitionSender) -> None:
        """Take a partition off the stream to its former leader and route it to the new one."""
        self._detach(sender)
        self._route(sender)

    # -- identities

    def _refresh_session(self, sender: PartitionSender) -> None:
        """Move a partition to the newest session when its own cannot be used any more, or when no sent batch ties it there."""
        old = sender.session
        if sender.sequencer.needs_identity and old is self._session:
            self._session = Session()
        if old is self._session or (sender.sequencer.has_sent and not sender.sequencer.needs_identity):
            return
        sender.session = self._session
        sender.sequencer.renew()
        self._session.sender_count += 1
        old.sender_count -= 1
        if old.sender_count == 0:
            for stream in old.streams.values():
                self._close_later(stream)

    def _close_later(self, stream: ProduceStream) -> None:
        # Return the partitions of a moved broker before their stream closes.
        senders = [sender for sender in self._senders.values() if sender.stream is stream]
        self._streams.pop(stream, None)
        task = self._loop.create_task(stream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        for sender in senders:
            self._detach(sender)
            self._retry_later(sender, None)

    # -- what streams tell

    def on_bound(self, sender: PartitionSender, opened: log_pb2.ProduceRouteOpened) -> None:
        """See `StreamOwner`."""
        if sender.topic_id is not None and sender.topic_id != opened.topic_id:
            # A topic with the same name replaced the old one. Its log has no batch of this producer, so sequences start at 0.
            sender.sequencer.renew()
        sender.topic_id = opened.topic_id
        sender.unknown_since_ms = None
        sender.last_error = None
        sender.avoided = None
        sender.max_batch_bytes = opened.max_batch_bytes or None
        if sender.max_batch_bytes is not None:
            self._sink.on_limit(sender.topic, sender.partition, sender.max_batch_bytes)

    def prepare(self, sender: PartitionSender) -> bool:
        """See `StreamOwner`. Split or fail batches that exceed the limit of the topic."""
        queue = sender.sequencer.queue
        limit = sender.max_batch_bytes
        while queue and limit is not None and len(queue[0].body) > limit and queue[0].base_sequence is None:
            batch = queue[0]
            try:
                pieces = split_batch(batch) if batch.record_count > 1 else []
            except BatchError as error:
                logger.warning("%s cannot be split: %s", batch, error)
                pieces = []
            if pieces:
                self._unresolved += len(pieces) - 1
                sender.sequencer.replace_head(pieces)
                continue
            self._fail_all(
                sender.sequencer.drop_unsent(),
                RecordTooLargeError(
                    f"a batch of {batch.record_count} records takes {len(batch.body)} bytes, topic {batch.topic!r} "
                    f"takes at most {limit}: send smaller records or raise max.message.bytes"
                ),
            )
        return bool(queue)

    def on_acknowledged(self, sender: PartitionSender, done: Sequence[Acknowledged], durability: Durability) -> None:
        """See `StreamOwner`."""
        sender.backoff.reset()
        for acknowledged in done:
            batch = acknowledged.batch
            self._resolve(
                batch,
                BatchReceipt(
                    topic=batch.topic,
                    partition=batch.partition,
                    base_offset=acknowledged.base_offset,
                    record_count=batch.record_count,
                    durability=durability,
                    duplicate=acknowledged.duplicate,
                ),
            )

    def on_sent(self, sender: PartitionSender, batch: SealedBatch) -> None:
        """See `StreamOwner`."""
        self._resolve(
            batch,
            BatchReceipt(
                topic=batch.topic,
                partition=batch.partition,
                base_offset=None,
                record_count=batch.record_count,
                durability=Durability.UNKNOWN,
            ),
        )

    def on_route_end(self, sender: PartitionSender, error: errors_pb2.PartitionError, *, outcome_unknown: bool) -> None:
        """See `StreamOwner`."""
        cause = decode_error(error)
        sender.avoided = self._cluster.leader(sender.topic, sender.partition)
        given_up = sender.sequencer.end_route(cause.code, outcome_unknown=outcome_unknown)
        if given_up is not None:
            self._fail_all(given_up, cause)
        if cause.code in _UNKNOWN and self._is_gone(sender):
            self._drop_all(sender, cause)
            return
        if cause.code.fatal and given_up is None and not sender.sequencer.has_sent:
            # The broker refused the binding itself, with a fatal code.
            self._drop_all(sender, cause)
            return
        is_hint_news = error.HasField("leader") and self._cluster.take_hint(
            sender.topic, sender.partition, error.leader
        )
        if given_up is not None or is_hint_news:
            self._route(sender)
            return
        if cause.code.refresh_metadata:
            self._cluster.request_refresh()
        self._retry_later(sender, cause)

    def on_stream_end(self, stream: ProduceStream, senders: Sequence[PartitionSender], error: LograftError) -> None:
        """See `StreamOwner`."""
        self._streams.pop(stream, None)
        if stream.session.streams.get(stream.broker_id) is stream:
            del stream.session.streams[stream.broker_id]
        if senders:
            logger.info("produce stream to %s ended: %s", stream.address, error)
            self._cluster.request_refresh()
        for sender in senders:
            sender.sequencer.unbind(Doubt.LOST)
            sender.avoided = stream.leader
            if isinstance(error, FatalError) and not sender.sequencer.has_sent:
                self._drop_all(sender, error)
            else:
                self._retry_later(sender, error)

    # -- results

    def _is_gone(self, sender: PartitionSender) -> bool:
        """True once brokers have not known the partition for a while. It may be new, or a broker may lag behind."""
        at_ms = monotonic_ms()
        if sender.unknown_since_ms is None:
            sender.unknown_since_ms = at_ms
        limit_ms = UNKNOWN_TOPIC_WAIT_MS if self._staging is None else STAGING_UNKNOWN_MS
        return at_ms - sender.unknown_since_ms >= limit_ms

    def _detach(self, sender: PartitionSender) -> None:
        """Take a partition off its stream. Its batches in flight may be in the log."""
        if sender.stream is not None:
            sender.stream.abandon(sender)
        sender.sequencer.unbind(Doubt.LOST)

    def _drop_all(self, sender: PartitionSender, error: LograftError) -> None:
        while sender.sequencer.queue:
            self._fail_all(sender.sequencer.give_up(), error)

    def _fail_all(self, given_up: GivenUp, error: LograftError) -> None:
        if given_up.refused_is_ambiguous and not isinstance(error, RequestTimeoutError | OutcomeUnknownError):
            error = OutcomeUnknownError(f"it is unknown whether an earlier sending was appended: {error.message}")
        self._fail(given_up.refused, error)
        for batch in given_up.followers:
            self._fail(
                batch,
                OutcomeUnknownError(f"sent behind a batch that was given up ({error.message}), and not acknowledged"),
            )

    def _fail(self, batch: SealedBatch, error: LograftError) -> None:
        self._resolve(
            batch,
            BatchReceipt(
                topic=batch.topic,
                partition=batch.partition,
                base_offset=None,
                record_count=batch.record_count,
                durability=Durability.UNKNOWN,
                error=error,
            ),
        )

    def _resolve(self, batch: SealedBatch, receipt: BatchReceipt) -> None:
        self._unresolved -= 1
        self._sink.on_result(batch, receipt)
        owner = batch.owner
        if owner is None:
            self._sink.on_resolved(batch)
            return
        owner.open_pieces -= 1
        if owner.open_pieces == 0:
            self._sink.on_resolved(owner)

    # -- time

    def _on_tick(self) -> None:
        self._tick = None
        if self._is_closed or self._unresolved == 0:
            return
        self._tick = self._loop.call_later(TICK_MS / 1000, self._on_tick)
        at_ms = monotonic_ms()
        for sender in self._senders.values():
            if sender.sequencer.is_overdue(at_ms):
                self._expire(sender, at_ms)
        for stream in list(self._streams):
            if stream.is_stalled(at_ms) and at_ms - self._asked_ms >= STALL_REFRESH_MS:
                # The broker may be frozen or cut off, and the watch may run over the same broker.
                self._asked_ms = at_ms
                self._cluster.request_refresh(avoid=stream.address)
            stream.check_silence(at_ms)

    def _expire(self, sender: PartitionSender, at_ms: int) -> None:
        """Fail the batches that are past their deadline. A partition with an open route loses the route first."""
        if sender.sequencer.in_flight or sender.sequencer.is_bound:
            self._detach(sender)
        reason = f" (last trouble: {sender.last_error.message})" if sender.last_error is not None else ""
        while sender.sequencer.is_overdue(at_ms):
            timeout_ms = self._settings.delivery_timeout_ms
            error = RequestTimeoutError(f"not acknowledged within delivery_timeout_ms ({timeout_ms}){reason}")
            self._fail_all(sender.sequencer.give_up(), error)
        if not sender.sequencer.is_empty and sender.stream is None and sender.retry is None:
            self._route(sender)
