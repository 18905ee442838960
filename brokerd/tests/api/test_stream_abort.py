# SPDX-License-Identifier: Apache-2.0
"""A stream that is refused while its first answer is being sent still ends, with the refusal."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from brokerd.api.calls import ServicerContext, bidirectional
from brokerd.failure import refused

SERVICE = "test.Service"
DEADLINE_S = 10.0
STREAMS = 20


async def refuse_in_first_write(context: ServicerContext) -> None:
    """Begin to answer, cancel that, and refuse, like a stream whose reader meets invalid bytes right behind the opening."""
    writing = asyncio.create_task(context.write(b"answer"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    raise refused(ErrorCode.INVALID_REQUEST, "nonsense")


async def drain(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
    """Read until the stream ends."""
    while await stream.read() is not grpc.aio.EOF:
        pass


async def test_stream_that_is_refused_while_it_writes_ends_with_the_refusal() -> None:
    """grpc.aio used to send the initial metadata a second time with the status, which failed, so the caller waited for its deadline."""
    server = grpc.aio.server()
    methods = {"Method": bidirectional(refuse_in_first_write)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(STREAMS):
                stream = channel.stream_stream(f"/{SERVICE}/Method")(timeout=DEADLINE_S)
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await drain(stream)
                assert parse_rpc_error(ended.value).code is ErrorCode.INVALID_REQUEST
    finally:
        await server.stop(None)
