# SPDX-License-Identifier: Apache-2.0
"""A server that sends a valid HELLO and then nothing, like a connection whose machine was lost."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import cast

from metaquorum.net.frames import GREETING, Kind, header
from metaquorum.net.hello import Identity


class Swallowing(asyncio.Protocol):
    """The server's end of a connection: sends some bytes at first, then only receives.

    Args:
        says: bytes that it sends first.
        taken: buffer for the received bytes.
    """

    def __init__(self, says: bytes, taken: bytearray) -> None:
        self._says = says
        self._taken = taken
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first bytes."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._says)

    def data_received(self, data: bytes) -> None:
        """Store received bytes."""
        self._taken += data


def greeting(identity: Identity) -> bytes:
    """Return the first bytes of a normal server."""
    hello = identity.encode()
    return GREETING + header(Kind.HELLO, 0, len(hello)) + hello


class VoidServer:
    """Listens on a port of its own, and never answers what it receives.

    Args:
        cluster_id: cluster that its HELLO names.
        says: first bytes to send instead of the preface and a HELLO.

    Attributes:
        connection_count: number of accepted connections.
        taken: received bytes of all of them.
    """

    def __init__(self, cluster_id: str, *, says: bytes | None = None) -> None:
        self._cluster_id = cluster_id
        self._says = says
        self._server: asyncio.Server | None = None
        self._ends: list[Swallowing] = []
        self.address = ""
        self.connection_count = 0
        self.taken = bytearray()

    async def __aenter__(self) -> VoidServer:
        self._server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the port, and abort the connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for end in self._ends:
            if end.transport is not None:
                end.transport.abort()

    def _accept(self) -> asyncio.Protocol:
        self.connection_count += 1
        says = self._says
        if says is None:
            says = greeting(
                Identity(cluster_id=self._cluster_id, node_id=1, incarnation_id=bytes(16), address=self.address)
            )
        end = Swallowing(says, self.taken)
        self._ends.append(end)
        return end
