# SPDX-License-Identifier: Apache-2.0
"""A replica manager whose partitions have replicas elsewhere, with committed metadata and a recorder of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lograft.wire.batch import encode_batch, read_header
from lograft.wire.header import stamp

from brokerd.controller_client.partition_requests import ProposingReplica, Resignation
from brokerd.partition.effects import ProposeIsr, SendAck, Subscribe
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.metadata_view import OwnBroker
from brokerd.replica.replica import Replica
from brokerd.replica.replica_peers import ReplicaPeers
from brokerd.replica.replication_border import FollowerRequest, FollowingReplica, RepairPeers
from brokerd.tests.support import WAIT_S
from metaquorum.metadata import record_codec
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import (
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    LeaderChange,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from storage.directory.directories import LogDirectories, LogDirectory
from storage.testing.sim_disk import SimDisk

TOPIC_ID = bytes(range(16))
NODES = (1, 2, 3)


class Said:
    """The messages of a manager to leaders and to the controller."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscribe] = []
        self.acks: list[SendAck] = []
        self.ended: list[tuple[int, int]] = []
        self.proposals: list[ProposeIsr] = []
        self.proposer: ProposingReplica | None = None
        self.given_up: list[Resignation] = []
        self.offline: list[tuple[str, int]] = []
        self.found: list[tuple[int, bytes]] = []
        self.follower: FollowingReplica | None = None
        self._news = asyncio.Event()

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a message makes the condition true."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def subscribe(self, replica: FollowingReplica, request: Subscribe) -> None:
        self.follower = replica
        self.subscriptions.append(request)
        self._news.set()

    def unsubscribe(self, replica: FollowingReplica, *, leader_id: int, session: int) -> None:
        self.ended.append((leader_id, session))
        self._news.set()

    def send_ack(self, replica: FollowingReplica, ack: SendAck, *, leader_id: int) -> None:
        self.acks.append(ack)
        self._news.set()

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        self.proposer = replica
        self.proposals.append(proposal)
        self._news.set()

    def resign(self, resignation: Resignation) -> None:
        self.given_up.append(resignation)
        self._news.set()

    def note_lost(self, topic_id: bytes, partition: int) -> None:
        assert topic_id == TOPIC_ID
        self.offline.append(("lost", partition))

    def note_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        assert topic_id == TOPIC_ID
        self.found.append((partition, directory_id))

    def note_removed(self, topic_id: bytes, partition: int) -> None:
        assert topic_id == TOPIC_ID
        self.offline.append(("removed", partition))

    @property
    def session(self) -> int:
        """Number of the last subscription."""
        return self.subscriptions[-1].session


class Route:
    """A follower's route at a leader, and the events that it got."""

    def __init__(self, node_id: int, session: int = 1, broker_epoch: int = 1) -> None:
        self.node_id = node_id
        self.session = session
        self.broker_epoch = broker_epoch
        self.heard: list[tuple[object, ...]] = []

    def on_accepted(self, *, high_watermark: int, log_start_offset: int, is_in_sync: bool) -> None:
        self.heard.append(("accepted", high_watermark, log_start_offset, is_in_sync))

    def on_diverged(self, leader_end: EpochEnd) -> None:
        self.heard.append(("diverged", leader_end))

    def on_ended(self, error: SubscriptionError, *, log_start_offset: int) -> None:
        self.heard.append(("ended", error, log_start_offset))

    def on_log_grown(self, log_end_offset: int) -> None:
        self.heard.append(("grown", log_end_offset))

    def on_marks(self, *, high_watermark: int, log_start_offset: int) -> None:
        self.heard.append(("marks", high_watermark, log_start_offset))

    def on_traffic(self, *, is_in_sync: bool) -> None:
        self.heard.append(("traffic", is_in_sync))


class BrokerOfThree:
    """Broker 1 with one partition that brokers 1, 2 and 3 have."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        repairs: RepairPeers | None = None,
    ) -> None:
        self.disk = disk or SimDisk()
        if disk is None:
            self.disk.make_directory("/data")
            self.disk.make_directory("/data/partitions")
        self.said = Said()
        self.observer = MetadataLoader()
        self.manager = ReplicaManager(
            directories=LogDirectories([LogDirectory(self.disk, "/data")]),
            own=OwnBroker(1, bytes(15) + bytes([1])),
            observer=self.observer,
            peers=ReplicaPeers(
                leader_streams=self.said,
                requests=self.said,
                repairs=repairs,
            ),
        )

    async def start(self, *, leader_id: int, policy: str = "ack", min_isr: int = 1) -> Replica:
        """Register the brokers, create the topic, and wait for its log."""
        self.commit(*(self.registration(node_id, broker_epoch=1) for node_id in NODES))
        configs = {"flush.policy": policy, "min.insync.replicas": str(min_isr)}
        self.commit(
            TopicRecord(topic="t", topic_id=TOPIC_ID),
            PartitionRecord(
                topic_id=TOPIC_ID,
                partition=0,
                replicas=NODES,
                isr=NODES,
                leader_id=leader_id,
                leader_epoch=0,
                partition_epoch=0,
            ),
            *(
                ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name=name, value=value)
                for name, value in configs.items()
            ),
        )
        await self.manager.start()
        replica = await self.manager.wait_open(TOPIC_ID, 0, timeout_ms=int(WAIT_S * 1000))
        assert replica is not None
        return replica

    def commit(self, *records: MetadataRecord) -> None:
        """Apply these records to the metadata."""
        base_offset = self.observer.metadata_offset
        self.observer.on_commit(
            CommittedBatch(
                base_offset=base_offset,
                next_offset=base_offset + len(records),
                quorum_epoch=1,
                append_timestamp_ms=0,
                records=[record_codec.encode(record) for record in records],
                is_control=False,
            )
        )

    def registration(self, node_id: int, *, broker_epoch: int) -> BrokerRecord:
        """Return a registration of an unfenced broker."""
        return BrokerRecord(
            broker_id=node_id,
            incarnation_id=bytes(15) + bytes([broker_epoch]),
            broker_epoch=broker_epoch,
            host="h",
            port=node_id,
            rack=None,
            fenced=False,
        )

    def lead(self, leader_id: int | None, isr: tuple[int, ...] | None = None) -> None:
        """Make another broker the leader, in the next leader epoch."""
        self.commit(
            PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=leader_id), isr=isr)
        )

    def subscribe(
        self,
        replica: Replica,
        route: Route,
        *,
        leader_epoch: int = 0,
        end: int = 0,
        flushed: int | None = None,
        last_epoch: int | None = None,
    ) -> None:
        """Subscribe a follower."""
        request = FollowerRequest(
            leader_epoch=leader_epoch,
            log_end_offset=end,
            flushed_offset=end if flushed is None else flushed,
            last_epoch=last_epoch,
        )
        replica.subscribe_follower(route, request)


def batch(value: bytes = b"v") -> bytearray:
    """Return a batch of one record."""
    return encode_batch([value], timestamps_ms=5)


def stamped(base_offset: int, leader_epoch: int, count: int = 1) -> bytes:
    """Return batches of one record each, as a leader of that epoch has them in its log."""
    made: list[bytes] = []
    for offset in range(base_offset, base_offset + count):
        data = batch(b"r%d" % offset)
        stamp(data, base_offset=offset, leader_epoch=leader_epoch)
        made.append(bytes(data))
    return b"".join(made)


def append(replica: Replica, value: bytes = b"v") -> int:
    """Append one record to a log that this broker leads; return its next offset."""
    data = batch(value)
    return replica.append(memoryview(data), read_header(data)).next_offset


def follower(three: BrokerOfThree) -> Replica:
    """Return the replica that subscribed last."""
    said = three.said.follower
    assert isinstance(said, Replica)
    return said


def send(
    three: BrokerOfThree, batches: bytes, *, base_offset: int, leader_epoch: int = 0, high_watermark: int = 0
) -> None:
    """Send batches of the leader for the present session."""
    follower(three).on_leader_batches(
        three.said.session,
        batches,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        high_watermark=high_watermark,
        log_start_offset=0,
    )


async def followed(three: BrokerOfThree, policy: str = "none") -> Replica:
    """A replica whose subscription to broker 2 was accepted."""
    replica = await three.start(leader_id=2, policy=policy)
    accept(three)
    return replica


def accept(three: BrokerOfThree) -> None:
    """Accept the present session as the leader."""
    follower(three).on_subscription_accepted(three.said.session, high_watermark=0, log_start_offset=0)
