# SPDX-License-Identifier: Apache-2.0
"""The simulated loop and network, alone and under gRPC: order, pauses, cuts, windows, and the end of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest
from lograft.wire.keepalive import RECEIVE_WINDOW_BYTES

from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.virtual_network import BREAK_MS, Connection, Network, Process
from integration_tests.tests.simulation.grpc_scenarios import (
    BLOCK,
    BLOCKS,
    CANCELLED,
    EOF,
    OVER,
    SETTLE_S,
    WAIT_S,
    Stage,
    new_process,
    outcome_of,
    run_real,
    run_virtual,
    same,
    stream_call,
    unary_call,
    write_to,
)
from metaquorum.testing.scheduler import Scheduler


def test_nobody_there_and_unknown_method() -> None:
    """Without a listener a call is UNAVAILABLE, and so is a first write. An unknown method is UNIMPLEMENTED."""

    async def scenario(stage: Stage) -> Any:
        async with stage.new_channel(stage.dead_address) as channel:
            call = stream_call(channel, "mirror")
            outcome = [await write_to(call), await outcome_of(call.read())]
            outcome.append(await outcome_of(call.wait_for_connection()))
            outcome += [await outcome_of(unary_call(channel, "echo")), channel.get_state().name]
        async with stage.channel() as channel:
            call = unary_call(channel, "nothing")
            outcome += [await outcome_of(call), await call.details()]
            return [*outcome, await outcome_of(stream_call(channel, "none").read())]

    lost, unknown = "UNAVAILABLE", "UNIMPLEMENTED"
    assert same(scenario)[0] == [lost, lost, lost, lost, "TRANSIENT_FAILURE", unknown, "Method not found!", unknown]


def test_handler_that_fails_or_leaves_ends_the_call() -> None:
    """A handler that raises gives UNKNOWN. After one that returns, the client reads EOF and cannot write."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = unary_call(channel, "fail")
            outcome = [await outcome_of(call), await call.details()]
            stage.handlers.is_open = True
            stream = stream_call(channel, "leave")
            return [*outcome, await outcome_of(stream.read()), await write_to(stream), await outcome_of(stream.read())]

    assert same(scenario)[0] == ["UNKNOWN", "Unexpected <class 'ValueError'>: bad", EOF, OVER, EOF]


def test_write_before_an_end_that_was_not_read_is_an_internal_error() -> None:
    """A write while messages and the server's status are unread fails with INTERNAL, which then hides the status."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "abort")
            await call.wait_for_connection()
            await asyncio.sleep(SETTLE_S)
            return [await write_to(call), await outcome_of(call.read()), await write_to(call), await call.details()]

    assert same(scenario)[0] == ["INTERNAL", "INTERNAL", OVER, "Internal error from Core"]


def test_states_of_a_channel() -> None:
    """A channel begins IDLE, connects on request, and is IDLE again when the server stops. A closed one accepts no call."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            states = [channel.get_state(try_to_connect=True)]
            while states[-1] is not grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(states[-1])
                states.append(channel.get_state())
            stage.stop(None)
            await channel.wait_for_state_change(states[-1])
            states.append(channel.get_state())
        with pytest.raises(grpc.aio.UsageError):
            unary_call(channel, "echo")
        # The real channel may have connected before the first look.
        names = [each.name for each in states if each is not grpc.ChannelConnectivity.CONNECTING]
        return names, channel.get_state().name

    assert same(scenario)[0] == (["IDLE", "READY", "IDLE"], "SHUTDOWN")


def test_closed_channel_cancels_its_calls() -> None:
    """close() cancels the calls under way, at both ends."""

    async def scenario(stage: Stage) -> Any:
        channel = stage.channel()
        call = stream_call(channel, "hello")
        outcome: list[Any] = [await call.read()]
        reading = asyncio.ensure_future(outcome_of(call.read()))
        await asyncio.sleep(0.05)
        await channel.close()
        outcome += [await reading, call.cancelled()]
        await stage.until_seen(2)
        return outcome

    assert same(scenario) == ([b"hello", CANCELLED, True], [EOF, CANCELLED])


def test_stopped_server_ends_its_streams() -> None:
    """stop() ends open calls with UNAVAILABLE after the written messages, and cancels the handlers. New calls find no server."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "hello")
            await call.wait_for_connection()
            await asyncio.sleep(SETTLE_S)
            stage.stop(None)
            await stage.until_seen(2)
            await asyncio.sleep(SETTLE_S)
            outcome: list[Any] = [call.done(), await call.read(), await outcome_of(call.read()), await call.details()]
            return [*outcome, await outcome_of(unary_call(channel, "echo"))]

    outcome = [False, b"hello", "UNAVAILABLE", "Cancelling all calls", "UNAVAILABLE"]
    assert same(scenario) == (outcome, [EOF, CANCELLED])


def test_stop_with_grace_lets_calls_end() -> None:
    """During the grace, a call under way continues while the channel is IDLE and new calls are refused."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            answering = asyncio.ensure_future(outcome_of(unary_call(channel, "when_open")))
            await stage.until_seen()
            stage.stop(WAIT_S)
            async with asyncio.timeout(WAIT_S):
                while (state := channel.get_state()) is not grpc.ChannelConnectivity.IDLE:
                    await channel.wait_for_state_change(state)
            outcome = await outcome_of(unary_call(channel, "echo"))
            stage.handlers.is_open = True
            return [outcome, await answering]

    assert same(scenario) == (["UNAVAILABLE", b"done"], ["called"])


def test_calls_that_outlast_the_grace_are_cut() -> None:
    """A call that is still under way when the grace is over ends with UNAVAILABLE."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "hello")
            outcome: list[Any] = [await call.read()]
            stage.stop(0.1)
            return [*outcome, await outcome_of(call.read())]

    assert same(scenario)[0] == [b"hello", "UNAVAILABLE"]


async def write_until_full(call: Any) -> tuple[int, asyncio.Task[Any]]:
    """Return how many blocks were written before a write waits, and that write."""
    for count in range(BLOCKS):
        writing = asyncio.ensure_future(write_to(call, BLOCK))
        if not (await asyncio.wait({writing}, timeout=0.1))[0]:
            return count, writing
    raise AssertionError("no write waits")


def test_writer_waits_for_a_reader() -> None:
    """A writing client waits when the handler does not read, and nothing is lost. The same holds for a writing handler."""
    counts: list[int] = []

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "gate")
            count, writing = await write_until_full(call)
            counts.append(count)
            stage.handlers.is_open = True
            await writing
            await call.done_writing()
            outcome = [int(await call.read()) - (count + 1) * len(BLOCK), await outcome_of(call.read())]
            call = stream_call(channel, "flood")
            await call.wait_for_connection()
            await asyncio.sleep(0.2)
            assert stage.handlers.seen[0] < BLOCKS
            while (message := await call.read()) is not grpc.aio.EOF:
                outcome.append(len(message))
            return outcome

    assert same(scenario) == ([0, EOF, *[len(BLOCK)] * BLOCKS], [BLOCKS])
    assert counts[0] == RECEIVE_WINDOW_BYTES // len(BLOCK), "the first run is the simulated one"


async def end_of_a_waiting_write(stage: Stage, end: str) -> Any:
    """Return the outcomes of a waiting write, of the read beside it, and of one more write, when the call ends."""
    async with stage.channel() as channel:
        call = stream_call(channel, "leave", timeout=1 if end == "deadline" else None)
        _, writing = await write_until_full(call)
        reading = asyncio.ensure_future(outcome_of(call.read()))
        stage.handlers.is_open = end == "leave"
        if end == "cancel":
            call.cancel()
        return [await writing, await reading, await write_to(call)]


@pytest.mark.parametrize(("end", "written", "status"), [("cancel", CANCELLED, CANCELLED), ("leave", None, EOF)])
def test_end_of_a_call_ends_a_write_that_waits(end: str, written: str | None, status: str) -> None:
    """A waiting write ends with its call: cancelled, or without an error when the handler returned."""
    assert same(lambda stage: end_of_a_waiting_write(stage, end))[0] == [written, status, OVER]


@pytest.mark.parametrize("run", [run_virtual, run_real])
def test_deadline_ends_a_write_that_waits(run: Callable[[Callable[[Stage], Any]], Any]) -> None:
    """The write, the read or the call may notice the deadline first, as in gRPC. All of them end with an error."""
    (written, status, after), _ = run(lambda stage: end_of_a_waiting_write(stage, "deadline"))
    ends = ("INTERNAL", "DEADLINE_EXCEEDED")
    assert written in (None, *ends)
    assert status in ends
    assert after in (OVER, *ends)


def test_killed_server_loses_its_calls_and_comes_back() -> None:
    """Open calls of a killed process fail with UNAVAILABLE. The channel connects again after a restart."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            stream, call = stream_call(channel, "hello"), unary_call(channel, "hang")
            outcome: list[Any] = [await stream.read()]
            reading = asyncio.ensure_future(outcome_of(stream.read()))
            await asyncio.sleep(0.05)
            stage.kill()
            outcome += [await reading, await outcome_of(call), await write_to(stream)]
            outcome.append(await outcome_of(unary_call(channel, "echo")))
            stage.start()
            await channel.channel_ready()
            return [*outcome, await outcome_of(unary_call(channel, "echo"))]

    lost = "UNAVAILABLE"
    outcome, seen = run_virtual(scenario)
    assert outcome == [b"hello", lost, lost, OVER, lost, b"re:a"]
    assert seen == [None, False], "a killed process sees nothing of its end"


def test_killed_server_tears_a_write_that_waits() -> None:
    """When the connection breaks, a waiting write fails with INTERNAL and a read with UNAVAILABLE, as in gRPC."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "leave")
            _, writing = await write_until_full(call)
            stage.kill()
            return [await writing, await outcome_of(call.read()), await write_to(call)]

    assert run_virtual(scenario)[0] == ["INTERNAL", "UNAVAILABLE", OVER]


class _Ends:
    """Two processes with a network between them, and a connection. `came` has what they receive."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.network = Network(self.scheduler, self.scheduler.rng("network"), delay_ms_max=5)
        self.client: Process = new_process(self.scheduler, "client", 0, [])
        self.process: Process = new_process(self.scheduler, "server", 0, [])
        self.came: list[Any] = []
        found: list[Connection | None] = []
        assert self.network.listen("server:1", self)
        self.network.connect(self.client, "server:1", found.append, lambda: self.came.append("client: broken"))
        self.run(100)
        assert found[0] is not None
        self.connection = found[0]

    def accept(self, connection: Connection) -> Callable[[], None]:
        """See `Listener`."""
        return lambda: self.came.append("server: broken")

    def run(self, duration_ms: int) -> None:
        """Advance the time."""
        run_for(self.scheduler, duration_ms)

    def send(self, *messages: Any) -> None:
        """Send from the client to the server."""
        for message in messages:
            self.connection.send(self.client, self.process, lambda message=message: self.came.append(message))


def run_for(scheduler: Scheduler, duration_ms: int) -> None:
    """Advance the time, and run the events in it."""
    is_over: list[bool] = []
    scheduler.after(duration_ms, lambda: is_over.append(True))
    while not is_over:
        assert scheduler.run_next()


def _process() -> tuple[Scheduler, SimProcess]:
    scheduler = Scheduler(1)
    return scheduler, new_process(scheduler, "machine", 0, [])


def test_connection_keeps_the_order() -> None:
    """Data of a connection arrives in order, for any delays."""
    ends = _Ends()
    for number in range(50):
        ends.send(number)
        ends.run(number % 3)
    ends.run(100)
    assert ends.came == list(range(50))


def test_cut_holds_messages_until_it_is_healed() -> None:
    """Behind a cut nothing arrives. When it is healed, the waiting data arrives in order."""
    ends = _Ends()
    ends.network.cut("client", "server")
    ends.send(1, 2)
    ends.run(1_000)
    assert ends.came == []
    ends.network.heal()
    ends.send(3)
    ends.run(100)
    assert ends.came == [1, 2, 3]


def test_connection_that_is_stuck_too_long_breaks_at_both_ends() -> None:
    """A connection on which nothing gets through breaks once, at both ends. A second cut has its own time."""
    ends = _Ends()
    for _ in range(20):
        ends.network.cut("client", "server")
        ends.send("held")
        ends.run(BREAK_MS[0] - 1)
        ends.network.heal()
        ends.run(10)
    assert ends.came == ["held"] * 20, "never stuck for long enough"
    ends.came.clear()
    ends.network.cut("client", "server")
    ends.send("lost")
    ends.run(BREAK_MS[1] + 100)
    assert sorted(ends.came) == ["client: broken", "server: broken"]
    ends.network.heal()
    ends.run(BREAK_MS[1] + 100)
    assert len(ends.came) == 2


def test_end_of_a_process_breaks_its_connections() -> None:
    """The other end learns of it at once, or behind a cut after a while. The address is free."""
    for is_cut in (False, True):
        ends = _Ends()
        if is_cut:
            ends.network.cut("server", "client")
        ends.process.loop.kill()
        ends.network.end_process(ends.process)
        ends.run(100)
        assert ends.came == ([] if is_cut else ["client: broken"])
        assert not ends.network.is_listening("server:1")
        ends.run(BREAK_MS[1])
        assert ends.came == ["client: broken"]


def test_nothing_runs_after_kill() -> None:
    """No ready callback, timer, outside event or thread work runs any more."""
    scheduler, process = _process()
    loop, ran = process.loop, list[str]()
    loop.call_soon(loop.kill)
    loop.call_soon(ran.append, "ready")
    loop.call_later(0.01, ran.append, "timer")
    loop.deliver(5, lambda: ran.append("outside"))
    loop.run_in_thread(5, lambda: ran.append("thread"))
    run_for(scheduler, 100)
    loop.call_soon(ran.append, "late")
    run_for(scheduler, 100)
    assert ran == []
    assert loop.is_closed()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_pause_holds_everything_in_its_order(is_resumed: bool) -> None:
    """While paused nothing runs. At the end of the pause, or when resumed earlier, everything runs in its order."""
    scheduler, process = _process()
    loop, ran = process.loop, list[Any]()
    loop.pause(100)
    loop.call_later(0.03, ran.append, "timer")
    loop.deliver(20, lambda: ran.append("outside"))
    loop.call_soon(ran.append, "ready")
    run_for(scheduler, 50)
    assert (ran, loop.is_paused) == ([], True)
    if is_resumed:
        loop.resume()
        run_for(scheduler, 0)
    else:
        run_for(scheduler, 50)
    loop.call_soon(ran.append, "after")
    run_for(scheduler, 0)
    assert (ran, loop.is_paused) == (["ready", "outside", "timer", "after"], False)


def test_pause_may_begin_in_the_middle_of_something() -> None:
    """This many callbacks still run. The others wait for the end of the pause."""
    scheduler, process = _process()
    ran: list[int] = []
    for number in range(5):
        process.loop.call_soon(ran.append, number)
    process.loop.pause(20, after_steps=2)
    run_for(scheduler, 15)
    assert ran == [0, 1]
    run_for(scheduler, 10)
    assert ran == [0, 1, 2, 3, 4]


def test_timers_ring_at_their_time() -> None:
    """Timers ring at their times and in order, cancelled ones never. sleep takes the requested time."""
    scheduler, process = _process()
    loop, rang = process.loop, list[Any]()
    for delay_ms in (30, 10, 20):
        loop.call_later(delay_ms / 1000, lambda: rang.append(scheduler.now_ms))
    loop.call_later(0.015, rang.append, "cancelled").cancel()

    async def sleep() -> None:
        await asyncio.sleep(0.025)
        rang.append(("slept", scheduler.now_ms))

    process.run(sleep(), rang.append)
    run_for(scheduler, 100)
    assert rang == [10, 20, ("slept", 25), None, 30]


def test_executors_give_results_and_keep_order() -> None:
    """run_in_executor returns results and exceptions. An executor with one thread keeps the order, also through a pause."""
    scheduler, process = _process()
    loop, order = process.loop, list[int]()
    got: list[Any] = []

    async def work(executor: Any) -> None:
        got.append(await loop.run_in_executor(None, divmod, 7, 2))
        got.append(await outcome_of(loop.run_in_executor(None, divmod, 1, 0)))
        for number in range(0, 40, 2):
            loop.run_in_executor(executor, order.append, number)
            loop.run_in_executor(executor, order.append, number + 1)
            await asyncio.sleep(0.001)

    with ThreadPoolExecutor(1) as executor:
        process.run(work(executor), got.append)
        run_for(scheduler, 8)
        for _ in range(8):
            loop.pause(scheduler.now_ms + 10)
            run_for(scheduler, 3)
            count = len(order)
            run_for(scheduler, 2)
            assert len(order) == count, "paused"
            loop.resume()
            run_for(scheduler, 3)
        run_for(scheduler, 100)
    assert got == [(3, 1), "ZeroDivisionError", None]
    assert order == list(range(40))
