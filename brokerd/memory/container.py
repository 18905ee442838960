# SPDX-License-Identifier: Apache-2.0
"""How much memory this process may use: the limit of its container or of the machine, whichever is less.

Source: Linux, cgroup-v2.rst (`memory.max`), cgroup-v1/memory.rst (`memory.limit_in_bytes`); proc(5), cgroups(7).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
"""Where control groups are mounted."""

OWN_GROUPS: Final = Path("/proc/self/cgroup")
"""The control groups of this process."""


def memory_limit_bytes(*, cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Return the least of the limits of all control groups that this process is in and the memory of the machine, in bytes.

    Args:
        cgroups: mount point of the control groups.
        own_groups: file that names those of this process.
    """
    limits = [limit for path in _limit_files(cgroups, own_groups) if (limit := _read_limit(path)) is not None]
    return min([physical_bytes(), *limits])


def physical_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limit_files(cgroups: Path, own_groups: Path) -> Iterator[Path]:
    """Give the files that may hold a limit. Inside a container the own group is often mounted as the root: all parents are asked."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        lines = []
    for line in ("0::/", "1:memory:/", *lines):
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        path = base / group.lstrip("/")
        yield path / name
        for parent in path.parents:
            if not parent.is_relative_to(base):
                break
            yield parent / name


def _read_limit(path: Path) -> int | None:
    """Read one limit in bytes; None: there is none. Version 1 says "none" by a number near 2^63, which bounds nothing."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
