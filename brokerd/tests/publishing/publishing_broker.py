# SPDX-License-Identifier: Apache-2.0
"""A broker that leads a topic and its staging topic alone, on a simulated disk, with everything that publishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lograft.wire.batch import Codec, RecordBatch, encode_batch
from lograft.wire.header import iter_batches, read_header

from brokerd.publishing.checks import StagedChecks
from brokerd.publishing.commits import wait_committed
from brokerd.publishing.led_partitions import LedPartitions
from brokerd.publishing.parts import Part, Slice
from brokerd.publishing.publisher import Publisher
from brokerd.publishing.staged_reads import StagedReads
from brokerd.replica.replica import Replica
from brokerd.replication.repair import RepairCalls
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID, LoneBroker
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import ConfigRecord, ConfigResource, PartitionRecord, TopicRecord
from metaquorum.metadata.topic_names import staging_topic
from metaquorum.net.hello import Identity
from metaquorum.net.link import Services
from metaquorum.net.peers import Peers
from storage.testing.sim_disk import SimDisk

STAGING = 2**61
PUBLISHING = 2**62
STAGING_TOPIC_ID = bytes(range(16, 32))
SEQUENCES = 2**31


@dataclass(slots=True)
class StagingAttempt:
    """One attempt that stages into one partition, and what its slice says.

    Attributes:
        producer_id: its producer id.
        sequence: its next sequence, modulo 2^31.
        values: what it has staged since the last slice.
    """

    replica: Replica
    producer_id: int
    sequence: int = 0
    values: list[bytes] = field(default_factory=list[bytes])
    first: tuple[int, int] | None = None
    end_offset: int = 0

    def stage(self, *values: bytes, codec: Codec = Codec.NONE, timestamps_ms: Sequence[int] | int = 7) -> None:
        """Append one batch as the leader does for a client."""
        batch = encode_batch(
            list(values),
            timestamps_ms=timestamps_ms,
            codec=codec,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        appended = self.replica.append(memoryview(batch), read_header(batch))
        if self.first is None:
            self.first = (appended.base_offset, self.sequence)
        self.end_offset = appended.next_offset
        self.sequence = (self.sequence + len(values)) % SEQUENCES
        self.values += values

    async def seal(self) -> tuple[Slice, list[bytes]]:
        """Return the slice since the last seal, and its values, once everything is committed."""
        assert self.first is not None, "nothing is staged"
        await wait_committed(
            self.replica, self.end_offset, leader_epoch=self.replica.leader_epoch, timeout_ms=int(WAIT_S * 1000)
        )
        first_offset, first_sequence = self.first
        made = Slice(self.producer_id, first_sequence, len(self.values), first_offset, self.end_offset)
        values, self.values, self.first = self.values, [], None
        return made, values


class PublishingBroker(LoneBroker):
    """Broker 1, which leads `t` and its staging topic.

    Attributes:
        is_session_lost: True while another broker may lead its partitions.
    """

    def __init__(self, disk: SimDisk | None = None) -> None:
        if disk is None:
            disk = SimDisk()
            disk.make_directory("/data")
            disk.make_directory(ROOT)
            for path in ("/", "/data"):
                disk.sync_directory(path)
        super().__init__(disk)
        own = Identity(cluster_id="c", node_id=1, incarnation_id=bytes(16), address=None)
        calls = RepairCalls(
            self.observer,
            Peers(own, Services(requests={}, streams={})),
            cluster_id="c",
            node_id=1,
            incarnation_id=bytes(16),
            broker_epoch=lambda: 1,
        )
        self.staged = StagedReads(node_id=1, observer=self.observer, find=self.manager.find, calls=calls)
        self.led = LedPartitions(node_id=1, observer=self.observer, find=self.manager.find)
        self.checks = StagedChecks(led=self.led, staged=self.staged)
        self.is_session_lost = False
        self.published: list[tuple[bytes, int, bool]] = []
        self.publisher = self.new_publisher()

    def new_publisher(self, *, max_batches: int = 1_000) -> Publisher:
        """Return a publisher that knows nothing of the earlier one."""
        return Publisher(
            on_published=lambda *published: self.published.append(published),
            led=self.led,
            staged=self.staged,
            is_lost=lambda: self.is_session_lost,
            max_batches=max_batches,
        )

    async def start(self, *, partition_count: int = 1, **configs: str) -> None:
        """Register the broker and make both topics."""
        self.register()
        names = {"t": TOPIC_ID, staging_topic(TOPIC_ID): STAGING_TOPIC_ID}
        for topic, topic_id in names.items():
            partitions = [
                PartitionRecord(
                    topic_id=topic_id,
                    partition=partition,
                    replicas=(1,),
                    isr=(1,),
                    leader_id=1,
                    leader_epoch=0,
                    partition_epoch=0,
                )
                for partition in range(partition_count)
            ]
            self.commit(
                TopicRecord(topic=topic, topic_id=topic_id),
                *partitions,
                *self.config(topic_id, **configs),
            )
        await self.manager.start()
        await self.target()
        await self.staging()

    def config(self, topic_id: bytes, **configs: str) -> list[ConfigRecord]:
        """Return the records that set configs of a topic."""
        return [
            ConfigRecord(
                resource=ConfigResource.TOPIC, resource_name=topic_id.hex(), name=name.replace("_", "."), value=value
            )
            for name, value in configs.items()
        ]

    async def target(self, partition: int = 0) -> Replica:
        """Return the replica of `t`."""
        return await self.locator.local_leader("t", partition, timeout_ms=int(WAIT_S * 1000))

    async def staging(self, partition: int = 0) -> Replica:
        """Return the replica of the staging topic."""
        return await self.locator.local_leader(staging_topic(TOPIC_ID), partition, timeout_ms=int(WAIT_S * 1000))

    async def attempt(self, number: int, *, sequence: int = 0) -> StagingAttempt:
        """Return an attempt with a producer id of its own."""
        return StagingAttempt(await self.staging(), STAGING + number, sequence)


def part(*slices: Slice, base_sequence: int = 0, producer_id: int = PUBLISHING) -> Part:
    """Return a part of partition 0 of `t`."""
    return Part(
        topic_id=TOPIC_ID,
        partition=0,
        producer_id=producer_id,
        base_sequence=base_sequence,
        records=sum(each.records for each in slices),
        slices=slices,
    )


def values_of(replica: Replica, first_offset: int = 0, end_offset: int | None = None) -> list[bytes | None]:
    """Return the values of a log below its high watermark."""
    found: list[bytes | None] = []
    end = replica.high_watermark if end_offset is None else end_offset
    offset = max(first_offset, replica.log_start_offset)
    while offset < end:
        read = replica.read(offset, 1 << 20, end_offset=end)
        view = memoryview(read.data)
        for at, header in iter_batches(view):
            batch = view[at : at + header.size_bytes]
            if header.base_offset >= first_offset:
                found += RecordBatch(batch).values()
        offset = read.next_offset
    return found


def append_foreign(replica: Replica, *values: bytes) -> int:
    """Append records of somebody else; return the log end."""
    batch = encode_batch(list(values), timestamps_ms=7)
    return replica.append(memoryview(batch), read_header(batch)).next_offset
