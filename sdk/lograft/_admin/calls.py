# SPDX-License-Identifier: Apache-2.0
"""The calls of the admin clients.

Owns requests and answers of AdminService and of the metadata that goes with them. Must not hold state besides the
connection.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Final

from lograft._admin.brokers import describe_brokers, remove_broker
from lograft._admin.configs import alter_configs, describe_configs
from lograft._admin.delete_records import delete_records
from lograft._admin.log_directories import delete_unknown_partitions, describe_log_directories, move_replica
from lograft._admin.metadata_export import export_metadata
from lograft._admin.partitions import all_named, alter_reassignments, elect_leaders, list_reassignments
from lograft._admin.quorum import add_voter, remove_voter, replace_voter, transfer_leadership
from lograft._admin.topics import checked_count, checked_int32, create_topics, topic_name
from lograft._client.cluster import Attempt, Cluster
from lograft._client.codec import decode_quorum, decode_summary, decode_topic, describe_broker, describe_topic
from lograft._consumer.offsets import list_offsets
from lograft.errors import StaleMetadataWarning
from lograft.settings import ClientSettings
from lograft.types import (
    BrokerStatus,
    ClusterDescription,
    ConfigResource,
    ConfigValue,
    CreatedTopic,
    DeletedRecords,
    ElectedLeader,
    ElectionType,
    FeatureLevelDescription,
    LogDirectories,
    NewTopic,
    OffsetAnswer,
    OffsetQuery,
    PartitionReassignment,
    QuorumDescription,
    TopicDescription,
    TopicPartition,
    TopicSummary,
    UnknownPartitions,
)
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub

PAGE_TOPICS: Final = 1_000
"""Topics of one page of a list."""


class AdminCalls:
    """See the module docstring. Belongs to one event loop."""

    def __init__(self, client: ClientSettings, timeout_ms: int) -> None:
        self.cluster = Cluster(client)
        self._timeout_ms = timeout_ms

    async def create_topic(
        self,
        topic: str,
        *,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str] | None,
        validate_only: bool,
    ) -> TopicDescription:
        """Create a topic and wait until the answering broker shows it."""
        request = admin_pb2.CreateTopicRequest(
            cluster_id=self.cluster.cluster_id,
            topic=topic_name(topic),
            partition_count=checked_count("partition_count", partition_count),
            replication_factor=checked_count("replication_factor", replication_factor),
            configs={name: str(value) for name, value in (configs or {}).items()},
            validate_only=validate_only,
        )

        async def work(attempt: Attempt) -> admin_pb2.CreateTopicResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).CreateTopic(request, timeout=attempt.timeout_s)
            )

        response = await self.cluster.call(work, timeout_ms=self._timeout_ms, may_repeat=validate_only)
        if validate_only:
            return describe_topic(decode_topic(response.topic), dict(response.configs), frozenset(response.configs))
        return await self.describe_topic(topic, min_metadata_offset=response.metadata_offset)

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool) -> list[CreatedTopic]:
        """Create topics."""
        return await create_topics(self.cluster, topics, validate_only=validate_only, timeout_ms=self._timeout_ms)

    async def create_partitions(self, topic: str, partition_count: int, *, validate_only: bool) -> TopicDescription:
        """Add partitions to a topic and wait until the answering broker shows them."""
        request = admin_pb2.CreatePartitionsRequest(
            cluster_id=self.cluster.cluster_id,
            topic=topic_name(topic),
            partition_count=checked_int32("partition_count", partition_count),
            validate_only=validate_only,
        )

        async def work(attempt: Attempt) -> admin_pb2.CreatePartitionsResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).CreatePartitions(request, timeout=attempt.timeout_s)
            )

        response = await self.cluster.call(work, timeout_ms=self._timeout_ms, may_repeat=validate_only)
        if validate_only:
            return await self.describe_topic(topic)
        return await self.describe_topic(topic, min_metadata_offset=response.metadata_offset)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        request = admin_pb2.DeleteTopicRequest(cluster_id=self.cluster.cluster_id, topic=topic_name(topic))

        async def work(attempt: Attempt) -> admin_pb2.DeleteTopicResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).DeleteTopic(request, timeout=attempt.timeout_s)
            )

        response = await self.cluster.call(work, timeout_ms=self._timeout_ms, may_repeat=False)
        # Read your writes: wait until the broker that was asked shows it, too.
        await self.cluster.fetch(
            frozenset((topic,)), timeout_ms=self._timeout_ms, min_metadata_offset=response.metadata_offset
        )

    async def list_topics(self) -> list[TopicSummary]:
        """List all topics by name."""
        found: list[TopicSummary] = []
        token = ""
        while True:
            request = admin_pb2.ListTopicsRequest(
                cluster_id=self.cluster.cluster_id, page_size=PAGE_TOPICS, page_token=token
            )
            response = await self._list_page(request)
            _warn_without_leader(response.without_leader)
            found += map(decode_summary, response.topics)
            token = response.next_page_token
            if not token:
                return found

    async def _list_page(self, request: admin_pb2.ListTopicsRequest) -> admin_pb2.ListTopicsResponse:
        async def work(attempt: Attempt) -> admin_pb2.ListTopicsResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).ListTopics(request, timeout=attempt.timeout_s)
            )

        return await self.cluster.call(work, timeout_ms=self._timeout_ms)

    async def describe_topic(self, topic: str, *, min_metadata_offset: int | None = None) -> TopicDescription:
        """Describe a topic with its configs."""
        request = admin_pb2.DescribeTopicRequest(cluster_id=self.cluster.cluster_id, topic=topic_name(topic))
        if min_metadata_offset is not None:
            request.min_metadata_offset = min_metadata_offset

        async def work(attempt: Attempt) -> admin_pb2.DescribeTopicResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).DescribeTopic(request, timeout=attempt.timeout_s)
            )

        response = await self.cluster.call(work, timeout_ms=self._timeout_ms)
        _warn_without_leader(response.without_leader)
        configs = {entry.name: entry.value for entry in response.configs}
        overridden = frozenset(
            entry.name for entry in response.configs if entry.source == admin_pb2.CONFIG_SOURCE_TOPIC
        )
        return describe_topic(decode_topic(response.topic), configs, overridden)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool
    ) -> None:
        """Change configs."""
        await alter_configs(self.cluster, changes, validate_only=validate_only, timeout_ms=self._timeout_ms)

    async def describe_configs(
        self, resources: Sequence[ConfigResource], *, broker_id: int | None
    ) -> dict[ConfigResource, dict[str, ConfigValue]]:
        """Describe configs."""
        return await describe_configs(self.cluster, resources, broker_id=broker_id, timeout_ms=self._timeout_ms)

    async def describe_feature_level(self) -> FeatureLevelDescription:
        """Describe the feature level."""
        request = admin_pb2.DescribeFeatureLevelRequest(cluster_id=self.cluster.cluster_id)

        async def work(attempt: Attempt) -> admin_pb2.DescribeFeatureLevelResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).DescribeFeatureLevel(request, timeout=attempt.timeout_s)
            )

        response = await self.cluster.call(work, timeout_ms=self._timeout_ms)
        return FeatureLevelDescription(
            level=response.level,
            controller_max_level=response.controller_max_level,
            brokers={each.broker_id: (each.min_level, each.max_level) for each in response.brokers},
        )

    async def update_feature_level(self, level: int, *, validate_only: bool) -> None:
        """Raise the feature level."""
        request = admin_pb2.UpdateFeatureLevelRequest(
            cluster_id=self.cluster.cluster_id, level=checked_int32("level", level), validate_only=validate_only
        )

        async def work(attempt: Attempt) -> admin_pb2.UpdateFeatureLevelResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).UpdateFeatureLevel(request, timeout=attempt.timeout_s)
            )

        # Raising it twice is raising it once.
        await self.cluster.call(work, timeout_ms=self._timeout_ms)

    async def describe_quorum(self) -> QuorumDescription:
        """Describe the metadata quorum."""
        request = admin_pb2.DescribeQuorumRequest(cluster_id=self.cluster.cluster_id)

        async def work(attempt: Attempt) -> admin_pb2.DescribeQuorumResponse:
            return await attempt.answer(
                AdminServiceStub(attempt.channel).DescribeQuorum(request, timeout=attempt.timeout_s)
            )

        return decode_quorum(await self.cluster.call(work, timeout_ms=self._timeout_ms))

    async def add_voter(self, node_id: int, directory_id: bytes | None) -> bytes:
        """Make a voter of an observer."""
        return await add_voter(self.cluster, node_id, directory_id, timeout_ms=self._timeout_ms)

    async def remove_voter(self, node_id: int, directory_id: bytes | None) -> bytes:
        """Make an observer of a voter."""
        return await remove_voter(self.cluster, node_id, directory_id, timeout_ms=self._timeout_ms)

    async def replace_voter(self, node_id: int) -> bytes:
        """Put a voter's new replica in the place of the one whose disk was lost."""
        quorum = await self.describe_quorum()
        return await replace_voter(self.cluster, node_id, quorum, timeout_ms=self._timeout_ms)

    async def transfer_leadership(self, node_id: int | None) -> int:
        """Hand the leadership of the quorum over."""
        return await transfer_leadership(self.cluster, node_id, timeout_ms=self._timeout_ms)

    async def describe_brokers(self, broker_ids: Sequence[int] | None) -> list[BrokerStatus]:
        """Describe brokers."""
        return await describe_brokers(self.cluster, broker_ids, timeout_ms=self._timeout_ms)

    async def remove_broker(self, broker_id: int, *, validate_only: bool) -> None:
        """End the registration of a broker."""
        await remove_broker(self.cluster, broker_id, validate_only=validate_only, timeout_ms=self._timeout_ms)

    async def export_metadata(self) -> list[str]:
        """Export the metadata."""
        return await export_metadata(self.cluster, timeout_ms=self._timeout_ms)

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition | str], *, election: ElectionType, validate_only: bool
    ) -> list[ElectedLeader]:
        """Elect leaders."""
        named = await all_named(partitions, self.describe_topic)
        return await elect_leaders(
            self.cluster, named, election=election, validate_only=validate_only, timeout_ms=self._timeout_ms
        )

    async def alter_partition_reassignments(
        self, changes: Mapping[TopicPartition, Sequence[int] | None], *, validate_only: bool
    ) -> list[PartitionReassignment]:
        """Begin, change or cancel reassignments."""
        return await alter_reassignments(
            self.cluster, changes, validate_only=validate_only, timeout_ms=self._timeout_ms
        )

    async def list_partition_reassignments(self, topics: Sequence[str] | None) -> list[PartitionReassignment]:
        """List reassignments."""
        return await list_reassignments(self.cluster, topics, timeout_ms=self._timeout_ms)

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the brokers."""
        await self.cluster.fetch_brokers(timeout_ms=self._timeout_ms)
        view = self.cluster.view
        return ClusterDescription(
            cluster_id=view.cluster_id or "",
            controller_id=view.controller_id,
            brokers=tuple(map(describe_broker, view.brokers())),
            metadata_offset=view.metadata_offset,
        )

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """Look up offsets."""
        return await list_offsets(self.cluster, queries, timeout_ms=self._timeout_ms)

    async def delete_records(self, before: Mapping[TopicPartition, int | None]) -> list[DeletedRecords]:
        """Remove the oldest records."""
        return await delete_records(self.cluster, before, timeout_ms=self._timeout_ms)

    async def describe_log_directories(self, broker_id: int | None, *, with_replicas: bool) -> LogDirectories:
        """Describe the log directories of a broker."""
        return await describe_log_directories(
            self.cluster, broker_id, with_replicas=with_replicas, timeout_ms=self._timeout_ms
        )

    async def move_replica(self, where: TopicPartition, directory_id: bytes, broker_id: int | None) -> None:
        """Begin to move a replica."""
        await move_replica(self.cluster, where, directory_id, broker_id, timeout_ms=self._timeout_ms)

    async def delete_unknown_partitions(self, broker_id: int | None) -> UnknownPartitions:
        """Delete what a broker has set aside because the cluster does not know it."""
        return await delete_unknown_partitions(self.cluster, broker_id, timeout_ms=self._timeout_ms)

    async def close(self) -> None:
        """Let the connections go."""
        await self.cluster.close()


def _warn_without_leader(is_so: bool) -> None:
    if is_so:
        text = "the metadata quorum has no leader: a broker answered from its own image, which may be behind"
        warnings.warn(text, StaleMetadataWarning, stacklevel=2)
