# SPDX-License-Identifier: Apache-2.0
"""Page state: makes the kernel's free pages ones that the machine has used before.

On a virtual machine a file that grows onto never-used memory pays the host for each page, several times the cost of the write itself:
the ceiling of `produce` then takes 4 ms of CPU a MB instead of 2. A run first claims most of the free memory, and touches and frees
some again just before each measurement, so that both sides write to recycled pages, as a server that has run for a while does.
"""

from __future__ import annotations

import ctypes
import mmap

import psutil

CLAIMED_SHARE = 0.8
"""Part of the available memory that a run claims before its first measurement."""

MAX_CLAIMED_BYTES = 20 * 1024**3
"""More than a run writes: beyond it claiming would only take time."""


def recycle_pages(size_bytes: int) -> None:
    """Touch and free `size_bytes` of shared memory."""
    with mmap.mmap(-1, size_bytes) as region:
        _touch(region, size_bytes)


def claim_memory() -> int:
    """Touch and free most of the available memory, so that the host gives it to this machine; return its bytes.

    Takes up to a minute on a machine that has just been started, some seconds later.
    """
    size_bytes = min(int(psutil.virtual_memory().available * CLAIMED_SHARE), MAX_CLAIMED_BYTES)
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
        _touch(region, size_bytes)
    return size_bytes


def _touch(region: mmap.mmap, size_bytes: int) -> None:
    view = (ctypes.c_char * size_bytes).from_buffer(region)
    ctypes.memset(ctypes.addressof(view), 1, size_bytes)
    del view
