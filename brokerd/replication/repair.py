# SPDX-License-Identifier: Apache-2.0
"""`FetchRange`: how a replica gets the batches for a damaged range of its log from another replica.

`RangeSource` answers. It owns what may be sent: whole batches below the high watermark here, byte for byte as the leader appended them.
Any replica answers, whoever leads, and only for other replicas of the partition; batches of staging topics go to every broker, because
the leader of another partition publishes them (docs/ingest.md). `RepairCalls` asks. The replicas decide what to repair, and when.
Everything runs on the thread of the event loop.

Law: nothing is sent from a range that may have been compacted here, because compacted batches differ from those of the other replica.
Source: docs/replication.md, "Damage".
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.header import read_header

from brokerd.addresses import internal_address
from brokerd.failure import refused
from brokerd.limits import RANGE_CHUNK_BYTES, REPAIR_CALL_MS
from brokerd.membership import check_named_cluster, check_registered
from brokerd.replica.damage_reports import DamageReports
from brokerd.replica.replica import Replica
from brokerd.replica.replication_border import RepairCallError
from brokerd.replication.peer_errors import PeerError, peer_error
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_names import staged_topic_id
from metaquorum.net.link import CallError
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address
from storage.errors import StorageError
from storage.log.partition_log import PartitionLog


class RangeSource:
    """Sends committed batches of this broker's replicas to other replicas.

    Args:
        cluster_id: cluster id.
        node_id: node id.
        observer: the metadata.
        find: returns the open replica of a topic id and partition.
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
        """Return the first batches of a range: at most `RANGE_CHUNK_BYTES`, and at least one batch.

        Raises:
            RefusedError: WRONG_CLUSTER; INVALID_REQUEST, the request names another broker, no batch begins or ends at its bounds, or
                the range was compacted; METADATA_NOT_REACHED, STALE_BROKER_EPOCH, as `check_registered`; UNKNOWN_PARTITION, this
                broker has no replica, or the asking broker has none; OFFSET_NOT_AVAILABLE, not known to be committed here;
                OFFSET_OUT_OF_RANGE, DATA_LOSS, STORAGE_FAILED, as for any read.
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
        is_staging = staged_topic_id(topic.topic) is not None
        if not is_staging and request.replica_id not in topic.partitions[request.partition].replicas:
            # It may get the replica in metadata that this broker lacks, so the asking broker tries again.
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
        data = replica.read(base_offset, RANGE_CHUNK_BYTES, end_offset=end_offset).data
        if not data or read_header(data).base_offset != base_offset:
            message = f"[{base_offset}, {end_offset}) of {replica} does not begin and end with a batch"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        return pb.FetchRangeResponse(batches=data)


def _dirty_offset(log: PartitionLog) -> int:
    try:
        return log.dirty_offset
    except StorageError as error:
        raise refused(error.code, "it cannot be read here how far the log was compacted") from error


class RepairCalls:
    """Asks other brokers for batches of their replicas. The repair of damaged ranges uses it as its `RepairPeers`.

    Args:
        observer: the metadata.
        peers: connections of this process to other servers.
        cluster_id: id of the cluster.
        node_id: id of this broker.
        incarnation_id: random id of this process.
        broker_epoch: returns the epoch of the broker's registration; None before the first.

    Attributes:
        reports: damage that reads met, and damage that could not be repaired.
    """

    def __init__(
        self,
        observer: MetadataLoader,
        peers: Peers,
        *,
        cluster_id: str,
        node_id: int,
        incarnation_id: bytes,
        broker_epoch: Callable[[], int | None],
    ) -> None:
        self._observer = observer
        self._peers = peers
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._broker_epoch = broker_epoch
        self.reports = DamageReports()

    def sources(self, topic_id: bytes, partition: int) -> list[int]:
        """Return the other brokers with a replica: first the leader, then the in-sync ones, then the rest."""
        topic = self._observer.image.topic_by_id(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return []
        image = topic.partitions[partition]
        others = [broker_id for broker_id in image.replicas if broker_id != self._node_id]
        return sorted(others, key=lambda broker_id: (broker_id != image.leader_id, broker_id not in image.isr))

    async def fetch(self, broker_id: int, topic_id: bytes, partition: int, wanted: range) -> bytes:
        """Return the first batches of a range from another replica.

        Raises:
            RepairCallError: the replica does not have them, or does not answer in time.
        """
        try:
            return await self.ask(broker_id, topic_id, partition, wanted)
        except PeerError as error:
            raise RepairCallError(f"broker {broker_id}: {error}") from error

    async def ask(self, broker_id: int, topic_id: bytes, partition: int, wanted: range) -> bytes:
        """Return the first batches of a range from another replica, as `fetch`.

        Raises:
            PeerError: with the code of the refusal, if the broker refuses.
        """
        address = internal_address(self._observer.image, broker_id)
        if address is None:
            raise PeerError(f"broker {broker_id} is not registered")
        own_epoch = self._broker_epoch()
        if own_epoch is None:
            raise PeerError("this broker is not registered")
        request = pb.FetchRangeRequest(
            cluster_id=self._cluster_id,
            broker_id=broker_id,
            topic_id=topic_id,
            partition=partition,
            base_offset=wanted.start,
            end_offset=wanted.stop,
            replica_id=self._node_id,
            broker_epoch=own_epoch,
            incarnation_id=self._incarnation_id,
        )
        return (await fetch_range(self._peers, address, request)).batches


async def fetch_range(peers: Peers, address: Address, request: pb.FetchRangeRequest) -> pb.FetchRangeResponse:
    """Ask another replica for a range. Once connected, it has `REPAIR_CALL_MS` to answer.

    Raises:
        PeerError: the replica does not have the range, or does not answer.
    """
    try:
        answer = await peers.ask(
            str(address), Method.FETCH_RANGE, request.SerializeToString(), timeout_ms=REPAIR_CALL_MS
        )
        return pb.FetchRangeResponse.FromString(answer)
    except CallError as error:
        raise peer_error(error) from error
    except DecodeError as error:
        raise PeerError("the answer cannot be decoded") from error
