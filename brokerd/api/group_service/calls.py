# SPDX-License-Identifier: Apache-2.0
"""The unary calls of GroupService.

Owns the limits of requests, the pages of a list over all coordinators, and the repetition of a deletion. Every call about a group goes
to the coordinator here, or is refused with NOT_COORDINATOR; only ListGroups asks other brokers.
Source: `docs/groups.md` section "Service".
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar
from urllib.parse import unquote

from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.api.calls import CallContext, ServicerContext, check_cluster, left_ms
from brokerd.api.forward import Forwarder
from brokerd.api.group_service import messages
from brokerd.api.group_service.limits import (
    COORDINATOR_WAIT_MS,
    FIND_RETRY_MS,
    GROUP_CALL_MS,
    LIST_CALL_MS,
    MAX_DELETION_STEPS,
    MAX_FETCHED_PARTITIONS,
    MAX_FOUND_GROUPS,
    RESPONSE_MARGIN_BYTES,
)
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.coordinator.internal_topics import GROUPS
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.groups.answers import (
    FetchedOffsets,
    GroupDeletion,
    GroupDescription,
    GroupList,
    GroupListing,
    OffsetResults,
    Outcome,
)
from brokerd.groups.commands import (
    AlterOffsets,
    Command,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    ListGroups,
)
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.limits import MAX_ID_BYTES, MAX_LISTED_GROUPS

LIST_METHOD: Final = "ListGroups"
"""Name of the method that brokers ask each other for."""

NO_BROKER: Final = -1
"""Id in `missing_coordinator_ids` for partitions of `__groups` that nobody leads at the moment."""

OutcomeT = TypeVar("OutcomeT")


class GroupCalls:
    """The unary calls of one broker.

    Args:
        parts: the broker.
        coordinators: its group coordinators.
        forwarder: asks other brokers for their groups.
    """

    def __init__(self, parts: BrokerParts, coordinators: GroupCoordinators, forwarder: Forwarder) -> None:
        self._parts = parts
        self._coordinators = coordinators
        self._forwarder = forwarder

    def topic_name(self, topic_id: bytes) -> str:
        """Return the name of a topic; empty: this broker does not know it."""
        topic = self._parts.observer.image.topic_by_id(topic_id)
        return "" if topic is None else topic.topic

    # Members.

    async def find_coordinator(
        self, request: pb.FindCoordinatorRequest, context: ServicerContext
    ) -> pb.FindCoordinatorResponse:
        """Serve FindCoordinator; the first one makes the topic of groups."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        if not 1 <= len(request.group_ids) <= MAX_FOUND_GROUPS:
            message = f"name 1 to {MAX_FOUND_GROUPS} groups, not {len(request.group_ids)}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        for group_id in request.group_ids:
            check_group_id(group_id)
        failure: Failure | None = None
        try:
            await self._coordinators.ensure_topic(timeout_ms=left_ms(context, at_most_ms=COORDINATOR_WAIT_MS))
        except RefusedError as error:
            failure = error.failure
        return pb.FindCoordinatorResponse(
            coordinators=[self._coordinator(group_id, failure) for group_id in request.group_ids]
        )

    def _coordinator(self, group_id: str, failure: Failure | None) -> pb.GroupCoordinator:
        place = None if failure else self._coordinators.leader_place(GROUPS.partition_of(group_id))
        if place is not None:
            return messages.coordinator_message(group_id, place)
        if failure is None:
            message = "the group has no coordinator at the moment: try again"
            failure = Failure(code=ErrorCode.COORDINATOR_LOADING, message=message, retry_after_ms=FIND_RETRY_MS)
        return pb.GroupCoordinator(group_id=group_id, error=partition_error(failure))

    async def heartbeat(self, request: pb.HeartbeatRequest, context: ServicerContext) -> pb.HeartbeatResponse:
        """Serve Heartbeat: a join, beat or leave."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        beat = request.beat
        check_group_id(beat.group_id)
        command = messages.member_command(
            beat,
            group_id=beat.group_id,
            member_id=beat.member_id,
            client_id=beat.client_id,
            client_host=client_host(context.peer()),
            stream=None,
        )
        outcome = await self._submit(beat.group_id, command, request.ByteSize(), context)
        messages.raise_refusal(outcome)
        state = messages.member_message(outcome, self.topic_name, handle=0, beat_number=beat.beat_number)
        return pb.HeartbeatResponse(state=state)

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, context: ServicerContext
    ) -> pb.CommitOffsetsResponse:
        """Serve CommitOffsets."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        commitment = request.commitment
        check_group_id(commitment.group_id)
        command = messages.commit_command(commitment, group_id=commitment.group_id, member_id=commitment.member_id)
        results = _expect(await self._submit(commitment.group_id, command, request.ByteSize(), context), OffsetResults)
        return pb.CommitOffsetsResponse(outcomes=messages.outcome_messages(results.results))

    async def fetch_offsets(self, request: pb.FetchOffsetsRequest, context: ServicerContext) -> pb.FetchOffsetsResponse:
        """Serve FetchOffsets."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        check_group_id(request.group_id)
        wanted = messages.partition_list(request.topics)
        if len(wanted) > MAX_FETCHED_PARTITIONS:
            message = f"name at most {MAX_FETCHED_PARTITIONS} partitions, not {len(wanted)}"
            raise refused(ErrorCode.LIMIT_EXCEEDED, message)
        command = FetchOffsets(group_id=request.group_id, partitions=wanted if request.topics else None)
        found = _expect(await self._submit(request.group_id, command, request.ByteSize(), context), FetchedOffsets)
        response = pb.FetchOffsetsResponse()
        if not request.topics:
            names = {each.topic_id: self.topic_name(each.topic_id) for each in found.offsets}
            response.topics.extend(pb.NamedTopic(topic_id=each, topic=name) for each, name in names.items() if name)
        for start in range(0, len(found.offsets), MAX_FETCHED_PARTITIONS):
            some = found.offsets[start : start + MAX_FETCHED_PARTITIONS]
            response.offsets.extend(map(messages.committed_message, some))
            if response.ByteSize() > MAX_GRPC_MESSAGE_BYTES - RESPONSE_MARGIN_BYTES:
                message = (
                    f"the group has more offsets than one answer holds: name up to {MAX_FETCHED_PARTITIONS} partitions"
                )
                raise refused(ErrorCode.LIMIT_EXCEEDED, message)
            await asyncio.sleep(0)
        return response

    # Administration.

    async def list_groups(self, request: pb.ListGroupsRequest, context: CallContext) -> pb.ListGroupsResponse:
        """Serve ListGroups: of this broker, or of all."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        if not 0 <= request.limit <= MAX_LISTED_GROUPS:
            raise refused(ErrorCode.INVALID_REQUEST, f"the limit is 0 to {MAX_LISTED_GROUPS}, not {request.limit}")
        limit = request.limit or MAX_LISTED_GROUPS
        states = messages.wanted_states(request.states)
        pages: list[pb.ListGroupsResponse] = []
        wait_ms = left_ms(context, at_most_ms=LIST_CALL_MS)
        local = self._list_local(ListGroups(after=request.after_group_id, limit=limit, states=states), wait_ms)
        if request.is_local:
            pages.append(await local)
        else:
            places = {each.leader_id: each for each in self._coordinators.leaders if each is not None}
            places.pop(self._parts.node_id, None)
            asked = [self._list_at(places[node_id], request, limit, wait_ms) for node_id in sorted(places)]
            pages += await asyncio.gather(local, *asked)
        found = sorted((each for page in pages for each in page.groups), key=lambda each: each.group_id)
        missing = {node_id for page in pages for node_id in page.missing_coordinator_ids}
        if None in self._coordinators.leaders:
            missing.add(NO_BROKER)
        return pb.ListGroupsResponse(
            groups=found[:limit],
            has_more=len(found) > limit or any(page.has_more for page in pages),
            missing_coordinator_ids=sorted(missing),
        )

    async def _list_local(self, command: ListGroups, timeout_ms: int) -> pb.ListGroupsResponse:
        """List the groups of the partitions that this broker leads, as the metadata has it."""
        node_id = self._parts.node_id
        led = [
            number
            for number, place in enumerate(self._coordinators.leaders)
            if place is not None and place.leader_id == node_id
        ]

        async def list_one(partition: int) -> GroupList | None:
            try:
                outcome = await self._coordinators.submit_to(partition, command, timeout_ms=timeout_ms)
            except RefusedError:
                return None
            return _expect(outcome, GroupList)

        lists = await asyncio.gather(*map(list_one, led))
        groups: list[GroupListing] = [each for found in lists if found is not None for each in found.groups]
        groups.sort(key=lambda each: each.group_id)
        merged = GroupList(
            groups=tuple(groups[: command.limit]),
            has_more=len(groups) > command.limit or any(found is not None and found.has_more for found in lists),
        )
        return pb.ListGroupsResponse(
            groups=messages.listed_messages(merged, coordinator_id=node_id),
            has_more=merged.has_more,
            missing_coordinator_ids=[node_id] if None in lists else [],
        )

    async def _list_at(
        self, place: LeaderPlace, request: pb.ListGroupsRequest, limit: int, timeout_ms: int
    ) -> pb.ListGroupsResponse:
        """List the groups of another broker; without an answer it is missing."""
        asked = pb.ListGroupsRequest(
            cluster_id=self._parts.cluster_id,
            after_group_id=request.after_group_id,
            limit=limit,
            states=request.states,
            is_local=True,
        )
        try:
            return await self._forwarder.call(
                place, LIST_METHOD, asked, pb.ListGroupsResponse, timeout_ms=timeout_ms, is_read_only=True
            )
        except RefusedError:
            return pb.ListGroupsResponse(missing_coordinator_ids=[place.leader_id])

    async def describe_group(
        self, request: pb.DescribeGroupRequest, context: ServicerContext
    ) -> pb.DescribeGroupResponse:
        """Serve DescribeGroup."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        check_group_id(request.group_id)
        command = DescribeGroup(group_id=request.group_id)
        found = _expect(await self._submit(request.group_id, command, 0, context), GroupDescription)
        response = messages.description_message(found, self.topic_name, coordinator_id=self._parts.node_id)
        if response.ByteSize() > MAX_GRPC_MESSAGE_BYTES - RESPONSE_MARGIN_BYTES:
            raise refused(ErrorCode.LIMIT_EXCEEDED, "the description is larger than one answer")
        return response

    async def delete_group(self, request: pb.DeleteGroupRequest, context: ServicerContext) -> pb.DeleteGroupResponse:
        """Serve DeleteGroup: part by part, until nothing is left."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        check_group_id(request.group_id)
        command = DeleteGroup(group_id=request.group_id)
        for _ in range(MAX_DELETION_STEPS):
            deletion = _expect(await self._submit(request.group_id, command, 0, context), GroupDeletion)
            if deletion.is_complete:
                return pb.DeleteGroupResponse()
        raise refused(ErrorCode.TIMED_OUT, "a part of the group is deleted: repeat the call")

    async def alter_offsets(self, request: pb.AlterOffsetsRequest, context: ServicerContext) -> pb.AlterOffsetsResponse:
        """Serve AlterOffsets."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        check_group_id(request.group_id)
        command = AlterOffsets(group_id=request.group_id, offsets=messages.offsets_to_commit(request.offsets))
        results = _expect(await self._submit(request.group_id, command, request.ByteSize(), context), OffsetResults)
        return pb.AlterOffsetsResponse(outcomes=messages.outcome_messages(results.results))

    async def delete_offsets(
        self, request: pb.DeleteOffsetsRequest, context: ServicerContext
    ) -> pb.DeleteOffsetsResponse:
        """Serve DeleteOffsets."""
        check_cluster(request.cluster_id, self._parts.cluster_id)
        check_group_id(request.group_id)
        command = DeleteOffsets(group_id=request.group_id, partitions=messages.partition_list(request.topics))
        results = _expect(await self._submit(request.group_id, command, request.ByteSize(), context), OffsetResults)
        return pb.DeleteOffsetsResponse(outcomes=messages.outcome_messages(results.results))

    async def _submit(self, group_id: str, command: Command, size_bytes: int, context: CallContext) -> Outcome:
        timeout_ms = left_ms(context, at_most_ms=GROUP_CALL_MS)
        return await self._coordinators.submit(group_id, command, size_bytes=size_bytes, timeout_ms=timeout_ms)


def check_group_id(group_id: str) -> None:
    """Refuse what is no group id.

    Raises:
        RefusedError: INVALID_REQUEST.
    """
    size_bytes = len(group_id.encode())
    if not 1 <= size_bytes <= MAX_ID_BYTES:
        raise refused(ErrorCode.INVALID_REQUEST, f"a group id has 1 to {MAX_ID_BYTES} bytes, this one has {size_bytes}")


def client_host(peer: str) -> str:
    """Return the address in the name that gRPC gives to a peer, such as `ipv4:127.0.0.1:9640`."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0]
    return host.strip("[]")[:MAX_ID_BYTES]


def _expect(outcome: Outcome, kind: type[OutcomeT]) -> OutcomeT:
    """Return the outcome of a kind, or raise what the core has refused."""
    messages.raise_refusal(outcome)
    if not isinstance(outcome, kind):
        raise messages.unexpected(outcome)
    return outcome
