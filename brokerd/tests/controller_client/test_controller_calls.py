# SPDX-License-Identifier: Apache-2.0
"""Calls to a controller that does not answer, or refuses: a typed error, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import pytest
import pytest_asyncio
from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode

from brokerd.controller_client import controller_calls
from brokerd.controller_client.controller_calls import ControllerCalls, ControllerRefusedError
from brokerd.failure import LeaderPlace, RefusedError
from brokerd.tests.controller_client.scripted_controller import (
    ScriptedController,
    answer,
    calls_to,
    controller_of,
    never,
)
from metaquorum.metadata.listener import QuorumLeader
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.connection import Limits
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError
from metaquorum.tests.quorum_cluster import until

METHOD: Final = Method.ADMIN
SHORT_MS, LONG_MS = 500, 600_000
"""A time that is up soon, and one longer than any test: only something else can end the call."""

GIVE_UP_S = 60.0
"""Seconds after which a call that should have ended has not."""


class Handover:
    """A leader of old that is silent and one that answers, and the calls of a broker that knows the first."""

    def __init__(
        self, silent: ScriptedController, new: ScriptedController, observer: MetadataLoader, calls: ControllerCalls
    ) -> None:
        self.silent = silent
        self.observer = observer
        self.calls = calls
        self.old_address = silent.address
        self.new_address = new.address

    def know_leader(self, address: str, epoch: int) -> None:
        """Have the broker learn who leads."""
        self.observer.on_leader(QuorumLeader(leader_id=epoch, quorum_epoch=epoch, address=address))

    async def asked(self) -> None:
        """Wait until the leader of old has a request."""
        await until(lambda: self.silent.asked, what="the request at the leader of old")


@pytest_asyncio.fixture
async def handover() -> AsyncIterator[Handover]:
    """Both leaders; the broker knows the silent one."""
    async with controller_of(ScriptedController(never)) as old, controller_of(ScriptedController()) as new:
        observer = MetadataLoader()
        async with calls_to(old, observer=observer) as calls:
            made = Handover(old, new, observer, calls)
            made.know_leader(made.old_address, 1)
            yield made


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[tuple[ScriptedController, ControllerCalls]]:
    """A server that never answers, and the calls that take it for the controller."""
    async with controller_of(ScriptedController(never)) as controller, calls_to(controller) as calls:
        yield controller, calls


async def test_unanswered_change_has_an_unknown_outcome(silent: tuple[ScriptedController, ControllerCalls]) -> None:
    """The controller may have carried it out: the caller is told to look, and nothing is sent twice."""
    controller, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=SHORT_MS)
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
    assert len(controller.asked) == 1


async def test_unanswered_question_says_that_the_quorum_is_not_there(
    silent: tuple[ScriptedController, ControllerCalls],
) -> None:
    """A read changed nothing, so all that there is to say is that nobody answered."""
    controller, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=SHORT_MS, is_read_only=True)
    assert refused.value.failure.code is ErrorCode.QUORUM_UNAVAILABLE
    assert not isinstance(refused.value, ControllerRefusedError)
    assert controller.asked


async def test_caller_that_goes_away_ends_the_work_of_the_controller(
    silent: tuple[ScriptedController, ControllerCalls],
) -> None:
    """It is told, and the connection is there for others."""
    controller, calls = silent
    call = asyncio.create_task(calls.call(METHOD, b"gone", timeout_ms=LONG_MS))
    await until(lambda: controller.asked, what="the request")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: controller.abandoned == [b"gone"], what="the end of the work")
    controller.script = answer
    assert await calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"
    assert controller.connection_count == 1


async def test_connection_that_swallows_everything_is_left_for_another_one() -> None:
    """One unanswered heartbeat and one unanswered ping end it: questions on it are asked again, changes are in doubt."""
    limits = replace(Limits(), ping_after_ms=LONG_MS, liveness_ms=LONG_MS, suspect_ms=100)
    controller = ScriptedController()
    controller.swallow_count = 1
    async with controller_of(controller), calls_to(controller, limits=limits) as calls:
        question = asyncio.create_task(calls.call(METHOD, b"question", timeout_ms=LONG_MS, is_read_only=True))
        change = asyncio.create_task(calls.call(METHOD, b"change", timeout_ms=LONG_MS))
        await until(lambda: b"change" in bytes(controller.swallowed), what="both calls")
        assert b"question" in bytes(controller.swallowed)
        assert await calls.attempt(Method.HEARTBEAT, b"beat", timeout_ms=100) is None
        async with asyncio.timeout(GIVE_UP_S):
            assert await question == b"answer"
            with pytest.raises(RefusedError) as refused:
                await change
        assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
        assert controller.asked == [(METHOD, b"question")]
        assert controller.connection_count == 2


async def test_slow_answer_costs_no_connection(silent: tuple[ScriptedController, ControllerCalls]) -> None:
    """A live process answers a ping whatever its handlers do: what else waits over the connection goes on to its end."""
    controller, calls = silent
    may_answer = asyncio.Event()

    async def slowly(method: Method, request: bytes) -> bytes:
        await may_answer.wait()
        return await answer(method, request)

    controller.script = slowly
    question = asyncio.create_task(calls.call(METHOD, b"question", timeout_ms=LONG_MS, is_read_only=True))
    change = asyncio.create_task(calls.call(METHOD, b"change", timeout_ms=LONG_MS))
    await until(lambda: len(controller.asked) == 2, what="both calls")
    for _ in range(3):
        assert await calls.attempt(Method.HEARTBEAT, b"beat", timeout_ms=50) is None
    await asyncio.sleep(2 * Limits().suspect_ms / 1000)
    may_answer.set()
    assert await question == await change == b"answer"
    assert [request for _, request in controller.asked if request != b"beat"] == [b"question", b"change"]
    assert controller.connection_count == 1


async def test_controller_that_dies_under_a_change_leaves_it_in_doubt(handover: Handover) -> None:
    """Nobody waits for its time to be up: the end of the connection is enough."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS))
    await handover.asked()
    await handover.silent.close()
    with pytest.raises(RefusedError) as refused:
        await call
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN


async def test_question_of_a_controller_that_dies_goes_to_another_voter() -> None:
    """At once, and without a word to whoever asks."""
    async with (
        controller_of(ScriptedController(never)) as old,
        controller_of(ScriptedController()) as new,
        calls_to(old, new) as calls,
    ):
        call = asyncio.create_task(calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True))
        await until(lambda: old.asked, what="the request")
        await old.close()
        assert await call == b"answer"


async def test_question_to_a_leader_of_old_goes_to_the_new_one(handover: Handover) -> None:
    """A read that a frozen leader has is sent again as soon as another one is known, not when its time is up."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True))
    await handover.asked()
    handover.know_leader(handover.new_address, 2)
    assert await call == b"answer"


async def test_change_sent_to_a_leader_of_old_ends_when_a_new_one_is_known(handover: Handover) -> None:
    """The old leader may have appended it, so it is not sent again; but nobody waits for an answer that cannot come."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS))
    await handover.asked()
    handover.know_leader(handover.new_address, 2)
    with pytest.raises(RefusedError) as refused:
        await call
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
    assert len(handover.silent.asked) == 1
    assert await handover.calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"


async def test_call_to_the_new_leader_itself_goes_on(handover: Handover) -> None:
    """A call that went to the new leader before the broker knew it, by a hint, is not given up."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True))
    await handover.asked()
    handover.know_leader(handover.old_address, 2)
    await asyncio.sleep(0)
    assert not call.done()
    assert len(handover.silent.asked) == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_pause_of_a_call_ends_when_a_leader_is_known(handover: Handover, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that found nobody at the dead leader's address goes to the new one at once, however long it would pause."""
    monkeypatch.setattr(controller_calls, "RETRY_MS", LONG_MS)
    monkeypatch.setattr(controller_calls, "RETRY_MS_MAX", LONG_MS)
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        handover.know_leader(f"127.0.0.1:{gone.getsockname()[1]}", 2)
        call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS))
        failed = handover.calls.address()
        await until(lambda: handover.calls.address() != failed, what="the refusal of the dead leader's address")
        handover.know_leader(handover.new_address, 3)
        async with asyncio.timeout(GIVE_UP_S):
            assert await call == b"answer"


def hint_at(address: str, *, leader_epoch: int) -> LeaderHint:
    """What a refusal says of the leader."""
    host, _, port = address.rpartition(":")
    return LeaderHint(leader_id=1, leader_epoch=leader_epoch, host=host, port=int(port))


async def test_what_is_heard_of_the_leader_of_old_says_nothing_of_the_new_one(handover: Handover) -> None:
    """Calls that fail at the dead leader after the broker has learnt of another one do not send anybody away from that."""
    handover.know_leader(handover.new_address, 2)
    handover.calls.note_failure(handover.old_address, None)
    assert handover.calls.address() == handover.new_address
    handover.calls.note_failure(handover.new_address, hint_at(handover.old_address, leader_epoch=1))
    handover.calls.note_failure(handover.old_address, None)
    assert handover.calls.address() == handover.new_address


async def test_many_calls_that_fail_together_are_one_failure(handover: Handover) -> None:
    """Where they all went is left once, not passed over by as many steps as there were calls."""
    handover.know_leader(handover.new_address, 2)
    for _ in range(4):
        handover.calls.note_failure(handover.new_address, None)
    assert handover.calls.address() == handover.old_address


async def test_change_is_sent_again_to_a_leader_that_is_taking_over() -> None:
    """It was refused before anything was done; the client is not made to pause for as long as clients do."""
    controller = ScriptedController()

    async def just_elected(method: Method, request: bytes) -> bytes:
        if len(controller.asked) == 1:
            raise RefusalError(ErrorCode.QUORUM_UNAVAILABLE, "taking over")
        return await answer(method, request)

    controller.script = just_elected
    async with controller_of(controller), calls_to(controller) as calls:
        assert await calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"
        assert len(controller.asked) == 2


async def test_change_goes_where_a_node_that_does_not_lead_says() -> None:
    """By its hint, though that address is on no list."""
    async with controller_of(ScriptedController()) as leader, controller_of(ScriptedController()) as other:

        async def not_here(_method: Method, _request: bytes) -> bytes:
            hint = hint_at(leader.address, leader_epoch=5)
            raise RefusalError(ErrorCode.NOT_CONTROLLER, "another node leads", leader=hint)

        other.script = not_here
        async with calls_to(other) as calls:
            assert await calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"
            assert (len(other.asked), len(leader.asked)) == (1, 1)


async def test_refusal_of_the_controller_is_told_as_it_is() -> None:
    """Code, text, advice and place; nothing is sent again."""

    async def refuse(_method: Method, _request: bytes) -> bytes:
        hint = hint_at("[::1]:7", leader_epoch=5)
        raise RefusalError(ErrorCode.OVERLOADED, "scripted", retry_after_ms=70, leader=hint)

    async with controller_of(ScriptedController(refuse)) as controller, calls_to(controller) as calls:
        with pytest.raises(ControllerRefusedError) as refused:
            await calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True)
        failure = refused.value.failure
        assert (failure.code, failure.message, failure.retry_after_ms) == (ErrorCode.OVERLOADED, "scripted", 70)
        assert failure.leader == LeaderPlace(leader_id=1, leader_epoch=5, host="[::1]", port=7)
        assert len(controller.asked) == 1


async def test_controller_that_stops_is_asked_no_change_twice() -> None:
    """It may have carried a change out; a question goes on to whoever comes after it."""
    stopping = ScriptedController()

    async def stop(_method: Method, _request: bytes) -> bytes:
        raise RefusalError(ErrorCode.SHUTTING_DOWN, "scripted")

    stopping.script = stop
    async with (
        controller_of(stopping),
        controller_of(ScriptedController()) as other,
        calls_to(stopping, other) as calls,
    ):
        with pytest.raises(ControllerRefusedError) as refused:
            await calls.call(METHOD, b"", timeout_ms=LONG_MS)
        assert refused.value.failure.code is ErrorCode.SHUTTING_DOWN
        assert not other.asked
        assert await calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True) == b"answer"


async def test_controller_of_another_cluster_is_no_controller() -> None:
    """Whoever set the address is told so at once; a retry cannot mend it, and nothing was asked."""
    async with controller_of(ScriptedController(cluster_id="other")) as controller, calls_to(controller) as calls:
        with pytest.raises(ControllerRefusedError) as refused:
            await calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True)
        assert refused.value.failure.code is ErrorCode.WRONG_CLUSTER
        assert "other" in refused.value.failure.message
        assert controller.asked == []


async def test_more_calls_than_a_connection_carries_wait_for_their_turn() -> None:
    """Nothing of them was sent, so changes are sent later; none is in doubt."""
    limits = replace(Limits(), open_calls=2)
    async with controller_of(ScriptedController()) as controller, calls_to(controller, limits=limits) as calls:
        answers = await asyncio.gather(*(calls.call(METHOD, b"", timeout_ms=LONG_MS) for _ in range(20)))
        assert set(answers) == {b"answer"}
        assert len(controller.asked) == 20
