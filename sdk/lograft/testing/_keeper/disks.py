# SPDX-License-Identifier: Apache-2.0
"""Small disks that can be filled: a tmpfs at each data directory, inside the keeper's own mount namespace."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Final

FILLER: Final = "filler"
"""Name of the file that fills a disk."""

CHUNK_BYTES: Final = 1024 * 1024


def mount(path: Path, size_bytes: int) -> None:
    """Mount a tmpfs of a size at a directory. Raises OSError if the system does not permit it."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "lograft-testing", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"mount: {done.stderr.strip() or done.returncode}")


def unmount(path: Path) -> None:
    """Take the tmpfs away. What still uses it does not matter."""
    subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def fill(path: Path) -> None:
    """Write a file until no byte is free."""
    chunk = bytes(CHUNK_BYTES)
    with contextlib.suppress(OSError), (path / FILLER).open("wb", buffering=0) as file:
        while (free_bytes := _free_bytes(path)) > 0:
            file.write(chunk[:free_bytes])


def empty(path: Path) -> None:
    """Remove the file, if it exists."""
    (path / FILLER).unlink(missing_ok=True)


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
