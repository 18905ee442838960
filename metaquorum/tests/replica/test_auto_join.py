# SPDX-License-Identifier: Apache-2.0
"""A replica that wants to become a voter, and a leader that answers nonsense, or nothing, before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.net.carrier import Carrier
from metaquorum.net.link import ServedCall
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError
from metaquorum.replica import auto_join
from metaquorum.replica.auto_join import AutoJoin

WAIT_S = 30.0
OWN = b"o" * 16

Answer = Callable[[str], bytes]


def nonsense(_: str) -> bytes:
    """Bytes that are no answer."""
    return b"\xff\xff\xff"


def nonsense_within(_: str) -> bytes:
    """An answer whose inside is none."""
    return controller_pb2.AdminAnswer(response=b"\xff\xff\xff").SerializeToString()


def refuse(_: str) -> bytes:
    """A node that does not lead."""
    raise RefusalError(ErrorCode.NOT_CONTROLLER, "another one leads")


def agree(method: str) -> bytes:
    """Describe a quorum that this replica follows, and accept it as a voter."""
    response: Any = admin_pb2.AddVoterResponse()
    if method == "DescribeQuorum":
        observer = admin_pb2.QuorumReplica(node_id=3, directory_id=OWN, last_caught_up_age_ms=1)
        response = admin_pb2.DescribeQuorumResponse(observers=[observer])
    return controller_pb2.AdminAnswer(response=response.SerializeToString()).SerializeToString()


OTHER = b"v" * 16


class LeaderStub:
    """A leader on a real connection, and the replica that asks it.

    Args:
        answer: the answer to each call, by method.
    """

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        self.asked: list[str] = []
        self._answer = answer
        self._leader, self._own = Carrier(cluster_id="c", node_id=1), Carrier(cluster_id="c", node_id=3)

    async def __aenter__(self) -> AutoJoin:
        self._leader.table.add(Method.ADMIN, controller_pb2.AdminCall, self._respond)
        address = f"127.0.0.1:{self._leader.bind('127.0.0.1', 0)}"
        await self._leader.start(address)
        await self._own.start(None)
        node: Any = SimpleNamespace(
            cluster_id="c",
            node_id=3,
            directory_id=OWN,
            status=lambda: SimpleNamespace(is_voter=False),
            leader=lambda: SimpleNamespace(address=address),
        )
        return AutoJoin(node, self._own.peers)

    async def __aexit__(self, *_: object) -> None:
        await self._own.close()
        await self._leader.close()

    def _respond(self, request: controller_pb2.AdminCall, call: ServedCall) -> None:
        self.asked.append(request.method)
        call.respond(self._answer(request.method))


async def attempt(joining: AutoJoin) -> bool:
    """One attempt."""
    async with asyncio.timeout(WAIT_S):
        return await joining._attempt()  # pyright: ignore[reportPrivateUsage]


async def test_whatever_is_answered_the_replica_asks_again_until_it_is_let_in(monkeypatch: Any) -> None:
    """Bytes that do not decode end nothing: otherwise the quorum would lack a voter until an operator notices."""
    monkeypatch.setattr(auto_join, "PAUSE_MS", 1)
    answers: list[Answer] = [nonsense, nonsense_within, refuse, agree]
    leader = LeaderStub(lambda method: (answers.pop(0) if len(answers) > 1 else answers[0])(method))
    async with leader as joining, asyncio.timeout(WAIT_S):
        await joining.run()
    assert leader.asked == ["DescribeQuorum"] * 4 + ["AddVoter"]


def describe(leader_id: int, voter: admin_pb2.QuorumReplica, *, epoch: int = 7) -> Callable[[str], bytes]:
    """Describe a quorum that this replica follows, in which `voter` has its node id, and agree to everything else."""

    def answer(method: str) -> bytes:
        response: Any = admin_pb2.AddVoterResponse()
        if method == "DescribeQuorum":
            observer = admin_pb2.QuorumReplica(node_id=3, directory_id=OWN, last_caught_up_age_ms=1)
            response = admin_pb2.DescribeQuorumResponse(
                leader_id=leader_id, quorum_epoch=epoch, voters=[voter], observers=[observer]
            )
        return controller_pb2.AdminAnswer(response=response.SerializeToString()).SerializeToString()

    return answer


async def test_voter_that_leads_is_never_pushed_out() -> None:
    """The leader does not fetch: no age of a fetch says that it is gone."""
    leader = LeaderStub(describe(3, admin_pb2.QuorumReplica(node_id=3, directory_id=OTHER)))
    async with leader as joining:
        assert not await attempt(joining)
    assert leader.asked == ["DescribeQuorum"]


async def test_voter_that_a_new_leader_has_not_heard_of_is_given_time(monkeypatch: Any) -> None:
    """Right after an election the leader knows of no fetch at all; a voter that stays silent under it was lost."""
    monkeypatch.setattr(auto_join, "STALE_VOTER_MS", 200)
    unheard = admin_pb2.QuorumReplica(node_id=3, directory_id=OTHER)
    answers = [describe(1, unheard), describe(1, unheard, epoch=8), describe(1, unheard, epoch=8)]
    leader = LeaderStub(lambda method: answers[0](method))
    async with leader as joining:
        assert not await attempt(joining)
        await asyncio.sleep(0.3)
        answers.pop(0)
        assert not await attempt(joining), "the next leader is given the same time"
        await asyncio.sleep(0.3)
        assert await attempt(joining)
    assert leader.asked == ["DescribeQuorum"] * 3 + ["RemoveVoter", "AddVoter"]
