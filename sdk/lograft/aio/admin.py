# SPDX-License-Identifier: Apache-2.0
"""The asyncio admin client. The blocking admin client runs it too.

It owns the connection to the cluster. `lograft._admin` has the calls, by subject, with their signatures and docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from lograft._admin import (
    brokers,
    committed_offsets,
    configs,
    features,
    groups,
    ingests,
    log_directories,
    metadata_export,
    partitions,
    producers,
    quorum,
    records,
    topics,
)
from lograft._admin.calls import AdminCalls, document
from lograft._client.forks import loading, on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.usable import unusable_error
from lograft.settings import CONNECTION_LIVENESS_MS, REQUEST_TIMEOUT_MS, parse_bootstrap

if TYPE_CHECKING:
    from lograft._client.cluster import Cluster
    from lograft._groups.coordinators import Coordinators

P = ParamSpec("P")
T = TypeVar("T")


def _verb(
    verb: Callable[Concatenate[AdminCalls, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, T]]:
    """Return a function of `lograft._admin` as a method of the client."""

    async def method(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await verb(self._calls(), *args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return document(method, verb)


class Admin:
    """Manages topics, configs, groups, ingests, brokers, partitions and the quorum; settings and errors as `lograft.Admin`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
        client_id: str | None = None,
    ) -> None:
        with loading():
            # gRPC comes with it, so that a program that only imports the class does not wait for it.
            from lograft._client.cluster import Cluster
            from lograft._groups.coordinators import Coordinators
        self._client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
            client_id=client_id,
        )
        self._timeout_ms = request_timeout_ms
        self._new_cluster = Cluster
        self._new_coordinators = Coordinators
        self._cluster: Cluster | None = None
        self._coordinators: Coordinators | None = None
        self._is_closed = False
        self._is_forked = False
        on_fork(self, Admin._after_fork)

    create_topic: Final = _verb(topics.create_topic)
    create_topics: Final = _verb(topics.create_topics)
    create_partitions: Final = _verb(topics.create_partitions)
    delete_topic: Final = _verb(topics.delete_topic)
    list_topics: Final = _verb(topics.list_topics)
    describe_topic: Final = _verb(topics.describe_topic)
    alter_configs: Final = _verb(configs.alter_configs)
    describe_configs: Final = _verb(configs.describe_configs)
    describe_feature_level: Final = _verb(features.describe_feature_level)
    update_feature_level: Final = _verb(features.update_feature_level)
    elect_leaders: Final = _verb(partitions.elect_leaders)
    alter_partition_reassignments: Final = _verb(partitions.alter_partition_reassignments)
    list_partition_reassignments: Final = _verb(partitions.list_partition_reassignments)
    describe_cluster: Final = _verb(brokers.describe_cluster)
    describe_brokers: Final = _verb(brokers.describe_brokers)
    remove_broker: Final = _verb(brokers.remove_broker)
    describe_quorum: Final = _verb(quorum.describe_quorum)
    add_voter: Final = _verb(quorum.add_voter)
    remove_voter: Final = _verb(quorum.remove_voter)
    replace_voter: Final = _verb(quorum.replace_voter)
    transfer_leadership: Final = _verb(quorum.transfer_leadership)
    export_metadata: Final = _verb(metadata_export.export_metadata)
    describe_log_directories: Final = _verb(log_directories.describe_log_directories)
    move_replica: Final = _verb(log_directories.move_replica)
    delete_unknown_partitions: Final = _verb(log_directories.delete_unknown_partitions)
    list_offsets: Final = _verb(records.list_offsets)
    delete_records: Final = _verb(records.delete_records)
    describe_producers: Final = _verb(producers.describe_producers)
    list_groups: Final = _verb(groups.list_groups)
    describe_groups: Final = _verb(groups.describe_groups)
    delete_groups: Final = _verb(groups.delete_groups)
    group_offsets: Final = _verb(committed_offsets.group_offsets)
    alter_group_offsets: Final = _verb(committed_offsets.alter_group_offsets)
    reset_group_offsets: Final = _verb(committed_offsets.reset_group_offsets)
    delete_group_offsets: Final = _verb(committed_offsets.delete_group_offsets)
    list_ingests: Final = _verb(ingests.list_ingests)
    describe_ingest: Final = _verb(ingests.describe_ingest)
    abort_ingest: Final = _verb(ingests.abort_ingest)

    async def close(self) -> None:
        """Close the connections. Further calls do nothing."""
        self._is_closed = True
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._is_forked = True
        keep_for_ever(self._cluster)
        self._cluster = None
        self._coordinators = None

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _calls(self) -> AdminCalls:
        if self._is_closed or self._is_forked:
            raise unusable_error("admin client", is_forked=self._is_forked)
        if self._cluster is None:
            self._cluster = self._new_cluster(self._client)
        if self._coordinators is None:
            self._coordinators = self._new_coordinators(self._cluster)
        return AdminCalls(self._cluster, self._coordinators, self._timeout_ms)
