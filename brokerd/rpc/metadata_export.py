# SPDX-License-Identifier: Apache-2.0
"""ExportMetadata on a broker: passes the stream of the active controller on.

Owns one attempt: a client whose export broke, or met no controller, asks again from the start. Must not look into it.
"""

from __future__ import annotations

from typing import Final, cast

import grpc
import grpc.aio
from lograft.wire.codes import ErrorCode
from lograft.wire.status import DETAILS_KEY, RichStatus, parse_rpc_error

from brokerd.failure import RefusedError, refused
from brokerd.metadata.controller_calls import ControllerCalls
from brokerd.metadata.peer_channels import is_ready_within
from brokerd.rpc.calls import ServicerContext, abort, left_ms

METHOD: Final = "/lograft.v1.AdminService/ExportMetadata"

MAX_EXPORT_MS: Final = 600_000
"""Longest time of one export, in milliseconds."""

CONNECT_MS: Final = 1_000
"""Milliseconds that the connection to the controller may take."""

RETRY_AFTER_MS: Final = 100
"""Advice to a client that met no controller."""


def export_handler(calls: ControllerCalls) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of the method."""

    async def forward(request: bytes, context: ServicerContext) -> None:
        try:
            await _forward(calls, request, context)
        except RefusedError as error:
            await abort(context, error)
        except grpc.aio.AioRpcError as error:
            await context.abort_with_status(same_status(error))

    return grpc.unary_stream_rpc_method_handler(forward)


async def _forward(calls: ControllerCalls, request: bytes, context: ServicerContext) -> None:
    address = calls.address()
    if address is None:
        raise _no_controller()
    async with calls.peers.use(address) as channel:
        timeout_ms = left_ms(context, at_most_ms=MAX_EXPORT_MS)
        if not await is_ready_within(channel, min(CONNECT_MS, timeout_ms)):
            calls.note_failure(address, None)
            raise _no_controller()
        method = cast("grpc.aio.UnaryStreamMultiCallable[bytes, bytes]", channel.unary_stream(METHOD))
        try:
            async for message in method(request, timeout=timeout_ms / 1000):
                await context.write(message)
        except grpc.aio.AioRpcError as error:
            status = parse_rpc_error(error)
            if status.code is ErrorCode.NOT_CONTROLLER:
                calls.note_failure(address, status.leader)
                raise _no_controller() from error
            raise
    calls.note_success()


def _no_controller() -> RefusedError:
    message = "no active controller was met; try again"
    return refused(ErrorCode.QUORUM_UNAVAILABLE, message, retry_after_ms=RETRY_AFTER_MS)


def same_status(error: grpc.aio.AioRpcError) -> RichStatus:
    """Return the status of another server as this one's own."""
    details = tuple((key, value) for key, value in error.trailing_metadata() or () if key == DETAILS_KEY)
    return RichStatus(error.code(), error.details() or "", details)
