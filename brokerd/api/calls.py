# SPDX-License-Identifier: Apache-2.0
"""How every service receives and answers a call.

Owns the parsing of requests, the mapping from an exception to a status, deadlines, and the checks of cluster id and batch format.
Services write plain coroutines that take a request and return a response or raise `RefusedError`. Law: whatever a client sends, it
gets a typed status and the server survives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAGIC

from brokerd.api.status import rich_status
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import DEADLINE_MARGIN_MS
from brokerd.membership import check_named_cluster

logger = logging.getLogger(__name__)

MAX_LOGGED_AGENT_CHARACTERS: Final = 300
"""Characters of a client's user agent that the log shows."""

ServicerContext = grpc.aio.ServicerContext[bytes, bytes]
"""Context of every call here: gRPC sees requests and responses as bytes."""


class CallContext(Protocol):
    """Where a unary call came from, as far as it must know: over gRPC from a client, or over the carrier from another broker."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller stops waiting; None: no limit."""
        ...


ContextT = TypeVar("ContextT")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class CallFailedError(RefusedError):
    """A refusal with one more message in its status, such as the appended part of an Append."""

    def __init__(self, failure: Failure, extra_detail: Message) -> None:
        super().__init__(failure)
        self.extra_detail = extra_detail


def serialized(
    request_type: type[RequestT], behaviour: Callable[[RequestT, ContextT], Awaitable[ResponseT]]
) -> Callable[[bytes, ContextT], Awaitable[bytes]]:
    """Return a call that takes and returns serialized messages."""

    async def call(data: bytes, context: ContextT) -> bytes:
        response = await behaviour(_parse(request_type, data), context)
        return response.SerializeToString()

    return call


def unary(
    request_type: type[RequestT], behaviour: Callable[[RequestT, ServicerContext], Awaitable[ResponseT]]
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of a unary method."""
    return raw_unary(serialized(request_type, behaviour))


def raw_unary(behaviour: Callable[[bytes, ServicerContext], Awaitable[bytes]]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of a unary method whose behaviour takes and returns serialized messages."""

    async def handle(data: bytes, context: ServicerContext) -> bytes:
        try:
            return await behaviour(data, context)
        except RefusedError as error:
            del data  # for the reason in `abort`
            await abort(context, error)
        except Exception as error:
            await abort_internal(context, error)

    return grpc.unary_unary_rpc_method_handler(handle)


def server_stream(
    request_type: type[RequestT], behaviour: Callable[[RequestT, ServicerContext], AsyncIterator[ResponseT]]
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of a method that answers with a stream."""

    async def handle(data: bytes, context: ServicerContext) -> None:
        try:
            async for response in behaviour(_parse(request_type, data), context):
                await context.write(response.SerializeToString())
        except RefusedError as error:
            await abort(context, error)
        except Exception as error:
            await abort_internal(context, error)

    return grpc.unary_stream_rpc_method_handler(handle)


def bidirectional(behaviour: Callable[[ServicerContext], Awaitable[None]]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of a bidirectional stream. The behaviour uses the context, and reads bytes or a bytearray."""

    async def handle(_requests: AsyncIterator[bytes], context: ServicerContext) -> None:
        # A client may wait for the headers before it writes.
        await context.send_initial_metadata(())
        try:
            await behaviour(context)
        except RefusedError as error:
            await abort(context, error)
        except Exception as error:
            await abort_internal(context, error)

    return grpc.stream_stream_rpc_method_handler(handle, request_deserializer=_uncopied)


def _uncopied(data: bytes) -> bytes:
    """Return a request as it came. Without a deserializer a long one would be copied."""
    return data


async def abort(context: ServicerContext, error: RefusedError) -> NoReturn:
    """End a call with the status of a refusal."""
    # The status has to be sent, and the exception lives until then. Without its traceback, the frames of the refusal and their
    # batches do not.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    extra_detail = error.extra_detail if isinstance(error, CallFailedError) else None
    await context.abort_with_status(rich_status(error.failure, extra_detail=extra_detail))
    raise AssertionError("abort returned")


async def abort_internal(context: ServicerContext, error: Exception) -> NoReturn:
    """End a call after a fault of this server. The log gets the traceback; the client learns only that the broker failed.

    What gRPC itself raises is no fault of the broker: the call has ended.
    """
    if isinstance(error, grpc.aio.InternalError):
        # A write failed, so the client has gone. gRPC cancels this handler a moment later anyway.
        raise asyncio.CancelledError from None
    if isinstance(error, grpc.aio.BaseError):
        # It was aborted, or the server has stopped.
        raise error
    logger.error("call of %s failed by a fault of this broker", caller(context), exc_info=error)
    failure = Failure(code=ErrorCode.INTERNAL, message="a fault of the broker; its log says more")
    await context.abort_with_status(rich_status(failure))
    raise AssertionError("abort returned")


def caller(context: ServicerContext) -> str:
    """Return who calls, for the log: the address, and the user agent, which begins with the `client_id` of its program."""
    agents = (value for name, value in context.invocation_metadata() or () if name == "user-agent")
    return f"{context.peer()} ({str(next(agents, 'no user agent'))[:MAX_LOGGED_AGENT_CHARACTERS]!r})"


def undecodable() -> RefusedError:
    """Return the refusal of bytes that are not a message of the expected type."""
    return refused(ErrorCode.INVALID_REQUEST, "the request is not a valid protobuf message of this method")


def check_cluster(wanted: str, cluster_id: str) -> None:
    """Refuse a request that names another cluster; an empty name matches any.

    Raises:
        RefusedError: WRONG_CLUSTER.
    """
    if wanted:
        check_named_cluster(wanted, cluster_id)


def check_formats(formats: Iterable[int]) -> None:
    """Refuse a client that names batch formats without ours; no named format means ours.

    Raises:
        RefusedError: UNSUPPORTED_FORMAT.
    """
    named = set(formats)
    if named and MAGIC not in named:
        message = f"batch formats {sorted(named)[:16]} are not offered: this broker speaks {MAGIC}"
        raise refused(ErrorCode.UNSUPPORTED_FORMAT, message)


def left_ms(context: CallContext, *, at_most_ms: int) -> int:
    """Return how many milliseconds a call may still wait if its typed answer is to arrive before its deadline; at most `at_most_ms`."""
    remaining = context.time_remaining()
    if remaining is None:
        return at_most_ms
    left = int(remaining * 1000)
    return max(0, min(at_most_ms, left - min(DEADLINE_MARGIN_MS, left // 4)))


def _parse(request_type: type[RequestT], data: bytes) -> RequestT:
    try:
        return request_type.FromString(data)
    except DecodeError:
        raise undecodable() from None
