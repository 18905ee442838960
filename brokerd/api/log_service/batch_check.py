# SPDX-License-Identifier: Apache-2.0
"""Checks batches of clients, in the event loop or in a thread, and recompresses them for `compression.type`.

The check of a usual batch takes tens of microseconds. A batch that inflates to tens of megabytes takes a tenth of a second. A client
that sends nothing else would delay every other stream and the heartbeats, so a thread checks such a batch. A thread also takes a batch
whose topic stores another codec, because it must be inflated, compressed and encoded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import zstandard
from lograft.wire.batch import check_batch
from lograft.wire.checksum import BytesLike
from lograft.wire.compression import Codec
from lograft.wire.errors import BatchError
from lograft.wire.header import CODEC_MASK, BatchHeader, read_header
from lograft.wire.limits import HEADER_BYTES, MAX_GENERIC_PAYLOAD_BYTES, MAX_INFLATED_BYTES

from brokerd.limits import INFLATE_WAIT_MS, MAX_INFLATE_THREADS
from brokerd.memory.budget import Grant, MemoryBudget, MemoryGate
from brokerd.short_turns import ShortTurns
from metaquorum.metadata.topic_configs import CompressionType, TopicSettings
from storage.log.recompression import recompress

THREAD_CHECK_BYTES: Final = 2 * 1024 * 1024
"""Inflated bytes from which on a thread checks a batch."""

BOMB_BYTES: Final = 128 * 1024
"""Inflated bytes from which on a thread checks a batch that is compressed by more than `BOMB_RATIO`.

Empty record headers take 25 ms for each inflated megabyte, and a client sends 200 bytes for that.
"""

BOMB_RATIO: Final = 32
"""Highest plausible ratio of inflated to compressed bytes: usual records are compressed to a third or a tenth."""

COPIES: Final = 2
"""Copies of a payload in memory while it is inflated: one in pieces, one whole."""

GENERIC_COPIES: Final = 20
"""Memory of the generated parser, as a multiple of the payload; for payloads of at most `MAX_GENERIC_PAYLOAD_BYTES`."""

_ATTRIBUTES_END: Final = 23

_CODECS: Final = {CompressionType.NONE: Codec.NONE, CompressionType.ZSTD: Codec.ZSTD}

ResultT = TypeVar("ResultT")

Checked = BatchHeader | BatchError
"""The result of a check: the header of a valid batch, or why it is refused."""


def check(body: memoryview, *, max_bytes: int) -> Checked:
    """Check a batch of a client in the calling thread."""
    try:
        return check_batch(body, max_bytes=max_bytes)
    except BatchError as error:
        return _bare(error)


def _bare(error: BatchError) -> BatchError:
    """Remove the traceback and the causes from an error: their frames hold the inflated data."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def is_costly(body: memoryview) -> bool:
    """Return True if the check may take too long for the event loop."""
    if len(body) >= THREAD_CHECK_BYTES:
        return True
    if len(body) <= HEADER_BYTES or not body[_ATTRIBUTES_END - 1] & CODEC_MASK:
        return False
    try:
        content_bytes = zstandard.frame_content_size(body[HEADER_BYTES:])
    except zstandard.ZstdError:
        return False  # not a zstd frame: the check refuses it at once
    if content_bytes < 0 or content_bytes >= THREAD_CHECK_BYTES:
        return True
    return content_bytes >= BOMB_BYTES and content_bytes > BOMB_RATIO * len(body)


def needs_recompression(body: memoryview, settings: TopicSettings) -> bool:
    """Return True if the topic stores another codec than this batch has."""
    if settings.compression_type is CompressionType.PRODUCER or len(body) < _ATTRIBUTES_END:
        return False
    return body[_ATTRIBUTES_END - 1] & CODEC_MASK != _CODECS[settings.compression_type]


def _check_and_recompress(
    body: memoryview, settings: TopicSettings, *, max_bytes: int
) -> tuple[memoryview, BatchHeader] | BatchError:
    try:
        header = check_batch(body, max_bytes=max_bytes)
        codec = _CODECS.get(settings.compression_type, header.codec)
        stored: BytesLike = recompress(body, header, codec, zstd_level=settings.zstd_level, max_bytes=max_bytes)
    except BatchError as error:
        return _bare(error)
    return memoryview(stored), read_header(stored)


def inflated_bytes(body: memoryview) -> int:
    """Return the maximum size of a batch's payload once inflated, as its frame states it.

    A frame that states no size, and a payload that is no frame, count as `MAX_INFLATED_BYTES`.
    """
    if len(body) <= HEADER_BYTES or not body[_ATTRIBUTES_END - 1] & CODEC_MASK:
        return len(body)
    try:
        content_bytes = zstandard.frame_content_size(body[HEADER_BYTES:])
    except zstandard.ZstdError:
        content_bytes = -1
    return min(content_bytes, MAX_INFLATED_BYTES) if content_bytes >= 0 else MAX_INFLATED_BYTES


def _usable_processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def thread_count(processor_count: int) -> int:
    """Return how many batches are processed at once. On few processors it is one, because a second would take the event loop's."""
    return max(1, min(MAX_INFLATE_THREADS, processor_count // 2))


class BatchThreads:
    """Processes batches in a few threads, within the memory budget for inflated data.

    Args:
        max_bytes: maximum bytes that this work may hold at once.

    Attributes:
        short_turns: counts the work under way, if this program owns the process; None inside another program.
    """

    def __init__(self, max_bytes: int) -> None:
        self.short_turns: ShortTurns | None = None
        self._gate = MemoryGate("inflated batches", max_bytes)
        count = thread_count(_usable_processors())
        self._slots = asyncio.Semaphore(count)
        # A pool of its own: until the next trim, the allocator keeps what each thread once needed, so only few threads may do this.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="batches")

    @property
    def budget(self) -> MemoryBudget:
        """The budget with the bytes that this work holds."""
        return self._gate.budget

    def close(self) -> None:
        """Accept no more work. The threads end after the work under way."""
        self._threads.shutdown(wait=False)

    async def check_and_recompress(
        self, body: memoryview, settings: TopicSettings, *, max_bytes: int
    ) -> tuple[memoryview, Checked]:
        """Check a batch in a thread. Return it in the codec of its topic with its header, or unchanged with the reason for refusal.

        Raises:
            RefusedError: OVERLOADED, no thread or memory became free in time.
        """
        work = partial(_check_and_recompress, body, settings, max_bytes=max_bytes)
        found = await self.run(work, inflated_bytes(body))
        return (body, found) if isinstance(found, BatchError) else found

    async def run(self, work: Callable[[], ResultT], size_bytes: int) -> ResultT:
        """Run work on payloads of at most `size_bytes` in a thread. If the caller is cancelled, the memory counts until the work ends.

        Raises:
            RefusedError: OVERLOADED, no thread or memory became free in time.
        """
        # A payload with an unusual layout takes the generated parser, which needs many times the payload's size.
        cost_bytes = max(COPIES * size_bytes, GENERIC_COPIES * min(size_bytes, MAX_GENERIC_PAYLOAD_BYTES))
        grant = await self._gate.take(cost_bytes, timeout_ms=INFLATE_WAIT_MS)
        try:
            await self._slots.acquire()
        except BaseException:
            self._gate.give_back(grant)
            raise
        short_turns = self.short_turns
        if short_turns is not None:
            short_turns.begin()
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        if short_turns is not None:
            working.add_done_callback(lambda _: short_turns.end())
        working.add_done_callback(lambda task: self._end(grant, task))
        # A thread cannot be stopped. Without the shield a cancelled caller would free its slot while the thread still runs.
        return await asyncio.shield(working)

    def _end(self, grant: Grant, working: asyncio.Future[ResultT]) -> None:
        self._slots.release()
        self._gate.give_back(grant)
        if not working.cancelled():
            working.exception()  # the caller may be gone, and asyncio complains about an exception that no code retrieves
