# SPDX-License-Identifier: Apache-2.0
"""Page state: makes the kernel's free pages ones that the machine has used before.

On a virtual machine a file that grows onto never-used memory pays the host for each page, several times the cost of the write itself.
Touching and freeing memory just before a measurement gives both sides recycled pages, as a server that has run for a while has.
"""

from __future__ import annotations

import ctypes
import mmap


def recycle_pages(size_bytes: int) -> None:
    """Touch and free `size_bytes` of memory."""
    with mmap.mmap(-1, size_bytes) as region:
        view = (ctypes.c_char * size_bytes).from_buffer(region)
        ctypes.memset(ctypes.addressof(view), 1, size_bytes)
        del view
