# SPDX-License-Identifier: Apache-2.0
"""Which batches are checked inside the event loop and which in a thread.

A usual batch is checked in tens of microseconds. One that inflates to tens of megabytes takes a tenth of a second, and a
client that sends nothing else would hold up every other stream and the heartbeats: such a batch is checked in a thread.
"""

from __future__ import annotations

import asyncio
from typing import Final

import zstandard
from lograft.wire.batch import check_batch
from lograft.wire.errors import BatchError
from lograft.wire.header import CODEC_MASK, BatchHeader
from lograft.wire.limits import HEADER_BYTES

THREAD_CHECK_BYTES: Final = 2 * 1024 * 1024
"""Bytes, inflated, from which on a batch is checked in a thread."""

MAX_THREAD_CHECKS: Final = 2
"""Batches checked in threads at once on one broker; each may hold 64 MiB inflated."""

_ATTRIBUTES_END: Final = 23

Checked = BatchHeader | BatchError
"""What a check says: the header of a good batch, or why it is refused."""


def check(body: memoryview, *, max_bytes: int) -> Checked:
    """Check a batch that a client sent."""
    try:
        return check_batch(body, max_bytes=max_bytes)
    except BatchError as error:
        return error


def is_costly(body: memoryview) -> bool:
    """True when the check may take too long for the event loop."""
    if len(body) >= THREAD_CHECK_BYTES:
        return True
    if len(body) <= HEADER_BYTES or not body[_ATTRIBUTES_END - 1] & CODEC_MASK:
        return False
    try:
        content_bytes = zstandard.frame_content_size(body[HEADER_BYTES:])
    except zstandard.ZstdError:
        return False  # no zstd frame: refused at once
    return content_bytes < 0 or content_bytes >= THREAD_CHECK_BYTES


class ThreadChecks:
    """Checks in threads, a few at once."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_THREAD_CHECKS)

    async def check(self, body: memoryview, *, max_bytes: int) -> Checked:
        """Check a batch in a thread."""
        async with self._slots:
            return await asyncio.to_thread(check, body, max_bytes=max_bytes)
