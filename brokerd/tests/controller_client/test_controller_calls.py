# SPDX-License-Identifier: Apache-2.0
"""Calls to a controller that does not answer or refuses: the caller gets a typed error, whatever happens to the connection."""

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
"""A time limit that ends soon, and one longer than any test, so that only something else can end the call."""

GIVE_UP_S = 60.0
"""Seconds after which a call that should have ended counts as hanging."""


class Handover:
    """A silent old leader, a new leader that answers, and the calls of a broker that knows the old one."""

    def __init__(
        self, silent: ScriptedController, new: ScriptedController, observer: MetadataLoader, calls: ControllerCalls
    ) -> None:
        self.silent = silent
        self.observer = observer
        self.calls = calls
        self.old_address = silent.address
        self.new_address = new.address

    def know_leader(self, address: str, epoch: int) -> None:
        """Tell the broker's metadata who leads."""
        self.observer.on_leader(QuorumLeader(leader_id=epoch, quorum_epoch=epoch, address=address))

    async def asked(self) -> None:
        """Wait until the old leader has a request."""
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
    """Yield a server that never answers, and calls that use it as the controller."""
    async with controller_of(ScriptedController(never)) as controller, calls_to(controller) as calls:
        yield controller, calls


async def test_unanswered_change_has_an_unknown_outcome(silent: tuple[ScriptedController, ControllerCalls]) -> None:
    """The controller may have carried it out. The caller is told to check, and nothing is sent twice."""
    controller, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=SHORT_MS)
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
    assert len(controller.asked) == 1


async def test_unanswered_question_says_that_the_quorum_is_not_there(
    silent: tuple[ScriptedController, ControllerCalls],
) -> None:
    """A read changes nothing, so the error says only that no controller answered."""
    controller, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=SHORT_MS, is_read_only=True)
    assert refused.value.failure.code is ErrorCode.QUORUM_UNAVAILABLE
    assert not isinstance(refused.value, ControllerRefusedError)
    assert controller.asked


async def test_caller_that_goes_away_ends_the_work_of_the_controller(
    silent: tuple[ScriptedController, ControllerCalls],
) -> None:
    """The controller is told, and the connection stays usable for others."""
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
    """One unanswered heartbeat and one unanswered ping end it. Reads on it are sent again; changes have an unknown outcome."""
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
    """A live process answers a ping whatever its handlers do, so other calls over the connection continue to their ends."""
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
    """Calls do not wait for their time limit: the end of the connection ends them."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS))
    await handover.asked()
    await handover.silent.close()
    with pytest.raises(RefusedError) as refused:
        await call
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN


async def test_question_of_a_controller_that_dies_goes_to_another_voter() -> None:
    """The call goes there at once, and the caller does not notice."""
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
    """A read at a frozen leader is sent again as soon as another leader is known, not when its time limit ends."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True))
    await handover.asked()
    handover.know_leader(handover.new_address, 2)
    assert await call == b"answer"


async def test_change_sent_to_a_leader_of_old_ends_when_a_new_one_is_known(handover: Handover) -> None:
    """The old leader may have appended it, so it is not sent again. But the caller stops waiting for an answer that cannot come."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS))
    await handover.asked()
    handover.know_leader(handover.new_address, 2)
    with pytest.raises(RefusedError) as refused:
        await call
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
    assert len(handover.silent.asked) == 1
    assert await handover.calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"


async def test_call_to_the_new_leader_itself_goes_on(handover: Handover) -> None:
    """A call that went to the new leader by a hint, before the broker knew it, continues."""
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
    """A call that found nothing at the dead leader's address goes to the new one at once, however long its pause would be."""
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
    """Return the leader hint of a refusal."""
    host, _, port = address.rpartition(":")
    return LeaderHint(leader_id=1, leader_epoch=leader_epoch, host=host, port=int(port))


async def test_what_is_heard_of_the_leader_of_old_says_nothing_of_the_new_one(handover: Handover) -> None:
    """Once the broker knows the new leader, late failures of calls to the dead one do not move any call away from it."""
    handover.know_leader(handover.new_address, 2)
    handover.calls.note_failure(handover.old_address, None)
    assert handover.calls.address() == handover.new_address
    handover.calls.note_failure(handover.new_address, hint_at(handover.old_address, leader_epoch=1))
    handover.calls.note_failure(handover.old_address, None)
    assert handover.calls.address() == handover.new_address


async def test_many_calls_that_fail_together_are_one_failure(handover: Handover) -> None:
    """The calls move on from the common address once, not by as many steps as there were calls."""
    handover.know_leader(handover.new_address, 2)
    for _ in range(4):
        handover.calls.note_failure(handover.new_address, None)
    assert handover.calls.address() == handover.old_address


async def test_change_is_sent_again_to_a_leader_that_is_taking_over() -> None:
    """The voter refused before it did anything, so the call is repeated soon, without the client's long pause."""
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
    """The hint suffices, although that address is on no list."""
    async with controller_of(ScriptedController()) as leader, controller_of(ScriptedController()) as other:

        async def not_here(_method: Method, _request: bytes) -> bytes:
            hint = hint_at(leader.address, leader_epoch=5)
            raise RefusalError(ErrorCode.NOT_CONTROLLER, "another node leads", leader=hint)

        other.script = not_here
        async with calls_to(other) as calls:
            assert await calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"
            assert (len(other.asked), len(leader.asked)) == (1, 1)


async def test_refusal_of_the_controller_is_told_as_it_is() -> None:
    """The refusal keeps code, text, advice and leader hint, and nothing is sent again."""

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
    """It may have carried out a change. A read goes on to the next controller."""
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
    """The operator who set the address is told at once. A retry cannot help, and no request was sent."""
    async with controller_of(ScriptedController(cluster_id="other")) as controller, calls_to(controller) as calls:
        with pytest.raises(ControllerRefusedError) as refused:
            await calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True)
        assert refused.value.failure.code is ErrorCode.WRONG_CLUSTER
        assert "other" in refused.value.failure.message
        assert controller.asked == []


async def test_more_calls_than_a_connection_carries_wait_for_their_turn() -> None:
    """Nothing was sent over them, so changes are sent later, and none has an unknown outcome."""
    limits = replace(Limits(), open_calls=2)
    async with controller_of(ScriptedController()) as controller, calls_to(controller, limits=limits) as calls:
        answers = await asyncio.gather(*(calls.call(METHOD, b"", timeout_ms=LONG_MS) for _ in range(20)))
        assert set(answers) == {b"answer"}
        assert len(controller.asked) == 20
