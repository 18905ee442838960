# SPDX-License-Identifier: Apache-2.0
"""Which batches are checked inside the event loop and which in a thread, and how a topic's `compression.type` is carried out.

A usual batch is checked in tens of microseconds. One that inflates to tens of megabytes takes a tenth of a second, and a
client that sends nothing else would hold up every other stream and the heartbeats: such a batch is checked in a thread. So is
one that has to be stored in another codec than it came in; its producer makes the broker compress, or inflate, and write anew.
"""

from __future__ import annotations

import asyncio
from typing import Final

import zstandard
from lograft.wire.batch import check_batch
from lograft.wire.checksum import BytesLike
from lograft.wire.compression import Codec
from lograft.wire.errors import BatchError
from lograft.wire.header import CODEC_MASK, BatchHeader, read_header
from lograft.wire.limits import HEADER_BYTES

from metaquorum.controller.topic_configs import CompressionType, TopicSettings
from storage.recompression import recompress

THREAD_CHECK_BYTES: Final = 2 * 1024 * 1024
"""Bytes, inflated, from which on a batch is checked in a thread."""

MAX_THREAD_CHECKS: Final = 2
"""Batches checked in threads at once on one broker; each may hold 64 MiB inflated."""

_ATTRIBUTES_END: Final = 23

_CODECS: Final = {CompressionType.NONE: Codec.NONE, CompressionType.ZSTD: Codec.ZSTD}

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


def is_stored_anew(body: memoryview, settings: TopicSettings) -> bool:
    """True when the topic stores this batch in another codec than it came in."""
    if settings.compression_type is CompressionType.PRODUCER or len(body) < _ATTRIBUTES_END:
        return False
    return body[_ATTRIBUTES_END - 1] & CODEC_MASK != _CODECS[settings.compression_type]


def to_stored(body: memoryview, header: BatchHeader, settings: TopicSettings, *, max_bytes: int) -> memoryview:
    """Give the bytes that the topic stores for a batch that was checked.

    Raises:
        BatchTooLargeError: the batch is too large in the topic's codec.
    """
    codec = _CODECS.get(settings.compression_type, header.codec)
    stored: BytesLike = recompress(body, header, codec, zstd_level=settings.zstd_level, max_bytes=max_bytes)
    return memoryview(stored)


def _check_and_store(
    body: memoryview, settings: TopicSettings, *, max_bytes: int
) -> tuple[memoryview, BatchHeader] | BatchError:
    try:
        stored = to_stored(body, check_batch(body, max_bytes=max_bytes), settings, max_bytes=max_bytes)
    except BatchError as error:
        return error
    return stored, read_header(stored)


class ThreadChecks:
    """Checks in threads, a few at once."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_THREAD_CHECKS)

    async def check_and_store(
        self, body: memoryview, settings: TopicSettings, *, max_bytes: int
    ) -> tuple[memoryview, Checked]:
        """Check a batch in a thread and give it in the codec of its topic, with its header then or why it is refused."""
        async with self._slots:
            found = await asyncio.to_thread(_check_and_store, body, settings, max_bytes=max_bytes)
        return (body, found) if isinstance(found, BatchError) else found
