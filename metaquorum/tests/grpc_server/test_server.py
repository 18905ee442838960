# SPDX-License-Identifier: Apache-2.0
"""The gRPC server in Python, over real sockets, with clients of grpc.aio and with clients that are none."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from lograft._grpc.http2 import PREFACE
from tests.grpc_python.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    encode_headers,
    frame,
)

from metaquorum.controller_service.decoding import add_reflection, decoding
from metaquorum.grpc_server import server as server_module
from metaquorum.grpc_server.server import GrpcServer, ServerLimits

WAIT_S = 20
LIMITS = ServerLimits(max_calls=3, max_connection_calls=8, quiet_ms=10_000, timeout_ms=5_000, max_message_bytes=100_000)


class Service:
    """Echoes, holds calls until they are released, and fails."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.held = 0
        self.peers: list[str] = []

    def handlers(self) -> grpc.GenericRpcHandler:
        unary = {each.__name__: grpc.unary_unary_rpc_method_handler(each) for each in (self.echo, self.hold, self.fail)}
        return grpc.method_handlers_generic_handler(
            "test.Service", {**unary, "talk": grpc.stream_stream_rpc_method_handler(self.talk)}
        )

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.peers.append(context.peer())
        return request

    async def hold(self, request: bytes, _context: Any) -> bytes:
        self.held += 1
        await self.release.wait()
        return request

    async def fail(self, _request: bytes, _context: Any) -> bytes:
        raise ValueError("a fault")

    async def talk(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.peers.append(context.peer())
        async for each in requests:
            await context.write(each)


class Scene:
    """A running server, its service, and a channel to it."""

    def __init__(self, server: GrpcServer, service: Service, port: int, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.service = service
        self.port = port
        self.channel = channel

    def call(self, name: str, request: bytes = b"a", **options: Any) -> Any:
        """Begin a unary call."""
        return self.channel.unary_unary(f"/test.Service/{name}")(request, timeout=WAIT_S, **options)

    async def until_held(self, count: int) -> None:
        """Wait until so many calls are held."""
        while self.service.held < count:  # noqa: ASYNC110 - one event for each count would say no more
            await asyncio.sleep(0.005)


@asynccontextmanager
async def scene(limits: ServerLimits = LIMITS, host: str = "127.0.0.1") -> AsyncIterator[Scene]:
    server, service = GrpcServer(limits), Service()
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.bind(host, 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        async with asyncio.timeout(WAIT_S):
            yield Scene(server, service, port, channel)
    await server.stop(None)


def run(use: Callable[[Scene], Awaitable[None]], limits: ServerLimits = LIMITS, host: str = "127.0.0.1") -> None:
    async def main() -> None:
        async with scene(limits, host) as found:
            await use(found)

    asyncio.run(main())


async def code_of(call: Awaitable[Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate, None])
def test_compressed_requests_are_understood(compression: grpc.Compression | None) -> None:
    """Libraries of other languages may compress, when a program asks them to."""

    async def use(here: Scene) -> None:
        assert await here.call("echo", b"a" * 90_000, compression=compression) == b"a" * 90_000

    run(use)


def test_request_that_is_too_large_costs_its_call() -> None:
    """Large ones below the limit go through. Above it, the status says so, and other calls of the connection go on."""

    async def use(here: Scene) -> None:
        held = asyncio.ensure_future(here.call("hold"))
        await here.until_held(1)
        assert await here.call("echo", b"a" * LIMITS.max_message_bytes) == b"a" * LIMITS.max_message_bytes
        too_large = bytes(LIMITS.max_message_bytes + 1)
        assert await code_of(here.call("echo", too_large)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        talk = here.channel.stream_stream("/test.Service/talk")(timeout=WAIT_S)
        await talk.write(b"a")
        assert await talk.read() == b"a"
        await talk.write(too_large)
        assert await code_of(talk.read()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        here.service.release.set()
        assert await held == b"a"

    run(use)


def test_more_calls_than_allowed_are_refused() -> None:
    """The status comes at once, and places become free when calls end or are given up."""

    async def use(here: Scene) -> None:
        held = [here.call("hold") for _ in range(LIMITS.max_calls)]
        await here.until_held(len(held))
        assert await code_of(here.call("echo")) is grpc.StatusCode.RESOURCE_EXHAUSTED
        held.pop().cancel()
        while await _failed(here.call("echo")):  # noqa: ASYNC110 - the server tells nobody of a free place
            await asyncio.sleep(0.01)
        here.service.release.set()
        assert await asyncio.gather(*held) == [b"a", b"a"]

    run(use)


async def _failed(call: Awaitable[Any]) -> bool:
    try:
        await call
    except grpc.aio.AioRpcError:
        return True
    return False


def test_stop_with_grace_lets_calls_end() -> None:
    """New connections are refused at once, and a call under way has its answer."""

    async def use(here: Scene) -> None:
        held = asyncio.ensure_future(here.call("hold"))
        await here.until_held(1)
        stopping = asyncio.ensure_future(here.server.stop(WAIT_S))
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", here.port)
        assert not stopping.done()
        here.service.release.set()
        assert await held == b"a"
        await stopping

    run(use)


def test_stop_ends_what_goes_on_behind_the_grace() -> None:
    """The client learns that the server is not available any more."""

    async def use(here: Scene) -> None:
        held = asyncio.ensure_future(code_of(here.call("hold")))
        await here.until_held(1)
        await here.server.stop(0.1)
        assert await held is grpc.StatusCode.UNAVAILABLE

    run(use)


def test_connections_can_be_ended_by_the_name_of_the_peer() -> None:
    """The name is the one that handlers see."""

    async def use(here: Scene) -> None:
        talk = here.channel.stream_stream("/test.Service/talk")(timeout=WAIT_S)
        await talk.write(b"a")
        assert await talk.read() == b"a"
        (peer,) = here.service.peers
        assert peer.startswith("ipv4:127.0.0.1:")
        assert here.server.end_connections([peer, "ipv4:127.0.0.1:1"]) == 1
        assert await code_of(talk.read()) is grpc.StatusCode.UNAVAILABLE

    run(use)


def test_addresses_that_cannot_be_taken_are_refused() -> None:
    """A port in use, and an address of another machine. Nothing stays open."""
    server, other = GrpcServer(LIMITS), GrpcServer(LIMITS)
    port = server.bind("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        other.bind("127.0.0.1", port)
    with pytest.raises(OSError, match="assign requested address"):
        other.bind("192.0.2.1", 0)
    asyncio.run(server.stop(None))
    assert other.bind("127.0.0.1", port) == port
    asyncio.run(other.stop(None))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_any_address_takes_both_versions_of_ip() -> None:
    """A server on `::` is reached by IPv4 as well."""

    async def use(here: Scene) -> None:
        assert await here.call("echo") == b"a"
        assert here.service.peers[0].startswith("ipv6:%5B%3A%3Affff%3A127.0.0.1%5D:")

    run(use, host="[::]")


def test_client_that_says_nothing_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the time of a handshake."""
    monkeypatch.setattr(server_module, "HANDSHAKE_TIMEOUT_S", 0.2)

    async def use(here: Scene) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(PREFACE[:5])
        assert await _until_end(reader)
        writer.close()

    run(use)


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    """Read to the end of the connection, however it ends."""
    found = b""
    try:
        while data := await reader.read(100_000):
            found += data
    except ConnectionResetError:
        pass
    return found


def test_client_that_answers_no_ping_loses_its_connection() -> None:
    """The server pings after silence."""

    async def use(here: Scene) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        assert b"\0\0\x08\6\0\0\0\0\0" in await _until_end(reader)
        writer.close()

    run(use, replace(LIMITS, quiet_ms=200, timeout_ms=200))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\2\0\1\0"])
def test_client_of_another_protocol_is_sent_away(data: bytes) -> None:
    """Such as a browser, or a client that wants TLS."""

    async def use(here: Scene) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(data)
        assert b"no HTTP/2" in await _until_end(reader)
        writer.close()
        assert await here.call("echo") == b"a"

    run(use)


def test_fault_of_a_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The client learns that it failed."""

    async def use(here: Scene) -> None:
        assert await code_of(here.call("fail")) is grpc.StatusCode.UNKNOWN
        assert await code_of(here.call("nothing")) is grpc.StatusCode.UNIMPLEMENTED

    with caplog.at_level(logging.ERROR):
        run(use)
    assert ["/test.Service/fail" in each.getMessage() for each in caplog.records] == [True]


def test_services_of_generated_code_are_served() -> None:
    """Health and reflection, as brokers and voters offer them."""

    async def use(here: Scene) -> None:
        servicer = health.aio.HealthServicer()
        add: Any = health_pb2_grpc
        server: Any = here.server
        add.add_HealthServicer_to_server(servicer, decoding(server))
        add_reflection(("test.Service",), server)
        await servicer.set("a", health_pb2.HealthCheckResponse.SERVING)
        stub: Any = health_pb2_grpc.HealthStub(here.channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest(service="a"))).status == 1
        assert await code_of(stub.Check(health_pb2.HealthCheckRequest(service="b"))) is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="a"))
        assert (await watch.read()).status == 1
        await servicer.set("a", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert (await watch.read()).status == 2
        watch.cancel()
        reflect: Any = reflection_pb2_grpc.ServerReflectionStub(here.channel)
        talk = reflect.ServerReflectionInfo()
        await talk.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await talk.read()
        assert [each.name for each in answer.list_services_response.service] == ["test.Service"]
        await talk.done_writing()

    run(use)


def test_call_that_was_refused_takes_its_end_in_silence() -> None:
    """A request is too large while an answer waits for the client's window. Then the client ends its side with trailers."""

    async def use(here: Scene) -> None:
        headers = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Service/talk"), (":authority", "a")]
        headers += [("content-type", "application/grpc")]
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        # No window: the answers wait.
        writer.write(
            PREFACE + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0") + frame(HEADERS, END_HEADERS, 1, encode_headers(headers))
        )
        writer.write(frame(DATA, 0, 1, b"\0\0\0\0\1a"))
        await asyncio.sleep(0.1)
        end = frame(HEADERS, END_HEADERS | END_STREAM, 1, encode_headers([("a", "b")]))
        # In one piece, so that the end comes before the handler is cancelled.
        writer.write(frame(DATA, 0, 1, b"\0\0\x7f\xff\xff") + end)
        await asyncio.sleep(0.1)
        writer.write(frame(PING, 0, 0, b"12345678"))
        await reader.readuntil(b"12345678")
        writer.close()

    run(use)


@pytest.mark.parametrize("end", [b"", frame(RST_STREAM, 0, 1, bytes(4))], ids=["close", "reset"])
def test_what_has_ended_waits_for_no_garbage_collection(end: bytes) -> None:
    """Neither a call nor its connection refers to itself: full collections would stop all clients for a moment."""
    call = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Service/talk"), (":authority", "h")]
    headers = encode_headers([*call, ("content-type", "application/grpc"), ("te", "trailers")])

    async def use(here: Scene) -> None:
        gc.disable()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, headers))
            while not here.service.peers:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
            (connection,) = here.server._connections
            left = [
                weakref.ref(each) for each in (connection, connection.core, connection.core._h2, *connection._running)
            ]
            assert len(left) == 4
            del connection
            writer.write(end)
            writer.close()
            async with asyncio.timeout(WAIT_S):
                while any(each() is not None for each in left):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.005)
        finally:
            gc.enable()

    run(use)
