# SPDX-License-Identifier: Apache-2.0
"""A replica manager whose partitions have only this replica, with simulated disks and committed metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lograft.wire.batch import encode_batch, read_header

from brokerd.failure import Failure
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability
from brokerd.replica.locator import Locator
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.metadata_view import OwnBroker
from brokerd.replica.replica import Replica
from brokerd.tests.support import WAIT_S
from metaquorum.metadata import record_codec
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import (
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from storage.directory.directories import LogDirectories, LogDirectory
from storage.testing.sim_disk import SimDisk

TOPIC_ID = bytes(range(16))
ROOT = "/data/partitions"


class LoneBroker:
    """A replica manager, its disk, and the metadata that a quorum would have committed."""

    def __init__(self, disk: SimDisk, *more: LogDirectory) -> None:
        self.disk = disk
        self.now_ms = 1_000_000
        self.observer = MetadataLoader()
        directories = LogDirectories([LogDirectory(disk, "/data"), *more])
        self.manager = ReplicaManager(
            directories=directories,
            own=OwnBroker(1, bytes(16)),
            observer=self.observer,
            now_ms=lambda: self.now_ms,
        )
        self.locator = Locator(node_id=1, observer=self.observer, manager=self.manager)

    def commit(self, *records: MetadataRecord) -> None:
        """Apply these records to the metadata."""
        base_offset = self.observer.metadata_offset
        batch = CommittedBatch(
            base_offset=base_offset,
            next_offset=base_offset + len(records),
            quorum_epoch=1,
            append_timestamp_ms=0,
            records=[record_codec.encode(record) for record in records],
            is_control=False,
        )
        self.observer.on_commit(batch)

    def register(self, incarnation_id: bytes = bytes(16), *, broker_epoch: int = 1, fenced: bool = False) -> None:
        """Register broker 1."""
        self.commit(
            BrokerRecord(
                broker_id=1,
                incarnation_id=incarnation_id,
                broker_epoch=broker_epoch,
                host="h",
                port=1,
                rack=None,
                fenced=fenced,
            )
        )

    def create_topic(self, policy: str = "ack", partition_count: int = 1) -> None:
        """Create topic `t`, whose partitions this broker leads alone."""
        config = ConfigRecord(
            resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value=policy
        )
        partitions = [
            PartitionRecord(
                topic_id=TOPIC_ID,
                partition=partition,
                replicas=(1,),
                isr=(1,),
                leader_id=1,
                leader_epoch=0,
                partition_epoch=0,
            )
            for partition in range(partition_count)
        ]
        self.commit(TopicRecord(topic="t", topic_id=TOPIC_ID), *partitions, config)

    async def replica(self, partition: int = 0) -> Replica:
        """Return a replica that leads, once its log is open."""
        return await self.locator.local_leader("t", partition, timeout_ms=int(WAIT_S * 1000))


class Listener:
    """Notes the events of a replica."""

    def __init__(self) -> None:
        self.high_watermarks: list[int] = []
        self.failures: list[Failure] = []
        self.ended = asyncio.Event()

    def on_high_watermark(self, high_watermark: int) -> None:
        self.high_watermarks.append(high_watermark)

    def on_service_end(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.ended.set()


def empty_disk(path: str) -> SimDisk:
    """A disk with an empty data directory."""
    disk = SimDisk()
    disk.make_directory(path)
    disk.make_directory(f"{path}/partitions")
    return disk


def append(replica: Replica, values: Sequence[bytes]) -> int:
    """Append a batch of records without keys; return its next offset."""
    batch = encode_batch(values, timestamps_ms=5)
    return replica.append(memoryview(batch), read_header(batch)).next_offset


async def acked(replica: Replica, next_offset: int, level: AckLevel = AckLevel.ALL) -> Durability | LossReason:
    """Wait for an acknowledgement."""
    reached: asyncio.Future[Durability | LossReason] = asyncio.get_running_loop().create_future()
    replica.want_ack(next_offset, level, reached.set_result)
    async with asyncio.timeout(WAIT_S):
        return await reached
