# SPDX-License-Identifier: Apache-2.0
"""Channel and server in Python behave as `grpc.aio`: client and handler see the same over all pairings, and in a simulated world.

Each scenario is written once, against `grpc.aio`. It runs on loopback with both libraries at each end, and with channel and server in
Python between two simulated processes. Texts are not compared.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from lograft.wire.status import parse_rpc_error

from integration_tests.harness.faults.forgetful_proxy import Way
from integration_tests.tests.simulation.grpc_scenarios import (
    CANCELLED,
    EOF,
    FAILURE,
    GONE,
    OVER,
    SERVICE,
    SETTLE_S,
    WAIT_S,
    Stage,
    outcome_of,
    same,
    same_when_forgotten,
    stream_call,
    unary_call,
    write_to,
)


def test_unary_call_is_answered() -> None:
    """A call has its answer, which can be awaited more than once, and the trailing metadata. The handler sees metadata and deadline."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = unary_call(channel, "echo", metadata=(("key", "value"),), timeout=WAIT_S)
            answers = [await call, await call, call.done(), call.cancelled(), call.cancel(), await call.code()]
            return [*answers, tuple(await call.trailing_metadata()), await unary_call(channel, "echo")]

    outcome, seen = same(scenario)
    assert outcome == [b"re:a", b"re:a", True, False, False, grpc.StatusCode.OK, (("tail", "1"),), b"re:a"]
    assert seen == ["value", True, None, False]


def test_refusal_carries_its_details() -> None:
    """The client can read a status with typed details."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary_call(channel, "refuse")
            return parse_rpc_error(caught.value), tuple(caught.value.trailing_metadata() or ())

    (status, _), _ = same(scenario)
    assert (status.code, status.message, status.retry_after_ms) == (FAILURE.code, FAILURE.message, 5)
    assert (status.leader.leader_id, status.leader.leader_epoch, status.leader.host, status.leader.port) == (
        1,
        2,
        "there",
        3,
    )


def test_deadline_ends_the_call_at_both_ends() -> None:
    """After the deadline the client has DEADLINE_EXCEEDED, and the handler was cancelled. An unread message is lost."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            await channel.channel_ready()
            call = unary_call(channel, "hang", timeout=0.5)
            outcome = [await outcome_of(call), call.cancelled()]
            await stage.until_seen()
            stream = stream_call(channel, "hello", timeout=0.5)
            await stage.until_seen(3)
            return [*outcome, await outcome_of(stream.read()), await write_to(stream)]

    assert same(scenario) == (["DEADLINE_EXCEEDED", False, "DEADLINE_EXCEEDED", OVER], [CANCELLED, EOF, CANCELLED])


def test_stream_goes_both_ways_and_ends() -> None:
    """Messages go both ways. After done_writing the handler reads EOF, and after its return the client reads EOF for good."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "mirror")
            await call.write(b"0")
            outcome = [await call.read()]
            await call.write(b"1")
            await call.write(b"2")
            await call.done_writing()
            outcome.append(await write_to(call))
            outcome += [await outcome_of(call.read()) for _ in range(4)]
            return [*outcome, await call.code(), await write_to(call)]

    outcome, seen = same(scenario)
    assert outcome == [b"re:0", OVER, b"re:1", b"re:2", EOF, EOF, grpc.StatusCode.OK, OVER]
    assert seen == [EOF]


def test_cancelled_call_ends_its_read_and_its_handler() -> None:
    """cancel() makes the pending read raise CancelledError. The handler's read ends, and then the handler is cancelled."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "hello")
            outcome: list[Any] = [await call.read()]
            reading = asyncio.ensure_future(outcome_of(call.read()))
            await asyncio.sleep(0.05)
            outcome += [call.cancel(), await reading, call.cancel(), call.cancelled(), call.done(), await call.code()]
            await stage.until_seen(2)
            return [*outcome, await outcome_of(call.read()), await write_to(call)]

    outcome, seen = same(scenario)
    assert outcome == [b"hello", True, CANCELLED, False, True, True, grpc.StatusCode.CANCELLED, CANCELLED, OVER]
    assert seen == [EOF, CANCELLED]


def test_cancelled_waiter_cancels_the_call() -> None:
    """Cancelling a task that waits for a call cancels the call. Later writes of the handler fail."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            stream, call = stream_call(channel, "deaf"), unary_call(channel, "hang")
            await stream.wait_for_connection()
            await asyncio.sleep(SETTLE_S)
            outcome: list[Any] = []
            for each, waited in ((stream, stream.read()), (call, call)):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await waited
                outcome += [each.cancelled(), await each.code()]
            await stage.until_seen(3)
            stage.handlers.seen.sort()
            return outcome

    outcome, seen = same(scenario)
    assert outcome == [True, grpc.StatusCode.CANCELLED] * 2
    assert seen == [CANCELLED, CANCELLED, GONE]


def test_abort_comes_behind_what_was_written() -> None:
    """The client first reads what the handler wrote before it aborted. Only then the call is over, with the status."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            call = stream_call(channel, "abort")
            await call.wait_for_connection()
            await asyncio.sleep(SETTLE_S)
            outcome: list[Any] = [call.done(), await outcome_of(call.code(), 0.1)]
            outcome += [await outcome_of(call.read()) for _ in range(4)]
            outcome += [call.done(), await write_to(call), tuple(await call.trailing_metadata())]

            count = channel.unary_stream(f"/{SERVICE}/count")

            async def iterate() -> None:
                async for message in count(b""):
                    outcome.append(message)

            return [await outcome_of(iterate()), *outcome]

    lost = "FAILED_PRECONDITION"
    read = [False, "nothing", b"1", b"2", lost, lost, True, OVER, (("tail", "3"),)]
    assert same(scenario)[0] == ["DATA_LOSS", *read, b"1", b"2"]


def test_abort_is_told_at_once_and_ends_the_context() -> None:
    """The client has the status of the first abort. The handler can neither abort again nor write."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel:
            outcome = await outcome_of(stream_call(channel, "abort_twice").read())
            await stage.until_seen(3)
            return outcome

    aborted = "AbortError: Locally aborted."
    assert same(scenario) == ("ABORTED", [aborted, "UsageError: Abort already called!", aborted])


LIVENESS_MS: Final = 4_000
"""The shortest liveness bound: gRPC pings after a second at the earliest."""

WAYS: Final = (Way.BOTH, Way.TO_SERVER, Way.TO_CLIENT)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_forgotten_connection_is_found_by_pings(way: Way) -> None:
    """Every call on it ends as on a broken connection, and the next one uses a new connection."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel(liveness_ms=LIVENESS_MS) as channel:
            stream = stream_call(channel, "hello")
            outcome = [await stream.read()]
            stage.forget(way)
            outcome += await asyncio.gather(outcome_of(stream.read()), outcome_of(unary_call(channel, "hang")))
            # The channel of grpc.aio may use the old connection for a moment longer.
            while (answer := await outcome_of(unary_call(channel, "echo", timeout=WAIT_S))) == "UNAVAILABLE":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return [*outcome, answer]

    assert same_when_forgotten(scenario) == [b"hello", "UNAVAILABLE", "UNAVAILABLE", b"re:a"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_until_the_ping_a_forgotten_connection_stays(way: Way) -> None:
    """Nothing arrives any more. The next call uses it too and ends by its own deadline. A new channel is a new connection."""

    async def scenario(stage: Stage) -> Any:
        async with stage.channel() as channel, stage.channel() as other:
            stream = stream_call(channel, "hello")
            outcome = [await stream.read()]
            stage.forget(way)
            outcome += [
                await outcome_of(stream.read(), 1.0),
                await outcome_of(unary_call(channel, "echo", timeout=0.5)),
            ]
            return [*outcome, await unary_call(other, "echo")]

    assert same_when_forgotten(scenario) == [b"hello", "nothing", "DEADLINE_EXCEEDED", b"re:a"]
