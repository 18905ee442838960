# SPDX-License-Identifier: Apache-2.0
"""What the tests of the leader's side share: a server with the service alone, replicas that lead, and a follower's stream.

The replicas are a real core over a real log on the disk, with just enough of a shell around them; the brokers 2 and 3 follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.batch import encode_batch, iter_batches, read_header
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES
from lograft.wire.status import RemoteStatus, parse_rpc_error

from brokerd.clock import monotonic_ms
from brokerd.failure import refused
from brokerd.limits import MAX_REPLICATE_STREAMS
from brokerd.metadata.observer import MetadataObserver
from brokerd.partition.effects import (
    AcceptSubscription,
    BeginLeaderEpoch,
    CompleteAck,
    DivergeSubscription,
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
from brokerd.partition.leader_events import FollowerAcked, FollowerLost, FollowerSubscribed
from brokerd.partition.reconciliation import EpochEnd
from brokerd.partition.replica import PartitionReplica
from brokerd.pushing import pulse, session
from brokerd.pushing.rate import CatchUpRate
from brokerd.replication.batches_frame import BatchesFrame, decode_replicate_response
from brokerd.replication.follower_route import FollowerRead, FollowerRequest, FollowerRoute, LedReplica
from brokerd.rpc.parts import StreamRegister
from brokerd.rpc.replicate_handshake import Leader
from brokerd.rpc.replicate_service import ReplicationService
from brokerd.tests.replication_support import changed, image
from brokerd.tests.support import WAIT_S
from metaquorum.controller.state import BrokerImage, PartitionImage
from metaquorum.controller.topic_configs import FlushPolicy
from storage.env_posix import PosixDisk
from storage.errors import StorageError
from storage.log import PartitionLog
from storage.types import LogSettings

METHOD = "/lograft.internal.v1.ReplicationService/Replicate"
TOPIC_ID = b"t" * 16
LEADER_ID = 1
LEADER_EPOCH = 5


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stream end by the clock; a test of that sets its own time."""
    monkeypatch.setattr(pulse, "REPLICATE_SILENCE_MS", 1_000_000)
    monkeypatch.setattr(session, "REPLICATE_OPEN_MS", 1_000_000)


class LeadingReplica:
    """A partition led by broker 1 in epoch 5; see the module docstring.

    Attributes:
        routes: the followers that were accepted or wait for their answer, by node id.
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
        self.routes: dict[int, FollowerRoute] = {}
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
            last_epoch=self.log.last_epoch,
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

    def change(self, partition: PartitionImage) -> None:
        """Let the metadata have a state of the partition."""
        self.step(changed(partition, min_isr=self._min_isr))

    def append(self, value: bytes) -> int:
        """Append a batch of one record, as the leader, and want an acknowledgement; return its offset."""
        offset = self._store(value, LEADER_EPOCH)
        self.step(BatchAppended(log_end_offset=self.log_end_offset))
        self.step(AckWanted(token=offset, next_offset=offset + 1, level=AckLevel.ALL))
        for route in tuple(self.routes.values()):
            route.on_log_grown(self.log_end_offset)
        return offset

    def _store(self, value: bytes, leader_epoch: int) -> int:
        batch = encode_batch([value], timestamps_ms=1_700_000_000_000)
        return self.log.append_as_leader(batch, read_header(batch), leader_epoch=leader_epoch, now_ms=0).base_offset

    def bytes_from(self, offset: int) -> bytes:
        """Return what is in the log from an offset on."""
        return bytes(self.log.read(offset, 1 << 30).data) if offset < self.log_end_offset else b""

    def subscribe_follower(self, route: FollowerRoute, request: FollowerRequest) -> None:
        found = None if request.last_epoch is None else self.log.end_offset_for_epoch(request.last_epoch)
        self.routes[route.node_id] = route
        self.step(
            FollowerSubscribed(
                node_id=route.node_id,
                broker_epoch=route.broker_epoch,
                session=route.session,
                leader_epoch=request.leader_epoch,
                log_end_offset=request.log_end_offset,
                flushed_offset=request.flushed_offset,
                last_epoch=request.last_epoch,
                epoch_end=None if found is None else EpochEnd(found.epoch, found.end_offset),
                log_start_offset=self.log_start_offset,
            )
        )

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        self.step(
            FollowerAcked(
                node_id=route.node_id,
                broker_epoch=route.broker_epoch,
                session=route.session,
                appended_offset=appended_offset,
                flushed_offset=flushed_offset,
            )
        )

    def lose_follower(self, route: FollowerRoute) -> None:
        self.lost.append(route.session)
        if self.routes.get(route.node_id) is route:
            del self.routes[route.node_id]
        self.step(FollowerLost(node_id=route.node_id, broker_epoch=route.broker_epoch, session=route.session))

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        epoch = self.log.epoch_at(offset) or 0
        end = self.log.end_offset_for_epoch(epoch)
        try:
            found = self.log.read(offset, max_bytes, end_offset=None if end is None else end.end_offset)
        except StorageError as error:
            raise refused(error.code, str(error)) from error
        return FollowerRead(data=found.data, base_offset=offset, next_offset=found.next_offset, leader_epoch=epoch)

    def step(self, event: Event) -> None:
        """Give the core an event, carry out what it asks for, and tell the followers that are now in sync, or no more."""
        before = self.core.maximal_isr
        self._carry_out(event)
        for node_id, route in tuple(self.routes.items()):
            if (node_id in before) != (node_id in self.core.maximal_isr):
                route.on_traffic(is_in_sync=node_id in self.core.maximal_isr)
        self._news.set()

    def _carry_out(self, event: Event) -> None:
        for effect in self.core.step(event, monotonic_ms()):
            match effect:
                case FlushLog():
                    self._carry_out(LogFlushed(flushed_offset=self.log.flush()))
                case PublishHighWatermark():
                    for route in self.routes.values():
                        route.on_marks(high_watermark=effect.high_watermark, log_start_offset=self.log_start_offset)
                case AcceptSubscription():
                    self.routes[effect.node_id].on_accepted(
                        high_watermark=effect.high_watermark,
                        log_start_offset=self.log_start_offset,
                        is_in_sync=effect.node_id in self.core.maximal_isr,
                    )
                case DivergeSubscription():
                    self.routes.pop(effect.node_id).on_diverged(effect.leader_end)
                case EndSubscription():
                    self.routes.pop(effect.node_id).on_ended(effect.error, log_start_offset=self.log_start_offset)
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


class LeaderWorld:
    """A server with the service alone.

    Attributes:
        replicas: the partitions by topic id and number.
        own_epoch: broker epoch of the leader; None: not registered.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.replicas: dict[tuple[bytes, int], LedReplica] = {}
        self.own_epoch: int | None = 10
        self.observer = MetadataObserver()
        self.streams = StreamRegister("replicate", MAX_REPLICATE_STREAMS)
        self.rate = CatchUpRate()
        self.leader = Leader(
            cluster_id="c",
            node_id=LEADER_ID,
            observer=self.observer,
            broker_epoch=lambda: self.own_epoch,
            find=lambda topic_id, partition: self.replicas.get((topic_id, partition)),
            streams=self.streams,
            rate=self.rate,
        )
        self.address = ""
        self._channels: list[grpc.aio.Channel] = []

    def lead(self, partition: int = 0, **options: Any) -> LeadingReplica:
        """Lead a partition."""
        replica = LeadingReplica(self._directory / str(partition), **options)
        self.replicas[TOPIC_ID, partition] = replica
        return replica

    def register(self, node_id: int, broker_epoch: int) -> None:
        """Let the metadata have a registration."""
        registered = BrokerImage(
            broker_id=node_id,
            incarnation_id=b"i" * 16,
            broker_epoch=broker_epoch,
            host="h",
            port=1,
            rack=None,
            fenced=False,
            in_controlled_shutdown=False,
            log_directory_ids=(),
            unclean=False,
        )
        self.observer.image.put_broker(registered)

    def dial(self) -> FollowerSide:
        """Begin a stream on a channel of its own."""
        channel = grpc.aio.insecure_channel(
            self.address,
            options=(
                ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )
        self._channels.append(channel)
        return FollowerSide(channel)

    async def follow(self, node_id: int = 2, **fields: Any) -> FollowerSide:
        """Open a stream."""
        stream = self.dial()
        await stream.open(node_id, **fields)
        assert (await stream.part("opened")).opened.broker_epoch == self.own_epoch
        return stream

    async def close_channels(self) -> None:
        """Cut everything."""
        for channel in self._channels:
            await channel.close()
        self._channels.clear()


@asynccontextmanager
async def leader_world(directory: Path) -> AsyncIterator[LeaderWorld]:
    """A leader that listens."""
    world = LeaderWorld(directory)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((ReplicationService(world.leader).handler(),))
    world.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield world
    finally:
        await world.close_channels()
        await server.stop(WAIT_S)
        for replica in world.replicas.values():
            if isinstance(replica, LeadingReplica):
                replica.log.close(clean=False)


class FollowerSide:
    """A follower's end of one stream, message by message; every wait ends."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = channel.stream_stream(METHOD)()
        self._count = 0

    async def send(self, **part: Any) -> None:
        """Send one message."""
        await self.call.write(pb.ReplicateRequest(**part).SerializeToString())

    async def open(
        self,
        node_id: int = 2,
        *,
        in_sync_bytes: int = 1 << 30,
        catch_up_bytes: int = 1 << 30,
        **fields: Any,
    ) -> None:
        """Send the opening."""
        fields = {
            "cluster_id": "c",
            "follower_id": node_id,
            "broker_epoch": 10 * node_id,
            "leader_id": LEADER_ID,
            "credit": pb.ReplicaCredit(in_sync_bytes=in_sync_bytes, catch_up_bytes=catch_up_bytes),
            **fields,
        }
        await self.send(open=pb.ReplicateOpen(**fields))

    async def subscribe(
        self, route: int, *, partition: int = 0, end: int = 0, last_epoch: int | None = None, **fields: Any
    ) -> None:
        """Ask for a partition from an offset on; sessions count up."""
        self._count += 1
        fields = {
            "route": route,
            "topic_id": TOPIC_ID,
            "partition": partition,
            "session": self._count,
            "leader_epoch": LEADER_EPOCH,
            "log_end_offset": end,
            "flushed_offset": end,
            **fields,
        }
        wanted = pb.ReplicaSubscription(last_epoch=last_epoch, **fields)
        await self.send(subscriptions=pb.ReplicaSubscriptions(subscriptions=[wanted]))

    async def ack(self, route: int, appended: int, flushed: int | None = None) -> None:
        """Tell what is held."""
        ack = pb.ReplicaAck(
            route=route, appended_offset=appended, flushed_offset=appended if flushed is None else flushed
        )
        await self.send(acks=pb.ReplicaAcks(acks=[ack]))

    async def receive(self) -> BatchesFrame | pb.ReplicateResponse:
        """Return the next message that is no heartbeat."""
        while True:
            async with asyncio.timeout(WAIT_S):
                data = await self.call.read()
            assert data is not grpc.aio.EOF, "the stream ended"
            message = decode_replicate_response(data)
            if isinstance(message, BatchesFrame) or message.WhichOneof("part") != "heartbeat":
                return message

    async def part(self, name: str) -> pb.ReplicateResponse:
        """Return the next message, which must be this one."""
        message = await self.receive()
        assert isinstance(message, pb.ReplicateResponse), message
        assert message.WhichOneof("part") == name, message
        return message

    async def batches(self) -> BatchesFrame:
        """Return the next message, which must be batches."""
        message = await self.receive()
        assert isinstance(message, BatchesFrame), message
        return message

    async def gather(self, end: int) -> tuple[bytes, list[BatchesFrame]]:
        """Return the bytes, and the messages, up to an offset; there is one route, and each message continues the last one."""
        frames: list[BatchesFrame] = []
        place: int | None = None
        while place is None or place < end:
            frame = await self.batches()
            assert place in (None, frame.base_offset)
            frames.append(frame)
            place = list(iter_batches(frame.body))[-1][1].next_offset
        return b"".join(bytes(frame.body) for frame in frames), frames

    async def ended(self, route: int, error: int) -> pb.RouteEnded:
        """Return the next message, which must be the end of a route."""
        ended = (await self.part("ended")).ended
        assert (ended.route, ended.error) == (route, error), ended
        return ended

    async def failure(self) -> RemoteStatus:
        """Read until the stream ends, and return how."""
        async with asyncio.timeout(WAIT_S):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                return parse_rpc_error(error)
        raise AssertionError("the stream ended without a failure")

    async def refusal(self) -> ErrorCode | None:
        """Return the code with which the stream ends."""
        return (await self.failure()).code

    async def orderly_end(self) -> None:
        """Read until the stream ends in good order."""
        async with asyncio.timeout(WAIT_S):
            while await self.call.read() is not grpc.aio.EOF:
                pass
            assert await self.call.code() is grpc.StatusCode.OK
