# SPDX-License-Identifier: Apache-2.0
"""A follower's stream to one leader over the carrier: when it is tried, how an attempt ends, and what follows its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.partition.reconciliation import SubscriptionError
from brokerd.partition.stream_limits import StreamLimits
from brokerd.tests.replication.fetchers import HEARTBEAT, OPENED, Follower, dialled, false_leader, wanted
from brokerd.tests.replication.leader_world import PATIENT, LeaderWorld
from brokerd.tests.support import WAIT_S
from metaquorum.process.settings import Address
from metaquorum.tests.quorum_cluster import until

NEVER_MS = 1_000_000


@asynccontextmanager
async def closed_port() -> AsyncIterator[Address]:
    """Yield an address at which no process listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Address(host="127.0.0.1", port=bound.getsockname()[1])


@asynccontextmanager
async def silent_port() -> AsyncIterator[Address]:
    """Yield an address that accepts no connection: its queue is full, so packets to it are lost."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield Address(host="127.0.0.1", port=listening.getsockname()[1])


async def test_news_of_a_leader_end_the_pause_of_its_stream(
    world: LeaderWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader was down and is back. A partition that wants to follow it now does not wait for the pause of earlier ones."""
    caplog.set_level(logging.INFO)
    limits = replace(PATIENT, retry_min_ms=NEVER_MS, retry_max_ms=NEVER_MS, pause_max_ms=NEVER_MS)
    async with closed_port() as nowhere, dialled(nowhere, limits=limits) as dial:
        for partition in (0, 1):
            world.lead(partition)
        first, second = Follower(0), Follower(1)
        dial.fetcher.subscribe(first, wanted())
        await until(lambda: "stream ended" in caplog.text, what="the first attempt")
        dial.address = world.address
        dial.fetcher.subscribe(second, wanted())
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(first.accepted.wait(), second.accepted.wait())
        assert dial.attempts == 2


async def test_connection_whose_packets_are_lost_is_given_up_soon(world: LeaderWorld) -> None:
    """The kernel would try it for minutes, while the leader is reachable again, perhaps at another address."""
    limits = replace(PATIENT, open_ms=NEVER_MS)
    async with silent_port() as silent, dialled(silent, limits=limits) as dial:
        world.lead(0)
        follower = Follower(0)
        dial.fetcher.subscribe(follower, wanted())
        await until(lambda: dial.attempts == 1, what="the first attempt")
        dial.address = world.address
        async with asyncio.timeout(WAIT_S):
            await follower.accepted.wait()
        assert dial.attempts == 2


async def test_leader_that_refuses_for_good_is_an_error_for_the_operator(
    world: LeaderWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Another cluster answers there, which is not the ordinary end of a stream."""
    caplog.set_level(logging.INFO)
    async with dialled(world.address, "other") as dial:
        dial.fetcher.subscribe(Follower(0), wanted())
        await until(lambda: "stream ended" in caplog.text, what="the refusal")
    ends = [record for record in caplog.records if "stream ended" in record.getMessage()]
    assert "this is cluster" in ends[0].getMessage()
    assert all(record.levelno == logging.ERROR for record in ends)


async def test_fetcher_survives_the_end_of_its_stream(world: LeaderWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Subscriptions are accepted; when the leader refuses the stream, the fetcher says why and opens another one."""
    caplog.set_level(logging.INFO)
    for partition in (0, 1):
        world.lead(partition)
    async with dialled(world.address) as dial, asyncio.timeout(WAIT_S):
        first, second = Follower(0), Follower(1)
        dial.fetcher.subscribe(first, wanted())
        await first.accepted.wait()
        assert caplog.text.count("replication stream open") == 1
        other = await world.follow(2, broker_epoch=20)
        await until(lambda: "has opened another stream" in caplog.text, what="the refusal")
        dial.fetcher.subscribe(second, wanted())
        await second.accepted.wait()
        assert await other.refusal() is ErrorCode.STALE_BROKER_EPOCH
    assert caplog.text.count("replication stream open") == 2


async def ends_of(address: Address, caplog: pytest.LogCaptureFixture, limits: StreamLimits = PATIENT) -> str:
    """Follow the leader at an address until a stream to it has ended. Return the reason of the end."""
    caplog.set_level(logging.INFO)
    async with dialled(address, limits=limits) as dial:
        dial.fetcher.subscribe(Follower(0), wanted())
        await until(lambda: "replication stream ended" in caplog.text, what="the end of the stream")
    ends = [record.getMessage() for record in caplog.records if "stream ended" in record.getMessage()]
    return ends[0].partition("reason=")[2]


async def test_stream_that_the_leader_ends_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """It ends cleanly, after the leader's last message."""
    async with false_leader(OPENED, HEARTBEAT) as address:
        assert await ends_of(address, caplog) == "the leader ended it"


async def test_stream_over_which_nothing_comes_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """The leader reads what is sent, and stays silent."""
    async with false_leader(OPENED, ends=False) as address:
        assert "gave the stream up" in await ends_of(address, caplog, replace(PATIENT, silence_ms=50))
    assert "the leader says nothing any more" in caplog.text


@pytest.mark.parametrize(
    ("said", "why"),
    [(b"\xff\xff\xff", "cannot be decoded"), (OPENED, "`opened` came twice")],
    ids=["no message", "opened"],
)
async def test_what_no_leader_says_ends_the_stream(caplog: pytest.LogCaptureFixture, said: bytes, why: str) -> None:
    """A leader that violates the protocol is tried again, like one that is gone."""
    async with false_leader(OPENED, said, ends=False) as address:
        assert why in await ends_of(address, caplog)


async def test_connection_that_breaks_ends_the_stream(world: LeaderWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The leader's process is gone. Reader and writer notice, and the replica subscribes again at the next leader."""
    caplog.set_level(logging.INFO)
    world.lead(0)
    async with dialled(world.address) as dial, asyncio.timeout(WAIT_S):
        follower = Follower(0)
        dial.fetcher.subscribe(follower, wanted())
        await follower.accepted.wait()
        await world.service.close()
        await world.carrier.close()
        await until(lambda: "replication stream ended" in caplog.text, what="the end of the stream")
        assert follower.ends == [SubscriptionError.STREAM_LOST]
