# SPDX-License-Identifier: Apache-2.0
"""FetchRange: gives committed batches to another replica whose copy of them is damaged.

Owns what may be given away: what is below the high watermark here, whole batches, byte for byte as the leader appended them. Any
replica answers, whoever leads, and answers other replicas alone. Law: nothing is given of a range that may have been compacted
here: batches that went through a compaction are not those of the other replica any more.
"""

from __future__ import annotations

from collections.abc import Callable

from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.header import read_header

from brokerd.api.calls import check_named_cluster
from brokerd.api.registered import check_registered
from brokerd.failure import refused
from brokerd.limits import REPLICA_CHUNK_BYTES
from brokerd.replica.replica import Replica
from metaquorum.metadata.loader import MetadataLoader
from storage.errors import StorageError
from storage.log.partition_log import PartitionLog


class FetchRangeCalls:
    """The call of one broker.

    Args:
        cluster_id: cluster id.
        node_id: node id.
        observer: the metadata.
        find: gives the open replica of a topic id and partition.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        observer: MetadataLoader,
        find: Callable[[bytes, int], Replica | None],
    ) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._observer = observer
        self._find = find

    def fetch_range(self, request: pb.FetchRangeRequest) -> pb.FetchRangeResponse:
        """Answer with the first batches of a range.

        Raises:
            RefusedError: WRONG_CLUSTER; INVALID_REQUEST, another broker is meant, no batch begins or ends there, or the range was
                compacted; METADATA_NOT_REACHED, STALE_BROKER_EPOCH, as `check_registered`; UNKNOWN_PARTITION, no replica here, or
                none at the broker that asks; OFFSET_NOT_AVAILABLE, not known to be committed here;
                OFFSET_OUT_OF_RANGE, DATA_LOSS, STORAGE_FAILED, as any read.
        """
        check_named_cluster(request.cluster_id, self._cluster_id)
        if request.broker_id != self._node_id:
            raise refused(ErrorCode.INVALID_REQUEST, f"this is broker {self._node_id}, not {request.broker_id}")
        image = self._observer.image
        check_registered(
            image, request.replica_id, broker_epoch=request.broker_epoch, incarnation_id=request.incarnation_id
        )
        topic = image.topic_by_id(request.topic_id)
        if topic is None or not 0 <= request.partition < len(topic.partitions):
            message = f"no partition {request.partition} of topic {request.topic_id.hex()} is known here"
            raise refused(ErrorCode.UNKNOWN_PARTITION, message)
        if request.replica_id not in topic.partitions[request.partition].replicas:
            # Perhaps not yet: retried like any other lag of the metadata.
            message = f"broker {request.replica_id} has no replica of partition {request.partition} of {topic.topic!r}"
            raise refused(ErrorCode.UNKNOWN_PARTITION, message)
        base_offset, end_offset = request.base_offset, request.end_offset
        if not 0 <= base_offset < end_offset:
            raise refused(ErrorCode.INVALID_REQUEST, f"[{base_offset}, {end_offset}) is no range of offsets")
        replica = self._find(request.topic_id, request.partition)
        if replica is None:
            message = f"no open replica of partition {request.partition} of topic {request.topic_id.hex()} here"
            raise refused(ErrorCode.UNKNOWN_PARTITION, message)
        if end_offset > replica.high_watermark:
            message = f"{replica} is known to be committed up to {replica.high_watermark} here, not to {end_offset}"
            raise refused(ErrorCode.OFFSET_NOT_AVAILABLE, message, retry_after_ms=1_000)
        if base_offset < _dirty_offset(replica.log):
            message = f"offset {base_offset} of {replica} was compacted here: its batches are this replica's own"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        data = replica.read(base_offset, REPLICA_CHUNK_BYTES, end_offset=end_offset).data
        if not data or read_header(data).base_offset != base_offset:
            message = f"[{base_offset}, {end_offset}) of {replica} does not begin and end with a batch"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        return pb.FetchRangeResponse(batches=data)


def _dirty_offset(log: PartitionLog) -> int:
    try:
        return log.dirty_offset
    except StorageError as error:
        raise refused(error.code, "it cannot be read here how far the log was compacted") from error
