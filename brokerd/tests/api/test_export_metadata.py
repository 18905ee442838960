# SPDX-License-Identifier: Apache-2.0
"""Exports of the metadata that go through a broker: from the controller to a client, wherever the controller is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RemoteStatus, parse_rpc_error

from brokerd.api.admin_service import export_handler
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.tests.controller_client.scripted_controller import ScriptedController, calls_to, controller_of
from metaquorum.net.connection import Limits
from metaquorum.net.link import CallError, Stream
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError
from metaquorum.tests.quorum_cluster import until

SERVICE, PATH = "test.Admin", "/test.Admin/ExportMetadata"
WAIT_S = 30.0
PIECES = [b"%d" % number * 1_000 for number in range(300)]


async def pieces(_method: Method, stream: Stream) -> None:
    """Send an export."""
    for piece in PIECES:
        await stream.write(piece)


@asynccontextmanager
async def front(calls: ControllerCalls) -> AsyncIterator[grpc.aio.UnaryStreamMultiCallable[bytes, bytes]]:
    """The method of a broker, as a client calls it."""
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(SERVICE, {"ExportMetadata": export_handler(calls)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(WAIT_S):
            yield channel.unary_stream(PATH)  # pyright: ignore[reportReturnType]
    finally:
        await server.stop(None)


async def refusal_of(method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]) -> RemoteStatus:
    """Export; return how that is refused."""
    try:
        got = [piece async for piece in method(b"request")]
    except grpc.aio.AioRpcError as error:
        return parse_rpc_error(error)
    raise AssertionError(f"an export of {len(got)} pieces")


async def test_export_goes_through_piece_by_piece() -> None:
    """All of them in order, of more bytes than are sent ahead; nothing of the stream is left."""
    async with (
        controller_of(ScriptedController(streams=pieces)) as controller,
        calls_to(controller) as calls,
        front(calls) as method,
    ):
        for _ in range(2):
            assert [piece async for piece in method(b"request")] == PIECES
        assert controller.asked == [(Method.EXPORT_METADATA, b"request")] * 2
        assert controller.connection_count == 1


async def test_node_that_does_not_lead_says_where_the_next_attempt_goes() -> None:
    """The client is asked to try again, and then meets the controller."""
    async with controller_of(ScriptedController(streams=pieces)) as leader:

        async def not_here(_method: Method, _stream: Stream) -> None:
            host, _, port = leader.address.rpartition(":")
            hint = LeaderHint(leader_id=1, leader_epoch=5, host=host, port=int(port))
            raise RefusalError(ErrorCode.NOT_CONTROLLER, "another node leads", leader=hint)

        async with (
            controller_of(ScriptedController(streams=not_here)) as other,
            calls_to(other) as calls,
            front(calls) as method,
        ):
            status = await refusal_of(method)
            assert status.code is ErrorCode.QUORUM_UNAVAILABLE
            assert status.retry_after_ms
            assert [piece async for piece in method(b"request")] == PIECES
            assert len(other.asked) == 1


async def test_nobody_there_is_told_as_such() -> None:
    """No address at all, a port without a listener, a connection that can carry no more, one that breaks."""
    async with calls_to() as calls, front(calls) as method:
        assert (await refusal_of(method)).code is ErrorCode.QUORUM_UNAVAILABLE
    async with controller_of(ScriptedController()) as gone:
        await gone.close()
        async with calls_to(gone) as calls, front(calls) as method:
            assert (await refusal_of(method)).code is ErrorCode.QUORUM_UNAVAILABLE
    limits = replace(Limits(), open_calls=0)
    async with (
        controller_of(ScriptedController(streams=pieces)) as full,
        calls_to(full, limits=limits) as calls,
        front(calls) as method,
    ):
        assert (await refusal_of(method)).code is ErrorCode.QUORUM_UNAVAILABLE
    breaking = ScriptedController()

    async def begin_and_die(_method: Method, stream: Stream) -> None:
        await stream.write(b"piece")
        await asyncio.Event().wait()

    breaking.streams = begin_and_die
    async with controller_of(breaking), calls_to(breaking) as calls, front(calls) as method:
        call = method(b"request")
        assert await call.read() == b"piece"
        await breaking.close()
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await call.read()
        assert parse_rpc_error(broken.value).code is ErrorCode.QUORUM_UNAVAILABLE


async def test_refusal_of_the_controller_reaches_the_client() -> None:
    """The client gets the refusal unchanged."""

    async def refuse(_method: Method, _stream: Stream) -> None:
        raise RefusalError(ErrorCode.OVERLOADED, "too many exports", retry_after_ms=70)

    async with (
        controller_of(ScriptedController(streams=refuse)) as controller,
        calls_to(controller) as calls,
        front(calls) as method,
    ):
        status = await refusal_of(method)
        assert (status.code, status.retry_after_ms) == (ErrorCode.OVERLOADED, 70)
        assert "too many exports" in status.message


async def test_fault_of_the_broker_does_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log has the details."""

    def faulty() -> str:
        raise RuntimeError("a secret detail")

    async with calls_to() as calls, front(calls) as method:
        monkeypatch.setattr(calls, "address", faulty)
        status = await refusal_of(method)
        assert status.code is ErrorCode.INTERNAL
        assert "secret" not in status.message


async def test_client_that_goes_away_ends_the_export_at_the_controller() -> None:
    """Otherwise the export would wait for credit forever."""
    ended: list[str] = []

    async def endless(_method: Method, stream: Stream) -> None:
        try:
            while True:
                await stream.write(bytes(100_000))
        except CallError as error:
            ended.append(type(error).__name__)

    async with (
        controller_of(ScriptedController(streams=endless)) as controller,
        calls_to(controller) as calls,
        front(calls) as method,
    ):
        call = method(b"request")
        assert await call.read() == bytes(100_000)
        call.cancel()
        await until(lambda: ended == ["UnansweredError"], what="the end of the controller's part")
