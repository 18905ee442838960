# SPDX-License-Identifier: Apache-2.0
"""Ends TCP connections of this process, chosen by the name of the peer.

A gRPC server in Python cannot end a call whose client does not read: the status waits behind the messages, which stay in memory
(docs/adr/0013-memory-budgets.md). Shutting down the connection ends all its calls. Works on Linux only; elsewhere this module finds
and ends no connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

DESCRIPTORS: Final = "/proc/self/fd"


def end_connections(peers: Collection[str]) -> int:
    """Shut down the connections of peers and return how many were found.

    It reads every descriptor of the process, so call it in a thread.

    Args:
        peers: names of peers as gRPC gives them, such as `ipv4:127.0.0.1:9640` or `ipv6:%5B::1%5D:9640`.
    """
    wanted = set(map(_normal, peers))
    ended = 0
    try:
        numbers = os.listdir(DESCRIPTORS)
    except OSError:
        return 0
    for number in numbers:
        try:
            if not os.readlink(f"{DESCRIPTORS}/{number}").startswith("socket:"):
                continue
            # The duplicate keeps the socket even if its owner closes the descriptor in the meantime.
            with socket.socket(fileno=os.dup(int(number))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and _peer(connection) in wanted:
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        except OSError:
            continue  # closed in the meantime, or a listening socket
    return ended


def _normal(peer: str) -> str:
    """Return a peer as `host:port`, with an IPv4 address in IPv6 form as IPv4."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return f"{host.strip('[]').removeprefix('::ffff:')}:{port}"


def _peer(connection: socket.socket) -> str:
    host, port = connection.getpeername()[:2]
    return f"{str(host).removeprefix('::ffff:')}:{port}"
