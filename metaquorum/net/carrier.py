# SPDX-License-Identifier: Apache-2.0
"""The carrier of one process: the methods that it answers, its connections and its internal port.

    carrier = Carrier(cluster_id=..., node_id=1)
    port = carrier.bind("0.0.0.0", 9192)
    QuorumService(carrier.table)
    await carrier.start(f"voter-1:{port}")
    await carrier.peers.ask("voter-2:9192", Method.PROBE, request, timeout_ms=1_000)
    await carrier.close()

Owns the order of start and stop. A process that no other server dials binds no port.
Source: docs/net.md.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Final

from metaquorum.net.connection import Limits
from metaquorum.net.hello import ID_BYTES, Identity
from metaquorum.net.peers import Peers
from metaquorum.net.service import ServiceTable

BACKLOG: Final = 1_024
"""Connections that may wait for the server to accept them."""


class Carrier:
    """All connections of this process to other servers. Runs on one event loop.

    Args:
        cluster_id: cluster of this process.
        node_id: node id of this process.
        limits: bounds of its connections.

    Attributes:
        table: the methods that this process answers; fill it before `start`.
    """

    def __init__(self, *, cluster_id: str, node_id: int, limits: Limits | None = None) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._limits = limits
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._peers: Peers | None = None
        self.table = ServiceTable()

    @property
    def peers(self) -> Peers:
        """Return the connections. Valid only after `start`."""
        assert self._peers is not None, "the carrier was not started"
        return self._peers

    def bind(self, host: str, port: int) -> int:
        """Bind the internal port and return its number. For port 0 the system chooses one. Connections are answered from `start` on.

        Args:
            host: name or address of this machine; `::` means IPv4 and IPv6.
            port: TCP port.

        Raises:
            OSError: this process cannot listen on the address.
        """
        assert self._socket is None, "it is bound already"
        self._socket = listening_socket(host, port)
        return self._socket.getsockname()[1]

    async def start(self, address: str | None) -> None:
        """Start to answer other servers and to dial them.

        Args:
            address: `host:port` at which other servers reach this one; None if none dials it.
        """
        assert self._peers is None, "it has started already"
        identity = Identity(
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            incarnation_id=secrets.token_bytes(ID_BYTES),
            address=address,
        )
        self._peers = Peers(identity, self.table.services(), limits=self._limits)
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._peers.accept, sock=self._socket, backlog=BACKLOG)

    async def close(self, goodbye: bytes = b"") -> None:
        """Close every connection. Callers on both sides learn that their calls are lost. Idempotent."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        await self.table.close()
        if self._peers is not None:
            await self._peers.close(goodbye)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return one listening socket on one port, even if the name has several addresses.

    Raises:
        OSError: this process cannot listen on the address.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    takes_both = family is socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, dualstack_ipv6=takes_both)
