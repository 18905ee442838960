# SPDX-License-Identifier: Apache-2.0
"""What the tests of the follower's side share: a fetcher of broker 2, and a replica that notes its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.checksum import BytesLike

from brokerd.partition.effects import Subscribe
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.partition.stream_limits import StreamLimits
from brokerd.replication.follower_stream import FollowerIdentity, ReplicaFetcher
from brokerd.tests.leading_replica import LEADER_EPOCH, LEADER_ID
from brokerd.tests.replication.leader_world import CLUSTER_ID, INCARNATION_ID, PATIENT, TOPIC_ID
from metaquorum.net.carrier import Carrier
from metaquorum.net.link import Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address
from metaquorum.testing.peer_client import PeerClient

OPENED: Final = pb.ReplicateResponse(opened=pb.ReplicateOpened(broker_epoch=10)).SerializeToString()
HEARTBEAT: Final = pb.ReplicateResponse(heartbeat=pb.LeaderHeartbeat()).SerializeToString()


class Follower:
    """A following replica, as its stream sees it."""

    topic_id = TOPIC_ID

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.accepted = asyncio.Event()
        self.ends: list[SubscriptionError] = []

    def on_subscription_accepted(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        del session, high_watermark, log_start_offset
        self.accepted.set()

    def on_subscription_diverged(self, session: int, leader_end: EpochEnd) -> None:
        raise AssertionError(f"session {session}: {leader_end}")

    def on_subscription_ended(
        self, session: int, error: SubscriptionError, *, log_start_offset: int | None = None
    ) -> None:
        self.ends.append(error)

    def on_leader_batches(
        self,
        session: int,
        batches: BytesLike,
        *,
        base_offset: int,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
    ) -> None:
        raise AssertionError(f"session {session}: batches at {base_offset}")

    def on_leader_marks(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Ignore it."""


def wanted(session: int = 1) -> Subscribe:
    """Return the subscription of an empty log."""
    return Subscribe(
        leader_id=LEADER_ID,
        leader_epoch=LEADER_EPOCH,
        session=session,
        log_end_offset=0,
        flushed_offset=0,
        last_epoch=None,
    )


class Dialled:
    """A fetcher whose leader's address comes from the test. It counts the requests for the address."""

    def __init__(self, address: Address, peers: Peers, cluster_id: str, limits: StreamLimits) -> None:
        self.address = address
        self.attempts = 0
        self.fetcher = ReplicaFetcher(
            LEADER_ID,
            FollowerIdentity(
                peers=peers,
                cluster_id=cluster_id,
                node_id=2,
                incarnation_id=INCARNATION_ID,
                broker_epoch=lambda: 20,
                address_of=self._address_of,
                limits=limits,
            ),
        )

    def _address_of(self, broker_id: int) -> Address:
        assert broker_id == LEADER_ID
        self.attempts += 1
        return self.address


@asynccontextmanager
async def dialled(
    address: Address, cluster_id: str = CLUSTER_ID, limits: StreamLimits = PATIENT
) -> AsyncIterator[Dialled]:
    """Yield a fetcher with its own connections, and close it at the end."""
    async with PeerClient(cluster_id, node_id=2) as client:
        made = Dialled(address, client.peers, cluster_id, limits)
        try:
            yield made
        finally:
            await made.fetcher.close()


def local(port: int) -> Address:
    """Return the address of a port on this machine."""
    return Address(host="127.0.0.1", port=port)


@asynccontextmanager
async def false_leader(*messages: bytes, ends: bool = True) -> AsyncIterator[Address]:
    """Run a server of the cluster whose stream has these messages, and then ends or stays silent."""
    carrier = Carrier(cluster_id=CLUSTER_ID, node_id=LEADER_ID)

    async def say(_opening: pb.ReplicateRequest, stream: Stream) -> None:
        for message in messages:
            await stream.write(message)
        while not ends and await stream.read() is not None:
            pass

    carrier.table.add_stream(Method.REPLICATE, pb.ReplicateRequest, say, window_bytes=1_000)
    address = local(carrier.bind("127.0.0.1", 0))
    await carrier.start(str(address))
    try:
        yield address
    finally:
        await carrier.close()
