# SPDX-License-Identifier: Apache-2.0
"""Asks the leaders of partitions to publish and to check, wherever they are: the side of the coordinator.

Owns the choice of the broker, from this broker's metadata. Each question is asked once. Whoever asks
repeats what failed with a retriable code: publications and checks may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lograft.internal.v1 import publication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import refused
from brokerd.publishing.limits import CHECK_CALL_MS, PUBLISH_CALL_MS, RETRY_MS
from brokerd.publishing.messages import write_part, write_slices
from brokerd.publishing.parts import Part, PublishedPart, Slice
from brokerd.publishing.peer_calls import PeerCalls
from brokerd.publishing.publisher import RecordsLostError
from brokerd.publishing.service import LocalPublications
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.topic_names import staging_topic
from metaquorum.net.methods import Method

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Unstaged:
    """A slice that cannot be published: its place in the question, and why, for people."""

    index: int
    reason: str


class PublicationCalls:
    """Asks leaders; this broker is asked directly where it leads.

    Args:
        local: this broker.
        calls: calls to other brokers.
    """

    def __init__(self, local: LocalPublications, calls: PeerCalls) -> None:
        self._local = local
        self._calls = calls

    async def publish(self, part: Part, *, timeout_ms: int = PUBLISH_CALL_MS) -> PublishedPart:
        """Have a part published; return where it is. It may be asked again at any time.

        Raises:
            RecordsLostError: as `Publisher.publish`.
            RefusedError: as `Publisher.publish`; UNKNOWN_TOPIC only if this broker's or the leader's metadata has the topic among the
                deleted ones; LEADER_NOT_AVAILABLE, nobody leads, or the leader could not be reached; TIMED_OUT.
        """
        leader_id = self._leader(self._topic(part.topic_id), part.partition)
        if leader_id == self._local.node_id:
            return await _in_time(self._local.publisher.publish(part), timeout_ms)
        request = write_part(part, self._calls.names(leader_id))
        answer = await self._calls.ask(
            leader_id, Method.PUBLISH_PART, request, pb.PublishPartResponse, timeout_ms=timeout_ms
        )
        if answer.lost_records:
            raise RecordsLostError(answer.lost_records, f"{part.topic_id.hex()}-{part.partition} at broker {leader_id}")
        return PublishedPart(answer.first_offset, answer.end_offset)

    async def check(
        self, topic_id: bytes, partition: int, slices: Sequence[Slice], *, timeout_ms: int = CHECK_CALL_MS
    ) -> list[Unstaged]:
        """Return the slices that are not staged as they should be, the first ones; empty: all can be published.

        Args:
            topic_id: id of the topic that the staging topic belongs to.
            partition: partition.
            slices: what attempts have sealed.
            timeout_ms: longest wait in milliseconds.

        Raises:
            RefusedError: as `StagedChecks.check`; LEADER_NOT_AVAILABLE, nobody leads, or the leader could not be reached; TIMED_OUT.
        """
        staging = self._local.observer.image.topic_by_name(staging_topic(topic_id))
        if staging is None:
            message = f"the staging topic of topic {topic_id.hex()} is not known here"
            raise refused(ErrorCode.METADATA_NOT_REACHED, message, retry_after_ms=RETRY_MS)
        leader_id = self._leader(staging, partition)
        if leader_id == self._local.node_id:
            missing = await _in_time(self._local.checks.check(topic_id, partition, slices), timeout_ms)
            return [Unstaged(each.index, each.gap.value) for each in missing]
        request = pb.CheckStagedRequest(
            peers=self._calls.names(leader_id), topic_id=topic_id, partition=partition, slices=write_slices(slices)
        )
        answer = await self._calls.ask(
            leader_id, Method.CHECK_STAGED, request, pb.CheckStagedResponse, timeout_ms=timeout_ms
        )
        return [Unstaged(each.index, each.reason) for each in answer.missing]

    def _topic(self, topic_id: bytes) -> TopicImage:
        image = self._local.observer.image
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            return topic
        if topic_id in image.deleted_topics.ids():
            raise refused(ErrorCode.UNKNOWN_TOPIC, f"topic {topic_id.hex()} was deleted")
        message = f"topic {topic_id.hex()} is not known here"
        raise refused(ErrorCode.METADATA_NOT_REACHED, message, retry_after_ms=RETRY_MS)

    def _leader(self, topic: TopicImage, partition: int) -> int:
        if not 0 <= partition < len(topic.partitions):
            message = f"partition {partition} of {topic.topic!r} is not known here"
            raise refused(ErrorCode.METADATA_NOT_REACHED, message, retry_after_ms=RETRY_MS)
        leader_id = topic.partitions[partition].leader_id
        if leader_id is None:
            message = f"{topic.topic}-{partition} has no leader at the moment"
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
        return leader_id


async def _in_time(answer: Coroutine[None, None, AnswerT], timeout_ms: int) -> AnswerT:
    """Wait for this broker's own answer as long as for another one's.

    Raises:
        RefusedError: TIMED_OUT.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await answer
    except TimeoutError:
        raise refused(ErrorCode.TIMED_OUT, f"no answer in {timeout_ms} ms", retry_after_ms=RETRY_MS) from None
