# SPDX-License-Identifier: Apache-2.0
"""Writes of the quorum on a full disk: the ballast of the data directory makes room for them.

The node cannot go on without its log and its vote file, and what they need is small. The watch over free space releases the ballast
within a second of a disk becoming full; a write of the quorum cannot wait for it. Source: docs/storage.md section 8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from storage.errors import DiskFullError

ResultT = TypeVar("ResultT")

logger = logging.getLogger(__name__)


def write_with_room(write: Callable[[], ResultT], make_room: Callable[[], bool]) -> ResultT:
    """Write, and where the disk is full make room and write once more.

    Args:
        write: the write. It is called again after it met a full disk, and must not repeat what it stored before.
        make_room: makes room for small writes; False: it cannot.

    Raises:
        DiskFullError: the disk is full, and there is no room to be made or not enough.
    """
    try:
        return write()
    except DiskFullError as error:
        if not make_room():
            raise
        logger.warning("event=made_room error=%r", str(error))
        return write()


def no_room() -> bool:
    """Make no room: the directory has no ballast."""
    return False
