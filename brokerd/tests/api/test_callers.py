# SPDX-License-Identifier: Apache-2.0
"""What the log of a broker says of the client whose call failed by a fault of the broker."""

from __future__ import annotations

import grpc.aio
import pytest
from lograft._client.transport import Purpose, Transport

from brokerd.api.calls import ServicerContext, raw_unary


async def test_log_names_the_program_whose_call_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Its address, and the `client_id` of its program."""

    async def fail(_data: bytes, _context: ServicerContext) -> bytes:
        raise RuntimeError("a fault")

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Call": raw_unary(fail)}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = Transport(client_id="billing-7")
    channel = await transport.connect(f"127.0.0.1:{port}", Purpose.CONTROL, timeout_s=10)
    with pytest.raises(grpc.aio.AioRpcError, match="a fault of the broker"):
        await channel.unary_unary("/test.Service/Call")(b"x")
    await transport.close()
    await server.stop(0)
    (message,) = [record.getMessage() for record in caplog.records if "fault of this broker" in record.getMessage()]
    assert "call of ipv4:127.0.0.1:" in message
    assert "billing-7 lograft-python" in message
