# SPDX-License-Identifier: Apache-2.0
"""Connections of one event loop share its time: megabytes of some do not hold up the short messages of others."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from lograft._grpc import http2
from lograft._grpc.http2 import ServerConnection, header_block
from lograft._grpc.http2_socket import (
    RECEIVE_BYTES,
    SHORT_WRITE_BYTES,
    TURN_BYTES,
    WRITE_BYTES,
    Http2Socket,
    WriteTurns,
)
from tests.grpc_python.http2_frames import END_HEADERS, HEADERS, PREFACE, SETTINGS, WINDOW_UPDATE, encode_headers, frame

CALL = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "localhost"), ("te", "trailers")]
HUGE = (1 << 30).to_bytes(4, "big")
LONG, SHORT = bytes(TURN_BYTES), b"short"
PEER = (
    PREFACE
    + frame(SETTINGS, 0, 0, b"\0\4" + HUGE)
    + frame(WINDOW_UPDATE, 0, 0, HUGE)
    + frame(HEADERS, END_HEADERS, 1, encode_headers(CALL))
)
"""What a client says that takes anything."""


class Ending(Http2Socket[ServerConnection, Any]):
    """A connection whose user does nothing."""

    def on_event(self, event: http2.Event) -> None:
        """See `Http2Socket`."""

    def on_lost(self) -> None:
        """See `Http2Socket`."""


class Counting(asyncio.Transport):
    """A transport that takes everything, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""

    def writelines(self, list_of_data: Any) -> None:
        """See `asyncio.WriteTransport`."""
        self.written += sum(map(len, list_of_data))

    def is_closing(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return False

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""


def connected(turns: WriteTurns) -> tuple[Ending, Counting]:
    """Return a connection with one open stream."""
    core = ServerConnection(1 << 20, 3)
    connection = Ending(core, quiet_s=10, dead_s=20, buffer=bytearray(RECEIVE_BYTES), turns=turns)
    transport = Counting()
    connection.connection_made(transport)
    connection.get_buffer(-1)[: len(PEER)] = PEER
    connection.buffer_updated(len(PEER))
    core.respond(1, header_block([(":status", "200")]))
    connection.flush()
    transport.written = 0
    return connection, transport


async def test_a_turn_writes_a_bounded_number_of_bytes() -> None:
    """Ten connections with a megabyte each take ten turns, in the order in which they came. All bytes go out."""
    turns = WriteTurns()
    ends = [connected(turns) for _ in range(10)]
    await asyncio.sleep(0)
    for connection, _ in ends:
        connection.send(1, (LONG,))
    written = [0]
    while written[-1] < 10 * TURN_BYTES:
        written.append(sum(transport.written for _, transport in ends))
        await asyncio.sleep(0)
        assert len(written) < 30, "all bytes go out in the end"
    most = TURN_BYTES + WRITE_BYTES + 10 * SHORT_WRITE_BYTES
    assert all(after - before <= most for before, after in pairwise(written))
    assert all(transport.written >= TURN_BYTES for _, transport in ends)


async def test_a_short_message_does_not_wait_for_its_turn() -> None:
    """It goes out at once beside connections that wait with megabytes."""
    turns = WriteTurns()
    ends = [connected(turns) for _ in range(5)]
    short, transport = connected(turns)
    await asyncio.sleep(0)
    for connection, _ in ends:
        connection.send(1, (LONG,))
    short.send(1, (SHORT,))
    assert transport.written > len(SHORT)


async def test_connection_that_ends_while_it_waits_is_left_out() -> None:
    """The others go on."""
    turns = WriteTurns()
    (first, _), (second, transport) = connected(turns), connected(turns)
    await asyncio.sleep(0)
    first.send(1, (LONG * 2,))
    second.send(1, (LONG,))
    first.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert transport.written > TURN_BYTES
