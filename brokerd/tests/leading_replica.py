# SPDX-License-Identifier: Apache-2.0
"""A replica that leads, for tests of the streams of its followers: a real core over a real log, with just enough around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from lograft.wire.batch import encode_batch, read_header

from brokerd.clock import monotonic_ms
from brokerd.partition.effects import (
    AcceptSubscription,
    BeginLeaderEpoch,
    CompleteAck,
    DivergeSubscription,
    Effect,
    EndService,
    EndSubscription,
    FailAck,
    FlushLog,
    ForgetEmptyEpoch,
    ProposeIsr,
    PublishHighWatermark,
    Subscribe,
)
from brokerd.partition.events import AckLevel, AckWanted, BatchAppended, Durability, Event, LogFlushed
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.follower_route import FollowerRead, FollowerRequest, FollowerRoute
from brokerd.replica.led_followers import LedFollowers
from brokerd.tests.replication_support import changed, image
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.types import LogSettings

LEADER_ID = 1
LEADER_EPOCH = 5


class LeadingReplica:
    """A partition led by broker 1 in epoch 5; brokers 2 and 3 have the other replicas.

    Attributes:
        followers: the followers that were accepted or wait for their answer.
        lost: sessions of the routes that were lost, in order.
        proposals: in-sync replicas that were proposed.
        acked: what became of each acknowledgement that was wanted, by its offset; None: it failed.
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
        settings = LogSettings(segment_bytes=segment_bytes)
        self.log = PartitionLog.open(PosixDisk(), str(directory / "log"), settings=settings, now_ms=0).log
        for epoch in epochs:
            self._store(b"of epoch %d" % epoch, epoch)
        self.followers = LedFollowers(self)
        self.lost: list[int] = []
        self.proposals: list[ProposeIsr] = []
        self.acked: dict[int, Durability | None] = {}
        self._min_isr = min_isr
        self._news = asyncio.Event()
        self.core = PartitionReplica(
            node_id=LEADER_ID,
            log_end_offset=self.log.log_end_offset,
            flushed_offset=self.log.flush(),
            flush_policy=FlushPolicy.ACK,
            flush_interval_ms=100,
            high_watermark=0,
            last_epoch=self.log.last_record_epoch,
        )
        self.change(image(isr=isr, replicas=(1, 2, 3)))

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.core.high_watermark

    @property
    def in_sync(self) -> tuple[int, ...]:
        return self.core.maximal_isr

    def change(self, partition: PartitionImage) -> None:
        """Let the metadata have a state of the partition."""
        self.step(changed(partition, min_isr=self._min_isr))

    def append(self, value: bytes) -> int:
        """Append a batch of one record, as the leader, and want an acknowledgement; return its offset."""
        offset = self._store(value, LEADER_EPOCH)
        self.step(BatchAppended(log_end_offset=self.log_end_offset))
        self.step(AckWanted(token=offset, next_offset=offset + 1, level=AckLevel.ALL))
        self.followers.tell_growth(self.log_end_offset)
        return offset

    def _store(self, value: bytes, leader_epoch: int) -> int:
        batch = encode_batch([value], timestamps_ms=1_700_000_000_000)
        return self.log.append_as_leader(batch, read_header(batch), leader_epoch=leader_epoch, now_ms=0).base_offset

    def bytes_from(self, offset: int) -> bytes:
        """Return what is in the log from an offset on."""
        return bytes(self.log.read(offset, 1 << 30).data) if offset < self.log_end_offset else b""

    def take_event(self, event: Event) -> None:
        self.step(event)

    def subscribe_follower(self, route: FollowerRoute, request: FollowerRequest) -> None:
        self.followers.subscribe_follower(route, request)

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        self.followers.ack_follower(route, appended_offset=appended_offset, flushed_offset=flushed_offset)

    def lose_follower(self, route: FollowerRoute) -> None:
        self.lost.append(route.session)
        self.followers.lose_follower(route)

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        return self.followers.read_for_follower(offset, max_bytes)

    def step(self, event: Event) -> None:
        """Give the core an event, carry out what it asks for, and tell the followers that are now in sync, or no more."""
        for effect in self.core.step(event, monotonic_ms()):
            self._carry_out(effect)
        self.followers.tell_in_sync()
        self._news.set()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case FlushLog():
                self.step(LogFlushed(flushed_offset=self.log.flush()))
            case PublishHighWatermark():
                self.followers.tell_marks()
            case AcceptSubscription() | DivergeSubscription() | EndSubscription():
                self.followers.answer(effect)
            case CompleteAck():
                self.acked[effect.token] = effect.durability
            case BeginLeaderEpoch():
                self.log.assign_epoch(effect.leader_epoch)
            case ProposeIsr():
                self.proposals.append(effect)
            case FailAck():
                self.acked[effect.token] = None
            case EndService() | ForgetEmptyEpoch() | Subscribe():
                pass  # nobody uses this replica as anything but a leader
            case _:
                raise AssertionError(effect)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, looked at after each event of the replica."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()
