# SPDX-License-Identifier: Apache-2.0
"""What every service of one broker shares, and the register of its open streams."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from lograft.wire.codes import ErrorCode

from brokerd.api.log_service.batch_check import BatchThreads
from brokerd.api.log_service.fetch_buffer import FetchBuffer
from brokerd.controller_client.lifecycle import ControllerSession
from brokerd.controller_client.producer_ids import ProducerIds
from brokerd.failure import refused
from brokerd.replica.locator import Locator
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.peers import Peers


class DrainableStream(Protocol):
    """A stream that can be told that the server stops."""

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the client to finish within `drain_ms` milliseconds."""
        ...


GOING_AWAY: Final = "the broker is stopping: connect elsewhere"
"""What streams are told that are not open yet, and those that come."""


class StreamRegister:
    """The open streams of one kind.

    Args:
        kind: name for messages.
        max_streams: most of them at once.
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
        """Keep a stream in the register while it runs.

        Raises:
            RefusedError: OVERLOADED, SHUTTING_DOWN.
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
        """Take no more streams and tell those that are open."""
        self._is_stopping = True
        for stream in tuple(self._streams):
            stream.go_away(message, drain_ms)

    async def wait_empty(self) -> None:
        """Wait until no stream is open."""
        await self._empty.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """One broker, as its services see it."""

    cluster_id: str
    node_id: int
    observer: MetadataLoader
    locator: Locator
    peers: Peers
    producer_ids: ProducerIds
    produce_streams: StreamRegister
    fetch_streams: StreamRegister
    watch_streams: StreamRegister
    fetch_buffer: FetchBuffer
    batch_threads: BatchThreads
    session: ControllerSession
