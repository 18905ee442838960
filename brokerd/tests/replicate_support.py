# SPDX-License-Identifier: Apache-2.0
"""What the tests of the leader's side share: a server with the service alone, replicas that lead, and a follower's stream.

The brokers 2 and 3 follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from brokerd.frame_stream import REPLICATE_GREETING, FrameStream
from brokerd.rpc.replicate_listener import ReplicateListener
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.batch import iter_batches
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES
from lograft.wire.status import RemoteStatus

from brokerd.limits import MAX_REPLICATE_STREAMS
from brokerd.metadata.observer import MetadataObserver
from brokerd.pushing import pulse, session
from brokerd.pushing.rate import PushRates
from brokerd.replication.batches_frame import BatchesFrame, decode_replicate_response
from brokerd.replication.follower_route import LedReplica
from brokerd.rpc.fetch_range import FetchRangeCalls
from brokerd.rpc.parts import StreamRegister
from brokerd.rpc.replicate_handshake import Leader
from brokerd.tests.leading_replica import LEADER_EPOCH, LEADER_ID, LeadingReplica
from brokerd.tests.support import WAIT_S
from metaquorum.controller.state import BrokerImage
from metaquorum.settings import Address

TOPIC_ID = b"t" * 16
INCARNATION_ID = b"i" * 16


class PlainRefusalError(Exception):
    """The leader refused over a plain connection.

    Attributes:
        status: what a status of gRPC would say.
    """

    def __init__(self, refused: pb.ReplicateRefused) -> None:
        code = ErrorCode.from_number(refused.code)
        self.status = RemoteStatus(
            code=code,
            grpc_code=grpc.StatusCode.UNKNOWN,
            message=refused.message,
            retry_after_ms=refused.retry_after_ms or None,
            metadata={},
        )


class PlainCall:
    """A follower's end of a plain connection: what refuses it is raised."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream = FrameStream(greeting=REPLICATE_GREETING, max_bytes=MAX_GRPC_MESSAGE_BYTES)
        self._dialling: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def write(self, message: bytes) -> None:
        """Send; nobody minds when the other side is gone."""
        with suppress(ConnectionResetError):
            await (await self._dialled()).write(message)

    async def read(self) -> Any:
        """Return a message, or None at the end."""
        stream = await self._dialled()
        try:
            data = await stream.read()
        except ConnectionResetError:
            return None
        if isinstance(data, bytes):
            message = decode_replicate_response(data)
            if isinstance(message, pb.ReplicateResponse) and message.WhichOneof("part") == "refused":
                raise PlainRefusalError(message.refused)
        return data

    async def done_writing(self) -> None:
        """Close this side's half."""
        (await self._dialled()).end_writing()

    def cancel(self) -> None:
        """End it now."""
        self._stream.cancel()

    async def close(self) -> None:
        """End it now; as of a channel."""
        if self._dialling is not None:
            await self._dialling
        self.cancel()

    async def _dialled(self) -> FrameStream:
        if self._dialling is None:
            loop = asyncio.get_running_loop()
            self._dialling = loop.create_task(loop.create_connection(lambda: self._stream, "127.0.0.1", self._port))
        await self._dialling
        return self._stream


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stream end by the clock; a test of that sets its own time."""
    monkeypatch.setattr(pulse, "REPLICATE_SILENCE_MS", 1_000_000)
    monkeypatch.setattr(session, "REPLICATE_OPEN_MS", 1_000_000)


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
        self.rates = PushRates()
        self.leader = Leader(
            cluster_id="c",
            node_id=LEADER_ID,
            observer=self.observer,
            broker_epoch=lambda: self.own_epoch,
            find=lambda topic_id, partition: self.replicas.get((topic_id, partition)),
            streams=self.streams,
            rates=self.rates,
            ranges=FetchRangeCalls(
                cluster_id="c", node_id=LEADER_ID, observer=self.observer, find=lambda topic_id, partition: None
            ),
        )
        self.listener = ReplicateListener(self.leader)
        self._calls: list[PlainCall] = []
        for node_id in (2, 3):
            self.register(node_id, 10 * node_id)

    def lead(self, partition: int = 0, **options: Any) -> LeadingReplica:
        """Lead a partition."""
        replica = LeadingReplica(self._directory / str(partition), **options)
        self.replicas[TOPIC_ID, partition] = replica
        return replica

    def register(self, node_id: int, broker_epoch: int) -> None:
        """Let the metadata have a registration; those of the brokers 2 and 3 with epochs 20 and 30 are there from the beginning."""
        registered = BrokerImage(
            broker_id=node_id,
            incarnation_id=INCARNATION_ID,
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

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(host="127.0.0.1", port=self.listener.port)

    def dial(self) -> FollowerSide:
        """Begin a stream on a connection of its own."""
        call = PlainCall(self.listener.port)
        self._calls.append(call)
        return FollowerSide(call)

    async def follow(self, node_id: int = 2, **fields: Any) -> FollowerSide:
        """Open a stream."""
        stream = self.dial()
        await stream.open(node_id, **fields)
        assert (await stream.part("opened")).opened.broker_epoch == self.own_epoch
        return stream

    async def close_channels(self) -> None:
        """Cut everything."""
        for call in self._calls:
            await call.close()
        self._calls.clear()


@asynccontextmanager
async def leader_world(directory: Path) -> AsyncIterator[LeaderWorld]:
    """A leader that listens."""
    world = LeaderWorld(directory)
    await world.listener.open("127.0.0.1", 0)
    try:
        yield world
    finally:
        await world.close_channels()
        await world.listener.close()
        for replica in world.replicas.values():
            if isinstance(replica, LeadingReplica):
                replica.log.close(clean=False)


class FollowerSide:
    """A follower's end of one stream, message by message; every wait ends."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._count = 0

    async def send(self, **part: Any) -> None:
        """Send one message; the next read tells how a stream ended that takes none any more."""
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
            "incarnation_id": INCARNATION_ID,
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
            assert data is not None, "the stream ended"
            message = decode_replicate_response(data)
            if isinstance(message, BatchesFrame) or message.WhichOneof("part") != "heartbeat":
                return message

    async def part(self, name: str) -> pb.ReplicateResponse:
        """Return the next message, which must be this one; marks before it are passed over, they come when they come."""
        while True:
            message = await self.receive()
            assert isinstance(message, pb.ReplicateResponse), message
            kind = message.WhichOneof("part")
            if kind == name:
                return message
            assert kind == "marks", message

    async def batches(self) -> BatchesFrame:
        """Return the next message, which must be batches; marks before it are passed over."""
        while True:
            message = await self.receive()
            if isinstance(message, BatchesFrame):
                return message
            assert message.WhichOneof("part") == "marks", message

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
                while await self.call.read() is not None:
                    pass
            except PlainRefusalError as error:
                return error.status
        raise AssertionError("the stream ended without a failure")

    async def refusal(self) -> ErrorCode | None:
        """Return the code with which the stream ends."""
        return (await self.failure()).code

    async def orderly_end(self) -> None:
        """Read until the stream ends in good order."""
        async with asyncio.timeout(WAIT_S):
            while await self.call.read() is not None:
                pass
