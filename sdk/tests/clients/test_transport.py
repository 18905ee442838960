# SPDX-License-Identifier: Apache-2.0
"""What clients make of calls that fail without a word from a Lograft server, and of channels that owe an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio
import pytest
from lograft import Admin, Consumer, Producer, aio
from lograft._transport import Purpose, Transport, is_connection_loss, is_unanswered, to_error
from lograft.errors import InvalidSettingError, LograftError, NoBrokerError, ProtocolError


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """A failure that gRPC made itself: no details of Lograft."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        (grpc.StatusCode.UNKNOWN, "Stream removed"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        # Seen when a broker is killed while a message is being written.
        (grpc.StatusCode.INTERNAL, "Internal error from Core"),
    ],
)
def test_a_connection_that_breaks_is_tried_again_whatever_grpc_calls_it(code: grpc.StatusCode, details: str) -> None:
    """A killed broker must not fail records for good: the failure counts as a lost connection."""
    error = failed(code, details)
    assert is_connection_loss(error)
    assert isinstance(to_error(error, "127.0.0.1:1"), NoBrokerError)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.INTERNAL, "Failed to decode the message", ProtocolError),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ProtocolError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max", ProtocolError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", LograftError),
    ],
)
def test_what_would_fail_again_is_no_lost_connection(
    code: grpc.StatusCode, details: str, kind: type[LograftError]
) -> None:
    """Another try would end in the same way, so the caller is told at once."""
    error = failed(code, details)
    assert not is_connection_loss(error)
    assert isinstance(to_error(error, "127.0.0.1:1"), kind)


@pytest.mark.parametrize(
    ("code", "details", "is_owed"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", True),
        (grpc.StatusCode.UNAVAILABLE, "ping timeout", True),
        # gRPC puts the next call on the same connection, where it fails too.
        (
            grpc.StatusCode.UNAVAILABLE,
            "Stream removed (Delayed close due to in-progress write (ping timeout))",
            True,
        ),
        # The channel's own pauses between connection attempts are wanted here.
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", False),
    ],
)
def test_connection_that_owes_an_answer_gets_no_further_call(
    code: grpc.StatusCode, details: str, is_owed: bool
) -> None:
    """The next call goes over a new channel after a lost answer or a lost ping, and only then."""
    assert is_unanswered(failed(code, details)) is is_owed


ADDRESS = "127.0.0.1:1"


async def test_channel_that_is_given_up_gets_no_further_call_and_closes_when_nothing_uses_it() -> None:
    """A call that is under way on it may still get its answer."""
    transport = Transport()
    try:
        old = transport.channel(ADDRESS, Purpose.BULK)
        with transport.using(old):
            transport.give_up(old)
            new = transport.channel(ADDRESS, Purpose.BULK)
            assert new is not old
            await asyncio.sleep(0)
            assert old.get_state() is grpc.ChannelConnectivity.IDLE
        await closed(old)
        # Whoever hears of it later must not take the new one away.
        transport.give_up(old)
        assert transport.channel(ADDRESS, Purpose.BULK) is new
        transport.give_up(new)
        await closed(new)
    finally:
        await transport.close()


async def test_channel_that_is_given_up_is_closed_with_the_client() -> None:
    """Though something still uses it."""
    transport = Transport()
    channel = transport.channel(ADDRESS, Purpose.CONTROL)
    with transport.using(channel):
        transport.give_up(channel)
        await transport.close()
        await closed(channel)


async def closed(channel: grpc.aio.Channel) -> None:
    """Give the loop some turns, in which a channel must have been closed."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


@pytest.mark.parametrize("value", [3_999, 60_001, True, "12000"])
@pytest.mark.parametrize("client", [Producer, Consumer, Admin, aio.Producer, aio.Consumer, aio.Admin])
def test_liveness_bound_out_of_range_is_refused(client: Callable[..., object], value: object) -> None:
    """With the range in the message."""
    with pytest.raises(InvalidSettingError, match="connection_liveness_ms"):
        client(ADDRESS, connection_liveness_ms=value)
