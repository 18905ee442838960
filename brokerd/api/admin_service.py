# SPDX-License-Identifier: Apache-2.0
"""AdminService on a broker: forwards requests to the active controller, and answers requests about its own log directories.

The operations are those of `metaquorum.controller_service.admin_operations`. The row of an operation and the descriptors of its
messages say how this module handles it. The module owns read-your-writes: it answers a change once this broker has applied it, so the
client's next query to the same broker sees it. While the quorum has no leader, it answers some queries from its own image and says so
in the answer. ExportMetadata gets one attempt: if it breaks or finds no controller, the client starts it again. `log_directory_calls`
has the calls that a broker answers itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, cast

import grpc
from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import (
    ServicerContext,
    abort,
    abort_internal,
    check_cluster,
    left_ms,
    raw_unary,
    unary,
    undecodable,
)
from brokerd.api.log_directory_calls import LogDirectoryCalls
from brokerd.controller_client.controller_calls import ControllerCalls, ControllerRefusedError
from brokerd.failure import RefusedError, refused
from brokerd.limits import FORWARD_WAIT_MS
from metaquorum.controller_service import admin_operations
from metaquorum.controller_service.admin_operations import OPERATIONS, REQUEST_TYPES, RESPONSE_TYPES
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.operation import Call, Change, Export, OfBroker, Query
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_names import reserved_problem
from metaquorum.net.methods import Method

SERVICE: Final = admin_operations.SERVICE.full_name

APPLY_WAIT_MS: Final = 2_000
"""Maximum milliseconds that the answer to a change waits until this broker has applied the change."""

MAX_EXPORT_MS: Final = 600_000
"""Maximum milliseconds of one export."""

EXPORT_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes of an export that the controller may send ahead of the client."""

EXPORT_RETRY_MS: Final = 100
"""`retry_after_ms` for a client whose export found no controller."""

IMAGE_WAIT_MS: Final = 3_000
"""Milliseconds that a query waits for a controller before this broker answers from its own image, if the query allows it."""


class AdminService:
    """AdminService of one broker."""

    def __init__(
        self, calls: ControllerCalls, observer: MetadataLoader, log_directories: LogDirectoryCalls, *, cluster_id: str
    ) -> None:
        self._cluster_id = cluster_id
        self._calls = calls
        self._observer = observer
        self._log_directories = log_directories

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the method handlers for a gRPC server."""
        own = self._log_directories
        methods = {
            "DescribeLogDirectories": unary(admin_pb2.DescribeLogDirectoriesRequest, own.describe),
            "DeleteUnknownPartitions": unary(admin_pb2.DeleteUnknownPartitionsRequest, own.delete_unknown),
            "MoveReplica": unary(admin_pb2.MoveReplicaRequest, own.move),
        }
        for name, operation in OPERATIONS.items():
            match operation:
                case OfBroker():
                    assert name in methods, f"{name} is an operation of a broker, and this one does not serve it"
                case Export():
                    methods[name] = export_handler(self._calls)
                case _:
                    methods[name] = raw_unary(self._behaviour(name, operation))
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _behaviour(
        self, name: str, operation: Change[Any, Any] | Query[Any] | Call[Any]
    ) -> Callable[[bytes, ServicerContext], Coroutine[None, None, bytes]]:
        response_type = RESPONSE_TYPES[name]
        fields = response_type.DESCRIPTOR.fields_by_name
        # The leader of the quorum is not in the image, so there is nothing to wait for after a leadership transfer.
        waits = operation.changes and "metadata_offset" in fields
        # A query may be answered without a leader if its answer has a field that says so.
        alone = operation if isinstance(operation, Query) and "without_leader" in fields else None
        most_ms = FORWARD_WAIT_MS if alone is None else IMAGE_WAIT_MS

        async def forward(request: bytes, context: ServicerContext) -> bytes:
            if name == "CreateTopic":
                _refuse_reserved(request)
            try:
                answer = await self._calls.call(
                    Method.ADMIN,
                    pb.AdminCall(method=name, request=request).SerializeToString(),
                    timeout_ms=left_ms(context, at_most_ms=most_ms),
                    is_read_only=not operation.changes,
                )
            except ControllerRefusedError:
                raise
            except RefusedError as error:
                if alone is None or error.failure.code is not ErrorCode.QUORUM_UNAVAILABLE:
                    raise
                return self._answer_alone(alone, REQUEST_TYPES[name], request, error)
            response = pb.AdminAnswer.FromString(answer).response
            if waits:
                # Even if the wait times out, the change is made, and the answer has its offset.
                wait_ms = left_ms(context, at_most_ms=APPLY_WAIT_MS)
                offset: int = cast("Any", response_type.FromString(response)).metadata_offset
                await self._observer.wait_for(offset, timeout_ms=wait_ms)
            return response

        return forward

    def _answer_alone(
        self, query: Query[Any], request_type: type[Message], data: bytes, refusal: RefusedError
    ) -> bytes:
        """Answer from the image of this broker. Raise `refusal` if the request asks for newer metadata."""
        image = self._observer.image
        try:
            request: Any = request_type.FromString(data)
            check_cluster(request.cluster_id, self._cluster_id)
            if request.min_metadata_offset > image.metadata_offset:
                raise refusal
            response: Any = query.answer(request, image)
        except CommandError as error:
            raise refused(error.code, error.message) from error
        except DecodeError:
            raise undecodable() from None
        response.without_leader = True
        return response.SerializeToString()


def _refuse_reserved(data: bytes) -> None:
    """Refuse a client that would create an internal topic: the controller cannot tell its request from this broker's own."""
    try:
        problem = reserved_problem(admin_pb2.CreateTopicRequest.FromString(data).topic)
    except DecodeError:
        raise undecodable() from None
    if problem is not None:
        raise refused(ErrorCode.INVALID_TOPIC_NAME, problem)


def export_handler(calls: ControllerCalls) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of ExportMetadata, which forwards the stream of the active controller."""

    async def forward(request: bytes, context: ServicerContext) -> None:
        try:
            async with asyncio.timeout(left_ms(context, at_most_ms=MAX_EXPORT_MS) / 1000):
                await _pass_export_on(calls, request, context)
        except RefusedError as error:
            await abort(context, error)
        except TimeoutError:
            await abort(context, refused(ErrorCode.TIMED_OUT, f"the export took more than {MAX_EXPORT_MS} ms"))
        except Exception as error:
            await abort_internal(context, error)

    return grpc.unary_stream_rpc_method_handler(forward)


async def _pass_export_on(calls: ControllerCalls, request: bytes, context: ServicerContext) -> None:
    messages = calls.stream(
        Method.EXPORT_METADATA,
        request,
        window_bytes=EXPORT_WINDOW_BYTES,
        timeout_ms=left_ms(context, at_most_ms=MAX_EXPORT_MS),
    )
    try:
        async with aclosing(messages):
            async for message in messages:
                await context.write(message)
    except ControllerRefusedError:
        raise
    except RefusedError as error:
        message = "no active controller was met; try again"
        raise refused(ErrorCode.QUORUM_UNAVAILABLE, message, retry_after_ms=EXPORT_RETRY_MS) from error
