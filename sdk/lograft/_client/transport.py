# SPDX-License-Identifier: Apache-2.0
"""Channels to brokers, and the conversion of gRPC errors to errors of the SDK.

It owns the channels and reads statuses. Each broker address has one channel for bulk streams and one for all other calls, so a
full stream never delays a control call. It must not choose the broker or the time of the next attempt.

Two mechanisms find a connection that died without a sign (a lost machine, a NAT that forgot it). gRPC sends pings on every
connection and ends it, with all its calls, when nothing comes back within the liveness bound. And a caller whose call got no
answer in time abandons the channel (`give_up`): the next call uses a new connection, while calls under way on the old one may
still finish.

An object belongs to the event loop and the process that made it.
Source: reference measurements. Of the channel options only the message size matters; the allocator matters most.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast
from weakref import WeakSet

import grpc
import grpc.aio

from lograft._client.forks import may_use_grpc, on_fork
from lograft._client.immortal import keep_for_ever
from lograft.errors import (
    ClientClosedError,
    LograftError,
    NoBrokerError,
    OffsetOutOfRangeError,
    ProtocolError,
    error_for,
)
from lograft.settings import CONNECTION_LIVENESS_MS, MAX_RETRY_BACKOFF_MS, RETRY_BACKOFF_MS
from lograft.wire.codes import ErrorCode
from lograft.wire.keepalive import client_options
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES
from lograft.wire.malloc import tune_allocator
from lograft.wire.status import RemoteStatus, parse_rpc_error

MAX_CHANNELS: Final = 1_024
"""Channels that one client may have open; a further address raises `NoBrokerError`."""

FINISH_TIMEOUT_S: Final = 1.0
"""Seconds that a cancelled call may take to end."""

logger = logging.getLogger(__name__)


class Purpose(Enum):
    """Use of a channel."""

    CONTROL = "control"
    BULK = "bulk"


CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    # Without this, channels to one address share one connection. Bulk streams would delay control calls, and a new channel
    # after `give_up` would use the dead connection.
    ("grpc.use_local_subchannel_pool", 1),
    # By default gRPC's pauses between connection attempts grow to two minutes. Clients must find a restarted broker at once.
    ("grpc.initial_reconnect_backoff_ms", RETRY_BACKOFF_MS),
    ("grpc.min_reconnect_backoff_ms", RETRY_BACKOFF_MS),
    ("grpc.max_reconnect_backoff_ms", MAX_RETRY_BACKOFF_MS),
    # By default gRPC resolves a name every 30 s. Clients must quickly find a broker (a pod) that comes back with another
    # address.
    ("grpc.dns_min_time_between_resolutions_ms", MAX_RETRY_BACKOFF_MS),
    # Proxies of the environment are for HTTP, not for brokers.
    ("grpc.enable_http_proxy", 0),
)


_C = TypeVar("_C", bound=grpc.aio.Call)
_T = TypeVar("_T")


class OpenCall(NamedTuple, Generic[_C]):
    """A streaming call.

    Attributes:
        call: the call.
        tasks: gRPC's own tasks for the call, usually one. They end when gRPC has released the call.
    """

    call: _C
    tasks: tuple[asyncio.Task[Any], ...]


class Transport:
    """Channels of one client by address and purpose."""

    def __init__(self, *, liveness_ms: int = CONNECTION_LIVENESS_MS, client_id: str | None = None) -> None:
        """Set up without connecting.

        Args:
            liveness_ms: milliseconds without a byte from the broker after which a connection has failed, at least 4,000.
            client_id: name of the program, the first word of the user agent; None for none.
        """
        self._may_use_grpc = may_use_grpc()
        tune_allocator()
        self._liveness_ms = liveness_ms
        self._client_id = client_id
        name = () if client_id is None else (("grpc.primary_user_agent", client_id),)
        self._options = (*CHANNEL_OPTIONS, *client_options(liveness_ms), *name)
        self._channels: dict[tuple[str, Purpose], grpc.aio.Channel] = {}
        self._uses: dict[grpc.aio.Channel, int] = {}
        self._pending = _Pending(self._channels, {}, {}, {})
        self._guard: AsyncGenerator[None, None] | None = None
        self._is_closed = False
        on_fork(self, Transport.after_fork)

    def after_fork(self) -> None:
        """Leave everything that belongs to the parent untouched. Runs in the forked child."""
        keep_for_ever((self, self._pending, list(self._uses), self._guard))
        self._is_closed = True

    def channel(self, address: str, purpose: Purpose) -> grpc.aio.Channel:
        """Return the channel of an address. A new channel connects at its first use.

        Raises:
            ClientClosedError: the client is closed.
            NoBrokerError: the client has `MAX_CHANNELS` channels open.
        """
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        key = (address, purpose)
        channel = self._channels.get(key)
        if channel is None:
            if len(self._channels) >= MAX_CHANNELS:
                raise NoBrokerError(f"this client has {MAX_CHANNELS} channels open; use fewer brokers or close it")
            channel = self._channels[key] = self._new_channel(address)
        return channel

    def _new_channel(self, address: str) -> grpc.aio.Channel:
        if self._may_use_grpc:
            return grpc.aio.insecure_channel(address, options=self._options)
        # Imported here, with the libraries that it needs, because only forked children use it.
        from lograft._client.python_channel import PythonChannel

        return cast(
            "grpc.aio.Channel", PythonChannel(address, liveness_ms=self._liveness_ms, client_id=self._client_id)
        )

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
                await self._wait_change(channel, state)
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
        key = next((key for key, each in self._channels.items() if each is channel), None)
        if key is None:
            return
        logger.info("%s owes an answer: what follows goes over a new connection", key[0])
        del self._channels[key]
        self._pending.given_up[channel] = None
        self._close_if_done(channel)

    def _close_if_done(self, channel: grpc.aio.Channel) -> None:
        if channel not in self._pending.given_up or channel in self._uses or self._is_closed:
            return
        # No loop runs while Python collects a task of a client that was left open. Nothing can be awaited then.
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            self._pending.given_up[channel] = _keep(loop.create_task(self._close(channel)))

    async def _close(self, channel: grpc.aio.Channel) -> None:
        # A call may use the channel by now.
        if channel not in self._uses:
            await channel.close()
            self._pending.given_up.pop(channel, None)

    def is_failing(self, address: str, purpose: Purpose) -> bool:
        """True if the last connection attempt failed. The caller then asks other brokers first."""
        channel = self._channels.get((address, purpose))
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def _wait_change(self, channel: grpc.aio.Channel, state: grpc.ChannelConnectivity) -> None:
        """Wait until a channel may have left a state. A cancelled waiter leaves the watch for the next waiter or for `close`."""
        watches = self._pending.watches
        watch = watches.get(channel)
        # A watch that is done stays in the table until the loop's next turn, which waiting for it would never allow.
        if watch is None or watch.done():
            watch = watches[channel] = _keep(asyncio.ensure_future(channel.wait_for_state_change(state)))
            watch.add_done_callback(partial(_drop_watch, watches, channel))
        await asyncio.shield(watch)

    async def answer(self, call: Awaitable[_T]) -> _T:
        """Wait for the answer of a unary call. Cancelling the wait cancels the call and returns when gRPC has released it.

        Raises:
            ClientClosedError: the client was closed during the call.
        """
        invocation = getattr(call, "_invocation_task", None)
        if isinstance(invocation, asyncio.Task):
            _keep(cast("asyncio.Task[object]", invocation))
        waiter = _keep(asyncio.ensure_future(_await(call)))
        self._pending.calls[waiter] = call
        waiter.add_done_callback(lambda done: self._pending.calls.pop(done, None))
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if waiter.cancelled() and (task is None or not task.cancelling()):
                raise ClientClosedError("the client was closed during a call") from None
            _cancel_gently(call)
            await asyncio.wait((waiter,), timeout=FINISH_TIMEOUT_S)
            raise

    async def close(self) -> None:
        """Cancel all calls and close every channel. Return when gRPC has released them."""
        self._is_closed = True
        await _let_go(self._pending)
        guard, self._guard = self._guard, None
        if guard is not None:
            # The end of the loop may be closing it already.
            with suppress(RuntimeError):
                await guard.aclose()

    async def _watch_loop_end(self) -> None:
        """Close the channels at the end of the event loop if the client is left open.

        `asyncio.run` cancels all tasks, then closes all asynchronous generators, then the loop.
        """
        # A loop that does not close asynchronous generators has no hook for them.
        if self._guard is None and sys.get_asyncgen_hooks().firstiter is not None:
            self._guard = guard = _let_go_at_end(self._pending)
            await anext(guard)


class _Pending(NamedTuple):
    """Everything for which gRPC still owes an event. The client's transport is the only writer.

    Attributes:
        channels: open channels.
        watches: waits for a change of a channel's state.
        calls: unary calls under way, by the tasks that wait for their answers.
        given_up: channels that get no further call, each with the task that closes it once no call uses it.
    """

    channels: dict[tuple[str, Purpose], grpc.aio.Channel]
    watches: dict[grpc.aio.Channel, asyncio.Task[None]]
    calls: dict[asyncio.Task[Any], Awaitable[Any]]
    given_up: dict[grpc.aio.Channel, asyncio.Task[None] | None]


async def _let_go(pending: _Pending) -> None:
    """Cancel calls, close channels, and wait for the last events that gRPC owes for them.

    gRPC delivers the events of all loops through one queue. An event for a closed loop raises an error in the loop that takes
    it.
    """
    calls = dict(pending.calls)
    for call in calls.values():
        _cancel_gently(call)
    if calls:
        await asyncio.wait(calls, timeout=FINISH_TIMEOUT_S)
    channels = [*pending.channels.values(), *pending.given_up]
    closing = [task for task in pending.given_up.values() if task is not None]
    pending.channels.clear()
    pending.given_up.clear()
    for channel in channels:
        await channel.close()
    watches = [*pending.watches.values(), *closing]
    if watches and (await asyncio.wait(watches, timeout=FINISH_TIMEOUT_S))[1]:
        logger.warning("gRPC did not let go of a channel within %s s", FINISH_TIMEOUT_S)


async def _let_go_at_end(pending: _Pending) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await _let_go(pending)


async def _await(call: Awaitable[_T]) -> _T:
    return await call


def _cancel_gently(call: Awaitable[object]) -> None:
    """Cancel a unary call in gRPC's core only. So its task ends with the last event of the call, not earlier."""
    core = getattr(call, "_cython_call", None)
    if core is None:
        assert isinstance(call, grpc.aio.Call) or hasattr(call, "cancel"), f"no call: {call!r}"
        cast("grpc.aio.Call", call).cancel()
    elif not core.done():
        core.cancel("Locally cancelled by application!")


def _drop_watch(
    watches: dict[grpc.aio.Channel, asyncio.Task[None]], channel: grpc.aio.Channel, watch: asyncio.Task[None]
) -> None:
    if watches.get(channel) is watch:
        del watches[channel]
    if not watch.cancelled():
        watch.exception()


def _keep(task: asyncio.Task[_T]) -> asyncio.Task[_T]:
    """Remove a task from `asyncio.all_tasks`, so that `asyncio.run` does not cancel it at its end.

    The task must see its event: a cancellation would end only the wait, not the thing that it waits for. The caller awaits the
    task.
    """
    asyncio.tasks._unregister_task(task)
    return task


_STATUS_TASK: Final = "_AioCall._handle_status_once_received"
"""Name of the task that waits for the end of a streaming call in grpcio 1.85. `finish` does not find a task with another name."""

_claimed: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()


async def open_call(start: Callable[[], _C]) -> OpenCall[_C]:
    """Start a streaming call, and note the task with which gRPC waits for its end."""
    before = _status_tasks()
    call = start()
    try:
        # The task starts in the next turn of the loop, in the order in which the calls were started.
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        await finish(_claim(call, before))
        raise
    return _claim(call, before)


def _claim(call: _C, before: set[asyncio.Task[Any]]) -> OpenCall[_C]:
    """Note gRPC's tasks that have appeared since the call was started."""
    tasks = [task for task in _status_tasks() - before if task not in _claimed]
    _claimed.update(tasks)
    for task in tasks:
        _keep(task)
    return OpenCall(call, tuple(tasks))


def _status_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == _STATUS_TASK}


async def finish(opened: OpenCall[Any]) -> None:
    """Cancel a call and wait until gRPC has released it.

    gRPC delivers the events of all loops through one queue, so events of a call that come after its loop was closed disturb
    every other loop of the process. A cancelled call has its status at once, but its last events come later.
    """
    opened.call.cancel()
    waiting = [task for task in opened.tasks if not task.done()]
    if waiting and (await asyncio.wait(waiting, timeout=FINISH_TIMEOUT_S))[1]:
        logger.warning("a cancelled call did not end within %s s", FINISH_TIMEOUT_S)


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
    # After an unanswered ping gRPC may still put the next call on the connection, until a write under way there has ended.
    is_ping_lost = status.grpc_code in _LOST and _PING_TIMEOUT in status.message
    return status.grpc_code is grpc.StatusCode.DEADLINE_EXCEEDED or is_ping_lost


def _is_lost(status: RemoteStatus) -> bool:
    if status.code is not None:
        return False
    # The statuses with which gRPC reports a broken connection or a server that ended. They depend on the moment.
    is_internal = status.grpc_code is grpc.StatusCode.INTERNAL
    return status.grpc_code in _LOST or (is_internal and any(text in status.message for text in _LOST_INTERNALLY))


_PING_TIMEOUT: Final = "ping timeout"
"""Text in which gRPC says that a connection did not answer a ping."""

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
