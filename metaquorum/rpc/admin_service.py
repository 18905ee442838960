# SPDX-License-Identifier: Apache-2.0
"""`lograft.v1.AdminService` on the quorum listener: topics, configs, the state of the quorum and changes of it.

Owns requests to commands and images to answers. Only the active controller answers; others refuse with NOT_CONTROLLER
and a hint at the leader's quorum listener. Changes are answering when they are committed.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from lograft.v1 import admin_pb2, admin_pb2_grpc
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
from metaquorum.rpc import (
    broker_calls,
    codec,
    config_calls,
    election_calls,
    reassignment_calls,
    topic_answers,
    voter_calls,
)
from metaquorum.rpc.calls import Answering, ServicerContext, check_cluster, timeout_ms
from metaquorum.rpc.topic_creations import create_topics
from metaquorum.runtime.commit_waiters import CommandError
from metaquorum.runtime.controller_host import ControllerHost
from metaquorum.runtime.metadata_export import MetadataExports
from metaquorum.runtime.quorum_node import QuorumNode

_Read = (
    admin_pb2.ListTopicsRequest
    | admin_pb2.DescribeTopicRequest
    | admin_pb2.DescribeConfigsRequest
    | admin_pb2.ListPartitionReassignmentsRequest
    | admin_pb2.DescribeBrokersRequest
)
"""Requests that may ask for a metadata offset."""


def random_id() -> bytes:
    """Return 16 random bytes."""
    return secrets.token_bytes(16)


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """The service.

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

    async def CreateTopic(
        self, request: admin_pb2.CreateTopicRequest, context: ServicerContext
    ) -> admin_pb2.CreateTopicResponse:
        """Create a topic, or check whether it could be."""
        async with Answering(context):
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
            outcome = await self._host.submit(command, timeout_ms=timeout_ms(context))
            response = outcome.response
            assert isinstance(response, TopicCreated), f"unexpected {response}"
            return admin_pb2.CreateTopicResponse(
                topic=codec.to_topic(response.topic, response.topic_id, response.partitions),
                metadata_offset=0 if request.validate_only else outcome.metadata_offset,
                configs=response.configs,
            )

    async def CreateTopics(
        self, request: admin_pb2.CreateTopicsRequest, context: ServicerContext
    ) -> admin_pb2.CreateTopicsResponse:
        """Create many topics, or check whether they could be."""
        async with Answering(context):
            self._check(request.cluster_id)
            return await create_topics(self._host, request, new_id=self._new_id, timeout_ms=timeout_ms(context))

    async def CreatePartitions(
        self, request: admin_pb2.CreatePartitionsRequest, context: ServicerContext
    ) -> admin_pb2.CreatePartitionsResponse:
        """Add partitions to a topic, or check whether they could be added."""
        async with Answering(context):
            self._check(request.cluster_id)
            command = CreatePartitions(
                topic=request.topic,
                partition_count=request.partition_count,
                validate_only=request.validate_only,
                placement_seed=secrets.randbits(64),
            )
            outcome = await self._host.submit(command, timeout_ms=timeout_ms(context))
            response = outcome.response
            assert isinstance(response, PartitionsCreated), f"unexpected {response}"
            return admin_pb2.CreatePartitionsResponse(
                topic=codec.to_topic(response.topic, response.topic_id, response.partitions),
                metadata_offset=0 if request.validate_only else outcome.metadata_offset,
            )

    async def DeleteTopic(
        self, request: admin_pb2.DeleteTopicRequest, context: ServicerContext
    ) -> admin_pb2.DeleteTopicResponse:
        """Delete a topic."""
        async with Answering(context):
            self._check(request.cluster_id)
            outcome = await self._host.submit(DeleteTopic(topic=request.topic), timeout_ms=timeout_ms(context))
            response = outcome.response
            assert isinstance(response, TopicDeleted), f"unexpected {response}"
            return admin_pb2.DeleteTopicResponse(topic_id=response.topic_id, metadata_offset=outcome.metadata_offset)

    async def ListTopics(
        self, request: admin_pb2.ListTopicsRequest, context: ServicerContext
    ) -> admin_pb2.ListTopicsResponse:
        """List a page of topics."""
        async with Answering(context):
            self._check(request.cluster_id)
            await self._catch_up(request, context)
            return topic_answers.list_topics(self._host.image, request)

    async def DescribeTopic(
        self, request: admin_pb2.DescribeTopicRequest, context: ServicerContext
    ) -> admin_pb2.DescribeTopicResponse:
        """Describe a topic with all its configs."""
        async with Answering(context):
            self._check(request.cluster_id)
            await self._catch_up(request, context)
            return topic_answers.describe_topic(self._host.image, request)

    async def AlterConfigs(
        self, request: admin_pb2.AlterConfigsRequest, context: ServicerContext
    ) -> admin_pb2.AlterConfigsResponse:
        """Change configs, or check whether they could be changed."""
        async with Answering(context):
            self._check(request.cluster_id)
            outcome = await self._host.submit(config_calls.alter_command(request), timeout_ms=timeout_ms(context))
            return admin_pb2.AlterConfigsResponse(
                metadata_offset=0 if request.validate_only else outcome.metadata_offset
            )

    async def DescribeConfigs(
        self, request: admin_pb2.DescribeConfigsRequest, context: ServicerContext
    ) -> admin_pb2.DescribeConfigsResponse:
        """Describe the configs of topics, brokers and the cluster."""
        async with Answering(context):
            self._check(request.cluster_id)
            await self._catch_up(request, context)
            return config_calls.describe_answer(request, self._host.image)

    async def DescribeFeatureLevel(
        self, request: admin_pb2.DescribeFeatureLevelRequest, context: ServicerContext
    ) -> admin_pb2.DescribeFeatureLevelResponse:
        """Describe the feature level and who can run at which."""
        async with Answering(context):
            self._check(request.cluster_id)
            return codec.to_feature_level(self._host.image, controller_max_level=self._host.settings.max_feature_level)

    async def UpdateFeatureLevel(
        self, request: admin_pb2.UpdateFeatureLevelRequest, context: ServicerContext
    ) -> admin_pb2.UpdateFeatureLevelResponse:
        """Raise the feature level, or check whether it could be raised."""
        async with Answering(context):
            self._check(request.cluster_id)
            voters = voter_calls.voter_levels(self._node)
            command = UpdateFeatureLevel(level=request.level, validate_only=request.validate_only, voters=voters)
            outcome = await self._host.submit(command, timeout_ms=timeout_ms(context))
            return admin_pb2.UpdateFeatureLevelResponse(
                metadata_offset=0 if request.validate_only else outcome.metadata_offset
            )

    async def DescribeQuorum(
        self, request: admin_pb2.DescribeQuorumRequest, context: ServicerContext
    ) -> admin_pb2.DescribeQuorumResponse:
        """Describe the quorum as its leader sees it."""
        async with Answering(context):
            self._check(request.cluster_id)
            node = self._node
            return codec.to_quorum(
                node.status(),
                cluster_id=node.cluster_id,
                log_start_offset=node.log_start_offset,
                snapshot=max(node.kept_snapshots, key=lambda each: each.end_offset, default=None),
            )

    async def AddVoter(
        self, request: admin_pb2.AddVoterRequest, context: ServicerContext
    ) -> admin_pb2.AddVoterResponse:
        """Make a voter of an observer."""
        async with Answering(context):
            self._check(request.cluster_id)
            return await voter_calls.add_voter(
                self._node, request, level=self._host.appended_level(), timeout_ms=timeout_ms(context)
            )

    async def RemoveVoter(
        self, request: admin_pb2.RemoveVoterRequest, context: ServicerContext
    ) -> admin_pb2.RemoveVoterResponse:
        """Make an observer of a voter."""
        async with Answering(context):
            self._check(request.cluster_id)
            return await voter_calls.remove_voter(
                self._node, request, level=self._host.appended_level(), timeout_ms=timeout_ms(context)
            )

    async def TransferLeadership(
        self, request: admin_pb2.TransferLeadershipRequest, context: ServicerContext
    ) -> admin_pb2.TransferLeadershipResponse:
        """Hand the leadership over."""
        async with Answering(context):
            self._check(request.cluster_id)
            return await voter_calls.transfer_leadership(self._node, request, timeout_ms=timeout_ms(context))

    async def ElectLeaders(
        self, request: admin_pb2.ElectLeadersRequest, context: ServicerContext
    ) -> admin_pb2.ElectLeadersResponse:
        """Elect leaders of partitions, or check whether they could be elected."""
        async with Answering(context):
            self._check(request.cluster_id)
            outcome = await self._host.submit(election_calls.command(request), timeout_ms=timeout_ms(context))
            return election_calls.answer(request, outcome)

    async def AlterPartitionReassignments(
        self, request: admin_pb2.AlterPartitionReassignmentsRequest, context: ServicerContext
    ) -> admin_pb2.AlterPartitionReassignmentsResponse:
        """Begin, change or cancel reassignments, or check whether that could be done."""
        async with Answering(context):
            self._check(request.cluster_id)
            outcome = await self._host.submit(reassignment_calls.command(request), timeout_ms=timeout_ms(context))
            return reassignment_calls.answer(request, outcome)

    async def ListPartitionReassignments(
        self, request: admin_pb2.ListPartitionReassignmentsRequest, context: ServicerContext
    ) -> admin_pb2.ListPartitionReassignmentsResponse:
        """List a page of the reassignments that are under way."""
        async with Answering(context):
            self._check(request.cluster_id)
            await self._catch_up(request, context)
            return reassignment_calls.list_answer(request, self._host.image)

    async def DescribeBrokers(
        self, request: admin_pb2.DescribeBrokersRequest, context: ServicerContext
    ) -> admin_pb2.DescribeBrokersResponse:
        """Describe a page of brokers."""
        async with Answering(context):
            self._check(request.cluster_id)
            await self._catch_up(request, context)
            return broker_calls.describe_answer(request, self._host)

    async def RemoveBroker(
        self, request: admin_pb2.RemoveBrokerRequest, context: ServicerContext
    ) -> admin_pb2.RemoveBrokerResponse:
        """End the registration of a broker, or check whether it could be ended."""
        async with Answering(context):
            self._check(request.cluster_id)
            command = RemoveBroker(broker_id=request.broker_id, validate_only=request.validate_only)
            outcome = await self._host.submit(command, timeout_ms=timeout_ms(context))
            return admin_pb2.RemoveBrokerResponse(
                metadata_offset=0 if request.validate_only else outcome.metadata_offset
            )

    async def ExportMetadata(
        self, request: admin_pb2.ExportMetadataRequest, context: ServicerContext
    ) -> AsyncIterator[admin_pb2.ExportMetadataResponse]:
        """Export the metadata as of now."""
        async with Answering(context):
            self._check(request.cluster_id)
            await self._host.wait_for_everything(timeout_ms=timeout_ms(context))
            async with aclosing(self._exports.pieces()) as pieces:
                async for lines in pieces:
                    yield admin_pb2.ExportMetadataResponse(lines=lines)

    async def DescribeLogDirectories(
        self, request: admin_pb2.DescribeLogDirectoriesRequest, context: ServicerContext
    ) -> admin_pb2.DescribeLogDirectoriesResponse:
        """Refuse: log directories belong to a broker."""
        async with Answering(context):
            raise _only_a_broker()

    async def MoveReplica(
        self, request: admin_pb2.MoveReplicaRequest, context: ServicerContext
    ) -> admin_pb2.MoveReplicaResponse:
        """Refuse: replicas belong to a broker."""
        async with Answering(context):
            raise _only_a_broker()

    async def DeleteUnknownPartitions(
        self, request: admin_pb2.DeleteUnknownPartitionsRequest, context: ServicerContext
    ) -> admin_pb2.DeleteUnknownPartitionsResponse:
        """Refuse: log directories belong to a broker."""
        async with Answering(context):
            raise _only_a_broker()

    async def _catch_up(self, request: _Read, context: ServicerContext) -> None:
        """Wait until the image may be shown: it has all that is committed, and what the caller asks for."""
        wait_ms = timeout_ms(context)
        await self._host.wait_for_everything(timeout_ms=wait_ms)
        if request.HasField("min_metadata_offset"):
            await self._host.wait_for_offset(request.min_metadata_offset, timeout_ms=wait_ms)

    def _check(self, cluster_id: str) -> None:
        check_cluster(cluster_id, self._node.cluster_id, required=False)
        self._host.require_active()


def _only_a_broker() -> CommandError:
    return CommandError(ErrorCode.INVALID_REQUEST, "log directories belong to a broker: ask it at its own address")
