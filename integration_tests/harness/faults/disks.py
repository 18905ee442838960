# SPDX-License-Identifier: Apache-2.0
"""Small disks that can be filled: a tmpfs mounted at a data directory, and a file that takes its free space."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

FILLER = "filler"
"""Name of the file that fills a disk."""
CHUNK_BYTES = 1024 * 1024


@contextlib.contextmanager
def small_disk(path: Path, *, size_bytes: int) -> Generator[bool]:
    """Mount a tmpfs at a path that does not exist yet. Yields False if mounting is not permitted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "lograft-small", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True)


def free_bytes(path: Path) -> int:
    """Return the bytes that can still be written to a file system."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def fill_disk(path: Path, *, keep_bytes: int = 0) -> None:
    """Write a file on a disk until at most `keep_bytes` are free."""
    chunk = bytes(CHUNK_BYTES)
    # The error for a full disk is expected here.
    with contextlib.suppress(OSError), (path / FILLER).open("wb", buffering=0) as file:
        while (room_bytes := free_bytes(path) - keep_bytes) > 0:
            file.write(chunk[: max(4_096, room_bytes)])


def empty_disk(path: Path) -> None:
    """Remove the file of `fill_disk`, if it exists."""
    (path / FILLER).unlink(missing_ok=True)
