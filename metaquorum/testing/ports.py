# SPDX-License-Identifier: Apache-2.0
"""Free TCP ports for servers of tests and benchmarks.

They are below the kernel's ephemeral range, so that no client connection takes one between its choice and its use. Test processes that
run side by side (pytest-xdist) choose from ranges of their own.
"""

from __future__ import annotations

import os
import random
import socket
from collections import deque

LOOPBACK = "127.0.0.1"
FIRST_PORT, END_PORT = 20_000, 30_000
"""Ports to choose from; the end is exclusive."""

ATTEMPTS_MAX = 200
RECENT_PORTS = 1_000
"""Ports that a process chooses before it chooses one again: its server may still be stopping."""

_recent: deque[int] = deque(maxlen=RECENT_PORTS)


def free_port(*hosts: str) -> int:
    """Return a port on which no process listens at any of `hosts` (default 127.0.0.1), another one in each call."""
    mine = _range_of(os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    for _ in range(ATTEMPTS_MAX):
        port = random.choice(mine)
        if port not in _recent and all(_is_free(host, port) for host in hosts or (LOOPBACK,)):
            _recent.append(port)
            return port
    raise RuntimeError(f"no free port on {hosts} after {ATTEMPTS_MAX} attempts")


def free_ports(count: int) -> list[int]:
    """Return some ports as `free_port` does."""
    return [free_port() for _ in range(count)]


def _range_of(worker: str, count: str) -> range:
    """Return the ports of one of the workers `gw0`, `gw1` and so on."""
    size = (END_PORT - FIRST_PORT) // int(count)
    first = FIRST_PORT + size * int(worker.removeprefix("gw"))
    return range(first, first + size)


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
