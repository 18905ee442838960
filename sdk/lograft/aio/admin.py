# SPDX-License-Identifier: Apache-2.0
"""The asyncio admin client, which is also what the blocking one runs. `_admin` has the calls, by subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType

from lograft._admin.brokers import describe_brokers, describe_cluster, remove_broker
from lograft._admin.configs import alter_configs, describe_configs
from lograft._admin.delete_records import delete_records
from lograft._admin.features import describe_feature_level, update_feature_level
from lograft._admin.log_directories import delete_unknown_partitions, describe_log_directories, move_replica
from lograft._admin.metadata_export import export_metadata
from lograft._admin.partitions import all_named, alter_reassignments, elect_leaders, list_reassignments
from lograft._admin.quorum import add_voter, describe_quorum, remove_voter, replace_voter, transfer_leadership
from lograft._admin.topics import (
    create_partitions,
    create_topic,
    create_topics,
    delete_topic,
    describe_topic,
    list_topics,
)
from lograft._client.cluster import Cluster
from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.usable import unusable_error
from lograft._consumer.offsets import list_offsets
from lograft.settings import CONNECTION_LIVENESS_MS, REQUEST_TIMEOUT_MS, parse_bootstrap
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
        self._client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
        )
        self._timeout_ms = request_timeout_ms
        self._cluster: Cluster | None = None
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
        return await create_topic(
            self._start(),
            topic,
            partition_count=partition_count,
            replication_factor=replication_factor,
            configs=configs,
            validate_only=validate_only,
            timeout_ms=self._timeout_ms,
        )

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Create many topics; see `lograft.Admin.create_topics`."""
        return await create_topics(self._start(), topics, validate_only=validate_only, timeout_ms=self._timeout_ms)

    async def create_partitions(
        self, topic: str, partition_count: int, *, validate_only: bool = False
    ) -> TopicDescription:
        """Add partitions to a topic; see `lograft.Admin.create_partitions`."""
        return await create_partitions(
            self._start(), topic, partition_count, validate_only=validate_only, timeout_ms=self._timeout_ms
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its records."""
        await delete_topic(self._start(), topic, timeout_ms=self._timeout_ms)

    async def list_topics(self) -> list[TopicSummary]:
        """List all topics by name."""
        return await list_topics(self._start(), timeout_ms=self._timeout_ms)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic with its partitions and configs."""
        return await describe_topic(self._start(), topic, timeout_ms=self._timeout_ms)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> None:
        """Change configs; see `lograft.Admin.alter_configs`."""
        await alter_configs(self._start(), changes, validate_only=validate_only, timeout_ms=self._timeout_ms)

    async def describe_configs(
        self, resources: Sequence[ConfigResource], *, broker_id: int | None = None
    ) -> dict[ConfigResource, dict[str, ConfigValue]]:
        """Describe configs; see `lograft.Admin.describe_configs`."""
        return await describe_configs(self._start(), resources, broker_id=broker_id, timeout_ms=self._timeout_ms)

    async def describe_feature_level(self) -> FeatureLevelDescription:
        """Describe the feature level; see `lograft.Admin.describe_feature_level`."""
        return await describe_feature_level(self._start(), timeout_ms=self._timeout_ms)

    async def update_feature_level(self, level: int, *, validate_only: bool = False) -> None:
        """Raise the feature level; see `lograft.Admin.update_feature_level`."""
        await update_feature_level(self._start(), level, validate_only=validate_only, timeout_ms=self._timeout_ms)

    async def describe_quorum(self) -> QuorumDescription:
        """Describe the metadata quorum."""
        return await describe_quorum(self._start(), timeout_ms=self._timeout_ms)

    async def add_voter(self, node_id: int, *, directory_id: bytes | None = None) -> bytes:
        """Make a voter of an observer of the metadata quorum. See `lograft.Admin.add_voter`."""
        return await add_voter(self._start(), node_id, directory_id, timeout_ms=self._timeout_ms)

    async def remove_voter(self, node_id: int, *, directory_id: bytes | None = None) -> bytes:
        """Make an observer of a voter of the metadata quorum. See `lograft.Admin.remove_voter`."""
        return await remove_voter(self._start(), node_id, directory_id, timeout_ms=self._timeout_ms)

    async def replace_voter(self, node_id: int) -> bytes:
        """Replace a voter whose disk was lost. See `lograft.Admin.replace_voter`."""
        return await replace_voter(self._start(), node_id, timeout_ms=self._timeout_ms)

    async def transfer_leadership(self, node_id: int | None = None) -> int:
        """Have the leader of the metadata quorum hand over. See `lograft.Admin.transfer_leadership`."""
        return await transfer_leadership(self._start(), node_id, timeout_ms=self._timeout_ms)

    async def describe_brokers(self, broker_ids: Sequence[int] | None = None) -> list[BrokerStatus]:
        """Describe brokers as the active controller knows them; see `lograft.Admin.describe_brokers`."""
        return await describe_brokers(self._start(), broker_ids, timeout_ms=self._timeout_ms)

    async def remove_broker(self, broker_id: int, *, validate_only: bool = False) -> None:
        """End the registration of a broker; see `lograft.Admin.remove_broker`."""
        await remove_broker(self._start(), broker_id, validate_only=validate_only, timeout_ms=self._timeout_ms)

    async def export_metadata(self) -> list[str]:
        """Export the whole metadata as of one offset; see `lograft.Admin.export_metadata`."""
        return await export_metadata(self._start(), timeout_ms=self._timeout_ms)

    async def elect_leaders(
        self,
        partitions: Sequence[TopicPartition | str],
        *,
        election: ElectionType = ElectionType.PREFERRED,
        validate_only: bool = False,
    ) -> list[ElectedLeader]:
        """Elect leaders of partitions; see `lograft.Admin.elect_leaders`."""
        cluster = self._start()
        named = await all_named(partitions, partial(describe_topic, cluster, timeout_ms=self._timeout_ms))
        return await elect_leaders(
            cluster, named, election=election, validate_only=validate_only, timeout_ms=self._timeout_ms
        )

    async def alter_partition_reassignments(
        self, changes: Mapping[TopicPartition, Sequence[int] | None], *, validate_only: bool = False
    ) -> list[PartitionReassignment]:
        """Give partitions other replicas; see `lograft.Admin.alter_partition_reassignments`."""
        return await alter_reassignments(
            self._start(), changes, validate_only=validate_only, timeout_ms=self._timeout_ms
        )

    async def list_partition_reassignments(self, topics: Sequence[str] | None = None) -> list[PartitionReassignment]:
        """List the reassignments that are under way; see `lograft.Admin.list_partition_reassignments`."""
        return await list_reassignments(self._start(), topics, timeout_ms=self._timeout_ms)

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the brokers and the active controller."""
        return await describe_cluster(self._start(), timeout_ms=self._timeout_ms)

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """Look up offsets by position or time."""
        return await list_offsets(self._start(), queries, timeout_ms=self._timeout_ms)

    async def delete_records(self, before: Mapping[TopicPartition, int | None]) -> list[DeletedRecords]:
        """Remove all records below an offset, for good, in each of some partitions; None: all readable records."""
        return await delete_records(self._start(), before, timeout_ms=self._timeout_ms)

    async def describe_log_directories(
        self, broker_id: int | None = None, *, with_replicas: bool = False
    ) -> LogDirectories:
        """Describe the log directories of one broker, and the moves between them. See `lograft.Admin`."""
        return await describe_log_directories(
            self._start(), broker_id, with_replicas=with_replicas, timeout_ms=self._timeout_ms
        )

    async def move_replica(self, where: TopicPartition, directory_id: bytes, broker_id: int | None = None) -> None:
        """Begin to move a replica to another log directory of its broker. See `lograft.Admin.move_replica`."""
        await move_replica(self._start(), TopicPartition(*where), directory_id, broker_id, timeout_ms=self._timeout_ms)

    async def delete_unknown_partitions(self, broker_id: int | None = None) -> UnknownPartitions:
        """Delete, for good, what one broker has set aside because the cluster does not know it. See `lograft.Admin`."""
        return await delete_unknown_partitions(self._start(), broker_id, timeout_ms=self._timeout_ms)

    async def close(self) -> None:
        """Let the connections go. Further calls do nothing."""
        self._is_closed = True
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    def after_fork(self) -> None:
        """Called in a forked child: refuse to work from now on."""
        self._is_forked = True
        keep_for_ever(self._cluster)
        self._cluster = None

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self) -> Cluster:
        if self._is_closed or self._is_forked:
            raise unusable_error("admin client", is_forked=self._is_forked)
        if self._cluster is None:
            self._cluster = Cluster(self._client)
        return self._cluster
