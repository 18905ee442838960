# SPDX-License-Identifier: Apache-2.0
"""The blocking admin client.

Owns nothing but the way to the background event loop, where an asyncio admin client does the work, and the documentation of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import STOP_TIMEOUT_S, Runtime, acquire_runtime, on_exit, release_runtime
from lograft._client.usable import unusable_error
from lograft.aio.admin import Admin as AsyncAdmin
from lograft.settings import CONNECTION_LIVENESS_MS, REQUEST_TIMEOUT_MS
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

T = TypeVar("T")


class Admin:
    """Creates, changes, lists, describes and deletes topics; describes and changes the cluster. Any number of threads may use it.

    Args:
        bootstrap: "host:port", several with commas, or a list: brokers to ask first.
        cluster_id: id that the cluster must have; None: any.
        connection_liveness_ms: milliseconds without a sign of life after which a connection is given up, 4,000 to 60,000.
        request_timeout_ms: milliseconds that a call may take, all tries together.

    Raises:
        InvalidSettingError: a setting is out of range.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
    ) -> None:
        self._admin = AsyncAdmin(
            bootstrap,
            cluster_id=cluster_id,
            request_timeout_ms=request_timeout_ms,
            connection_liveness_ms=connection_liveness_ms,
        )
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_forked = False
        self._runtime: Runtime | None = None
        on_fork(self)
        on_exit(self)

    def create_topic(
        self,
        topic: str,
        *,
        partition_count: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create a topic; it can be used when this returns.

        Args:
            topic: 1 to 249 of the characters A-Z a-z 0-9 . _ - and neither "." nor "..".
            partition_count: number of partitions, from 1.
            replication_factor: number of replicas of each partition, from 1.
            configs: configs that differ from the defaults. With three replicas or more `min.insync.replicas` is 2 unless the
                cluster's `default.min.insync.replicas` says otherwise.
            validate_only: check only, change nothing.

        Raises:
            TopicAlreadyExistsError: there is one of this name.
            InvalidRequestError: a name, count or config is not valid.
            OutcomeUnknownError: the answer was lost; describe the topic to find out.
            LograftError: no broker or controller could be reached.
        """
        return self._run(
            lambda admin: admin.create_topic(
                topic,
                partition_count=partition_count,
                replication_factor=replication_factor,
                configs=configs,
                validate_only=validate_only,
            )
        )

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Create many topics; one result for each, in order, with an `error` where it was not created.

        Far quicker than one call for each. A topic that is refused stops no other.

        Args:
            topics: topics, none twice; any number of them.
            validate_only: check only, change nothing; each topic is checked as if it were the only one.

        Raises:
            UsageError: something is no `NewTopic`, has a count below 1, or a name stands twice.
            OutcomeUnknownError: the answer for up to 1,000 topics was lost; list the topics to find out.
            LograftError: no broker or controller could be reached.
        """
        return self._run(lambda admin: admin.create_topics(topics, validate_only=validate_only))

    def create_partitions(self, topic: str, partition_count: int, *, validate_only: bool = False) -> TopicDescription:
        """Add partitions to a topic, and describe it. Keys may go to other partitions from then on.

        Producers that are open use the new partitions as soon as they hear of them, within moments.

        Args:
            topic: topic name.
            partition_count: number of partitions that it is to have, more than it has: partitions are never taken away.
            validate_only: check only, change nothing.

        Raises:
            UnknownTopicError: there is none of this name.
            InvalidRequestError: the count is not higher, or too high for one request.
            RefusedError: a limit of the cluster would be passed.
            OutcomeUnknownError: the answer was lost; describe the topic to find out.
        """
        return self._run(lambda admin: admin.create_partitions(topic, partition_count, validate_only=validate_only))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its records.

        Raises:
            UnknownTopicError: there is none of this name.
            OutcomeUnknownError: the answer was lost.
        """
        self._run(lambda admin: admin.delete_topic(topic))

    def list_topics(self) -> list[TopicSummary]:
        """List all topics by name."""
        return self._run(lambda admin: admin.list_topics())

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic with its partitions and configs.

        Raises:
            UnknownTopicError: there is none of this name.
        """
        return self._run(lambda admin: admin.describe_topic(topic))

    def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> None:
        """Change configs of topics, brokers and the cluster: all that are named, or none.

        Args:
            changes: for each resource the new value of each config; None removes what was set.
            validate_only: check only, change nothing.

        Raises:
            UsageError: a key is no `ConfigResource`, or a value is neither text nor None.
            UnknownTopicError: there is no such topic.
            InvalidRequestError: a config is not known there or its value does not fit; the message says what is allowed.
            OutcomeUnknownError: the answer was lost; describe the configs to find out.
        """
        self._run(lambda admin: admin.alter_configs(changes, validate_only=validate_only))

    def describe_configs(
        self, resources: Sequence[ConfigResource], *, broker_id: int | None = None
    ) -> dict[ConfigResource, dict[str, ConfigValue]]:
        """Describe all configs of topics, brokers and the cluster, with where each value comes from.

        Args:
            resources: 1 to 1,000 of them.
            broker_id: for topics: the broker whose replicas it is about; None leaves out what is set for brokers.

        Raises:
            UnknownTopicError: there is no such topic.
            InvalidRequestError: there is no such broker.
        """
        return self._run(lambda admin: admin.describe_configs(resources, broker_id=broker_id))

    def describe_feature_level(self) -> FeatureLevelDescription:
        """Describe the feature level of the cluster, and the levels that its servers can run at."""
        return self._run(lambda admin: admin.describe_feature_level())

    def update_feature_level(self, level: int, *, validate_only: bool = False) -> None:
        """Raise the feature level of the cluster. It never goes down again.

        Args:
            level: the new level; the one that holds changes nothing.
            validate_only: check only, change nothing.

        Raises:
            InvalidRequestError: it would go down, or a server cannot run at it; the message says which.
        """
        self._run(lambda admin: admin.update_feature_level(level, validate_only=validate_only))

    def describe_quorum(self) -> QuorumDescription:
        """Describe the metadata quorum: leader, voters, observers."""
        return self._run(lambda admin: admin.describe_quorum())

    def add_voter(self, node_id: int, *, directory_id: bytes | None = None) -> bytes:
        """Make a voter of an observer of the metadata quorum that has caught up; returns once that is committed.

        Args:
            node_id: node id of the observer.
            directory_id: id of its metadata directory, 16 bytes; None: the one that fetched last under this node id.

        Returns:
            The directory id.

        Raises:
            RefusedError: it votes already, or has not caught up, or the quorum is full. Nothing was changed.
            OutcomeUnknownError: the answer was lost; describe the quorum to find out.
        """
        return self._run(lambda admin: admin.add_voter(node_id, directory_id=directory_id))

    def remove_voter(self, node_id: int, *, directory_id: bytes | None = None) -> bytes:
        """Make an observer of a voter of the metadata quorum; returns once that is committed.

        Args:
            node_id: node id of the voter.
            directory_id: id of its metadata directory, 16 bytes; None: whichever votes under this node id.

        Returns:
            The directory id.

        Raises:
            RefusedError: there is no such voter, or the quorum would be lost. Nothing was changed.
            OutcomeUnknownError: the answer was lost; describe the quorum to find out.
        """
        return self._run(lambda admin: admin.remove_voter(node_id, directory_id=directory_id))

    def replace_voter(self, node_id: int) -> bytes:
        """Replace a voter whose disk was lost by the replica that now fetches under its node id. May be repeated.

        Returns:
            The directory id of the new voter.

        Raises:
            RefusedError: no such replica has caught up, or the quorum would be lost.
            OutcomeUnknownError: an answer was lost; repeat it.
        """
        return self._run(lambda admin: admin.replace_voter(node_id))

    def transfer_leadership(self, node_id: int | None = None) -> int:
        """Have the leader of the metadata quorum hand over to a voter (None: any); returns who leads then.

        Raises:
            RefusedError: there is no such voter, or it does not keep up. The leader leads on.
            OutcomeUnknownError: the answer was lost, or no new leader was known in time.
        """
        return self._run(lambda admin: admin.transfer_leadership(node_id))

    def describe_brokers(self, broker_ids: Sequence[int] | None = None) -> list[BrokerStatus]:
        """Describe brokers as the active controller knows them, ascending by id.

        Args:
            broker_ids: at most 1,000 node ids; those that are not registered are left out. None: all brokers.
        """
        return self._run(lambda admin: admin.describe_brokers(broker_ids))

    def remove_broker(self, broker_id: int, *, validate_only: bool = False) -> None:
        """End the registration of a broker that is gone for good. What was set for it stays, and can be removed.

        Raises:
            InvalidRequestError: there is none, it lives, or it still has replicas; the message says which.
            OutcomeUnknownError: the answer was lost; describe the brokers to find out.
        """
        self._run(lambda admin: admin.remove_broker(broker_id, validate_only=validate_only))

    def export_metadata(self) -> list[str]:
        """Export the whole metadata as of one offset, as lines of JSON in a stable order; docs/tools.md has their form.

        The first line has the offset, the last one a digest, which was checked. All lines are in memory: about 250 bytes
        for each partition of the cluster.
        """
        return self._run(lambda admin: admin.export_metadata())

    def elect_leaders(
        self,
        partitions: Sequence[TopicPartition | str],
        *,
        election: ElectionType = ElectionType.PREFERRED,
        validate_only: bool = False,
    ) -> list[ElectedLeader]:
        """Elect leaders of partitions; one result for each, in order, with an `error` where nobody was elected.

        Args:
            partitions: partitions; a name alone stands for all partitions of the topic.
            election: preferred, or unclean: records that only replicas away from the cluster have are then lost.
            validate_only: check only, change nothing.

        Raises:
            UnknownTopicError: a topic that is named alone does not exist.
            LograftError: a call as a whole failed; it may be repeated.
        """
        return self._run(lambda admin: admin.elect_leaders(partitions, election=election, validate_only=validate_only))

    def alter_partition_reassignments(
        self, changes: Mapping[TopicPartition, Sequence[int] | None], *, validate_only: bool = False
    ) -> list[PartitionReassignment]:
        """Give partitions other replicas, or cancel that; one result for each, in order, with an `error` if refused.

        Args:
            changes: node ids for each partition, the preferred leader first; None cancels what is under way.
            validate_only: check only, change nothing; the results are those of the change.

        Raises:
            UsageError: a key is no partition, or a value no list of node ids.
            OutcomeUnknownError: the answer to a cancelling was lost; list the reassignments to find out.
        """
        return self._run(lambda admin: admin.alter_partition_reassignments(changes, validate_only=validate_only))

    def list_partition_reassignments(self, topics: Sequence[str] | None = None) -> list[PartitionReassignment]:
        """List the reassignments that are under way, of all topics (None) or of at most 1,000, by topic and partition."""
        return self._run(lambda admin: admin.list_partition_reassignments(topics))

    def describe_cluster(self) -> ClusterDescription:
        """Describe the brokers and the active controller."""
        return self._run(lambda admin: admin.describe_cluster())

    def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """Look up offsets by position or time; one answer for each query, in order, with an `error` on failure."""
        return self._run(lambda admin: admin.list_offsets(queries))

    def delete_records(self, before: Mapping[TopicPartition, int | None]) -> list[DeletedRecords]:
        """Remove all records below an offset, for good, in each of some partitions; one result for each, in order.

        Args:
            before: first offset to keep (at most the high watermark) for each partition; None: all readable records go.

        Raises:
            UsageError: an offset is no whole number from 0.
            LograftError: the call as a whole failed; it may be repeated. A refused partition has an `error` in its result.
        """
        return self._run(lambda admin: admin.delete_records(before))

    def describe_log_directories(self, broker_id: int | None = None, *, with_replicas: bool = False) -> LogDirectories:
        """Describe the log directories of one broker, and the moves between them.

        Args:
            broker_id: id of the broker; None: the only one there is.
            with_replicas: also say which replicas are in each directory.

        Raises:
            UsageError: there is no such broker, or there are several and none is named.
            LograftError: the broker did not answer.
        """
        return self._run(lambda admin: admin.describe_log_directories(broker_id, with_replicas=with_replicas))

    def move_replica(self, where: TopicPartition, directory_id: bytes, broker_id: int | None = None) -> None:
        """Begin to move a replica to another log directory of its broker, while it is used; returns at once.

        `describe_log_directories` tells how it goes. Asked again for the same directory it changes nothing.

        Args:
            where: the partition.
            directory_id: id of the directory, 16 bytes.
            broker_id: id of the broker; None: the only one there is.

        Raises:
            UsageError: `directory_id` is none; no such broker, or several and none is named.
            RefusedError: the broker has no such replica or directory, or it cannot be moved now.
        """
        self._run(lambda admin: admin.move_replica(where, directory_id, broker_id))

    def delete_unknown_partitions(self, broker_id: int | None = None) -> UnknownPartitions:
        """Delete, for good, what one broker has set aside because the cluster does not know it.

        `describe_log_directories` tells how much that is. The broker deletes it by itself after seven days.

        Args:
            broker_id: id of the broker; None: the only one there is.

        Returns:
            What was deleted.

        Raises:
            UsageError: there is no such broker, or there are several and none is named.
            RefusedError: something could not be deleted.
        """
        return self._run(lambda admin: admin.delete_unknown_partitions(broker_id))

    def close(self) -> None:
        """Let the connections go. Further calls do nothing."""
        with self._lock:
            if self._is_closed or self._is_forked:
                return
            self._is_closed = True
            runtime = self._runtime
        if runtime is not None:
            try:
                runtime.run(self._admin.close())
            finally:
                release_runtime(runtime)

    def leave(self, started_s: float) -> None:
        """Called at the end of the process: let the connections go."""
        del started_s
        runtime = self._runtime
        if runtime is not None and not self._is_closed and not self._is_forked:
            with suppress(TimeoutError):
                runtime.run(self._admin.close(), timeout_s=STOP_TIMEOUT_S)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Callable[[AsyncAdmin], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._is_closed or self._is_forked:
                raise unusable_error("admin client", is_forked=self._is_forked)
            if self._runtime is None:
                self._runtime = acquire_runtime()
            runtime = self._runtime
        return runtime.run(work(self._admin))

    def after_fork(self) -> None:
        """Called in a forked child: refuse to work from now on."""
        self._lock = threading.Lock()
        self._is_forked = True
        keep_for_ever(self._runtime)
        self._runtime = None
