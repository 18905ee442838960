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


async def test_whatever_is_answered_the_replica_asks_again_until_it_is_let_in(monkeypatch: Any) -> None:
    """Bytes that do not decode end nothing: otherwise the quorum would lack a voter until an operator notices."""
    monkeypatch.setattr(auto_join, "PAUSE_MS", 1)
    answers: list[Answer] = [nonsense, nonsense_within, refuse, agree]
    asked: list[str] = []
    leader, own = Carrier(cluster_id="c", node_id=1), Carrier(cluster_id="c", node_id=3)

    def answer(request: controller_pb2.AdminCall, call: ServedCall) -> None:
        asked.append(request.method)
        call.respond((answers.pop(0) if len(answers) > 1 else answers[0])(request.method))

    leader.table.add(Method.ADMIN, controller_pb2.AdminCall, answer)
    address = f"127.0.0.1:{leader.bind('127.0.0.1', 0)}"
    await leader.start(address)
    await own.start(None)
    node: Any = SimpleNamespace(
        cluster_id="c",
        node_id=3,
        directory_id=OWN,
        status=lambda: SimpleNamespace(is_voter=False),
        leader=lambda: SimpleNamespace(address=address),
    )
    try:
        async with asyncio.timeout(WAIT_S):
            await AutoJoin(node, own.peers).run()
    finally:
        await own.close()
        await leader.close()
    assert asked == ["DescribeQuorum"] * 4 + ["AddVoter"]
