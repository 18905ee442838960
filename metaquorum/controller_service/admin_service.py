# SPDX-License-Identifier: Apache-2.0
"""Admin operations over the carrier: brokers forward the requests of their clients here.

Owns the translation of frames to operations, and of refusals to failures of a call.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from google.protobuf.message import DecodeError
from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller_service.admin_operations import REQUEST_TYPES, AdminOperations
from metaquorum.controller_service.calls import MAX_WAIT_MS, not_started, refusal, refusing
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.net.link import Stream
from metaquorum.net.methods import Method
from metaquorum.net.service import ServiceTable

REQUEST_WINDOW_BYTES: Final = 64 * 1024
"""Bytes that the caller of an export may send ahead; it sends none."""


class AdminService:
    """Serves admin operations to other servers.

    Args:
        table: table to which the service adds its methods.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._operations: AdminOperations | None = None
        table.add_waiting(Method.ADMIN, pb.AdminCall, refusing(self._answer))
        table.add_stream(
            Method.EXPORT_METADATA, admin_pb2.ExportMetadataRequest, self._export, window_bytes=REQUEST_WINDOW_BYTES
        )

    def attach(self, operations: AdminOperations) -> None:
        """Carry out operations from here on."""
        self._operations = operations

    def detach(self) -> None:
        """Refuse every request from here on."""
        self._operations = None

    async def _answer(self, request: pb.AdminCall, timeout_ms: int) -> pb.AdminAnswer:
        request_type = REQUEST_TYPES.get(request.method)
        if request_type is None:
            raise CommandError(ErrorCode.INVALID_REQUEST, f"the controller has no method {request.method[:100]!r}")
        try:
            message = request_type.FromString(request.request)
        except DecodeError as error:
            raise CommandError(
                ErrorCode.INVALID_REQUEST, f"the request is not a valid {request.method}Request"
            ) from error
        response = await self._attached().answer(request.method, message, timeout_ms)
        return pb.AdminAnswer(response=response.SerializeToString())

    async def _export(self, request: admin_pb2.ExportMetadataRequest, stream: Stream) -> None:
        try:
            async with aclosing(self._attached().export_metadata(request, MAX_WAIT_MS)) as messages:
                async for message in messages:
                    await stream.write(message.SerializeToString())
        except CommandError as error:
            raise refusal(error) from error

    def _attached(self) -> AdminOperations:
        if self._operations is None:
            raise not_started()
        return self._operations
