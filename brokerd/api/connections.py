# SPDX-License-Identifier: Apache-2.0
"""Ends TCP connections of this process by the name of their peer.

gRPC for Python gives a server no way to end a call whose client takes nothing: a status waits behind the messages, and their memory
with it (docs/adr/0013-memory-budgets.md). A connection that is shut down ends all its calls.
Linux; elsewhere nothing is found, and nothing is ended.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

DESCRIPTORS: Final = "/proc/self/fd"


def end_connections(peers: Collection[str]) -> int:
    """Shut down the connections of peers; return how many there were. Looks at every descriptor: call it in a thread.

    Args:
        peers: as gRPC names them, such as `ipv4:127.0.0.1:9640` or `ipv6:%5B::1%5D:9640`.
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
            # A duplicate stays the same socket even if its owner closes the descriptor meanwhile.
            with socket.socket(fileno=os.dup(int(number))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and _peer(connection) in wanted:
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        except OSError:
            continue  # closed meanwhile, or a listener
    return ended


def _normal(peer: str) -> str:
    """Give a peer as `host:port`, IPv4 in IPv6 as IPv4."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return f"{host.strip('[]').removeprefix('::ffff:')}:{port}"


def _peer(connection: socket.socket) -> str:
    host, port = connection.getpeername()[:2]
    return f"{str(host).removeprefix('::ffff:')}:{port}"
