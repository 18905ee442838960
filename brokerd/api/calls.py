# SPDX-License-Identifier: Apache-2.0
"""How a call is taken in and answered, the same for every service.

Owns the parsing of requests, the way from an exception to a status, deadlines, and the checks of cluster id and batch format.
Services write plain coroutines: a request in, a response out or a `RefusedError`. Law: whatever a client sends, the
answer is a typed status and the server lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import NoReturn, Protocol, TypeVar

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

ServicerContext = grpc.aio.ServicerContext[bytes, bytes]
"""Context of every call here: requests and responses are bytes for the library."""


class CallContext(Protocol):
    """What a unary call must know of the way it came: over gRPC from a client, or over the carrier from another broker."""

    def time_remaining(self) -> float | None:
        """Return the seconds until nobody waits for the answer any more; None: no limit."""
        ...


ContextT = TypeVar("ContextT")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class CallFailedError(RefusedError):
    """A refusal that carries one more message in its status, such as the part of an Append that was done."""

    def __init__(self, failure: Failure, extra_detail: Message) -> None:
        super().__init__(failure)
        self.extra_detail = extra_detail


def serialized(
    request_type: type[RequestT], behaviour: Callable[[RequestT, ContextT], Awaitable[ResponseT]]
) -> Callable[[bytes, ContextT], Awaitable[bytes]]:
    """Make a call that takes and gives serialized messages."""

    async def call(data: bytes, context: ContextT) -> bytes:
        response = await behaviour(_parse(request_type, data), context)
        return response.SerializeToString()

    return call


def unary(
    request_type: type[RequestT], behaviour: Callable[[RequestT, ServicerContext], Awaitable[ResponseT]]
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Make the handler of a unary method."""
    return raw_unary(serialized(request_type, behaviour))


def raw_unary(behaviour: Callable[[bytes, ServicerContext], Awaitable[bytes]]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Make the handler of a unary method whose behaviour takes and gives serialized messages."""

    async def handle(data: bytes, context: ServicerContext) -> bytes:
        try:
            return await behaviour(data, context)
        except RefusedError as error:
            del data  # as in `abort`
            await abort(context, error)
        except Exception as error:
            await abort_internal(context, error)

    return grpc.unary_unary_rpc_method_handler(handle)


def server_stream(
    request_type: type[RequestT], behaviour: Callable[[RequestT, ServicerContext], AsyncIterator[ResponseT]]
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Make the handler of a method that answers with a stream."""

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
    """Make the handler of a bidirectional stream; the behaviour reads and writes bytes through the context."""

    async def handle(_requests: AsyncIterator[bytes], context: ServicerContext) -> None:
        # First and alone: a first write that is given up has sent them perhaps, grpc.aio does not know it, and no status can follow.
        await context.send_initial_metadata(())
        try:
            await behaviour(context)
        except grpc.aio.InternalError:
            # A write failed, so the client is gone; the library cancels this handler a moment later anyway.
            raise asyncio.CancelledError from None
        except RefusedError as error:
            await abort(context, error)
        except Exception as error:
            await abort_internal(context, error)

    return grpc.stream_stream_rpc_method_handler(handle)


async def abort(context: ServicerContext, error: RefusedError) -> NoReturn:
    """End a call with the status of a refusal."""
    # The library keeps what ends a call in a cycle with the context. The frames that a refusal came through, with the batches in them,
    # must not wait there for the collector.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    extra_detail = error.extra_detail if isinstance(error, CallFailedError) else None
    await context.abort_with_status(rich_status(error.failure, extra_detail=extra_detail))
    raise AssertionError("abort returned")


async def abort_internal(context: ServicerContext, error: Exception) -> NoReturn:
    """End a call after a fault of this server; the log has the trace, the client only the fact."""
    if isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError):
        raise error
    logger.error("call failed by a fault of this broker", exc_info=error)
    failure = Failure(code=ErrorCode.INTERNAL, message="a fault of the broker; its log says more")
    await context.abort_with_status(rich_status(failure))
    raise AssertionError("abort returned")


def undecodable() -> RefusedError:
    """Make the refusal of bytes that are not the message they should be."""
    return refused(ErrorCode.INVALID_REQUEST, "the request is not a valid protobuf message of this method")


def check_cluster(wanted: str, cluster_id: str) -> None:
    """Refuse a request that names another cluster; an empty name is any.

    Raises:
        RefusedError: WRONG_CLUSTER.
    """
    if wanted:
        check_named_cluster(wanted, cluster_id)


def check_formats(formats: Iterable[int]) -> None:
    """Refuse a client that does not speak our batch format; no format named means ours.

    Raises:
        RefusedError: UNSUPPORTED_FORMAT.
    """
    named = set(formats)
    if named and MAGIC not in named:
        message = f"batch formats {sorted(named)[:16]} are not offered: this broker speaks {MAGIC}"
        raise refused(ErrorCode.UNSUPPORTED_FORMAT, message)


def left_ms(context: CallContext, *, at_most_ms: int) -> int:
    """Return the milliseconds that a call may still wait, so that its typed answer arrives before its deadline."""
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
