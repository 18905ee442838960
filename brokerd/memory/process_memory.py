# SPDX-License-Identifier: Apache-2.0
"""Memory of the process as the kernel counts it: its limit, and what it gives back after a burst.

The limit is that of the container or of the machine, whichever is less.

A server tells the allocator to keep memory that it once got (`lograft.wire.malloc`), which makes large messages three
times as fast. Without `trim_after_bursts` the memory of a burst would stay resident. A check reads one file. A trim
costs milliseconds, and page faults for memory that the server needs again. It does nothing without glibc or Linux.

Source: Linux, cgroup-v2.rst (`memory.max`), cgroup-v1/memory.rst (`memory.limit_in_bytes`); proc(5), cgroups(7),
malloc_trim(3), mallopt(3).
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

CGROUPS: Final = Path("/sys/fs/cgroup")
"""Mount point of the control groups."""

OWN_GROUPS: Final = Path("/proc/self/cgroup")
"""File that lists the control groups of this process."""

CHECK_MS: Final = 10_000
"""Milliseconds between two checks of the resident memory, and so the least time between two trims.

A trim of 300 MB takes up to 80 ms and blocks every thread that allocates memory. One in 10 s costs less than a
hundredth of the time.
"""

CHECK_MS_MAX: Final = 20_000
"""Most milliseconds between two checks: the time doubles up to this while trims give nothing back."""

TRIM_FROM_BYTES: Final = 8 * 1024 * 1024
"""A trim is due at this much resident memory above the least that any trim left; one that gives back this much was worth its time."""

_M_ARENA_MAX: Final = -8

STATM: Final = Path("/proc/self/statm")


def memory_limit_bytes(*, cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Return the memory limit in bytes: the least of the machine's memory and the limits of all control groups of this process.

    Args:
        cgroups: mount point of the control groups.
        own_groups: file that lists the groups of this process.
    """
    limits = [limit for path in _limit_files(cgroups, own_groups) if (limit := _read_limit(path)) is not None]
    return min([physical_bytes(), *limits])


def physical_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limit_files(cgroups: Path, own_groups: Path) -> Iterator[Path]:
    """Yield the files that may hold a limit, those of all parents too; in a container the own group is often mounted as the root."""
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
    """Return one limit in bytes; None: no limit. Version 1 says "no limit" by a number near 2^63, which limits nothing."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class TrimRule:
    """Decides when to trim and when to check again, from what the checks found.

    Memory of a burst may be in use at one check and free at the next, although the process did not grow in between. So
    the measure is the least memory that any trim left, and only useless trims become rarer.
    """

    def __init__(self) -> None:
        self._least_bytes: int | None = None
        self._pause_ms = CHECK_MS

    @property
    def pause_ms(self) -> int:
        """Milliseconds until the next check."""
        return self._pause_ms

    def is_due(self, resident_bytes: int) -> bool:
        """Return whether a trim may be worth its time."""
        return self._least_bytes is None or resident_bytes - self._least_bytes >= TRIM_FROM_BYTES

    def on_trimmed(self, before_bytes: int, after_bytes: int) -> None:
        """Note the resident memory before and after a trim."""
        self._least_bytes = after_bytes if self._least_bytes is None else min(self._least_bytes, after_bytes)
        is_worth = before_bytes - after_bytes >= TRIM_FROM_BYTES
        self._pause_ms = CHECK_MS if is_worth else min(2 * self._pause_ms, CHECK_MS_MAX)


def use_one_arena() -> bool:
    """Make all threads that start from now on share one heap, because a trim does not release the free end of a thread's own heap.

    Returns:
        False without glibc, or if it refuses.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    return mallopt(_M_ARENA_MAX, 1) == 1


async def trim_after_bursts() -> None:
    """Check and trim until cancelled; return at once if trimming is not possible."""
    trim = _find_trim()
    if trim is None:
        return
    rule = TrimRule()
    while (before_bytes := resident_bytes()) is not None:
        if rule.is_due(before_bytes):
            # The call releases the interpreter lock, so that the event loop continues.
            await asyncio.to_thread(trim, 0)
            after_bytes = resident_bytes() or before_bytes
            rule.on_trimmed(before_bytes, after_bytes)
            logger.debug("event=memory_trimmed before_bytes=%d after_bytes=%d", before_bytes, after_bytes)
        await asyncio.sleep(rule.pause_ms / 1000)


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not provide it."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _find_trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes = (ctypes.c_size_t,)
    trim.restype = ctypes.c_int
    return trim
