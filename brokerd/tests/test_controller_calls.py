# SPDX-License-Identifier: Apache-2.0
"""Calls to a controller that does not answer: a typed error, whatever gRPC says of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.metadata.controller_calls import ControllerCalls
from brokerd.metadata.observer import MetadataObserver
from brokerd.metadata.peer_channels import PeerChannels

METHOD = "/lograft.v1.AdminService/CreateTopic"
TIMEOUT_MS = 2_000


class Silent(grpc.GenericRpcHandler):
    """Takes every unary call and never answers, as a frozen process does."""

    def __init__(self) -> None:
        self.call_count = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of any method."""

        async def wait(_request: bytes, _context: object) -> bytes:
            self.call_count += 1
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(wait)


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[tuple[Silent, ControllerCalls]]:
    """A server that never answers, and the calls that take it for the controller."""
    handler, server, peers = Silent(), grpc.aio.server(), PeerChannels()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield handler, ControllerCalls(MetadataObserver(), peers, [f"127.0.0.1:{port}"])
    await peers.close()
    await server.stop(None)


async def test_unanswered_change_has_an_unknown_outcome(silent: tuple[Silent, ControllerCalls]) -> None:
    """The controller may have carried it out: the caller is told to look, and nothing is sent twice."""
    handler, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=TIMEOUT_MS)
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
    assert handler.call_count == 1


async def test_unanswered_question_says_that_the_quorum_is_not_there(silent: tuple[Silent, ControllerCalls]) -> None:
    """A read changed nothing, so all that there is to say is that nobody answered."""
    handler, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=TIMEOUT_MS, is_read_only=True)
    assert refused.value.failure.code is ErrorCode.QUORUM_UNAVAILABLE
    assert handler.call_count >= 1
