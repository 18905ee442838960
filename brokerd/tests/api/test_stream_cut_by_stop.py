# SPDX-License-Identifier: Apache-2.0
"""A stream that is under way when the broker's grace is over ends without a fault in the log."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from brokerd.api.calls import ServicerContext, bidirectional

SERVICE = "test.Service"
DEADLINE_S = 10.0


async def test_read_behind_the_stop_is_no_fault_of_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    """On a busy machine the handler may read before gRPC cancels it; gRPC then says that the server has stopped."""
    reads, stopped, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def behaviour(context: ServicerContext) -> None:
        reads.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await stopped.wait()
        try:
            await context.read()
        finally:
            ends.set()

    server = grpc.aio.server()
    methods = {"Method": bidirectional(behaviour)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(DEADLINE_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream = channel.stream_stream(f"/{SERVICE}/Method")()
        await stream.write(b"request")
        await reads.wait()
        stop = asyncio.create_task(server.stop(0))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        stopped.set()
        await ends.wait()
        await stop
    assert [record.getMessage() for record in caplog.records if "fault" in record.getMessage()] == []
