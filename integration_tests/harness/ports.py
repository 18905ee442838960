# SPDX-License-Identifier: Apache-2.0
"""Free TCP ports below the kernel's ephemeral range, so that no client connection takes one between choice and use."""

from __future__ import annotations

import random
import socket

FIRST_PORT, LAST_PORT = 20_000, 30_000
ATTEMPTS_MAX = 200
_taken: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of `host` that nothing listens on and that this process was not given before."""
    for _ in range(ATTEMPTS_MAX):
        port = random.randint(FIRST_PORT, LAST_PORT)
        if port in _taken:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        _taken.add(port)
        return port
    raise RuntimeError(f"no free port on {host} after {ATTEMPTS_MAX} attempts")
