# SPDX-License-Identifier: Apache-2.0
"""Peers that come back under another address, with gRPC's own resolver and a name server of the test."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import cast

import grpc
import grpc.aio
import pytest
from lograft._client.transport import CHANNEL_OPTIONS
from lograft.settings import MAX_RETRY_BACKOFF_MS

from brokerd.clock import monotonic_ms
from brokerd.controller_client.peer_channels import PeerChannels, is_ready_within
from brokerd.limits import FOLLOWER_PAUSE_MAX_MS, PEER_RESOLVE_MS
from metaquorum.tests.quorum_cluster import until

LONG_MS, GIVE_UP_S = 600_000, 60.0
"""A wait that nothing but news ends, and the seconds after which a test that waits for it has failed."""

GONE, THERE = "127.0.0.2", "127.0.0.1"
HEADER, TYPE_A = struct.Struct(">6H"), 1


class NameServer(asyncio.DatagramProtocol):
    """Answers every question for an IPv4 address with one address, and any other with nothing."""

    def __init__(self) -> None:
        self.address = GONE
        self.questions = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer."""
        assert self._transport is not None
        self.questions += 1
        number = HEADER.unpack_from(data)[0]
        # The name ends with an empty label; type and class follow.
        name_end = data.index(b"\0", HEADER.size) + 1
        question = data[HEADER.size : name_end + 4]
        (kind,) = struct.unpack_from(">H", data, name_end)
        answer = struct.pack(">HHHIH", 0xC00C, TYPE_A, 1, 1, 4) + socket.inet_aton(self.address)
        has_answer = kind == TYPE_A
        header = HEADER.pack(number, 0x8180, 1, int(has_answer), 0, 0)
        self._transport.sendto(header + question + (answer if has_answer else b""), addr)


@pytest.fixture
async def names() -> AsyncIterator[tuple[NameServer, str]]:
    """A name server, and the target of a server that listens at `THERE` alone."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    name_port = transport.get_extra_info("sockname")[1]
    peer = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    port = peer.add_insecure_port(f"{THERE}:0")
    await peer.start()
    yield server, f"dns://127.0.0.1:{name_port}/peer.test:{port}"
    await peer.stop(None)
    transport.close()


async def test_peer_that_comes_back_under_another_address_is_found_soon(names: tuple[NameServer, str]) -> None:
    """Its name is looked up again when its old address refuses; gRPC alone would wait for thirty seconds."""
    server, target = names
    channels = PeerChannels()
    try:
        async with channels.use(target) as channel:
            assert not await is_ready_within(channel, FOLLOWER_PAUSE_MAX_MS)
            assert server.questions > 0
            server.address = THERE
            moved_ms = monotonic_ms()
            ready = asyncio.ensure_future(channel.channel_ready())
            await until(ready.done, what="the peer at its new address")
            assert monotonic_ms() - moved_ms < 10 * PEER_RESOLVE_MS
    finally:
        await channels.close()


async def test_clients_look_names_up_again_as_soon(names: tuple[NameServer, str]) -> None:
    """Their channels have a limit of their own, of the same size."""
    server, target = names
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        assert not await is_ready_within(channel, FOLLOWER_PAUSE_MAX_MS)
        server.address = THERE
        moved_ms = monotonic_ms()
        ready = asyncio.ensure_future(channel.channel_ready())
        await until(ready.done, what="the peer at its new address")
        assert monotonic_ms() - moved_ms < 10 * max(PEER_RESOLVE_MS, MAX_RETRY_BACKOFF_MS)


async def test_channel_that_is_given_up_is_lent_no_more_and_closed_after_its_last_use() -> None:
    """Calls that are under way on it go on; the next ones get another channel, which is another connection."""
    channels = PeerChannels()
    try:
        async with channels.use("127.0.0.1:1") as old, channels.use("127.0.0.1:1") as same:
            assert same is old
            channels.give_up("127.0.0.1:1", old)
            async with channels.use("127.0.0.1:1") as new:
                assert new is not old
                channels.give_up("127.0.0.1:1", old)
            async with channels.use("127.0.0.1:1") as again:
                assert again is new
            assert old.get_state() is grpc.ChannelConnectivity.IDLE
        assert old.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    finally:
        await channels.close()


async def test_channel_whose_server_is_gone_is_not_waited_for() -> None:
    """It shows no further attempt until one succeeds: who waited for news of it would wait for as long as it may."""
    with socket.socket() as gone:
        # Bound and not listening: whoever connects is refused.
        gone.bind(("127.0.0.1", 0))
        channels = PeerChannels()
        try:
            async with channels.use(f"127.0.0.1:{gone.getsockname()[1]}") as channel, asyncio.timeout(GIVE_UP_S):
                for _ in range(3):
                    assert not await is_ready_within(channel, LONG_MS)
        finally:
            await channels.close()
