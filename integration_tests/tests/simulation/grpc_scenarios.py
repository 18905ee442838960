# SPDX-License-Identifier: Apache-2.0
"""The ends over which scenarios of gRPC run, on loopback and between two simulated processes, and the service that they use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from grpc._cython import cygrpc
from lograft._client.python_channel import PythonChannel
from lograft.wire.codes import ErrorCode

from brokerd.api.status import rich_status
from brokerd.failure import Failure, LeaderPlace
from integration_tests.harness.faults.forgetful_proxy import ForgetfulProxy, Way
from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.virtual_network import Network
from integration_tests.simulation.virtual_platform import platform
from metaquorum.grpc_server.server import GrpcServer, ServerLimits
from metaquorum.testing.scheduler import Scheduler

WAIT_S: Final = 20
SETTLE_S: Final = 0.3
SERVICE: Final = "test.Service"
BLOCK: Final = bytes(64 * 1024)
BLOCKS: Final = 200
"""More blocks than any window takes; the window of real gRPC grows."""
LEADER: Final = LeaderPlace(leader_id=1, leader_epoch=2, host="there", port=3)
FAILURE: Final = Failure(code=ErrorCode.NOT_LEADER, message="lead by another", retry_after_ms=5, leader=LEADER)
LIMITS: Final = ServerLimits(max_calls=1_000, max_connection_calls=100, quiet_ms=10_000, timeout_ms=5_000)
CANCELLED: Final = "CancelledError"
OVER: Final = "InvalidStateError"
EOF: Final = "EOF"
GONE: Final = "grpc.aio.InternalError"
"""A handler's message to a client that has gone."""


class Handlers:
    """The service. `seen` has what its handlers see."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.is_open = False

    def rpc_handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for a server."""
        unary = (self._echo, self._refuse, self._hang, self._fail, self._when_open)
        streams = (self._mirror, self._hello, self._abort, self._abort_twice, self._leave)
        streams += (self._gate, self._deaf, self._flood)
        found: dict[str, Any] = {each.__name__[1:]: grpc.unary_unary_rpc_method_handler(each) for each in unary}
        found |= {each.__name__[1:]: grpc.stream_stream_rpc_method_handler(each) for each in streams}
        found["count"] = grpc.unary_stream_rpc_method_handler(self._count)
        return grpc.method_handlers_generic_handler(SERVICE, found)

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.seen.append(CANCELLED)
            raise

    async def _opened(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.is_open:  # noqa: ASYNC110 - an event would belong to one of two loops
                await asyncio.sleep(0.005)

    async def _echo(self, request: bytes, context: Any) -> bytes:
        self.seen += [dict(context.invocation_metadata()).get("key"), context.time_remaining() is not None]
        context.set_trailing_metadata((("tail", "1"),))
        return b"re:" + request

    async def _refuse(self, _request: bytes, context: Any) -> None:
        await context.abort_with_status(rich_status(FAILURE))

    async def _hang(self, _request: bytes, _context: Any) -> None:
        await self._wait()

    async def _fail(self, _request: bytes, _context: Any) -> None:
        raise ValueError("bad")

    async def _when_open(self, _request: bytes, _context: Any) -> bytes:
        self.seen.append("called")
        await self._opened()
        return b"done"

    async def _count(self, _request: bytes, context: Any) -> Any:
        yield b"1"
        yield b"2"
        await context.abort(grpc.StatusCode.DATA_LOSS, "lost")

    async def _mirror(self, _requests: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(b"re:" + message)
        self.seen.append(EOF)

    async def _hello(self, _requests: Any, context: Any) -> None:
        await context.write(b"hello")
        try:
            self.seen.append(EOF if await context.read() is grpc.aio.EOF else "a message")
        except (asyncio.CancelledError, cygrpc._ServerStoppedError):  # pyright: ignore[reportPrivateUsage]
            # Whether gRPC ends the read of a call that is cut, cancels its handler, or says that it has stopped is up to chance.
            self.seen += [EOF, CANCELLED]
            raise
        await self._wait()

    async def _deaf(self, _requests: Any, context: Any) -> None:
        try:
            await self._wait()
        except asyncio.CancelledError:
            self.seen.append(await outcome_of(context.write(b"late")))

    async def _abort(self, _requests: Any, context: Any) -> None:
        await context.write(b"1")
        await context.write(b"2")
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no", (("tail", "3"),))

    async def _abort_twice(self, _requests: Any, context: Any) -> None:
        for code in (grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND):
            self.seen.append(await outcome_of(context.abort(code, "no")))
        self.seen.append(await outcome_of(context.write(b"")))

    async def _leave(self, _requests: Any, _context: Any) -> None:
        await self._opened()

    async def _gate(self, _requests: Any, context: Any) -> None:
        await self._opened()
        size_bytes = 0
        while (message := await context.read()) is not grpc.aio.EOF:
            size_bytes += len(message)
        await context.write(str(size_bytes).encode())

    async def _flood(self, _requests: Any, context: Any) -> None:
        for number in range(1, BLOCKS + 1):
            await context.write(BLOCK)
            self.seen = [number]


class Stage:
    """The parts of a scenario: the service, its address, an address without a listener, and the control of the server."""

    def __init__(self, handlers: Handlers, address: str, dead_address: str, stop: Callable[[float | None], None]):
        self.handlers = handlers
        self.address = address
        self.dead_address = dead_address
        self.stop = stop
        self.forget: Any = None  # let the connections that there are swallow everything, one way or both
        self.new_channel: Callable[..., Any] = grpc_channel
        self.kill: Any = None  # of a simulated world only: end the server's process without a word
        self.start: Any = None  # and start another one

    def channel(self, **options: Any) -> Any:
        """Return a channel to the service. `liveness_ms` is its liveness bound."""
        return self.new_channel(self.address, **options)

    async def until_seen(self, count: int = 1) -> None:
        """Wait until the handlers have seen this many events."""
        async with asyncio.timeout(WAIT_S):
            while len(self.handlers.seen) < count:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)


Scenario = Callable[[Stage], Awaitable[Any]]


async def outcome_of(awaitable: Awaitable[Any], timeout_s: float = WAIT_S) -> Any:
    """Return the outcome: a value, a status, or the name of an exception."""

    async def run() -> Any:
        return await awaitable

    task = asyncio.ensure_future(run())
    if not (await asyncio.wait({task}, timeout=timeout_s))[0]:
        task.cancel()
        return "nothing"
    if task.cancelled():
        return CANCELLED
    match task.exception():
        case None:
            return EOF if task.result() is grpc.aio.EOF else task.result()
        case grpc.aio.AioRpcError() as error:
            return error.code().name
        case grpc.aio.InternalError():
            return GONE
        case grpc.aio.UsageError() | grpc.aio.AbortError() as error:
            return f"{type(error).__name__}: {error}"
        case error:
            return type(error).__name__


def write_to(call: Any, message: bytes = b"") -> Awaitable[Any]:
    """Return the outcome of a write."""
    return outcome_of(call.write(message))


def run_real(
    scenario: Scenario,
    new_channel: Callable[..., Any] | None = None,
    *,
    is_forgetful: bool = False,
    is_python: bool = False,
) -> Any:
    """Run a scenario on loopback, and return what client and handlers saw.

    Args:
        scenario: the scenario.
        new_channel: makes the client's channels; by default those of grpc.aio.
        is_forgetful: use a proxy that can forget connections.
        is_python: use the server in Python, not that of grpc.aio.
    """

    async def main() -> Any:
        handlers = Handlers()
        if is_python:
            server: Any = GrpcServer(LIMITS)
            port = server.bind("127.0.0.1", 0)
        else:
            server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
            port = server.add_insecure_port("127.0.0.1:0")
        server.add_generic_rpc_handlers((handlers.rpc_handlers(),))
        await server.start()
        stops: list[asyncio.Task[None]] = []

        def stop(grace: float | None) -> None:
            stops.append(asyncio.ensure_future(server.stop(grace)))

        with socket.socket() as unused, ForgetfulProxy(f"127.0.0.1:{port}") as proxy:
            unused.bind(("127.0.0.1", 0))  # it does not listen, and nobody else can
            address = proxy.address if is_forgetful else f"127.0.0.1:{port}"
            stage = Stage(handlers, address, f"127.0.0.1:{unused.getsockname()[1]}", stop)
            stage.forget = proxy.forget
            stage.new_channel = new_channel or stage.new_channel
            try:
                return await scenario(stage), handlers.seen
            finally:
                await asyncio.gather(server.stop(None), *stops)

    return asyncio.run(main())


class _Machine:
    """The server's machine of a simulated world, and its process."""

    def __init__(self, scheduler: Scheduler, network: Network, handlers: Handlers, faults: list[str]) -> None:
        self._scheduler = scheduler
        self._network = network
        self._handlers = handlers
        self._faults = faults
        self._server: Any = None
        self.process: SimProcess = new_process(scheduler, "server", 0, faults)

    def start(self) -> None:
        """Start a process that serves."""
        self.process = new_process(self._scheduler, "server", self._scheduler.now_ms, self._faults)
        self.process.run(self._serve(), lambda error: self._faults.append(f"the server ended: {error!r}"))

    def stop(self, grace: float | None) -> None:
        """Stop the server with its grace."""
        self.process.loop.call_soon(lambda: self.process.loop.create_task(self._server.stop(grace)))

    def kill(self) -> None:
        """End the process without a sign."""
        self.process.loop.kill()
        self._network.end_process(self.process)

    async def _serve(self) -> None:
        self._server = GrpcServer(LIMITS)
        self._server.add_generic_rpc_handlers((self._handlers.rpc_handlers(),))
        self._server.bind("server", 1)
        await self._server.start()
        await asyncio.Event().wait()


def new_process(scheduler: Scheduler, machine: str, number: int, faults: list[str]) -> SimProcess:
    """Return a simulated process. `faults` gets uncaught exceptions."""
    rng = scheduler.rng(machine)
    chance: dict[str, Any] = {"rng": rng, "work_ms_max": 1, "flush_ms_max": 0}
    return SimProcess(scheduler, machine=machine, number=number, disk=None, on_fault=faults.append, **chance)


def run_virtual(scenario: Scenario) -> Any:
    """Run a scenario in a simulated world, and return what client and handlers saw."""
    scheduler, handlers, faults = Scheduler(1), Handlers(), list[str]()
    network = Network(scheduler, scheduler.rng("network"), delay_ms_max=3)
    ends: list[BaseException | None] = []
    results: list[Any] = []
    with platform(scheduler, network):
        machine = _Machine(scheduler, network, handlers, faults)
        machine.start()
        while not network.is_listening("server:1"):
            assert scheduler.run_next()
        stage = Stage(handlers, "server:1", "server:2", machine.stop)
        stage.kill, stage.start = machine.kill, machine.start
        stage.new_channel = python_channel

        def forget(way: Way) -> None:
            for connection in network.connections():
                connection.forget(
                    *((connection.server,) if Way.TO_SERVER in way else ()),
                    *((connection.client,) if Way.TO_CLIENT in way else ()),
                )

        stage.forget = forget
        client = new_process(scheduler, "client", 0, faults)

        async def use() -> None:
            results.append(await scenario(stage))

        client.run(use(), ends.append)
        while not ends:
            assert scheduler.run_next()
        machine.kill()
        client.loop.kill()
    assert ends == [None], (ends, faults)
    assert not [each for each in faults if "bad" not in each]
    return results[0], handlers.seen


def same(scenario: Scenario) -> Any:
    """Run a scenario over all of them, check that all see the same, and return what client and handlers saw."""
    virtual, real = run_virtual(scenario), run_real(scenario)
    assert virtual == real
    assert run_real(scenario, python_channel) == real
    assert run_real(scenario, is_python=True) == real
    assert run_real(scenario, python_channel, is_python=True) == real
    return real


def same_when_forgotten(scenario: Scenario) -> Any:
    """Run a scenario with connections that can be forgotten, check that all clients see the same, and return what they saw.

    What the handlers see depends on the direction that is lost. Both ends are of one library, because such scenarios take long.
    """
    virtual, real = run_virtual(scenario)[0], run_real(scenario, is_forgetful=True)[0]
    assert virtual == real
    assert run_real(scenario, python_channel, is_forgetful=True, is_python=True)[0] == real
    return real


def grpc_channel(address: str, *, liveness_ms: int | None = None) -> Any:
    """Return a channel of grpc.aio. It shares no connection with another one."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if liveness_ms is not None:
        options += [("grpc.keepalive_time_ms", liveness_ms // 4), ("grpc.http2.ping_timeout_ms", liveness_ms * 3 // 4)]
        options += [("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]
    return grpc.aio.insecure_channel(address, options=options)


def python_channel(address: str, *, liveness_ms: int = 12_000) -> Any:
    """Return a channel in Python."""
    return PythonChannel(address, liveness_ms=liveness_ms)


def unary_call(channel: Any, name: str, **options: Any) -> Any:
    """Begin a unary call of a method."""
    return channel.unary_unary(f"/{SERVICE}/{name}")(b"a", **options)


def stream_call(channel: Any, name: str, **options: Any) -> Any:
    """Begin a stream in both directions."""
    return channel.stream_stream(f"/{SERVICE}/{name}")(**options)
