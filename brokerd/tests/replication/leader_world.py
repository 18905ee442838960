# SPDX-License-Identifier: Apache-2.0
"""What the tests of the leader's side share: a carrier that serves followers, leading replicas, and a follower's stream.

Brokers 2 and 3 follow. Each has one connection to the leader, as in production. The follower's stream reads and writes with the
generated code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.batch import iter_batches
from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms
from brokerd.limits import MAX_REPLICATE_STREAMS, REPLICATE_WINDOW_BYTES
from brokerd.partition.replication_rates import ReplicationRates
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import Batches
from brokerd.replica.replica import Replica
from brokerd.replication import leader_stream
from brokerd.replication.leader_stream import Leader, ReplicationService
from brokerd.replication.repair import RangeSource
from brokerd.stream_register import StreamRegister
from brokerd.tests.leading_replica import LEADER_EPOCH, LEADER_ID, LeadingReplica
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.state import BrokerImage
from metaquorum.net.carrier import Carrier
from metaquorum.net.link import CallError, RefusedByPeerError, Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import RefusalError, decode_refusal
from metaquorum.process.settings import Address
from metaquorum.testing.peer_client import PeerClient

PATIENT: Final = StreamLimits(silence_ms=1_000_000)
"""Limits with which no stream ends by the clock, however slow the machine is."""

CLUSTER_ID: Final = "c"
TOPIC_ID = b"t" * 16
INCARNATION_ID = b"i" * 16


def let_silence_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the leader's clock by the time after which a silent stream of `PATIENT` ends."""
    monkeypatch.setattr(leader_stream, "monotonic_ms", lambda: monotonic_ms() + PATIENT.silence_ms)


class LeaderWorld:
    """A server of the carrier with only the replication service.

    Attributes:
        carrier: its connections.
        service: the service.
        replicas: the partitions by topic id and number.
        own_epoch: broker epoch of the leader; None: not registered.
        address: its address.
    """

    def __init__(self, directory: Path, limits: StreamLimits) -> None:
        self._directory = directory
        self.replicas: dict[tuple[bytes, int], Replica] = {}
        self.own_epoch: int | None = 10
        self.observer = MetadataLoader()
        self.streams = StreamRegister("replicate", MAX_REPLICATE_STREAMS)
        self.rates = ReplicationRates()
        self.leader = Leader(
            cluster_id=CLUSTER_ID,
            node_id=LEADER_ID,
            observer=self.observer,
            broker_epoch=lambda: self.own_epoch,
            find=lambda topic_id, partition: self.replicas.get((topic_id, partition)),
            streams=self.streams,
            rates=self.rates,
            limits=limits,
            ranges=RangeSource(
                cluster_id=CLUSTER_ID,
                node_id=LEADER_ID,
                observer=self.observer,
                find=lambda topic_id, partition: None,
            ),
        )
        self.carrier = Carrier(cluster_id=CLUSTER_ID, node_id=LEADER_ID)
        self.service = ReplicationService(self.carrier.table)
        self.service.attach(self.leader)
        self.address = Address(host="127.0.0.1", port=self.carrier.bind("127.0.0.1", 0))
        self._clients: dict[int, PeerClient] = {}
        for node_id in (2, 3):
            self.register(node_id, 10 * node_id)

    def lead(self, partition: int = 0, **options: Any) -> LeadingReplica:
        """Lead a partition."""
        replica = LeadingReplica(self._directory / str(partition), **options)
        self.replicas[TOPIC_ID, partition] = replica
        return replica

    def register(self, node_id: int, broker_epoch: int) -> None:
        """Add a registration to the metadata. Brokers 2 and 3 have epochs 20 and 30 from the beginning."""
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

    async def peers(self, node_id: int = 2) -> Peers:
        """Return the connections of a following broker. They end with the world."""
        client = self._clients.get(node_id)
        if client is None:
            client = self._clients[node_id] = PeerClient(CLUSTER_ID, node_id=node_id)
            await client.open()
        return client.peers

    async def dial(self, node_id: int = 2, *, window_bytes: int = REPLICATE_WINDOW_BYTES) -> FollowerSide:
        """Begin a stream over the connection of a broker, without an opening."""
        return FollowerSide(await self.peers(node_id), self.address, window_bytes)

    async def follow(
        self, node_id: int = 2, *, window_bytes: int = REPLICATE_WINDOW_BYTES, **fields: Any
    ) -> FollowerSide:
        """Open a stream."""
        stream = await self.dial(node_id, window_bytes=window_bytes)
        await stream.open(node_id, **fields)
        assert (await stream.part("opened")).opened.broker_epoch == self.own_epoch
        return stream

    async def cut(self, node_id: int) -> None:
        """End the connection of a broker, as the end of its process does."""
        await self._clients.pop(node_id).close()

    async def close(self) -> None:
        """End everything."""
        for node_id in list(self._clients):
            await self.cut(node_id)
        await self.service.close()
        await self.carrier.close()


@asynccontextmanager
async def leader_world(directory: Path, limits: StreamLimits = PATIENT) -> AsyncIterator[LeaderWorld]:
    """A leader that listens."""
    world = LeaderWorld(directory, limits)
    await world.carrier.start(str(world.address))
    try:
        yield world
    finally:
        await world.close()
        for replica in world.replicas.values():
            if isinstance(replica, LeadingReplica):
                await replica.close()


class FollowerSide:
    """A follower's end of one stream, message by message; every wait ends."""

    def __init__(self, peers: Peers, address: Address, window_bytes: int) -> None:
        self._peers = peers
        self._address = address
        self._window_bytes = window_bytes
        self._stream: Stream | None = None
        self._count = 0

    async def send(self, **part: Any) -> None:
        """Send one message; the first one opens the stream."""
        await self.say(pb.ReplicateRequest(**part).SerializeToString())

    async def say(self, message: bytes) -> None:
        """Send bytes. If the stream has ended, the next read tells how."""
        async with asyncio.timeout(WAIT_S):
            if self._stream is None:
                self._stream = await self._peers.open(
                    str(self._address),
                    Method.REPLICATE,
                    message,
                    window_bytes=self._window_bytes,
                    timeout_ms=int(WAIT_S * 1000),
                )
                return
            with suppress(CallError):
                await self._stream.write(message)

    async def hear(self) -> bytes | None:
        """Return the next message; None: the leader has ended the stream.

        Raises:
            RefusalError: the leader refuses.
        """
        assert self._stream is not None, "nothing was sent"
        async with asyncio.timeout(WAIT_S):
            try:
                return await self._stream.read()
            except RefusedByPeerError as error:
                raise decode_refusal(error.failure) from error

    def end(self) -> None:
        """Send nothing more."""
        assert self._stream is not None, "nothing was sent"
        self._stream.end()

    def give_up(self) -> None:
        """End the stream now."""
        assert self._stream is not None, "nothing was sent"
        self._stream.give_up()

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
            "cluster_id": CLUSTER_ID,
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
        """Subscribe to a partition from an offset on. Sessions count up."""
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
        """Send an acknowledgement."""
        ack = pb.ReplicaAck(
            route=route, appended_offset=appended, flushed_offset=appended if flushed is None else flushed
        )
        await self.send(acks=pb.ReplicaAcks(acks=[ack]))

    async def receive(self) -> pb.ReplicateResponse:
        """Return the next message except heartbeats."""
        while True:
            data = await self.hear()
            assert data is not None, "the stream ended"
            message = pb.ReplicateResponse.FromString(data)
            if message.WhichOneof("part") != "heartbeat":
                return message

    async def part(self, name: str) -> pb.ReplicateResponse:
        """Return the next message, which must have this part. Marks before it are skipped, because their time is random."""
        while True:
            message = await self.receive()
            kind = message.WhichOneof("part")
            if kind == name:
                return message
            assert kind == "marks", message

    async def batches(self) -> Batches:
        """Return the next message, which must be batches. Marks before it are skipped."""
        sent = (await self.part("batches")).batches
        return Batches(
            sent.route,
            sent.base_offset,
            sent.leader_epoch,
            sent.high_watermark,
            sent.log_start_offset,
            sent.traffic == pb.REPLICA_TRAFFIC_IN_SYNC,
            sent.batches,
        )

    async def gather(self, end: int) -> tuple[bytes, list[Batches]]:
        """Return the bytes and the messages up to an offset. There is one route, and each message continues the last one."""
        frames: list[Batches] = []
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

    async def failure(self) -> RefusalError:
        """Read until the stream ends, and return the refusal."""
        try:
            while await self.hear() is not None:
                pass
        except RefusalError as error:
            return error
        raise AssertionError("the stream ended without a failure")

    async def refusal(self) -> ErrorCode:
        """Return the code with which the stream ends."""
        return (await self.failure()).code

    async def orderly_end(self) -> None:
        """Read until the stream ends cleanly."""
        while await self.hear() is not None:
            pass
