# SPDX-License-Identifier: Apache-2.0
"""Refuses requests that are not valid protobuf messages, with at most one log line a second.

    add_QuorumServiceServicer_to_server(servicer, decoding(server))

A server answers UNKNOWN where a deserializer fails, and logs a traceback for each call. Here it returns `UNDECODABLE` for such bytes,
and a guard in front of each handler refuses it. Owns that for all services registered by generated code.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RichStatus, abort_status

from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.grpc_server.server import GrpcServer
from metaquorum.net.sparse_log import SparseLog

TEXT: Final = "the request is not a valid protobuf message of this method"

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


UNDECODABLE: Final[Any] = object()
"""The request that a guarded handler gets for bytes that are not a message."""


class UndecodableRequestError(CommandError):
    """A request on a stream is not a valid message. A service that handles `CommandError` handles this one, too."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, TEXT)


_lines = SparseLog()
"""One kind of line for all services of the process together. Belongs to the event loop thread."""


def undecodable_status() -> RichStatus:
    """Return the status for a request that is not a message of its method."""
    return abort_status(ErrorCode.INVALID_REQUEST, TEXT)


def decoding(server: GrpcServer) -> grpc.aio.Server:
    """Return what generated code needs to register services. It guards their handlers against undecodable requests."""
    return cast("grpc.aio.Server", _DecodingServer(server))


def add_reflection(names: Sequence[str], server: GrpcServer) -> None:
    """Add the gRPC reflection service for the services with these names."""
    # Not `enable_server_reflection`: it would mistake the wrapped server for one with threads.
    servicer = reflection.aio.ReflectionServicer(names)
    add: Callable[[object, object], None] = cast("Any", reflection_pb2_grpc).add_ServerReflectionServicer_to_server
    add(servicer, decoding(server))


class _DecodingServer:
    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(_Guarded(handler) for handler in handlers))

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Do nothing: the generic handler has the same methods."""


class _Guarded(grpc.GenericRpcHandler):
    """The guarded handlers of a service; each is made once for its method."""

    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner
        self._known: dict[str, Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the guarded handler of a method; None for a method of another service."""
        method = handler_call_details.method
        known = self._known.get(method)
        if known is None:
            handler = self._inner.service(handler_call_details)
            if handler is None:
                return None
            known = self._known[method] = _guard(method, handler)
        return known


def _guard(method: str, handler: Handler) -> Handler:
    deserialize = handler.request_deserializer
    if deserialize is None:
        return handler

    def attempt(data: bytes) -> object:
        try:
            return deserialize(data)
        except DecodeError:
            if count := _lines.note("undecodable_request", time.monotonic()):
                logger.warning("event=undecodable_request method=%s count=%d", method, count)
            return UNDECODABLE

    found: Any = handler
    if found.unary_unary is not None:
        behaviour = _unary(found.unary_unary)
        return grpc.unary_unary_rpc_method_handler(behaviour, attempt, handler.response_serializer)
    if found.unary_stream is not None:
        behaviour = _streaming(found.unary_stream)
        return grpc.unary_stream_rpc_method_handler(behaviour, attempt, handler.response_serializer)
    if found.stream_stream is not None:
        behaviour = _of_stream(found.stream_stream)
        return grpc.stream_stream_rpc_method_handler(behaviour, attempt, handler.response_serializer)
    # No service here has a stream of requests and a single response.
    return handler


def _unary(behaviour: Callable[[Any, Any], Awaitable[object]]) -> Callable[[Any, Any], Awaitable[object]]:
    async def checked(request: object, context: Any) -> object:
        if request is UNDECODABLE:
            await context.abort_with_status(undecodable_status())
        return await behaviour(request, context)

    return checked


def _streaming(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def writing(request: object, context: Any) -> None:
        if request is UNDECODABLE:
            await context.abort_with_status(undecodable_status())
        await behaviour(request, context)

    async def yielding(request: object, context: Any) -> AsyncIterator[object]:
        if request is UNDECODABLE:
            await context.abort_with_status(undecodable_status())
        async for response in behaviour(request, context):
            yield response

    return yielding if inspect.isasyncgenfunction(behaviour) else writing


def _of_stream(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Guard a handler with a stream of requests: its iteration raises for an undecodable one.

    A handler that reads from the context must look for `UNDECODABLE` itself.
    """

    async def requests(iterator: AsyncIterator[object]) -> AsyncIterator[object]:
        async for request in iterator:
            if request is UNDECODABLE:
                raise UndecodableRequestError
            yield request

    async def yielding(iterator: AsyncIterator[object], context: Any) -> AsyncIterator[object]:
        try:
            async for response in behaviour(requests(iterator), context):
                yield response
        except UndecodableRequestError:
            await context.abort_with_status(undecodable_status())

    return yielding if inspect.isasyncgenfunction(behaviour) else behaviour
