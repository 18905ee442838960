# SPDX-License-Identifier: Apache-2.0
"""The check of a batch that a client sent, in the event loop or in a thread, and its recompression by `compression.type`.

The check of a usual batch takes tens of microseconds. That of a batch which inflates to tens of megabytes takes a tenth of a second,
and a client that sends nothing else would hold up every other stream and the heartbeats: a thread checks such a batch. A thread also
takes a batch whose topic stores another codec: it inflates, compresses and encodes.
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
"""Bytes, inflated, from which on a batch is checked in a thread."""

BOMB_BYTES: Final = 128 * 1024
"""Bytes, inflated, from which on a batch is checked in a thread where it is compressed to less than a part in `BOMB_RATIO`.

Empty record headers take 25 ms for each megabyte, of which a client sends 200 bytes.
"""

BOMB_RATIO: Final = 32
"""Times that records inflate at most if they are of any use: usual ones are compressed to a third or a tenth."""

COPIES: Final = 2
"""Times that a payload is in memory while it is inflated: in pieces, and whole."""

GENERIC_COPIES: Final = 20
"""Times its size that the generated parser takes for a payload within `MAX_GENERIC_PAYLOAD_BYTES`."""

_ATTRIBUTES_END: Final = 23

_CODECS: Final = {CompressionType.NONE: Codec.NONE, CompressionType.ZSTD: Codec.ZSTD}

ResultT = TypeVar("ResultT")

Checked = BatchHeader | BatchError
"""The result of a check: the header of a good batch, or why it is refused."""


def check(body: memoryview, *, max_bytes: int) -> Checked:
    """Check a batch that a client sent."""
    try:
        return check_batch(body, max_bytes=max_bytes)
    except BatchError as error:
        return _bare(error)


def _bare(error: BatchError) -> BatchError:
    """Cut an error off the frames that it came through: they hold what was inflated."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
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
    if content_bytes < 0 or content_bytes >= THREAD_CHECK_BYTES:
        return True
    return content_bytes >= BOMB_BYTES and content_bytes > BOMB_RATIO * len(body)


def needs_recompression(body: memoryview, settings: TopicSettings) -> bool:
    """True when the topic stores another codec than that of this batch."""
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
    """Return the most bytes that the payload of one batch may be once inflated, by what its frame says of itself.

    One that says nothing, and one that is no frame, counts as the most that is ever inflated.
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
    """Return how many batches are worked on at once: on few processors a second one would take the event loop's."""
    return max(1, min(MAX_INFLATE_THREADS, processor_count // 2))


class BatchThreads:
    """Work on batches in threads: a few at once, and within the budget of what is being inflated.

    Args:
        max_bytes: most bytes that this work holds at once.

    Attributes:
        short_turns: told of the work while it goes on, by the owner of a process; None in a process of another program.
    """

    def __init__(self, max_bytes: int) -> None:
        self.short_turns: ShortTurns | None = None
        self._gate = MemoryGate("inflated batches", max_bytes)
        count = thread_count(_usable_processors())
        self._slots = asyncio.Semaphore(count)
        # Of its own: the allocator keeps what each thread once needed until the next trim, so few threads must do this.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="batches")

    @property
    def budget(self) -> MemoryBudget:
        """The bytes that are held."""
        return self._gate.budget

    def close(self) -> None:
        """Take no more work; the threads end when what is under way is done."""
        self._threads.shutdown(wait=False)

    async def check_and_recompress(
        self, body: memoryview, settings: TopicSettings, *, max_bytes: int
    ) -> tuple[memoryview, Checked]:
        """Check a batch in a thread and return it in the codec of its topic, with its header then or the reason of its refusal.

        Raises:
            RefusedError: OVERLOADED, there was no turn for it.
        """
        work = partial(_check_and_recompress, body, settings, max_bytes=max_bytes)
        found = await self.run(work, inflated_bytes(body))
        return (body, found) if isinstance(found, BatchError) else found

    async def run(self, work: Callable[[], ResultT], size_bytes: int) -> ResultT:
        """Do work on payloads of at most `size_bytes` in a thread. A cancelled caller leaves; the memory counts until the work ends.

        Raises:
            RefusedError: OVERLOADED, there was no turn for it.
        """
        # A payload in an unusual layout goes through the generated parser, which takes many times its size.
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
        # A thread cannot be stopped. Without the shield a cancelled caller would free its slot while the thread goes on.
        return await asyncio.shield(working)

    def _end(self, grant: Grant, working: asyncio.Future[ResultT]) -> None:
        self._slots.release()
        self._gate.give_back(grant)
        if not working.cancelled():
            working.exception()  # the caller may be gone, and an exception must be read
