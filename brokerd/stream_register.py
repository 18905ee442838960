# SPDX-License-Identifier: Apache-2.0
"""The open streams of one kind on a broker: limits their number, and tells all of them that the broker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Protocol

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused


class DrainableStream(Protocol):
    """A stream that can be told that the broker stops."""

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the client to finish within `drain_ms` milliseconds."""
        ...


GOING_AWAY: Final = "the broker is stopping: connect elsewhere"
"""Message for streams that are not open yet, and for new ones, while the broker stops."""


class StreamRegister:
    """The open streams of one kind.

    Args:
        kind: name of the kind, for messages.
        max_streams: maximum number of open streams.
    """

    def __init__(self, kind: str, max_streams: int) -> None:
        self._kind = kind
        self._max_streams = max_streams
        self._streams: dict[DrainableStream, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._streams)

    @contextmanager
    def entry(self, stream: DrainableStream) -> Generator[None]:
        """Register a stream while the context runs.

        Raises:
            RefusedError: OVERLOADED, the register is full; SHUTTING_DOWN, the broker stops.
        """
        if self._is_stopping:
            raise refused(ErrorCode.SHUTTING_DOWN, GOING_AWAY)
        if len(self._streams) >= self._max_streams:
            message = f"this broker has {self._max_streams} {self._kind} streams open, which is its limit"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=1_000)
        self._streams[stream] = None
        self._empty.clear()
        try:
            yield
        finally:
            del self._streams[stream]
            if not self._streams:
                self._empty.set()

    def go_away(self, message: str, drain_ms: int) -> None:
        """Refuse new streams from now on, and tell the open ones to finish within `drain_ms` milliseconds."""
        self._is_stopping = True
        for stream in tuple(self._streams):
            stream.go_away(message, drain_ms)

    async def wait_empty(self) -> None:
        """Wait until no stream is open."""
        await self._empty.wait()
