# SPDX-License-Identifier: Apache-2.0
"""A leading replica for tests of its followers' streams: a real replica over a real log, with recorders around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from lograft.wire.batch import encode_batch, read_header

from brokerd.controller_client.partition_requests import Resignation
from brokerd.partition.effects import LossReason, ProposeIsr, SendAck, Subscribe
from brokerd.partition.events import AckLevel, Durability, Event
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.replica import Replica, ReplicaContext
from brokerd.replica.replica_peers import ReplicaPeers
from brokerd.replica.replication_border import FollowerRead, FollowerRequest, FollowerRoute
from brokerd.replica.role_log import RoleLog
from brokerd.tests.replication_support import changed, image
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy, effective
from storage.directory.directories import LogDirectory
from storage.directory.space import SpaceLimits
from storage.files.posix import PosixDisk
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import OnDone
from storage.types import LogSettings

LEADER_ID = 1
LEADER_EPOCH = 5


class FlusherAtOnce:
    """Flushes before `submit` returns, without threads. The log hears of it in a later turn of the event loop, as always."""

    def submit(self, log: PartitionLog, on_done: OnDone) -> FlushWork | None:
        work = log.begin_flush()
        if work is not None:
            work.run()
            on_done(work, None)
        return work


class WatchedReplica(Replica):
    """Reports each event that it has handled."""

    def _after_step(self, event: Event) -> None:
        super()._after_step(event)
        self.news.set()


class LeadingReplica:
    """A partition that broker 1 leads in epoch 5. Brokers 2 and 3 have the other replicas.

    Attributes:
        replica: the replica.
        lost: sessions of the lost routes, in order.
        proposals: proposed in-sync replicas.
        acked: outcome of each requested acknowledgement, by its offset; None: it failed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = 1 << 30,
        isr: tuple[int, ...] = (1, 2),
        min_isr: int = 2,
        epochs: tuple[int, ...] = (),
    ) -> None:
        directory.mkdir(exist_ok=True)
        disk = PosixDisk()
        settings = LogSettings(segment_bytes=segment_bytes)
        log = PartitionLog.open(disk, str(directory / "log"), settings=settings, now_ms=0).log
        for epoch in epochs:
            batch = encode_batch([b"of epoch %d" % epoch], timestamps_ms=1_700_000_000_000)
            log.append_as_leader(batch, read_header(batch), leader_epoch=epoch, now_ms=0)
        self.lost: list[int] = []
        self.proposals: list[ProposeIsr] = []
        self.acked: dict[int, Durability | None] = {}
        self._min_isr = min_isr
        core = PartitionReplica(
            node_id=LEADER_ID,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flush(),
            flush_policy=FlushPolicy.ACK,
            flush_interval_ms=100,
            high_watermark=0,
            last_epoch=log.last_record_epoch,
        )
        self.replica = WatchedReplica(
            topic="t",
            topic_id=b"t" * 16,
            partition=0,
            core=core,
            log=log,
            directory=LogDirectory(disk, str(directory), limits=SpaceLimits.from_soft(0)),
            settings=effective({}),
            context=ReplicaContext(
                flusher=FlusherAtOnce(),
                leader_place=lambda topic_id, partition: None,
                on_disk_failed=lambda directory, error: None,
                on_no_room=lambda directory: None,
                roles=RoleLog(),
                peers=ReplicaPeers(leader_streams=self, requests=self),
            ),
        )
        self._news = self.replica.news = asyncio.Event()
        self.change(image(isr=isr, replicas=(1, 2, 3)))

    @property
    def log(self) -> PartitionLog:
        return self.replica.log

    @property
    def log_start_offset(self) -> int:
        return self.replica.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.replica.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.replica.high_watermark

    @property
    def follower_count(self) -> int:
        return self.replica.follower_count

    def change(self, partition: PartitionImage) -> None:
        """Give the partition a state in the metadata."""
        self.step(changed(partition, min_isr=self._min_isr))

    def step(self, event: Event) -> None:
        """Give the replica an event."""
        self.replica.take_event(event)

    def append(self, value: bytes) -> int:
        """Append a batch of one record as the leader, and request an acknowledgement. Return its offset."""
        batch = encode_batch([value], timestamps_ms=1_700_000_000_000)
        offset = self.replica.append(memoryview(batch), read_header(batch)).base_offset

        def note(reached: Durability | LossReason) -> None:
            self.acked[offset] = reached if isinstance(reached, Durability) else None

        self.replica.want_ack(offset + 1, AckLevel.ALL, note)
        return offset

    def bytes_from(self, offset: int) -> bytes:
        """Return the bytes in the log from an offset on."""
        return bytes(self.log.read(offset, 1 << 30).data) if offset < self.log_end_offset else b""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, which is checked after each event of the replica."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        """Close the log, after a flush under way."""
        await self.replica.close("test")

    # The replica as the streams of its followers see it.

    def subscribe_follower(self, route: FollowerRoute, request: FollowerRequest) -> None:
        self.replica.subscribe_follower(route, request)

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        self.replica.ack_follower(route, appended_offset=appended_offset, flushed_offset=flushed_offset)

    def lose_follower(self, route: FollowerRoute) -> None:
        self.lost.append(route.session)
        self.replica.lose_follower(route)

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        return self.replica.read_for_follower(offset, max_bytes)

    # Its requests to the controller and to another leader.

    def propose(self, _replica: Replica, proposal: ProposeIsr) -> None:
        self.proposals.append(proposal)

    def resign(self, resignation: Resignation) -> None: ...

    def subscribe(self, replica: Replica, request: Subscribe) -> None: ...

    def unsubscribe(self, replica: Replica, *, leader_id: int, session: int) -> None: ...

    def send_ack(self, replica: Replica, ack: SendAck, *, leader_id: int) -> None: ...
