# SPDX-License-Identifier: Apache-2.0
"""Which server a connection on the loopback address comes from. Linux tells in /proc; no privilege is needed.

Source: proc(5), `/proc/net/tcp`, `/proc/net/tcp6` and `/proc/pid/fd`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _INODE = 1, 2, 9
"""Columns of a table."""


def owner_of(peer: tuple[str, int], here: tuple[str, int], pids: Mapping[int, int]) -> int | None:
    """Return the node whose process holds the other end of a connection; None: it belongs to no node.

    Args:
        peer: address of the other end.
        here: address of this end.
        pids: process ids of the nodes.
    """
    inode = _inode(_hexadecimal(peer), _hexadecimal(here))
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    return next((node for node, pid in pids.items() if _holds(pid, wanted)), None)


def _hexadecimal(address: tuple[str, int]) -> str:
    # An IPv4 address inside an IPv6 one has the same end.
    return f"{socket.inet_aton(address[0])[::-1].hex().upper()}:{address[1]:04X}"


def _inode(local: str, remote: str) -> str | None:
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                columns = line.split()
                if columns[_LOCAL].endswith(local) and columns[_REMOTE].endswith(remote) and columns[_INODE] != "0":
                    return columns[_INODE]
    return None


def _holds(pid: int, wanted: str) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for each in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{each}") == wanted:
                return True
    return False
