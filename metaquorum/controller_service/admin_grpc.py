# SPDX-License-Identifier: Apache-2.0
"""`lograft.v1.AdminService` over gRPC at the admin port of a node that is not a broker.

Owns the translation of gRPC calls to operations, and of refusals to statuses. A broker forwards admin operations to the active
controller; here only the active controller itself answers, and any other node refuses with NOT_CONTROLLER.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RichStatus, abort_status

from metaquorum.controller_service.admin_operations import REQUEST_TYPES, AdminOperations
from metaquorum.controller_service.calls import leader_hint, wait_ms
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.topics import refuse_reserved

logger = logging.getLogger(__name__)

SERVICE: Final = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name

ServicerContext = grpc.aio.ServicerContext[Any, Any]


def admin_handler(operations: AdminOperations) -> grpc.GenericRpcHandler:
    """Return the handler of `AdminService` for a gRPC server."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(_unary(operations, name), request_type.FromString, _serialized)
        for name, request_type in REQUEST_TYPES.items()
    }
    handlers["ExportMetadata"] = grpc.unary_stream_rpc_method_handler(
        _export(operations), admin_pb2.ExportMetadataRequest.FromString, _serialized
    )
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _unary(operations: AdminOperations, name: str) -> Callable[[Message, ServicerContext], Awaitable[Message]]:
    async def serve(request: Message, context: ServicerContext) -> Message:
        try:
            if isinstance(request, admin_pb2.CreateTopicRequest):
                refuse_reserved(request.topic)
            return await operations.answer(name, request, wait_ms(_left_ms(context)))
        except CommandError as error:
            await context.abort_with_status(_status(error))
        except Exception:
            logger.exception("event=call_failed call=%s", name)
            await context.abort_with_status(_fault())
        raise AssertionError("abort returned")

    return serve


def _export(
    operations: AdminOperations,
) -> Callable[[admin_pb2.ExportMetadataRequest, ServicerContext], AsyncIterator[Message]]:
    async def serve(request: admin_pb2.ExportMetadataRequest, context: ServicerContext) -> AsyncIterator[Message]:
        try:
            async with aclosing(operations.export_metadata(request, wait_ms(_left_ms(context)))) as pieces:
                async for piece in pieces:
                    yield piece
        except CommandError as error:
            await context.abort_with_status(_status(error))
        except Exception:
            logger.exception("event=call_failed call=ExportMetadata")
            await context.abort_with_status(_fault())

    return serve


def _left_ms(context: ServicerContext) -> int | None:
    # The type stubs do not say that a call may have no deadline.
    remaining_s = cast("float | None", context.time_remaining())
    return None if remaining_s is None else int(remaining_s * 1000)


def _status(error: CommandError) -> RichStatus:
    return abort_status(
        error.code,
        error.message,
        retry_after_ms=error.retry_after_ms,
        leader=None if error.leader is None else leader_hint(error.leader),
    )


def _fault() -> RichStatus:
    return abort_status(ErrorCode.INTERNAL, "a fault of the server; its log says more")
