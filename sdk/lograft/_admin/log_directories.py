# SPDX-License-Identifier: Apache-2.0
"""The calls about the log directories of one broker, for the admin clients.

Owns finding that broker, and turning its answer into the user's types.
"""

from __future__ import annotations

from typing import Final

from lograft._client.cluster import Cluster
from lograft.errors import UsageError
from lograft.types import (
    LogDirectories,
    LogDirectory,
    LogDirectoryState,
    MoveState,
    ReplicaMove,
    TopicPartition,
    UnknownPartitions,
)
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub

DIRECTORY_ID_BYTES: Final = 16
"""Bytes of the id of a log directory."""

_STATES: Final = {
    admin_pb2.LOG_DIRECTORY_STATE_FREE: LogDirectoryState.FREE,
    admin_pb2.LOG_DIRECTORY_STATE_TIGHT: LogDirectoryState.TIGHT,
    admin_pb2.LOG_DIRECTORY_STATE_FULL: LogDirectoryState.FULL,
    admin_pb2.LOG_DIRECTORY_STATE_FAILED: LogDirectoryState.FAILED,
}
_MOVE_STATES: Final = {
    admin_pb2.REPLICA_MOVE_STATE_WAITING: MoveState.WAITING,
    admin_pb2.REPLICA_MOVE_STATE_COPYING: MoveState.COPYING,
    admin_pb2.REPLICA_MOVE_STATE_SWITCHING: MoveState.SWITCHING,
    admin_pb2.REPLICA_MOVE_STATE_DONE: MoveState.DONE,
    admin_pb2.REPLICA_MOVE_STATE_FAILED: MoveState.FAILED,
}


async def describe_log_directories(
    cluster: Cluster, broker_id: int | None, *, with_replicas: bool, timeout_ms: int
) -> LogDirectories:
    """Describe the log directories of a broker; None: of the only one.

    Raises:
        UsageError: there is no such broker, or there are several and none is named.
        LograftError: the broker did not answer, or refused.
    """
    address = await _address_of(cluster, broker_id, timeout_ms)
    request = admin_pb2.DescribeLogDirectoriesRequest(cluster_id=cluster.cluster_id, with_replicas=with_replicas)
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).DescribeLogDirectories,
        request,
        timeout_ms=timeout_ms,
        address=address,
    )
    return LogDirectories(
        broker_id=response.broker_id,
        directories=tuple(map(_directory, response.directories)),
        moves=tuple(map(_move, response.moves)),
    )


async def move_replica(
    cluster: Cluster, where: TopicPartition, directory_id: bytes, broker_id: int | None, *, timeout_ms: int
) -> None:
    """Begin to move a replica to another directory of its broker; None: of the only broker.

    Raises:
        UsageError: the id has not 16 bytes; there is no such broker, or there are several and none is named.
        LograftError: the broker did not answer, or refused.
    """
    if type(directory_id) is not bytes or len(directory_id) != DIRECTORY_ID_BYTES:
        raise UsageError(f"the id of a log directory is {DIRECTORY_ID_BYTES} bytes, not {directory_id!r}")
    address = await _address_of(cluster, broker_id, timeout_ms)
    request = admin_pb2.MoveReplicaRequest(
        cluster_id=cluster.cluster_id, topic=where.topic, partition=where.partition, directory_id=directory_id
    )
    # Asked twice for the same directory, the broker does it once.
    await cluster.ask(
        lambda channel: AdminServiceStub(channel).MoveReplica, request, timeout_ms=timeout_ms, address=address
    )


async def delete_unknown_partitions(cluster: Cluster, broker_id: int | None, *, timeout_ms: int) -> UnknownPartitions:
    """Delete what a broker has set aside because the cluster does not know it; None: the only broker.

    Raises:
        UsageError: there is no such broker, or there are several and none is named.
        LograftError: the broker did not answer, or could not delete everything.
    """
    address = await _address_of(cluster, broker_id, timeout_ms)
    request = admin_pb2.DeleteUnknownPartitionsRequest(cluster_id=cluster.cluster_id)
    # Asked again after an answer that was lost, the broker finds nothing left, and says so.
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).DeleteUnknownPartitions,
        request,
        timeout_ms=timeout_ms,
        address=address,
    )
    return UnknownPartitions(partition_count=response.partition_count, size_bytes=response.size_bytes)


async def _address_of(cluster: Cluster, broker_id: int | None, timeout_ms: int) -> str:
    await cluster.fetch_brokers(timeout_ms=timeout_ms)
    brokers = {broker.broker_id: broker.address for broker in cluster.view.brokers()}
    if broker_id is None and len(brokers) == 1:
        (address,) = brokers.values()
        return address
    if broker_id is None or broker_id not in brokers:
        known = ", ".join(map(str, brokers)) or "none"
        raise UsageError(
            f"name a broker by its id ({known}), not {broker_id!r}: log directories are those of one broker"
        )
    return brokers[broker_id]


def _directory(message: admin_pb2.LogDirectory) -> LogDirectory:
    return LogDirectory(
        directory_id=message.directory_id,
        path=message.path,
        state=_STATES.get(message.state, LogDirectoryState.UNKNOWN),
        free_bytes=message.free_bytes if message.HasField("free_bytes") else None,
        replica_count=message.replica_count,
        replicas=tuple(TopicPartition(each.topic, each.partition) for each in message.replicas),
        problem=message.problem,
        unknown_partition_count=message.unknown_partition_count,
        unknown_partition_bytes=message.unknown_partition_bytes,
    )


def _move(message: admin_pb2.ReplicaMove) -> ReplicaMove:
    return ReplicaMove(
        topic=message.topic,
        partition=message.partition,
        source_directory_id=message.source_directory_id,
        target_directory_id=message.target_directory_id,
        state=_MOVE_STATES.get(message.state, MoveState.UNKNOWN),
        size_bytes=message.size_bytes,
        copied_bytes=message.copied_bytes,
        problem=message.problem,
    )
