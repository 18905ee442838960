# SPDX-License-Identifier: Apache-2.0
"""A follower's stream to one leader over the carrier: when it is tried, and what ends an attempt."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lograft.wire.checksum import BytesLike

from brokerd.partition.effects import Subscribe
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replication import connecting, stream_retry
from brokerd.replication.follower_link import LeaderLink, LinkIdentity
from brokerd.tests.leading_replica import LEADER_EPOCH, LEADER_ID
from brokerd.tests.replicate_support import CLUSTER_ID, INCARNATION_ID, TOPIC_ID, be_patient, leader_world
from brokerd.tests.support import WAIT_S
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address
from metaquorum.testing.peer_client import PeerClient
from metaquorum.tests.quorum_cluster import until

NEVER_MS = 1_000_000


class Follower:
    """A replica that follows, as far as its stream knows it."""

    topic_id = TOPIC_ID

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.accepted = asyncio.Event()

    def on_subscription_accepted(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        del session, high_watermark, log_start_offset
        self.accepted.set()

    def on_subscription_diverged(self, session: int, leader_end: EpochEnd) -> None:
        raise AssertionError(f"session {session}: {leader_end}")

    def on_subscription_ended(
        self, session: int, error: SubscriptionError, *, log_start_offset: int | None = None
    ) -> None:
        """The server went, at the end of the test."""

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
        """Not looked at."""


def wanted(session: int = 1) -> Subscribe:
    """The subscription of an empty log."""
    return Subscribe(
        leader_id=LEADER_ID,
        leader_epoch=LEADER_EPOCH,
        session=session,
        log_end_offset=0,
        flushed_offset=0,
        last_epoch=None,
    )


class Dialled:
    """A link whose leader's address the test tells; counts how often it was asked for."""

    def __init__(self, address: Address, peers: Peers, cluster_id: str) -> None:
        self.address = address
        self.attempts = 0
        self.link = LeaderLink(
            LEADER_ID,
            LinkIdentity(
                peers=peers,
                cluster_id=cluster_id,
                node_id=2,
                incarnation_id=INCARNATION_ID,
                broker_epoch=lambda: 20,
                address_of=self._address_of,
            ),
        )

    def _address_of(self, broker_id: int) -> Address:
        assert broker_id == LEADER_ID
        self.attempts += 1
        return self.address


@asynccontextmanager
async def dialled(address: Address, cluster_id: str = CLUSTER_ID) -> AsyncIterator[Dialled]:
    """A link with connections of its own, closed at the end."""
    async with PeerClient(cluster_id, node_id=2) as client:
        made = Dialled(address, client.peers, cluster_id)
        try:
            yield made
        finally:
            await made.link.close()


@asynccontextmanager
async def closed_port() -> AsyncIterator[Address]:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Address(host="127.0.0.1", port=bound.getsockname()[1])


@asynccontextmanager
async def silent_port() -> AsyncIterator[Address]:
    """An address that takes no connection: its queue is full, so that what is sent there is lost."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield Address(host="127.0.0.1", port=listening.getsockname()[1])


async def test_news_of_a_leader_end_the_pause_of_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was down, and is back: a partition that wants to follow it now does not wait for the pause of those before."""
    be_patient(monkeypatch)
    caplog.set_level(logging.INFO)
    for name in ("REPLICATE_RETRY_MIN_MS", "REPLICATE_RETRY_MAX_MS", "FOLLOWER_PAUSE_MAX_MS"):
        monkeypatch.setattr(stream_retry, name, NEVER_MS)
    async with leader_world(tmp_path) as world, closed_port() as nowhere, dialled(nowhere) as dial:
        for partition in (0, 1):
            world.lead(partition)
        first, second = Follower(0), Follower(1)
        dial.link.subscribe(first, wanted())
        await until(lambda: "stream ended" in caplog.text, what="the first attempt")
        dial.address = world.address
        dial.link.subscribe(second, wanted())
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(first.accepted.wait(), second.accepted.wait())
        assert dial.attempts == 2


async def test_connection_whose_packets_are_lost_is_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would try it for minutes; meanwhile the leader is reachable again, perhaps elsewhere."""
    be_patient(monkeypatch)
    monkeypatch.setattr(connecting, "REPLICATE_OPEN_MS", NEVER_MS)
    async with leader_world(tmp_path) as world, silent_port() as silent, dialled(silent) as dial:
        world.lead(0)
        follower = Follower(0)
        dial.link.subscribe(follower, wanted())
        await until(lambda: dial.attempts == 1, what="the first attempt")
        dial.address = world.address
        async with asyncio.timeout(WAIT_S):
            await follower.accepted.wait()
        assert dial.attempts == 2


async def test_leader_that_refuses_for_good_is_an_error_for_the_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another cluster answers there: that is not the ordinary end of a stream."""
    caplog.set_level(logging.INFO)
    async with leader_world(tmp_path) as world, dialled(world.address, "other") as dial:
        dial.link.subscribe(Follower(0), wanted())
        await until(lambda: "stream ended" in caplog.text, what="the refusal")
    ends = [record for record in caplog.records if "stream ended" in record.getMessage()]
    assert "this is cluster" in ends[0].getMessage()
    assert all(record.levelno == logging.ERROR for record in ends)
