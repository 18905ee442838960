# SPDX-License-Identifier: Apache-2.0
"""The way to the peers: failures are named, silent connections are replaced, channels are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.raft.events import Failure
from metaquorum.runtime import transport as transport_module
from metaquorum.runtime.transport import GrpcTransport, PeerFailureError
from metaquorum.testing.scripted_node import ScriptedNode


@pytest.fixture
async def transport() -> AsyncIterator[GrpcTransport]:
    """A transport that is closed at the end."""
    made = GrpcTransport()
    yield made
    await made.close()


class Void:
    """A port that takes connections and never says anything."""

    def __init__(self) -> None:
        self.connection_count = 0
        self.address = ""
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connection_count += 1
            self._writers.append(writer)
            # The greeting of an HTTP/2 server, and silence after it.
            writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            await reader.read()

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening."""
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()


@pytest.fixture
async def void() -> AsyncIterator[Void]:
    """An open void."""
    port = Void()
    await port.open()
    yield port
    await port.close()


async def failure_of(transport: GrpcTransport, address: str, timeout_ms: int) -> Failure:
    """How a vote request to the address fails."""
    request = ScriptedNode().vote_request(2, 1)
    with pytest.raises(PeerFailureError) as error:
        await transport.call(address, request, timeout_ms=timeout_ms)
    return error.value.failure


async def test_port_without_a_listener_refuses(transport: GrpcTransport, void: Void) -> None:
    """A process that is gone is told apart from one that is slow."""
    await void.close()
    assert await failure_of(transport, void.address, 5_000) is Failure.REFUSED
    with pytest.raises(PeerFailureError):
        await transport.probe(void.address, pb.ProbeRequest(), timeout_ms=5_000)


async def test_silent_peer_times_out_and_gets_a_new_connection(transport: GrpcTransport, void: Void) -> None:
    """A connection that swallows requests is given up after two of them."""
    for _ in range(transport_module.MAX_TIMEOUTS_IN_A_ROW):
        assert await failure_of(transport, void.address, 300) is Failure.TIMED_OUT
    assert void.connection_count == 1
    assert await failure_of(transport, void.address, 300) is Failure.TIMED_OUT
    assert void.connection_count == 2


async def test_silent_snapshot_download_costs_the_connection(transport: GrpcTransport, void: Void) -> None:
    """A download that gets no piece counts as a call that gets no answer."""
    for _ in range(transport_module.MAX_TIMEOUTS_IN_A_ROW + 1):
        with pytest.raises(PeerFailureError) as error:
            await anext(transport.fetch_snapshot(void.address, pb.FetchSnapshotRequest(), timeout_ms=300))
        assert error.value.failure is Failure.TIMED_OUT
    assert void.connection_count == 2


async def test_channels_are_bounded(transport: GrpcTransport, void: Void, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel used longest ago makes room."""
    monkeypatch.setattr(transport_module, "MAX_CHANNELS", 1)
    await failure_of(transport, void.address, 100)
    await failure_of(transport, "127.0.0.1:1", 2_000)
    await failure_of(transport, void.address, 300)
    assert void.connection_count == 2
