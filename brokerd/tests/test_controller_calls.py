# SPDX-License-Identifier: Apache-2.0
"""Calls to a controller that does not answer: a typed error, whatever gRPC says of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from lograft.wire.codes import ErrorCode
from lograft.wire.status import LeaderHint, abort_status

from brokerd.failure import RefusedError
from brokerd.metadata import controller_calls
from brokerd.metadata.controller_calls import ControllerCalls
from brokerd.metadata.observer import MetadataObserver
from brokerd.metadata.peer_channels import PeerChannels
from metaquorum.runtime.listener import QuorumLeader
from metaquorum.tests.quorum_cluster import until

METHOD = "/lograft.v1.AdminService/CreateTopic"
TIMEOUT_MS = 2_000
LONG_MS = 600_000
"""Longer than any test: only something else can end the call."""

GIVE_UP_S = 60.0
"""Seconds after which a call that should have ended has not."""


class Silent(grpc.GenericRpcHandler):
    """Takes every unary call and never answers, as a frozen process does."""

    def __init__(self) -> None:
        self.call_count = 0
        self.asked = asyncio.Event()
        self.peers: list[str] = []
        """Who called: another connection has another name."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of any method."""

        async def wait(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self.call_count += 1
            self.peers.append(context.peer())
            self.asked.set()
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(wait)


class Answering(grpc.GenericRpcHandler):
    """Answers every unary call with its name."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of any method."""

        async def answer(_request: bytes, _context: object) -> bytes:
            return b"answer"

        return grpc.unary_unary_rpc_method_handler(answer)


class JustElected(grpc.GenericRpcHandler):
    """Refuses the first call, for it is only just taking over, and answers the others."""

    def __init__(self) -> None:
        self.call_count = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of any method."""

        async def answer(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self.call_count += 1
            if self.call_count == 1:
                await context.abort_with_status(abort_status(ErrorCode.QUORUM_UNAVAILABLE, "taking over"))
            return b"answer"

        return grpc.unary_unary_rpc_method_handler(answer)


class Handover:
    """A leader of old that is silent and one that answers, and the calls of a broker that knows the first."""

    def __init__(
        self, silent: Silent, observer: MetadataObserver, calls: ControllerCalls, *, old_address: str, new_address: str
    ) -> None:
        self.silent = silent
        self.observer = observer
        self.calls = calls
        self.old_address = old_address
        self.new_address = new_address

    def know_leader(self, address: str, epoch: int) -> None:
        """Have the broker learn who leads."""
        self.observer.on_leader(QuorumLeader(leader_id=epoch, quorum_epoch=epoch, address=address))


@pytest_asyncio.fixture
async def handover() -> AsyncIterator[Handover]:
    """Both leaders; the broker knows the silent one."""
    handler, server, peers = Silent(), grpc.aio.server(), PeerChannels()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    other = grpc.aio.server()
    other.add_generic_rpc_handlers((Answering(),))
    other_port = other.add_insecure_port("127.0.0.1:0")
    await server.start()
    await other.start()
    observer = MetadataObserver()
    calls = ControllerCalls(observer, peers, [f"127.0.0.1:{port}"])
    made = Handover(handler, observer, calls, old_address=f"127.0.0.1:{port}", new_address=f"127.0.0.1:{other_port}")
    made.know_leader(made.old_address, 1)
    yield made
    await peers.close()
    await server.stop(None)
    await other.stop(None)


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[tuple[Silent, ControllerCalls]]:
    """A server that never answers, and the calls that take it for the controller."""
    handler, server, peers = Silent(), grpc.aio.server(), PeerChannels()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield handler, ControllerCalls(MetadataObserver(), peers, [f"127.0.0.1:{port}"])
    await peers.close()
    await server.stop(None)


async def test_unanswered_change_has_an_unknown_outcome(silent: tuple[Silent, ControllerCalls]) -> None:
    """The controller may have carried it out: the caller is told to look, and nothing is sent twice."""
    handler, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=TIMEOUT_MS)
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
    assert handler.call_count == 1


async def test_unanswered_question_says_that_the_quorum_is_not_there(silent: tuple[Silent, ControllerCalls]) -> None:
    """A read changed nothing, so all that there is to say is that nobody answered."""
    handler, calls = silent
    with pytest.raises(RefusedError) as refused:
        await calls.call(METHOD, b"", timeout_ms=TIMEOUT_MS, is_read_only=True)
    assert refused.value.failure.code is ErrorCode.QUORUM_UNAVAILABLE
    assert handler.call_count >= 1


async def test_call_after_an_unanswered_one_goes_over_a_new_connection(silent: tuple[Silent, ControllerCalls]) -> None:
    """The connection may swallow everything; who asks again must not go the same way."""
    handler, calls = silent
    for _ in range(3):
        with pytest.raises(RefusedError):
            await calls.call(METHOD, b"", timeout_ms=TIMEOUT_MS)
    assert len(set(handler.peers)) == 3


async def test_silence_has_questions_asked_again_and_leaves_changes(silent: tuple[Silent, ControllerCalls]) -> None:
    """What a heartbeat finds helps every question that waits for an answer on the same connection."""
    handler, calls = silent
    question = asyncio.create_task(calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True))
    change = asyncio.create_task(calls.call(METHOD, b"", timeout_ms=LONG_MS))
    await until(lambda: handler.call_count == 2, what="both calls")
    address = calls.address()
    assert address is not None
    async with calls.peers.use(address) as channel:
        calls.note_silence(address, channel)
    await until(lambda: handler.call_count == 3, what="the question asked again")
    assert len(set(handler.peers)) == 2
    assert not change.done()
    for task in (question, change):
        task.cancel()
    await asyncio.gather(question, change, return_exceptions=True)


async def test_question_to_a_leader_of_old_goes_to_the_new_one(handover: Handover) -> None:
    """A read that a frozen leader has is sent again as soon as another one is known, not when its time is up."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True))
    await handover.silent.asked.wait()
    handover.know_leader(handover.new_address, 2)
    assert await call == b"answer"


async def test_change_sent_to_a_leader_of_old_ends_when_a_new_one_is_known(handover: Handover) -> None:
    """The old leader may have appended it, so it is not sent again; but nobody waits for an answer that cannot come."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS))
    await handover.silent.asked.wait()
    handover.know_leader(handover.new_address, 2)
    with pytest.raises(RefusedError) as refused:
        await call
    assert refused.value.failure.code is ErrorCode.OUTCOME_UNKNOWN
    assert handover.silent.call_count == 1
    assert await handover.calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"


async def test_call_to_the_new_leader_itself_goes_on(handover: Handover) -> None:
    """A call that went to the new leader before the broker knew it, by a hint, is not given up."""
    call = asyncio.create_task(handover.calls.call(METHOD, b"", timeout_ms=LONG_MS, is_read_only=True))
    await handover.silent.asked.wait()
    handover.know_leader(handover.old_address, 2)
    await asyncio.sleep(0)
    assert not call.done()
    assert handover.silent.call_count == 1
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


async def test_what_is_heard_of_the_leader_of_old_says_nothing_of_the_new_one(handover: Handover) -> None:
    """Calls that fail at the dead leader after the broker has learnt of another one do not send anybody away from that."""
    handover.know_leader(handover.new_address, 2)
    handover.calls.note_failure(handover.old_address, None)
    assert handover.calls.address() == handover.new_address
    host, _, port = handover.old_address.rpartition(":")
    old = LeaderHint(leader_id=1, leader_epoch=1, host=host, port=int(port))
    handover.calls.note_failure(handover.new_address, old)
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
    handler, server, peers = JustElected(), grpc.aio.server(), PeerChannels()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        calls = ControllerCalls(MetadataObserver(), peers, [f"127.0.0.1:{port}"])
        assert await calls.call(METHOD, b"", timeout_ms=LONG_MS) == b"answer"
        assert handler.call_count == 2
    finally:
        await peers.close()
        await server.stop(None)
