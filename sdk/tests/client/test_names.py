# SPDX-License-Identifier: Apache-2.0
"""A broker that comes back with another address under its name."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest
from lograft._client import resolver
from lograft._client.transport import Purpose, Transport
from lograft.errors import NoBrokerError
from lograft.settings import MAX_RETRY_BACKOFF_MS

GONE, THERE = "127.0.0.2", "127.0.0.1"


class NameService:
    """Stands for the name service of the machine, and knows one name."""

    def __init__(self) -> None:
        self.addresses = [GONE]
        self.questions = 0

    def getaddrinfo(self, host: str, port: int, **_options: object) -> list[Any]:
        """See `socket.getaddrinfo`."""
        if host != "peer.test":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.questions += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> NameService:
    """The name service that clients ask."""
    service = NameService()
    monkeypatch.setattr(resolver.socket, "getaddrinfo", service.getaddrinfo)
    return service


async def test_clients_look_names_up_again_soon(names: NameService) -> None:
    """A broker whose old address refuses is found at the new one. By default, gRPC would wait for thirty seconds."""
    peer = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    port = peer.add_insecure_port(f"{THERE}:0")
    await peer.start()
    transport = Transport()
    with pytest.raises(NoBrokerError):
        await transport.connect(f"peer.test:{port}", Purpose.CONTROL, timeout_s=10)
    assert names.questions > 0
    names.addresses = [THERE]
    async with asyncio.timeout(10 * MAX_RETRY_BACKOFF_MS / 1000):
        await transport.channel(f"peer.test:{port}", Purpose.CONTROL).channel_ready()
    await transport.close()
    await peer.stop(None)


async def test_all_addresses_of_a_name_are_tried(names: NameService) -> None:
    """The first one refuses, so the second one is used."""
    peer = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    port = peer.add_insecure_port(f"{THERE}:0")
    await peer.start()
    names.addresses = [GONE, THERE]
    transport = Transport()
    await transport.connect(f"peer.test:{port}", Purpose.CONTROL, timeout_s=10)
    await transport.close()
    await peer.stop(None)


async def test_a_name_that_nobody_knows_is_no_broker(names: NameService) -> None:
    """The client says so at once, and asks again later."""
    transport = Transport()
    with pytest.raises(NoBrokerError):
        await transport.connect("other.test:1", Purpose.CONTROL, timeout_s=10)
    channel = transport.channel("other.test:1", Purpose.CONTROL)
    assert channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
    await transport.close()
    assert names.questions == 0
