# SPDX-License-Identifier: Apache-2.0
"""The calls about the log directories of one broker: their contents, and moves between them.

A log directory belongs to one broker, so the broker that receives such a call answers it and never forwards it.
Source: KIP-113.
"""

from __future__ import annotations

from typing import Final

from lograft import __version__
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import ServicerContext, check_cluster
from brokerd.clock import wall_ms
from brokerd.failure import refused
from brokerd.replica.locator import Locator
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.moving import Move, MoveState
from brokerd.replica.removed_directories import UnknownPartitions
from brokerd.replica.replica import Replica
from storage.directory.directories import LogDirectory
from storage.directory.space import SpaceState
from storage.errors import StorageError
from storage.files.names import TOPIC_ID_BYTES

_STATES: Final = {
    SpaceState.FREE: admin_pb2.LOG_DIRECTORY_STATE_FREE,
    SpaceState.TIGHT: admin_pb2.LOG_DIRECTORY_STATE_TIGHT,
    SpaceState.FULL: admin_pb2.LOG_DIRECTORY_STATE_FULL,
}

_MOVE_STATES: Final = {
    MoveState.WAITING: admin_pb2.REPLICA_MOVE_STATE_WAITING,
    MoveState.COPYING: admin_pb2.REPLICA_MOVE_STATE_COPYING,
    MoveState.SWITCHING: admin_pb2.REPLICA_MOVE_STATE_SWITCHING,
    MoveState.DONE: admin_pb2.REPLICA_MOVE_STATE_DONE,
    MoveState.FAILED: admin_pb2.REPLICA_MOVE_STATE_FAILED,
}


class LogDirectoryCalls:
    """The log directory calls of one broker.

    Args:
        manager: the broker's replicas.
        locator: finds topics.
        node_id: node id of this broker.
        cluster_id: id of the cluster that requests may name.
    """

    def __init__(self, manager: ReplicaManager, locator: Locator, *, node_id: int, cluster_id: str) -> None:
        self._manager = manager
        self._locator = locator
        self._node_id = node_id
        self._cluster_id = cluster_id

    async def describe(
        self, request: admin_pb2.DescribeLogDirectoriesRequest, _context: ServicerContext
    ) -> admin_pb2.DescribeLogDirectoriesResponse:
        """Serve DescribeLogDirectories.

        Raises:
            RefusedError: the request names another cluster.
        """
        check_cluster(request.cluster_id, self._cluster_id)
        # All waits come first: everything after them shows one moment.
        unknown = {
            directory: await self._manager.unknown_partitions(directory) for directory in self._manager.directories
        }
        return admin_pb2.DescribeLogDirectoriesResponse(
            broker_id=self._node_id,
            directories=[
                self._directory(directory, each, with_replicas=request.with_replicas, topic=request.topic)
                for directory, each in unknown.items()
            ],
            moves=[_move_message(move) for move in self._manager.moves.report()],
            wall_clock_ms=wall_ms(),
            software_version=__version__,
        )

    async def move(
        self, request: admin_pb2.MoveReplicaRequest, _context: ServicerContext
    ) -> admin_pb2.MoveReplicaResponse:
        """Serve MoveReplica.

        Raises:
            RefusedError: this broker has no such replica or directory, or the replica cannot be moved now.
        """
        check_cluster(request.cluster_id, self._cluster_id)
        if len(request.directory_id) != TOPIC_ID_BYTES:
            message = f"a log directory id has {TOPIC_ID_BYTES} bytes, not {len(request.directory_id)}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        topic = self._locator.topic(request.topic)
        self._manager.move(topic.topic_id, request.partition, request.directory_id)
        return admin_pb2.MoveReplicaResponse()

    async def delete_unknown(
        self, request: admin_pb2.DeleteUnknownPartitionsRequest, _context: ServicerContext
    ) -> admin_pb2.DeleteUnknownPartitionsResponse:
        """Serve DeleteUnknownPartitions.

        Raises:
            RefusedError: the request names another cluster, or a directory could not be deleted.
        """
        check_cluster(request.cluster_id, self._cluster_id)
        try:
            deleted = await self._manager.delete_unknown_partitions()
        except StorageError as error:
            raise refused(ErrorCode.STORAGE_FAILED, f"not everything unknown was deleted: {error}") from None
        return admin_pb2.DeleteUnknownPartitionsResponse(
            partition_count=deleted.partition_count, size_bytes=deleted.size_bytes
        )

    def _directory(
        self, directory: LogDirectory, unknown: UnknownPartitions, *, with_replicas: bool, topic: str
    ) -> admin_pb2.LogDirectory:
        replicas = self._manager.replicas_in(directory)
        listed = [replica for replica in replicas if with_replicas and topic in ("", replica.topic)]
        failure = directory.failure
        return admin_pb2.LogDirectory(
            directory_id=directory.directory_id,
            path=directory.path,
            state=_STATES[directory.space.state] if failure is None else admin_pb2.LOG_DIRECTORY_STATE_FAILED,
            free_bytes=directory.space.free_bytes,
            replica_count=len(replicas),
            replicas=map(_replica_message, listed),
            problem="" if failure is None else str(failure),
            unknown_partition_count=unknown.partition_count,
            unknown_partition_bytes=unknown.size_bytes,
        )


def _replica_message(replica: Replica) -> admin_pb2.ReplicaName:
    size_bytes = sum(segment.size_bytes for segment in replica.log.segments)
    return admin_pb2.ReplicaName(topic=replica.topic, partition=replica.partition, size_bytes=size_bytes)


def _move_message(move: Move) -> admin_pb2.ReplicaMove:
    return admin_pb2.ReplicaMove(
        topic=move.topic,
        partition=move.partition,
        source_directory_id=move.source.directory_id,
        target_directory_id=move.target.directory_id,
        state=_MOVE_STATES[move.state],
        size_bytes=move.size_bytes,
        copied_bytes=move.copied_bytes,
        problem=move.error or "",
    )
