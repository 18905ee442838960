# SPDX-License-Identifier: Apache-2.0
"""A broker that comes back with another address, with gRPC's own resolver and a name server of the test."""

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

GONE, THERE = "127.0.0.2", "127.0.0.1"
HEADER, TYPE_A = struct.Struct(">6H"), 1


class NameServer(asyncio.DatagramProtocol):
    """Answers every question for an IPv4 address with one address, and every other question with nothing."""

    def __init__(self) -> None:
        self.address = GONE
        self.questions = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the answers."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer a question."""
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
    """A name server, and the target of a server that listens only at `THERE`."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    name_port = transport.get_extra_info("sockname")[1]
    peer = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    port = peer.add_insecure_port(f"{THERE}:0")
    await peer.start()
    yield server, f"dns://127.0.0.1:{name_port}/peer.test:{port}"
    await peer.stop(None)
    transport.close()


async def test_clients_look_names_up_again_soon(names: tuple[NameServer, str]) -> None:
    """A broker whose old address refuses is found at the new one. By default, gRPC would wait for thirty seconds."""
    server, target = names
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await channel.wait_for_state_change(state)
            state = channel.get_state()
        assert server.questions > 0
        server.address = THERE
        async with asyncio.timeout(10 * MAX_RETRY_BACKOFF_MS / 1000):
            await channel.channel_ready()
