# SPDX-License-Identifier: Apache-2.0
"""One WatchCluster stream: what its client has not been told yet, and the messages that tell it.

Owns the set of names that changed since the last message. It holds names, not states: whatever changed ten times while
the client was slow is sent once, as it is then. So a slow client costs a bounded set and never an unbounded queue.

A state or a change too large for one message goes out in several; all but the last carry the metadata offset
that the client had before (0 for a snapshot), so that a client that stops in between resumes from where it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from lograft.v1 import metadata_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.cluster_codec import broker_message, topic_message
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.failure import Failure
from brokerd.limits import MAX_CLUSTER_TOPICS, WATCH_MESSAGE_PARTITIONS
from brokerd.wake import Wake
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.image import TopicImage

OUT_OF_TOUCH: Final = Failure(
    code=ErrorCode.BROKER_FENCED,
    message="this broker has not heard from the controller for a whole session: watch another one",
    retry_after_ms=1_000,
)
"""Why a broker that is cut off tells nobody who leads."""


class Watch:
    """See the module docstring.

    Args:
        parts: the broker.
        topics: names of interest; empty: all.
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
        """Hear of every change while the watch runs."""
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
        """Set what is to be told first: what changed since `after_offset` if that is known, else everything."""
        change = None if after_offset is None else self._observer.history.since(after_offset)
        if change is None or after_offset is None:
            self._needs_snapshot = True
        else:
            self._sent_offset = after_offset
            self._controller_changed = True
            self._note(change)
        self._wake.set()

    def go_away(self, message: str, drain_ms: int) -> None:
        """End the watch: the server stops."""
        self._failure = Failure(code=ErrorCode.SHUTTING_DOWN, message=message, retry_after_ms=drain_ms)
        self._wake.set()

    async def responses(self) -> AsyncIterator[metadata_pb2.WatchClusterResponse]:
        """Yield what to send, for as long as the watch lives."""
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
        # What changes while the messages go out is noted as a change after this offset.
        state_offset = self._observer.metadata_offset
        response = self._response(0)
        response.snapshot = True
        response.brokers.extend(broker_message(broker) for _, broker in sorted(image.brokers.items()))
        for chunk in _chunks(self._live_topics()):
            response.topics.extend(topic_message(topic) for topic in chunk)
            yield response
            response = self._response(0)
        self._sent_offset = state_offset
        response.metadata_offset = state_offset
        yield response

    def _live_topics(self) -> Iterator[TopicImage]:
        """Walk over the topics of interest by name; the image may change between two of them."""
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
                response.brokers.append(broker_message(broker))
        response.removed_topics.extend(name for name in names if image.topic_by_name(name) is None)
        topics = (image.topic_by_name(name) for name in names)
        for chunk in _chunks(topic for topic in topics if topic is not None):
            response.topics.extend(topic_message(topic) for topic in chunk)
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


def _chunks(topics: Iterable[TopicImage]) -> Iterator[list[TopicImage]]:
    """Cut a walk over topics into message-sized lists."""
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
