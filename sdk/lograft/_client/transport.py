# SPDX-License-Identifier: Apache-2.0
"""Channels to brokers, and the conversion of gRPC errors to errors of the SDK.

It owns the channels and reads statuses. Each broker address has one channel for bulk streams and one for all other calls, so a
full stream never delays a control call. It must not choose the broker or the time of the next attempt.

Two mechanisms find a connection that died without a sign (a lost machine, a NAT that forgot it). Every connection sends pings and
ends, with all its calls, when nothing comes back within the liveness bound. And a caller whose call got no answer in time abandons
the channel (`give_up`): the next call uses a new connection, while calls under way on the old one may still finish.

An object belongs to the event loop and the process that made it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar, cast

import grpc
import grpc.aio

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.python_channel import PythonChannel
from lograft._grpc.http2_socket import PING_TIMEOUT
from lograft.errors import (
    ClientClosedError,
    LograftError,
    NoBrokerError,
    OffsetOutOfRangeError,
    ProtocolError,
    error_for,
)
from lograft.settings import CONNECTION_LIVENESS_MS
from lograft.wire.codes import ErrorCode
from lograft.wire.malloc import tune_allocator
from lograft.wire.status import RemoteStatus, parse_rpc_error

MAX_CHANNELS: Final = 1_024
"""Channels that one client may have open; a further address raises `NoBrokerError`."""

WRITER_TIMEOUT_S: Final = 1.0
"""Seconds that the task that writes to a stream gets to end after its call has ended."""

logger = logging.getLogger(__name__)


class Purpose(Enum):
    """Use of a channel."""

    CONTROL = "control"
    BULK = "bulk"


_T = TypeVar("_T")


class Transport:
    """Channels of one client by address and purpose."""

    def __init__(self, *, liveness_ms: int = CONNECTION_LIVENESS_MS, client_id: str | None = None) -> None:
        """Set up without connecting.

        Args:
            liveness_ms: milliseconds without a byte from the broker after which a connection has failed, at least 4,000.
            client_id: name of the program, the first word of the user agent; None for none.
        """
        tune_allocator()
        self._liveness_ms = liveness_ms
        self._client_id = client_id
        self._uses: dict[grpc.aio.Channel, int] = {}
        self._open = _OpenChannels({}, {})
        self._guard: AsyncGenerator[None, None] | None = None
        self._is_closed = False
        on_fork(self, Transport.after_fork)

    def after_fork(self) -> None:
        """Leave everything that belongs to the parent untouched. Runs in the forked child."""
        keep_for_ever((self, self._open, list(self._uses), self._guard))
        self._is_closed = True

    def channel(self, address: str, purpose: Purpose) -> grpc.aio.Channel:
        """Return the channel of an address. A new channel connects at its first use.

        Raises:
            ClientClosedError: the client is closed.
            NoBrokerError: the client has `MAX_CHANNELS` channels open.
        """
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        channels, key = self._open.by_use, (address, purpose)
        channel = channels.get(key)
        if channel is None:
            if len(channels) >= MAX_CHANNELS:
                raise NoBrokerError(f"this client has {MAX_CHANNELS} channels open; use fewer brokers or close it")
            new = PythonChannel(address, liveness_ms=self._liveness_ms, client_id=self._client_id)
            channel = channels[key] = cast("grpc.aio.Channel", new)
        return channel

    async def connect(self, address: str, purpose: Purpose, *, timeout_s: float) -> grpc.aio.Channel:
        """Return a connected channel.

        Raises:
            NoBrokerError: no broker answers at the address.
        """
        channel = self.channel(address, purpose)
        await self._watch_loop_end()
        try:
            with self.using(channel):
                await self._connect(channel, address, timeout_s)
        except TimeoutError:
            raise _nobody_at(address) from None
        return channel

    async def _connect(self, channel: grpc.aio.Channel, address: str, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            state = channel.get_state(try_to_connect=True)
            # A channel that has failed before may wait between two attempts. Only a further failure counts.
            was_failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.SHUTDOWN or (
                    state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not was_failed
                ):
                    raise _nobody_at(address)
                await channel.wait_for_state_change(state)
                seen, state = state, channel.get_state(try_to_connect=True)
                was_failed = was_failed and state is seen

    @contextmanager
    def using(self, channel: grpc.aio.Channel) -> Generator[None]:
        """Keep a channel open while a call uses it, even if another call gives it up."""
        self._uses[channel] = self._uses.get(channel, 0) + 1
        try:
            yield
        finally:
            self._uses[channel] -= 1
            if self._uses[channel] == 0:
                del self._uses[channel]
                self._close_if_done(channel)

    def give_up(self, channel: grpc.aio.Channel) -> None:
        """Use a channel that owes an answer for no further call. The next call to its address gets a new connection."""
        key = next((key for key, each in self._open.by_use.items() if each is channel), None)
        if key is None:
            return
        logger.info("%s owes an answer: what follows goes over a new connection", key[0])
        del self._open.by_use[key]
        self._open.given_up[channel] = None
        self._close_if_done(channel)

    def _close_if_done(self, channel: grpc.aio.Channel) -> None:
        if channel in self._open.given_up and channel not in self._uses and not self._is_closed:
            del self._open.given_up[channel]
            # No loop runs while Python collects a task of a client that was left open. Nothing can be closed then.
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                _shut_down(channel)

    def is_failing(self, address: str, purpose: Purpose) -> bool:
        """True if the last connection attempt failed. The caller then asks other brokers first."""
        channel = self._open.by_use.get((address, purpose))
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def answer(self, call: Awaitable[_T]) -> _T:
        """Wait for the answer of a unary call. Cancelling the wait cancels the call.

        Raises:
            ClientClosedError: the client was closed during the call.
        """
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and (task is None or not task.cancelling()):
                raise ClientClosedError("the client was closed during a call") from None
            raise

    async def close(self) -> None:
        """Cancel all calls and close every channel."""
        self._is_closed = True
        self._open.shut_down()
        guard, self._guard = self._guard, None
        if guard is not None:
            # The end of the loop may be closing it already.
            with suppress(RuntimeError):
                await guard.aclose()
        # In their next turn tasks see that their calls have ended, and transports that they are closed.
        await asyncio.sleep(0)

    async def _watch_loop_end(self) -> None:
        """Close the channels at the end of the event loop if the client is left open.

        `asyncio.run` cancels all tasks, then closes all asynchronous generators, then the loop.
        """
        # A loop that does not close asynchronous generators has no hook for them.
        if self._guard is None and sys.get_asyncgen_hooks().firstiter is not None:
            self._guard = guard = _shut_down_at_end(self._open)
            await anext(guard)


class _OpenChannels(NamedTuple):
    """The open channels of a client. The client's transport is the only writer.

    Attributes:
        by_use: those that get further calls.
        given_up: those that get none, and close once no call uses them.
    """

    by_use: dict[tuple[str, Purpose], grpc.aio.Channel]
    given_up: dict[grpc.aio.Channel, None]

    def shut_down(self) -> None:
        """Cancel all calls, and close the connections."""
        channels = [*self.by_use.values(), *self.given_up]
        self.by_use.clear()
        self.given_up.clear()
        for channel in channels:
            _shut_down(channel)


def _shut_down(channel: grpc.aio.Channel) -> None:
    cast("PythonChannel", channel).shut_down()


async def _shut_down_at_end(channels: _OpenChannels) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        channels.shut_down()
        await asyncio.sleep(0)


async def write_first(call: grpc.aio.StreamStreamCall[Any, Any], message: object) -> None:
    """Write the first message of a call. If the call is already over, the next read raises the reason."""
    with suppress(asyncio.InvalidStateError):
        await call.write(message)


def _nobody_at(address: str) -> NoBrokerError:
    return NoBrokerError(f"no broker answered at {address}; is it running?")


def is_connection_loss(error: grpc.RpcError) -> bool:
    """True when the connection broke, or the server ended, without a Lograft server giving a reason."""
    return isinstance(error, grpc.aio.AioRpcError) and _is_lost(parse_rpc_error(error))


def is_unanswered(error: grpc.RpcError) -> bool:
    """True when a call or a ping on its connection got no answer in time. A Lograft server did not report the failure."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    status = parse_rpc_error(error)
    if status.code is not None:
        return False
    is_ping_lost = status.grpc_code in _LOST and PING_TIMEOUT in status.message
    return status.grpc_code is grpc.StatusCode.DEADLINE_EXCEEDED or is_ping_lost


def _is_lost(status: RemoteStatus) -> bool:
    if status.code is not None:
        return False
    # The statuses with which gRPC reports a broken connection or a server that ended. They depend on the moment.
    is_internal = status.grpc_code is grpc.StatusCode.INTERNAL
    return status.grpc_code in _LOST or (is_internal and any(text in status.message for text in _LOST_INTERNALLY))


_LOST_INTERNALLY: Final = ("RST_STREAM", "Internal error from Core")
"""Texts of an INTERNAL status that mean a broken connection: a reset stream, and a write under way when the connection broke."""

_LOST: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNKNOWN,
    }
)


def to_error(error: grpc.RpcError, address: str) -> LograftError:
    """Return the exception for a failed call to an address."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return ProtocolError(f"the call to {address} failed: {error!r}")
    status = parse_rpc_error(error)
    if status.code is not None:
        result = error_for(status.code, status.message, retry_after_ms=status.retry_after_ms)
        if isinstance(result, OffsetOutOfRangeError) and status.readable_range is not None:
            result.log_start_offset = status.readable_range.log_start_offset
            result.high_watermark = status.readable_range.high_watermark
        return result
    details = status.message
    if status.grpc_code is grpc.StatusCode.UNAVAILABLE:
        return NoBrokerError(f"no broker answered at {address} ({details}); is it running?")
    if _is_lost(status):
        return NoBrokerError(f"the connection to {address} was lost ({status.grpc_code.name}: {details})")
    match status.grpc_code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return error_for(ErrorCode.TIMED_OUT, f"{address} did not answer in time")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(
                f"{address} does not offer this call; is it a Lograft broker of this version? ({details})"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return ProtocolError(
                f"a message to or from {address} is too large: {details}", code=ErrorCode.MESSAGE_TOO_LARGE
            )
        case code:
            return ProtocolError(f"the call to {address} failed with {code.name}: {details}")
