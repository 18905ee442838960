# SPDX-License-Identifier: Apache-2.0
"""MetadataService: answers from this broker's own image, once (GetCluster) or as it changes (WatchCluster).

Owns the waits for a metadata offset. For each watch it owns the set of names that changed since the last message. The set holds
names, not states: a topic that changes ten times while the client is slow is sent once, in its latest state. So a slow client costs a
bounded set and never an unbounded queue.

A state or a change that is too large for one message is sent in several. All but the last carry the metadata offset that the client
had before (0 for a snapshot). A client that stops in between resumes from that offset.

Law: the answers of one broker never go back, because the image never does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import grpc
from lograft.v1 import metadata_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import ServicerContext, check_cluster, left_ms, server_stream, unary
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import MAX_CLUSTER_TOPICS, METADATA_WAIT_MS, WATCH_MESSAGE_PARTITIONS
from brokerd.wake import Wake
from metaquorum.controller_service.codec import to_partition
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.image import BrokerImage, TopicImage

SERVICE: Final = "lograft.v1.MetadataService"

OUT_OF_TOUCH: Final = Failure(
    code=ErrorCode.BROKER_FENCED,
    message="this broker has not heard from the controller for a whole session: watch another one",
    retry_after_ms=1_000,
)
"""Why a broker without contact to the controller does not say who leads."""


class MetadataService:
    """MetadataService of one broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the method handlers for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetCluster": unary(metadata_pb2.GetClusterRequest, self._get_cluster),
                "WatchCluster": server_stream(metadata_pb2.WatchClusterRequest, self._watch_cluster),
            },
        )

    async def _get_cluster(
        self, request: metadata_pb2.GetClusterRequest, context: ServicerContext
    ) -> metadata_pb2.GetClusterResponse:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        _check_topic_count(len(request.topics))
        if request.HasField("min_metadata_offset"):
            await self._reach(request.min_metadata_offset, context)
        observer = self._parts.observer
        return metadata_pb2.GetClusterResponse(
            cluster_id=self._parts.cluster_id,
            controller_id=observer.leader.leader_id,
            brokers=[_broker_message(broker) for _, broker in sorted(observer.image.brokers.items())],
            topics=[_topic_message(topic) for topic in self._topics(request)],
            metadata_offset=observer.metadata_offset,
        )

    def _topics(self, request: metadata_pb2.GetClusterRequest) -> list[TopicImage]:
        image = self._parts.observer.image
        if request.topics:
            found = (image.topic_by_name(name) for name in sorted(set(request.topics)))
            return [topic for topic in found if topic is not None]
        return [topic for _, topic in zip(range(MAX_CLUSTER_TOPICS), image.topics(), strict=False)]

    async def _watch_cluster(
        self, request: metadata_pb2.WatchClusterRequest, context: ServicerContext
    ) -> AsyncIterator[metadata_pb2.WatchClusterResponse]:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        _check_topic_count(len(request.topics))
        if self._parts.session.is_lost:
            raise RefusedError(OUT_OF_TOUCH)
        if request.HasField("after_offset"):
            # The client may come from a broker that is ahead of this one.
            await self._reach(request.after_offset, context)
        watch = Watch(self._parts, frozenset(request.topics))
        with self._parts.watch_streams.entry(watch), watch.following():
            watch.begin(request.after_offset if request.HasField("after_offset") else None)
            async for response in watch.responses():
                yield response

    async def _reach(self, metadata_offset: int, context: ServicerContext) -> None:
        observer = self._parts.observer
        if await observer.wait_for(metadata_offset, timeout_ms=left_ms(context, at_most_ms=METADATA_WAIT_MS)):
            return
        raise refused(
            ErrorCode.METADATA_NOT_REACHED,
            f"this broker has the metadata up to {observer.metadata_offset}, not yet {metadata_offset}",
            retry_after_ms=250,
        )


class Watch:
    """One WatchCluster stream: holds what its client does not know yet, and makes the messages that tell it.

    Args:
        parts: the broker.
        topics: names of the topics to watch; empty: all topics.
    """

    def __init__(self, parts: BrokerParts, topics: frozenset[str]) -> None:
        self._parts = parts
        self._observer = parts.observer
        self._wanted = topics
        self._topics: set[str] = set()
        self._broker_ids: set[int] = set()
        self._controller_changed = False
        self._needs_snapshot = False
        self._sent_offset = 0
        self._failure: Failure | None = None
        self._wake = Wake()

    @contextmanager
    def following(self) -> Generator[None]:
        """Listen to every change while the context runs."""
        stop_changes = self._observer.on_change(self._on_change)
        stop_leaders = self._observer.on_leader_change(self._on_leader_change)
        stop_session = self._parts.session.on_lost(self._on_lost_session)
        try:
            yield
        finally:
            stop_changes()
            stop_leaders()
            stop_session()

    def begin(self, after_offset: int | None) -> None:
        """Choose the first message: the changes since `after_offset` if this broker still knows them, otherwise a snapshot."""
        change = None if after_offset is None else self._observer.history.since(after_offset)
        if change is None or after_offset is None:
            self._needs_snapshot = True
        else:
            self._sent_offset = after_offset
            self._controller_changed = True
            self._note(change)
        self._wake.set()

    def go_away(self, message: str, drain_ms: int) -> None:
        """End the watch because the server stops."""
        self._failure = Failure(code=ErrorCode.SHUTTING_DOWN, message=message, retry_after_ms=drain_ms)
        self._wake.set()

    async def responses(self) -> AsyncIterator[metadata_pb2.WatchClusterResponse]:
        """Yield the messages to send until the watch ends."""
        while True:
            await self._wake.wait()
            if self._needs_snapshot:
                self._needs_snapshot = False
                for response in self._snapshot():
                    yield response
            if self._topics or self._broker_ids or self._controller_changed:
                for response in self._delta():
                    yield response
            if self._failure is not None:
                response = self._response(self._sent_offset)
                response.error.CopyFrom(partition_error(self._failure))
                yield response
                return

    def _on_change(self, change: MetadataChange) -> None:
        self._note(change)
        if self._topics or self._broker_ids:
            self._wake.set()

    def _on_lost_session(self) -> None:
        self._failure = OUT_OF_TOUCH
        self._wake.set()

    def _on_leader_change(self) -> None:
        self._controller_changed = True
        self._wake.set()

    def _note(self, change: MetadataChange) -> None:
        self._topics |= change.topics & self._wanted if self._wanted else change.topics
        self._broker_ids |= change.broker_ids
        if len(self._topics) > MAX_CLUSTER_TOPICS:
            self._topics.clear()
            self._broker_ids.clear()
            self._needs_snapshot = True

    def _snapshot(self) -> Iterator[metadata_pb2.WatchClusterResponse]:
        image = self._observer.image
        self._topics.clear()
        self._broker_ids.clear()
        self._controller_changed = False
        # A change that comes while these messages are sent is noted as a change after this offset.
        state_offset = self._observer.metadata_offset
        response = self._response(0)
        response.snapshot = True
        response.brokers.extend(_broker_message(broker) for _, broker in sorted(image.brokers.items()))
        for chunk in _chunks(self._live_topics()):
            response.topics.extend(_topic_message(topic) for topic in chunk)
            yield response
            response = self._response(0)
        self._sent_offset = state_offset
        response.metadata_offset = state_offset
        yield response

    def _live_topics(self) -> Iterator[TopicImage]:
        """Yield the watched topics by name. The image may change between two of them."""
        image = self._observer.image
        if self._wanted:
            for name in sorted(self._wanted):
                topic = image.topic_by_name(name)
                if topic is not None:
                    yield topic
            return
        after: str | None = None
        while (topic := next(image.topics(after=after), None)) is not None:
            after = topic.topic
            yield topic

    def _delta(self) -> Iterator[metadata_pb2.WatchClusterResponse]:
        image = self._observer.image
        names, broker_ids = sorted(self._topics), sorted(self._broker_ids)
        self._topics.clear()
        self._broker_ids.clear()
        self._controller_changed = False
        state_offset = self._observer.metadata_offset
        response = self._response(self._sent_offset)
        for broker_id in broker_ids:
            broker = image.brokers.get(broker_id)
            if broker is None:
                response.removed_broker_ids.append(broker_id)
            else:
                response.brokers.append(_broker_message(broker))
        response.removed_topics.extend(name for name in names if image.topic_by_name(name) is None)
        topics = (image.topic_by_name(name) for name in names)
        for chunk in _chunks(topic for topic in topics if topic is not None):
            response.topics.extend(_topic_message(topic) for topic in chunk)
            yield response
            response = self._response(self._sent_offset)
        self._sent_offset = state_offset
        response.metadata_offset = state_offset
        yield response

    def _response(self, metadata_offset: int) -> metadata_pb2.WatchClusterResponse:
        return metadata_pb2.WatchClusterResponse(
            cluster_id=self._parts.cluster_id,
            controller_id=self._observer.leader.leader_id,
            metadata_offset=metadata_offset,
        )


def _check_topic_count(count: int) -> None:
    if count > MAX_CLUSTER_TOPICS:
        raise refused(ErrorCode.INVALID_REQUEST, f"{count} topics are named, at most {MAX_CLUSTER_TOPICS} may be")


def _chunks(topics: Iterable[TopicImage]) -> Iterator[list[TopicImage]]:
    """Split topics into lists for one message each."""
    chunk: list[TopicImage] = []
    partition_count = 0
    for topic in topics:
        chunk.append(topic)
        partition_count += len(topic.partitions)
        if partition_count >= WATCH_MESSAGE_PARTITIONS:
            yield chunk
            chunk, partition_count = [], 0
    if chunk:
        yield chunk


def _broker_message(broker: BrokerImage) -> metadata_pb2.Broker:
    """Return a broker as a message."""
    return metadata_pb2.Broker(
        broker_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack or "",
        fenced=not broker.can_lead,
        broker_epoch=broker.broker_epoch,
        offline_log_directory_ids=broker.offline_log_directory_ids,
    )


def _topic_message(topic: TopicImage) -> metadata_pb2.Topic:
    """Return a topic with all its partitions as a message."""
    return metadata_pb2.Topic(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=[to_partition(partition) for partition in topic.partitions],
    )
