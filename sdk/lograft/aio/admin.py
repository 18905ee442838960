# SPDX-License-Identifier: Apache-2.0
"""The asyncio admin client; see `_admin.calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from lograft._admin.calls import AdminCalls
from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft.errors import ClientClosedError, ForkedClientError
from lograft.settings import CONNECTION_LIVENESS_MS, REQUEST_TIMEOUT_MS, check_range, parse_bootstrap
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


class Admin:
    """Creates, changes, lists, describes and deletes topics; describes and changes the cluster; see `lograft.Admin`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
    ) -> None:
        check_range("request_timeout_ms", request_timeout_ms, 1, 3_600_000)
        self._client = parse_bootstrap(bootstrap, cluster_id, connection_liveness_ms=connection_liveness_ms)
        self._timeout_ms = request_timeout_ms
        self._calls: AdminCalls | None = None
        self._is_closed = False
        self._is_forked = False
        on_fork(self)

    async def create_topic(
        self,
        topic: str,
        *,
        partition_count: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create a topic; see `lograft.Admin.create_topic`."""
        return await self._start().create_topic(
            topic,
            partition_count=partition_count,
            replication_factor=replication_factor,
            configs=configs,
            validate_only=validate_only,
        )

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Create many topics; see `lograft.Admin.create_topics`."""
        return await self._start().create_topics(topics, validate_only=validate_only)

    async def create_partitions(
        self, topic: str, partition_count: int, *, validate_only: bool = False
    ) -> TopicDescription:
        """Add partitions to a topic; see `lograft.Admin.create_partitions`."""
        return await self._start().create_partitions(topic, partition_count, validate_only=validate_only)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its records."""
        await self._start().delete_topic(topic)

    async def list_topics(self) -> list[TopicSummary]:
        """List all topics by name."""
        return await self._start().list_topics()

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic with its partitions and configs."""
        return await self._start().describe_topic(topic)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> None:
        """Change configs; see `lograft.Admin.alter_configs`."""
        await self._start().alter_configs(changes, validate_only=validate_only)

    async def describe_configs(
        self, resources: Sequence[ConfigResource], *, broker_id: int | None = None
    ) -> dict[ConfigResource, dict[str, ConfigValue]]:
        """Describe configs; see `lograft.Admin.describe_configs`."""
        return await self._start().describe_configs(resources, broker_id=broker_id)

    async def describe_feature_level(self) -> FeatureLevelDescription:
        """Describe the feature level; see `lograft.Admin.describe_feature_level`."""
        return await self._start().describe_feature_level()

    async def update_feature_level(self, level: int, *, validate_only: bool = False) -> None:
        """Raise the feature level; see `lograft.Admin.update_feature_level`."""
        await self._start().update_feature_level(level, validate_only=validate_only)

    async def describe_quorum(self) -> QuorumDescription:
        """Describe the metadata quorum."""
        return await self._start().describe_quorum()

    async def add_voter(self, node_id: int, *, directory_id: bytes | None = None) -> bytes:
        """Make a voter of an observer of the metadata quorum. See `lograft.Admin.add_voter`."""
        return await self._start().add_voter(node_id, directory_id)

    async def remove_voter(self, node_id: int, *, directory_id: bytes | None = None) -> bytes:
        """Make an observer of a voter of the metadata quorum. See `lograft.Admin.remove_voter`."""
        return await self._start().remove_voter(node_id, directory_id)

    async def replace_voter(self, node_id: int) -> bytes:
        """Replace a voter whose disk was lost. See `lograft.Admin.replace_voter`."""
        return await self._start().replace_voter(node_id)

    async def transfer_leadership(self, node_id: int | None = None) -> int:
        """Have the leader of the metadata quorum hand over. See `lograft.Admin.transfer_leadership`."""
        return await self._start().transfer_leadership(node_id)

    async def describe_brokers(self, broker_ids: Sequence[int] | None = None) -> list[BrokerStatus]:
        """Describe brokers as the active controller knows them; see `lograft.Admin.describe_brokers`."""
        return await self._start().describe_brokers(broker_ids)

    async def remove_broker(self, broker_id: int, *, validate_only: bool = False) -> None:
        """End the registration of a broker; see `lograft.Admin.remove_broker`."""
        await self._start().remove_broker(broker_id, validate_only=validate_only)

    async def export_metadata(self) -> list[str]:
        """Export the whole metadata as of one offset; see `lograft.Admin.export_metadata`."""
        return await self._start().export_metadata()

    async def elect_leaders(
        self,
        partitions: Sequence[TopicPartition | str],
        *,
        election: ElectionType = ElectionType.PREFERRED,
        validate_only: bool = False,
    ) -> list[ElectedLeader]:
        """Elect leaders of partitions; see `lograft.Admin.elect_leaders`."""
        return await self._start().elect_leaders(partitions, election=election, validate_only=validate_only)

    async def alter_partition_reassignments(
        self, changes: Mapping[TopicPartition, Sequence[int] | None], *, validate_only: bool = False
    ) -> list[PartitionReassignment]:
        """Give partitions other replicas; see `lograft.Admin.alter_partition_reassignments`."""
        return await self._start().alter_partition_reassignments(changes, validate_only=validate_only)

    async def list_partition_reassignments(self, topics: Sequence[str] | None = None) -> list[PartitionReassignment]:
        """List the reassignments that are under way; see `lograft.Admin.list_partition_reassignments`."""
        return await self._start().list_partition_reassignments(topics)

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the brokers and the active controller."""
        return await self._start().describe_cluster()

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """Look up offsets by position or time."""
        return await self._start().list_offsets(queries)

    async def delete_records(self, before: Mapping[TopicPartition, int | None]) -> list[DeletedRecords]:
        """Remove all records below an offset, for good, in each of some partitions; None: all readable records."""
        return await self._start().delete_records(before)

    async def describe_log_directories(
        self, broker_id: int | None = None, *, with_replicas: bool = False
    ) -> LogDirectories:
        """Describe the log directories of one broker, and the moves between them. See `lograft.Admin`."""
        return await self._start().describe_log_directories(broker_id, with_replicas=with_replicas)

    async def move_replica(self, where: TopicPartition, directory_id: bytes, broker_id: int | None = None) -> None:
        """Begin to move a replica to another log directory of its broker. See `lograft.Admin.move_replica`."""
        await self._start().move_replica(TopicPartition(*where), directory_id, broker_id)

    async def delete_unknown_partitions(self, broker_id: int | None = None) -> UnknownPartitions:
        """Delete, for good, what one broker has set aside because the cluster does not know it. See `lograft.Admin`."""
        return await self._start().delete_unknown_partitions(broker_id)

    async def close(self) -> None:
        """Let the connections go. Further calls do nothing."""
        self._is_closed = True
        calls, self._calls = self._calls, None
        if calls is not None:
            await calls.close()

    def after_fork(self) -> None:
        """Called in a forked child: refuse to work from now on."""
        self._is_forked = True
        keep_for_ever(self._calls)
        self._calls = None

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self) -> AdminCalls:
        if self._is_forked:
            raise ForkedClientError("this admin client was made before a fork; make a new one in the child")
        if self._is_closed:
            raise ClientClosedError("the admin client is closed")
        if self._calls is None:
            self._calls = AdminCalls(self._client, self._timeout_ms)
        return self._calls
