# SPDX-License-Identifier: Apache-2.0
"""Free TCP ports below the kernel's ephemeral range, so that no client connection takes one between its choice and its use."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 20_000, 30_000
ATTEMPTS_MAX = 200
_taken: set[int] = set()


def free_port(*hosts: str) -> int:
    """Return a port on which no process listens at any of `hosts` (default 127.0.0.1); each call in this process gives another one."""
    for _ in range(ATTEMPTS_MAX):
        port = random.randint(FIRST_PORT, LAST_PORT)
        if port not in _taken and all(_is_free(host, port) for host in hosts or (LOOPBACK,)):
            _taken.add(port)
            return port
    raise RuntimeError(f"no free port on {hosts} after {ATTEMPTS_MAX} attempts")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
