# SPDX-License-Identifier: Apache-2.0
"""Page state: gives both sides of a measurement pages of memory that this machine has just used.

On a virtual machine, a file that grows onto pages which the host must provide first costs ten times the write itself: 2.4 ms of CPU per
MB instead of 0.2. Free pages return to such a host within seconds, so a run cannot get them once for all its measurements. Therefore a
file is written and removed right before each measurement, as retention does on a server that has run for a while. Touching as much
anonymous memory is not enough: in about every third case the growing file gets other pages.
"""

from __future__ import annotations

import os
from pathlib import Path

CHUNK = bytes(256 * 1024)


def recycle_pages(directory: Path, size_bytes: int) -> None:
    """Write a file of `size_bytes` below the directory and remove it. The next file there gets its pages."""
    path = directory / "recycled-pages"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(size_bytes // len(CHUNK)):
            os.write(descriptor, CHUNK)
    finally:
        os.close(descriptor)
        path.unlink()
