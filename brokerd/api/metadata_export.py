# SPDX-License-Identifier: Apache-2.0
"""ExportMetadata on a broker: passes the stream of the active controller on.

Owns one attempt: a client whose export broke, or met no controller, asks again from the start. Must not look into it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import grpc
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import ServicerContext, abort, abort_internal, left_ms
from brokerd.controller_client.controller_calls import ControllerCalls, ControllerRefusedError
from brokerd.failure import RefusedError, refused
from metaquorum.net.methods import Method

MAX_EXPORT_MS: Final = 600_000
"""Longest time of one export, in milliseconds."""

WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that the controller may send ahead of the client."""

RETRY_AFTER_MS: Final = 100
"""Advice to a client that met no controller."""


def export_handler(calls: ControllerCalls) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of the method."""

    async def forward(request: bytes, context: ServicerContext) -> None:
        try:
            async with asyncio.timeout(left_ms(context, at_most_ms=MAX_EXPORT_MS) / 1000):
                await _forward(calls, request, context)
        except RefusedError as error:
            await abort(context, error)
        except TimeoutError:
            await abort(context, refused(ErrorCode.TIMED_OUT, f"the export took more than {MAX_EXPORT_MS} ms"))
        except Exception as error:
            await abort_internal(context, error)

    return grpc.unary_stream_rpc_method_handler(forward)


async def _forward(calls: ControllerCalls, request: bytes, context: ServicerContext) -> None:
    messages = calls.stream(
        Method.EXPORT_METADATA,
        request,
        window_bytes=WINDOW_BYTES,
        timeout_ms=left_ms(context, at_most_ms=MAX_EXPORT_MS),
    )
    try:
        async with aclosing(messages):
            async for message in messages:
                await context.write(message)
    except ControllerRefusedError:
        raise
    except RefusedError as error:
        raise _no_controller() from error


def _no_controller() -> RefusedError:
    message = "no active controller was met; try again"
    return refused(ErrorCode.QUORUM_UNAVAILABLE, message, retry_after_ms=RETRY_AFTER_MS)
