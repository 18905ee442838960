# SPDX-License-Identifier: Apache-2.0
"""The admin calls about the log directories of one broker.

This module finds the address of that broker, and converts its answer to the caller's types.
"""

from __future__ import annotations

from typing import Final

from lograft._admin.calls import AdminCalls
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
    calls: AdminCalls, broker_id: int | None = None, *, with_replicas: bool = False, topic: str | None = None
) -> LogDirectories:
    """Describe the log directories of one broker, and the moves between them.

    Args:
        broker_id: id of the broker; None means the only broker of the cluster.
        with_replicas: also list the replicas in each directory, with the sizes of their logs.
        topic: list only replicas of this topic; None: of all.

    Raises:
        UsageError: the broker does not exist; or `broker_id` is None and the cluster has several brokers.
        LograftError: the broker did not answer.
    """
    address = await _address_of(calls, broker_id)
    request = admin_pb2.DescribeLogDirectoriesRequest(with_replicas=with_replicas, topic=topic or "")
    response = await calls.ask(
        lambda stub: stub.DescribeLogDirectories,
        request,
        address=address,
    )
    return LogDirectories(
        broker_id=response.broker_id,
        directories=tuple(map(_directory, response.directories)),
        moves=tuple(map(_move, response.moves)),
        wall_clock_ms=response.wall_clock_ms if response.HasField("wall_clock_ms") else None,
        software_version=response.software_version,
    )


async def move_replica(
    calls: AdminCalls, where: TopicPartition, directory_id: bytes, broker_id: int | None = None
) -> None:
    """Begin to move a replica to another log directory of its broker, and return at once. The replica stays in use.

    `describe_log_directories` shows the progress. A second call for the same directory changes nothing.

    Args:
        where: the partition.
        directory_id: id of the target directory, 16 bytes.
        broker_id: id of the broker; None means the only broker of the cluster.

    Raises:
        UsageError: `directory_id` is not 16 bytes; the broker does not exist; or `broker_id` is None and the cluster has
            several brokers.
        RefusedError: the broker has no such replica or directory, or cannot move the replica now.
    """
    topic, partition = TopicPartition(*where)
    if type(directory_id) is not bytes or len(directory_id) != DIRECTORY_ID_BYTES:
        raise UsageError(f"the id of a log directory is {DIRECTORY_ID_BYTES} bytes, not {directory_id!r}")
    address = await _address_of(calls, broker_id)
    request = admin_pb2.MoveReplicaRequest(topic=topic, partition=partition, directory_id=directory_id)
    # The broker moves the replica once even if it is asked twice, so the call may be repeated.
    await calls.ask(lambda stub: stub.MoveReplica, request, address=address)


async def delete_unknown_partitions(calls: AdminCalls, broker_id: int | None = None) -> UnknownPartitions:
    """Delete the stray directories of one broker for good: partition directories that the cluster does not know.

    `describe_log_directories` shows how many they are. The broker itself deletes them after seven days.

    Args:
        broker_id: id of the broker; None means the only broker of the cluster.

    Returns:
        Number and size of the deleted directories.

    Raises:
        UsageError: the broker does not exist; or `broker_id` is None and the cluster has several brokers.
        RefusedError: the broker could not delete a directory.
    """
    address = await _address_of(calls, broker_id)
    request = admin_pb2.DeleteUnknownPartitionsRequest()
    # If an answer is lost, the broker finds nothing left at the next attempt, and answers with zero.
    response = await calls.ask(
        lambda stub: stub.DeleteUnknownPartitions,
        request,
        address=address,
    )
    return UnknownPartitions(partition_count=response.partition_count, size_bytes=response.size_bytes)


async def _address_of(calls: AdminCalls, broker_id: int | None) -> str:
    await calls.cluster.fetch_brokers(timeout_ms=calls.timeout_ms)
    brokers = {broker.broker_id: broker.address for broker in calls.cluster.view.brokers()}
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
        replica_bytes={
            TopicPartition(each.topic, each.partition): each.size_bytes
            for each in message.replicas
            if each.HasField("size_bytes")
        },
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
