# SPDX-License-Identifier: Apache-2.0
"""Channels to brokers, and gRPC errors as errors of the SDK.

Owns channels (one for bulk streams and one for everything else per broker address, so that a full stream never delays
a control call) and the reading of statuses. Must not decide whom to ask or when to try again.

A connection that died without a word (a machine that was lost, a NAT that forgot) is found in two ways. gRPC pings on every one,
and ends it with all its calls when nothing comes back for the liveness bound. And whoever got no answer in time gives the channel up
(`give_up`): the next call goes over a new connection, while calls that are under way on the old one may still end by themselves.

An object belongs to the event loop and the process that made it.
Source: reference measurements: of the channel options only the message size matters; the allocator matters most.
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

from lograft._forks import may_use_grpc, on_fork
from lograft._immortal import keep_for_ever
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
"""Channels of one client; an address that was used longest ago loses its channels for a new one."""

FINISH_TIMEOUT_S: Final = 1.0
"""Seconds that a cancelled call gets to end."""

logger = logging.getLogger(__name__)


class Purpose(Enum):
    """What a channel is for."""

    CONTROL = "control"
    BULK = "bulk"


CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    # Without this, channels to one address share one connection: bulk would delay control, and a new channel help nobody.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC's own pauses between connection attempts grow to two minutes; a restarted broker must be found at once.
    ("grpc.initial_reconnect_backoff_ms", RETRY_BACKOFF_MS),
    ("grpc.min_reconnect_backoff_ms", RETRY_BACKOFF_MS),
    ("grpc.max_reconnect_backoff_ms", MAX_RETRY_BACKOFF_MS),
    # A broker that comes back under another address (a pod does) must be found there as soon; gRPC looks a name up every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", MAX_RETRY_BACKOFF_MS),
    # Environment proxies are for the web, not for brokers.
    ("grpc.enable_http_proxy", 0),
)


_C = TypeVar("_C", bound=grpc.aio.Call)
_T = TypeVar("_T")


class OpenCall(NamedTuple, Generic[_C]):
    """A streaming call.

    Attributes:
        call: the call.
        tasks: gRPC's own, one as a rule, which ends when gRPC has let go of the call.
    """

    call: _C
    tasks: tuple[asyncio.Task[Any], ...]


class Transport:
    """Channels of one client by address and purpose."""

    def __init__(self, *, liveness_ms: int = CONNECTION_LIVENESS_MS) -> None:
        """Start without connecting.

        Args:
            liveness_ms: milliseconds without a sign of life after which a connection is given up, from 4,000 on.
        """
        self._may_use_grpc = may_use_grpc()
        tune_allocator()
        self._liveness_ms = liveness_ms
        self._options = (*CHANNEL_OPTIONS, *client_options(liveness_ms))
        self._channels: dict[tuple[str, Purpose], grpc.aio.Channel] = {}
        self._uses: dict[grpc.aio.Channel, int] = {}
        self._pending = _Pending(self._channels, {}, {}, {})
        self._guard: AsyncGenerator[None, None] | None = None
        self._is_closed = False
        on_fork(self)

    def after_fork(self) -> None:
        """Called in a forked child: leave everything of the parent as it is."""
        keep_for_ever((self, self._pending, list(self._uses), self._guard))
        self._is_closed = True

    def channel(self, address: str, purpose: Purpose) -> grpc.aio.Channel:
        """Return the channel of an address, made now if need be; it connects at its first use."""
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
        # Loaded where it is needed alone, with the libraries below it.
        from lograft._python_channel import PythonChannel

        return cast("grpc.aio.Channel", PythonChannel(address, liveness_ms=self._liveness_ms))

    async def connect(self, address: str, purpose: Purpose, *, timeout_s: float) -> grpc.aio.Channel:
        """Return a channel that is connected.

        Raises:
            NoBrokerError: nobody answers there.
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
            # A channel that failed before is between two attempts: that one failure is not news.
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
        """Keep a channel from being closed while a call goes over it, also when it is given up meanwhile."""
        self._uses[channel] = self._uses.get(channel, 0) + 1
        try:
            yield
        finally:
            self._uses[channel] -= 1
            if self._uses[channel] == 0:
                del self._uses[channel]
                self._close_if_done(channel)

    def give_up(self, channel: grpc.aio.Channel) -> None:
        """Make no further call over a channel, for it owes an answer: the next one to its address gets a new connection."""
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
        # Without a loop, a task of a client that was left open is being collected, and nothing can be awaited any more.
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            self._pending.given_up[channel] = _keep(loop.create_task(self._close(channel)))

    async def _close(self, channel: grpc.aio.Channel) -> None:
        # Whoever has just connected may use it since.
        if channel not in self._uses:
            await channel.close()
            self._pending.given_up.pop(channel, None)

    def is_failing(self, address: str, purpose: Purpose) -> bool:
        """True if the last attempt to connect failed: others should be asked first."""
        channel = self._channels.get((address, purpose))
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def _wait_change(self, channel: grpc.aio.Channel, state: grpc.ChannelConnectivity) -> None:
        """Wait until a channel may have left a state. Who gives up leaves the wait to the next one, or to the end of the channel."""
        watches = self._pending.watches
        watch = watches.get(channel)
        # One that has ended stays until the loop's next turn, and waiting for it would never let that come.
        if watch is None or watch.done():
            watch = watches[channel] = _keep(asyncio.ensure_future(channel.wait_for_state_change(state)))
            watch.add_done_callback(partial(_drop_watch, watches, channel))
        await asyncio.shield(watch)

    async def answer(self, call: Awaitable[_T]) -> _T:
        """Wait for the answer of a unary call. A wait that is cancelled cancels the call, and ends when gRPC has let go of it.

        Raises:
            ClientClosedError: the client was closed meanwhile.
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
        """Cancel all calls and close every channel; returns when gRPC has let go of them."""
        self._is_closed = True
        await _let_go(self._pending)
        guard, self._guard = self._guard, None
        if guard is not None:
            # It may be ending by itself, with the loop.
            with suppress(RuntimeError):
                await guard.aclose()

    async def _watch_loop_end(self) -> None:
        """Have the channels of a client that is left open closed by the end of its event loop.

        `asyncio.run` cancels all tasks, then closes all asynchronous generators, then the loop.
        """
        # A loop that does not close generators has no hook for them.
        if self._guard is None and sys.get_asyncgen_hooks().firstiter is not None:
            self._guard = guard = _let_go_at_end(self._pending)
            await anext(guard)


class _Pending(NamedTuple):
    """What gRPC still owes events for. Written by the transport of a client.

    Attributes:
        channels: open channels.
        watches: waits for a change of a channel's state.
        calls: unary calls under way, by the tasks that wait for their answers.
        given_up: channels that get no further call, and the tasks that close them, once nothing uses them.
    """

    channels: dict[tuple[str, Purpose], grpc.aio.Channel]
    watches: dict[grpc.aio.Channel, asyncio.Task[None]]
    calls: dict[asyncio.Task[Any], Awaitable[Any]]
    given_up: dict[grpc.aio.Channel, asyncio.Task[None] | None]


async def _let_go(pending: _Pending) -> None:
    """Cancel calls, close channels, and wait for the last events that gRPC owes for them.

    An event that comes when its event loop is closed is an error in whatever other loop takes it from gRPC's one queue.
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
    """Cancel a unary call in gRPC's core alone: its task then ends with the call's last event, not before."""
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
    """Take a task out of `asyncio.all_tasks`, whose tasks `asyncio.run` cancels at its end: this one must see its event.

    Cancelling it would not end what it waits for, only the wait. Whoever keeps a task waits for it.
    """
    asyncio.tasks._unregister_task(task)
    return task


_STATUS_TASK: Final = "_AioCall._handle_status_once_received"
"""Name of the task that waits for the end of a streaming call, as of grpcio 1.85. Under another name it is not waited for."""

_claimed: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()


async def open_call(start: Callable[[], _C]) -> OpenCall[_C]:
    """Start a streaming call, and note the task with which gRPC waits for its end."""
    before = _status_tasks()
    call = start()
    try:
        # It begins in the next turn of the loop, in the order in which calls were started.
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        await finish(_claim(call, before))
        raise
    return _claim(call, before)


def _claim(call: _C, before: set[asyncio.Task[Any]]) -> OpenCall[_C]:
    """Note the tasks of gRPC that are there since a call was started."""
    tasks = [task for task in _status_tasks() - before if task not in _claimed]
    _claimed.update(tasks)
    for task in tasks:
        _keep(task)
    return OpenCall(call, tuple(tasks))


def _status_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == _STATUS_TASK}


async def finish(opened: OpenCall[Any]) -> None:
    """Cancel a call and wait until gRPC has let go of it.

    Events of a call that come after its event loop was closed disturb every other loop of the process: gRPC hands all
    events out through one queue. A cancelled call has its status at once, but its last events are still to come.
    """
    opened.call.cancel()
    waiting = [task for task in opened.tasks if not task.done()]
    if waiting and (await asyncio.wait(waiting, timeout=FINISH_TIMEOUT_S))[1]:
        logger.warning("a cancelled call did not end within %s s", FINISH_TIMEOUT_S)


async def write_first(call: grpc.aio.StreamStreamCall[Any, Any], message: object) -> None:
    """Write the first message of a call; one that is over already says why to the read that follows."""
    with suppress(asyncio.InvalidStateError):
        await call.write(message)


def _nobody_at(address: str) -> NoBrokerError:
    return NoBrokerError(f"no broker answered at {address}; is it running?")


def is_connection_loss(error: grpc.RpcError) -> bool:
    """True when the connection broke (or the server ended) and no Lograft server said why."""
    return isinstance(error, grpc.aio.AioRpcError) and _is_lost(parse_rpc_error(error))


def is_unanswered(error: grpc.RpcError) -> bool:
    """True when a call or a ping on its connection got no answer in time, and no Lograft server reported that."""
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
    # What gRPC itself makes of a connection that breaks or a server that ends, depending on the moment.
    is_internal = status.grpc_code is grpc.StatusCode.INTERNAL
    return status.grpc_code in _LOST or (is_internal and any(text in status.message for text in _LOST_INTERNALLY))


_PING_TIMEOUT: Final = "ping timeout"
"""Text in which gRPC says that a connection did not answer a ping."""

_LOST_INTERNALLY: Final = ("RST_STREAM", "Internal error from Core")
"""Texts of INTERNAL that mean a broken connection: a stream reset, and a write that was under way when it broke."""

_LOST: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNKNOWN,
    }
)


def to_error(error: grpc.RpcError, address: str) -> LograftError:
    """Make the exception for a failed call to an address."""
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
