# SPDX-License-Identifier: Apache-2.0
"""The calls of IngestService.

Owns the deadlines of calls, and the pages of a list over all coordinators. Every call about an ingest goes to the coordinator here, or
is refused with NOT_COORDINATOR; only ListIngests and GetPublished ask other brokers.
Source: `docs/ingest.md` section "Service".
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from google.protobuf.message import Message
from lograft.v1 import ingest_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.api.calls import CallContext, ServicerContext, check_cluster, left_ms
from brokerd.api.forward import Forwarder
from brokerd.api.ingest_service import messages
from brokerd.api.ingest_service.limits import (
    COORDINATOR_WAIT_MS,
    FIND_RETRY_MS,
    FOUND_INGESTS_MAX,
    LIST_CALL_MS,
    RESPONSE_MARGIN_BYTES,
)
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.coordinator.internal_topics import INGESTS
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.ingests.answers import (
    Aborted,
    AttemptOpened,
    Committed,
    IngestDescription,
    IngestList,
    Opened,
    Outcome,
    Sealed,
    Touched,
)
from brokerd.ingests.commands import Command, DescribeIngest, ListIngests, TouchIngest
from brokerd.ingests.coordinator_calls import IngestCalls
from brokerd.ingests.coordinators import IngestCoordinators
from brokerd.ingests.limits import CALL_MS, COMMIT_CALL_MS, QUESTION_MS
from brokerd.ingests.records import IngestTopic
from brokerd.ingests.steps import IngestSteps

LIST_METHOD: Final = "ListIngests"
"""Name of the method that brokers ask each other for."""

NO_BROKER: Final = -1
"""Id in `missing_coordinator_ids` for partitions of `__ingests` that nobody leads at the moment."""

MessageT = TypeVar("MessageT", bound=Message)


class IngestServiceCalls:
    """The calls of one broker.

    Args:
        parts: the broker.
        coordinators: its coordinators.
        steps: its opens and commits.
        questions: asks coordinators.
        forwarder: asks other brokers for their ingests.
    """

    def __init__(
        self,
        parts: BrokerParts,
        coordinators: IngestCoordinators,
        steps: IngestSteps,
        questions: IngestCalls,
        forwarder: Forwarder,
    ) -> None:
        self._parts = parts
        self._coordinators = coordinators
        self._steps = steps
        self._questions = questions
        self._forwarder = forwarder

    def _topic_name(self, topic_id: bytes) -> str:
        topic = self._parts.observer.image.topic_by_id(topic_id)
        return "" if topic is None else topic.topic

    async def _submit(self, ingest_id: str, command: Command, size_bytes: int, context: CallContext) -> Outcome:
        timeout_ms = left_ms(context, at_most_ms=CALL_MS)
        return await self._coordinators.submit(ingest_id, command, size_bytes=size_bytes, timeout_ms=timeout_ms)

    # Find.

    async def find_coordinator(
        self, request: pb.FindIngestCoordinatorRequest, context: ServicerContext
    ) -> pb.FindIngestCoordinatorResponse:
        """Serve FindIngestCoordinator; the first one makes the topic of ingests."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        if not 1 <= len(request.ingest_ids) <= FOUND_INGESTS_MAX:
            message = f"name 1 to {FOUND_INGESTS_MAX} ingests, not {len(request.ingest_ids)}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        for ingest_id in request.ingest_ids:
            messages.check_ingest_id(ingest_id)
        failure: Failure | None = None
        try:
            await self._coordinators.ensure_topic(timeout_ms=left_ms(context, at_most_ms=COORDINATOR_WAIT_MS))
        except RefusedError as error:
            failure = error.failure
        return pb.FindIngestCoordinatorResponse(
            coordinators=[self._coordinator(ingest_id, failure) for ingest_id in request.ingest_ids]
        )

    def _coordinator(self, ingest_id: str, failure: Failure | None) -> pb.IngestCoordinator:
        place = None if failure else self._coordinators.leader_place(INGESTS.partition_of(ingest_id))
        if place is not None:
            return messages.coordinator_message(ingest_id, place)
        if failure is None:
            message = "the ingest has no coordinator at the moment: try again"
            failure = Failure(code=ErrorCode.COORDINATOR_LOADING, message=message, retry_after_ms=FIND_RETRY_MS)
        return pb.IngestCoordinator(ingest_id=ingest_id, error=partition_error(failure))

    # The way of an ingest.

    async def open_ingest(self, request: pb.OpenIngestRequest, context: ServicerContext) -> pb.OpenIngestResponse:
        """Serve OpenIngest."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        kind = messages.open_kind(request)
        outcome = await self._steps.open(
            request.ingest_id,
            kind,
            list(request.topics),
            ttl_ms=request.ttl_ms,
            owner=request.owner,
            timeout_ms=left_ms(context, at_most_ms=COMMIT_CALL_MS),
        )
        opened, metadata_offset = messages.expect(outcome, Opened), self._parts.observer.metadata_offset
        return _fitting(messages.opened_message(opened, self._topic_name, metadata_offset=metadata_offset))

    async def open_attempt(self, request: pb.OpenAttemptRequest, context: ServicerContext) -> pb.OpenAttemptResponse:
        """Serve OpenAttempt."""
        command = messages.attempt_command(request)
        outcome = await self._submit(request.ingest_id, command, request.ByteSize(), context)
        return messages.attempt_opened_message(messages.expect(outcome, AttemptOpened))

    async def seal_attempt(self, request: pb.SealAttemptRequest, context: ServicerContext) -> pb.SealAttemptResponse:
        """Serve SealAttempt."""
        command = messages.seal_command(request)
        messages.expect(await self._submit(request.ingest_id, command, request.ByteSize(), context), Sealed)
        return pb.SealAttemptResponse()

    async def commit_ingest(self, request: pb.CommitIngestRequest, context: ServicerContext) -> pb.CommitIngestResponse:
        """Serve CommitIngest."""
        command, prepare = messages.commit_command(request)
        outcome = await self._steps.commit(
            command,
            prepare,
            size_bytes=request.ByteSize(),
            timeout_ms=left_ms(context, at_most_ms=COMMIT_CALL_MS),
        )
        committed = messages.expect(outcome, Committed)
        result = messages.result_message(committed.result, self._known_topics(request.ingest_id), self._topic_name)
        return _fitting(pb.CommitIngestResponse(result=result, was_committed=committed.was_committed))

    def _known_topics(self, ingest_id: str) -> tuple[IngestTopic, ...]:
        """Return the topics of an ingest here, for names of topics that are gone."""
        core = self._coordinators.core(INGESTS.partition_of(ingest_id))
        known = None if core is None else core.state.value_of(ingest_id)
        return () if known is None else known[1].topics

    async def abort_ingest(self, request: pb.AbortIngestRequest, context: ServicerContext) -> pb.AbortIngestResponse:
        """Serve AbortIngest."""
        command = messages.abort_command(request)
        messages.expect(await self._submit(request.ingest_id, command, 0, context), Aborted)
        return pb.AbortIngestResponse()

    async def touch_ingest(self, request: pb.TouchIngestRequest, context: ServicerContext) -> pb.TouchIngestResponse:
        """Serve TouchIngest."""
        messages.check_touch(request)
        command = TouchIngest(ingest_id=request.ingest_id, ingest_epoch=request.ingest_epoch)
        messages.expect(await self._submit(request.ingest_id, command, 0, context), Touched)
        return pb.TouchIngestResponse()

    # Administration.

    async def describe_ingest(
        self, request: pb.DescribeIngestRequest, context: ServicerContext
    ) -> pb.DescribeIngestResponse:
        """Serve DescribeIngest."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        messages.check_ingest_id(request.ingest_id)
        outcome = await self._submit(request.ingest_id, DescribeIngest(ingest_id=request.ingest_id), 0, context)
        found = messages.expect(outcome, IngestDescription)
        return _fitting(pb.DescribeIngestResponse(ingest=messages.description_message(found, self._topic_name)))

    async def list_ingests(self, request: pb.ListIngestsRequest, context: CallContext) -> pb.ListIngestsResponse:
        """Serve ListIngests: of this broker, or of all."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        limit = messages.list_limit(request)
        command = ListIngests(after=request.after, limit=limit, states=messages.wanted_states(request.states))
        wait_ms = left_ms(context, at_most_ms=LIST_CALL_MS)
        local = self._list_local(command, wait_ms)
        if request.only_here:
            pages = [await local]
        else:
            places = {each.leader_id: each for each in self._coordinators.leaders if each is not None}
            places.pop(self._parts.node_id, None)
            asked = [self._list_at(places[node_id], request, limit, wait_ms) for node_id in sorted(places)]
            pages = await asyncio.gather(local, *asked)
        # What lies behind the end of a page that goes on elsewhere belongs to the next one.
        ends = [page.ingests[-1].ingest_id for page in pages if page.has_more and page.ingests]
        listed = (each for page in pages for each in page.ingests if not ends or each.ingest_id <= min(ends))
        found = sorted(listed, key=lambda each: each.ingest_id)
        missing = {node_id for page in pages for node_id in page.missing_coordinator_ids}
        if None in self._coordinators.leaders:
            missing.add(NO_BROKER)
        return _page(
            found[:limit], has_more=len(found) > limit or any(each.has_more for each in pages), missing=missing
        )

    async def _list_local(self, command: ListIngests, timeout_ms: int) -> pb.ListIngestsResponse:
        """List the ingests of the partitions that this broker leads, as the metadata has it."""
        node_id = self._parts.node_id
        led = [
            number
            for number, place in enumerate(self._coordinators.leaders)
            if place is not None and place.leader_id == node_id
        ]

        async def list_one(partition: int) -> IngestList | None:
            try:
                outcome = await self._coordinators.submit_to(partition, command, timeout_ms=timeout_ms)
            except RefusedError:
                return None
            return messages.expect(outcome, IngestList)

        lists = await asyncio.gather(*map(list_one, led))
        listed = [each for found in lists if found is not None for each in found.ingests]
        listed.sort(key=lambda each: each.ingest_id)
        return _page(
            [messages.listing_message(each) for each in listed[: command.limit]],
            has_more=len(listed) > command.limit or any(found is not None and found.has_more for found in lists),
            missing={node_id} if None in lists else set(),
        )

    async def _list_at(
        self, place: LeaderPlace, request: pb.ListIngestsRequest, limit: int, timeout_ms: int
    ) -> pb.ListIngestsResponse:
        """List the ingests of another broker; without an answer it is missing."""
        asked = pb.ListIngestsRequest(
            cluster_id=self._parts.cluster_id, after=request.after, limit=limit, states=request.states, only_here=True
        )
        try:
            return await self._forwarder.call(
                place, LIST_METHOD, asked, pb.ListIngestsResponse, timeout_ms=timeout_ms, is_read_only=True
            )
        except RefusedError:
            return pb.ListIngestsResponse(missing_coordinator_ids=[place.leader_id])

    async def get_published(self, request: pb.GetPublishedRequest, context: ServicerContext) -> pb.GetPublishedResponse:
        """Serve GetPublished: the coordinators that the producer ids name are asked."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        places = messages.published_places(request)
        timeout_ms = left_ms(context, at_most_ms=QUESTION_MS)
        found = await self._questions.published_up_to(places, timeout_ms=timeout_ms)
        return pb.GetPublishedResponse(partitions=map(messages.published_message, found))


def _page(found: list[pb.IngestDescription], *, has_more: bool, missing: set[int]) -> pb.ListIngestsResponse:
    """Return a page of ingests, shorter than asked for if they do not fit into a response."""
    response = pb.ListIngestsResponse(has_more=has_more, missing_coordinator_ids=sorted(missing))
    left_bytes = MAX_GRPC_MESSAGE_BYTES - RESPONSE_MARGIN_BYTES
    for each in found:
        left_bytes -= each.ByteSize() + 8
        if left_bytes < 0:
            response.has_more = True
            break
        response.ingests.append(each)
    return response


def _fitting(response: MessageT) -> MessageT:
    """Return a response if gRPC takes it.

    Raises:
        RefusedError: LIMIT_EXCEEDED.
    """
    if response.ByteSize() > MAX_GRPC_MESSAGE_BYTES - RESPONSE_MARGIN_BYTES:
        raise refused(ErrorCode.LIMIT_EXCEEDED, "the answer is larger than one message")
    return response
