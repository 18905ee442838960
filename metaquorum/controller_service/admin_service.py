# SPDX-License-Identifier: Apache-2.0
"""Admin operations of the active controller: topics, configs, the state of the quorum and changes of it.

Owns requests to commands and images to answers. Only the active controller answers; others refuse with NOT_CONTROLLER
and a hint at the leader. Changes are answered when they are committed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    PartitionsCreated,
    RemoveBroker,
    TopicCreated,
    TopicDeleted,
    UpdateFeatureLevel,
)
from metaquorum.controller_service import (
    broker_calls,
    codec,
    config_calls,
    election_calls,
    reassignment_calls,
    topic_answers,
    voter_calls,
)
from metaquorum.controller_service.calls import MAX_WAIT_MS, check_cluster, not_started, refusal, refusing
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.controller_service.metadata_export import MetadataExports
from metaquorum.controller_service.topic_creations import create_topics
from metaquorum.net.link import Stream
from metaquorum.net.methods import Method
from metaquorum.net.service import ServiceTable
from metaquorum.replica.quorum_node import QuorumNode

_Read = (
    admin_pb2.ListTopicsRequest
    | admin_pb2.DescribeTopicRequest
    | admin_pb2.DescribeConfigsRequest
    | admin_pb2.ListPartitionReassignmentsRequest
    | admin_pb2.DescribeBrokersRequest
)
"""Requests that may ask for a metadata offset."""

REQUEST_WINDOW_BYTES: Final = 64 * 1024
"""Bytes that whoever exports the metadata may send ahead; it sends nothing."""


def random_id() -> bytes:
    """Return 16 random bytes."""
    return secrets.token_bytes(16)


class AdminOperations:
    """What `lograft.v1.AdminService` asks of the active controller, without a transport: a request, milliseconds, a response.

    Each raises `CommandError` for a refusal.

    Args:
        host: controller of this node.
        node: quorum node of this node.
        exports: makes exports of the metadata.
        new_id: source of topic ids.
    """

    def __init__(
        self,
        host: ControllerHost,
        node: QuorumNode,
        exports: MetadataExports,
        *,
        new_id: Callable[[], bytes] = random_id,
    ) -> None:
        self._exports = exports
        self._host = host
        self._node = node
        self._new_id = new_id

    async def answer(self, method: str, request: Message, timeout_ms: int) -> Message:
        """Carry out a method of `REQUEST_TYPES`.

        Raises:
            CommandError: what the controller refuses.
        """
        if method in _OF_BROKERS:
            raise CommandError(
                ErrorCode.INVALID_REQUEST, "log directories belong to a broker: ask it at its own address"
            )
        carry_out: Callable[[Message, int], Awaitable[Message]] = getattr(self, _snake_case(method))
        return await carry_out(request, timeout_ms)

    async def create_topic(
        self, request: admin_pb2.CreateTopicRequest, timeout_ms: int
    ) -> admin_pb2.CreateTopicResponse:
        """Create a topic, or check whether it could be."""
        self._check(request.cluster_id)
        command = CreateTopic(
            topic=request.topic,
            topic_id=self._new_id(),
            partition_count=request.partition_count,
            replication_factor=request.replication_factor,
            configs=dict(request.configs),
            validate_only=request.validate_only,
            placement_seed=secrets.randbits(64),
        )
        outcome = await self._host.submit(command, timeout_ms=timeout_ms)
        response = outcome.response
        assert isinstance(response, TopicCreated), f"unexpected {response}"
        return admin_pb2.CreateTopicResponse(
            topic=codec.to_topic(response.topic, response.topic_id, response.partitions),
            metadata_offset=0 if request.validate_only else outcome.metadata_offset,
            configs=response.configs,
        )

    async def create_topics(
        self, request: admin_pb2.CreateTopicsRequest, timeout_ms: int
    ) -> admin_pb2.CreateTopicsResponse:
        """Create many topics, or check whether they could be."""
        self._check(request.cluster_id)
        return await create_topics(self._host, request, new_id=self._new_id, timeout_ms=timeout_ms)

    async def create_partitions(
        self, request: admin_pb2.CreatePartitionsRequest, timeout_ms: int
    ) -> admin_pb2.CreatePartitionsResponse:
        """Add partitions to a topic, or check whether they could be added."""
        self._check(request.cluster_id)
        command = CreatePartitions(
            topic=request.topic,
            partition_count=request.partition_count,
            validate_only=request.validate_only,
            placement_seed=secrets.randbits(64),
        )
        outcome = await self._host.submit(command, timeout_ms=timeout_ms)
        response = outcome.response
        assert isinstance(response, PartitionsCreated), f"unexpected {response}"
        return admin_pb2.CreatePartitionsResponse(
            topic=codec.to_topic(response.topic, response.topic_id, response.partitions),
            metadata_offset=0 if request.validate_only else outcome.metadata_offset,
        )

    async def delete_topic(
        self, request: admin_pb2.DeleteTopicRequest, timeout_ms: int
    ) -> admin_pb2.DeleteTopicResponse:
        """Delete a topic."""
        self._check(request.cluster_id)
        outcome = await self._host.submit(DeleteTopic(topic=request.topic), timeout_ms=timeout_ms)
        response = outcome.response
        assert isinstance(response, TopicDeleted), f"unexpected {response}"
        return admin_pb2.DeleteTopicResponse(topic_id=response.topic_id, metadata_offset=outcome.metadata_offset)

    async def list_topics(self, request: admin_pb2.ListTopicsRequest, timeout_ms: int) -> admin_pb2.ListTopicsResponse:
        """List a page of topics."""
        self._check(request.cluster_id)
        await self._catch_up(request, timeout_ms)
        return topic_answers.list_topics(self._host.image, request)

    async def describe_topic(
        self, request: admin_pb2.DescribeTopicRequest, timeout_ms: int
    ) -> admin_pb2.DescribeTopicResponse:
        """Describe a topic with all its configs."""
        self._check(request.cluster_id)
        await self._catch_up(request, timeout_ms)
        return topic_answers.describe_topic(self._host.image, request)

    async def alter_configs(
        self, request: admin_pb2.AlterConfigsRequest, timeout_ms: int
    ) -> admin_pb2.AlterConfigsResponse:
        """Change configs, or check whether they could be changed."""
        self._check(request.cluster_id)
        outcome = await self._host.submit(config_calls.alter_command(request), timeout_ms=timeout_ms)
        return admin_pb2.AlterConfigsResponse(metadata_offset=0 if request.validate_only else outcome.metadata_offset)

    async def describe_configs(
        self, request: admin_pb2.DescribeConfigsRequest, timeout_ms: int
    ) -> admin_pb2.DescribeConfigsResponse:
        """Describe the configs of topics, brokers and the cluster."""
        self._check(request.cluster_id)
        await self._catch_up(request, timeout_ms)
        return config_calls.describe_answer(request, self._host.image)

    async def describe_feature_level(
        self, request: admin_pb2.DescribeFeatureLevelRequest, timeout_ms: int
    ) -> admin_pb2.DescribeFeatureLevelResponse:
        """Describe the feature level and who can run at which."""
        self._check(request.cluster_id)
        return codec.to_feature_level(self._host.image, controller_max_level=self._host.settings.max_feature_level)

    async def update_feature_level(
        self, request: admin_pb2.UpdateFeatureLevelRequest, timeout_ms: int
    ) -> admin_pb2.UpdateFeatureLevelResponse:
        """Raise the feature level, or check whether it could be raised."""
        self._check(request.cluster_id)
        voters = voter_calls.voter_levels(self._node)
        command = UpdateFeatureLevel(level=request.level, validate_only=request.validate_only, voters=voters)
        outcome = await self._host.submit(command, timeout_ms=timeout_ms)
        return admin_pb2.UpdateFeatureLevelResponse(
            metadata_offset=0 if request.validate_only else outcome.metadata_offset
        )

    async def describe_quorum(
        self, request: admin_pb2.DescribeQuorumRequest, timeout_ms: int
    ) -> admin_pb2.DescribeQuorumResponse:
        """Describe the quorum as its leader sees it."""
        self._check(request.cluster_id)
        node = self._node
        return codec.to_quorum(
            node.status(),
            cluster_id=node.cluster_id,
            log_start_offset=node.log_start_offset,
            snapshot=max(node.kept_snapshots, key=lambda each: each.end_offset, default=None),
        )

    async def add_voter(self, request: admin_pb2.AddVoterRequest, timeout_ms: int) -> admin_pb2.AddVoterResponse:
        """Make a voter of an observer."""
        self._check(request.cluster_id)
        return await voter_calls.add_voter(
            self._node, request, level=self._host.appended_level(), timeout_ms=timeout_ms
        )

    async def remove_voter(
        self, request: admin_pb2.RemoveVoterRequest, timeout_ms: int
    ) -> admin_pb2.RemoveVoterResponse:
        """Make an observer of a voter."""
        self._check(request.cluster_id)
        return await voter_calls.remove_voter(
            self._node, request, level=self._host.appended_level(), timeout_ms=timeout_ms
        )

    async def transfer_leadership(
        self, request: admin_pb2.TransferLeadershipRequest, timeout_ms: int
    ) -> admin_pb2.TransferLeadershipResponse:
        """Hand the leadership over."""
        self._check(request.cluster_id)
        return await voter_calls.transfer_leadership(self._node, request, timeout_ms=timeout_ms)

    async def elect_leaders(
        self, request: admin_pb2.ElectLeadersRequest, timeout_ms: int
    ) -> admin_pb2.ElectLeadersResponse:
        """Elect leaders of partitions, or check whether they could be elected."""
        self._check(request.cluster_id)
        outcome = await self._host.submit(election_calls.command(request), timeout_ms=timeout_ms)
        return election_calls.answer(request, outcome)

    async def alter_partition_reassignments(
        self, request: admin_pb2.AlterPartitionReassignmentsRequest, timeout_ms: int
    ) -> admin_pb2.AlterPartitionReassignmentsResponse:
        """Begin, change or cancel reassignments, or check whether that could be done."""
        self._check(request.cluster_id)
        outcome = await self._host.submit(reassignment_calls.command(request), timeout_ms=timeout_ms)
        return reassignment_calls.answer(request, outcome)

    async def list_partition_reassignments(
        self, request: admin_pb2.ListPartitionReassignmentsRequest, timeout_ms: int
    ) -> admin_pb2.ListPartitionReassignmentsResponse:
        """List a page of the reassignments that are under way."""
        self._check(request.cluster_id)
        await self._catch_up(request, timeout_ms)
        return reassignment_calls.list_answer(request, self._host.image)

    async def describe_brokers(
        self, request: admin_pb2.DescribeBrokersRequest, timeout_ms: int
    ) -> admin_pb2.DescribeBrokersResponse:
        """Describe a page of brokers."""
        self._check(request.cluster_id)
        await self._catch_up(request, timeout_ms)
        return broker_calls.describe_answer(request, self._host)

    async def remove_broker(
        self, request: admin_pb2.RemoveBrokerRequest, timeout_ms: int
    ) -> admin_pb2.RemoveBrokerResponse:
        """End the registration of a broker, or check whether it could be ended."""
        self._check(request.cluster_id)
        command = RemoveBroker(broker_id=request.broker_id, validate_only=request.validate_only)
        outcome = await self._host.submit(command, timeout_ms=timeout_ms)
        return admin_pb2.RemoveBrokerResponse(metadata_offset=0 if request.validate_only else outcome.metadata_offset)

    async def export_metadata(
        self, request: admin_pb2.ExportMetadataRequest, timeout_ms: int
    ) -> AsyncGenerator[admin_pb2.ExportMetadataResponse]:
        """Export the metadata as of now."""
        self._check(request.cluster_id)
        await self._host.wait_for_everything(timeout_ms=timeout_ms)
        async with aclosing(self._exports.pieces()) as pieces:
            async for lines in pieces:
                yield admin_pb2.ExportMetadataResponse(lines=lines)

    async def _catch_up(self, request: _Read, timeout_ms: int) -> None:
        """Wait until the image may be shown: it has all that is committed, and what the caller asks for."""
        await self._host.wait_for_everything(timeout_ms=timeout_ms)
        if request.HasField("min_metadata_offset"):
            await self._host.wait_for_offset(request.min_metadata_offset, timeout_ms=timeout_ms)

    def _check(self, cluster_id: str) -> None:
        check_cluster(cluster_id, self._node.cluster_id, required=False)
        self._host.require_active()


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


_OF_BROKERS: Final = ("DescribeLogDirectories", "DeleteUnknownPartitions", "MoveReplica")
"""Methods about the log directories of one broker: the controller says so, and carries none of them out."""

_STREAMS: Final = ("ExportMetadata",)

REQUEST_TYPES: Final[dict[str, type[Message]]] = {
    method.name: getattr(admin_pb2, f"{method.name}Request")
    for method in admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods
    if method.name not in _STREAMS
}
"""Message of each method that has one answer."""


class AdminService:
    """The operations, for other servers.

    Args:
        table: where it is added.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._operations: AdminOperations | None = None
        table.add_waiting(Method.ADMIN, pb.AdminCall, refusing(self._answer))
        table.add_stream(
            Method.EXPORT_METADATA, admin_pb2.ExportMetadataRequest, self._export, window_bytes=REQUEST_WINDOW_BYTES
        )

    def attach(self, operations: AdminOperations) -> None:
        """From here on they are carried out."""
        self._operations = operations

    def detach(self) -> None:
        """From here on every request is refused."""
        self._operations = None

    async def _answer(self, request: pb.AdminCall, timeout_ms: int) -> pb.AdminAnswer:
        request_type = REQUEST_TYPES.get(request.method)
        if request_type is None:
            raise CommandError(ErrorCode.INVALID_REQUEST, f"the controller has no method {request.method[:100]!r}")
        try:
            message = request_type.FromString(request.request)
        except DecodeError as error:
            raise CommandError(
                ErrorCode.INVALID_REQUEST, f"the request is not a valid {request.method}Request"
            ) from error
        response = await self._attached().answer(request.method, message, timeout_ms)
        return pb.AdminAnswer(response=response.SerializeToString())

    async def _export(self, request: admin_pb2.ExportMetadataRequest, stream: Stream) -> None:
        try:
            async with aclosing(self._attached().export_metadata(request, MAX_WAIT_MS)) as messages:
                async for message in messages:
                    await stream.write(message.SerializeToString())
        except CommandError as error:
            raise refusal(error) from error

    def _attached(self) -> AdminOperations:
        if self._operations is None:
            raise not_started()
        return self._operations
