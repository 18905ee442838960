# SPDX-License-Identifier: Apache-2.0
"""Sockets that listen for plain connections beside a gRPC server."""

from __future__ import annotations

import socket


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; one, of one port, also where a name stands for several addresses.

    Args:
        host: name or address of this machine; `::` takes both families.
        port: 0: one that the system chooses.

    Raises:
        OSError: the address cannot be listened on.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    takes_both = family is socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, dualstack_ipv6=takes_both)
