# SPDX-License-Identifier: Apache-2.0
"""What all calls to the controller share: a typed end before the caller's deadline, and refusals as other servers read them."""

from __future__ import annotations

import asyncio

import pytest
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode

from metaquorum.controller_service.calls import (
    DEADLINE_MARGIN_MS,
    MAX_WAIT_MS,
    check_cluster,
    refusal,
    refusing,
    wait_ms,
)
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.metadata.listener import QuorumLeader
from metaquorum.net.carrier import Carrier
from metaquorum.net.link import RefusedByPeerError
from metaquorum.net.service import decode_refusal

METHOD = 100


def test_call_waits_for_less_than_its_caller_and_than_the_limit() -> None:
    """The caller learns the reason, and a call without a deadline ends."""
    assert wait_ms(None) == wait_ms(10 * MAX_WAIT_MS) == MAX_WAIT_MS
    assert wait_ms(10_000) == 10_000 - DEADLINE_MARGIN_MS
    assert wait_ms(80) == 70
    assert wait_ms(0) == wait_ms(-5) == 1


@pytest.mark.parametrize("timeout_ms", [400, 1_600])
async def test_call_that_waits_in_vain_is_refused_before_its_caller_gives_up(timeout_ms: int) -> None:
    """The refusal arrives with all its details before the caller's deadline."""

    async def wait_in_vain(_request: pb.ProbeRequest, wait_ms: int) -> pb.ProbeResponse:
        await asyncio.sleep(wait_ms / 1000)
        leader = QuorumLeader(leader_id=2, quorum_epoch=7, address="[::1]:9192")
        raise CommandError(ErrorCode.NOT_CONTROLLER, "node 2 leads", retry_after_ms=50, leader=leader)

    server, client = Carrier(cluster_id="c", node_id=1), Carrier(cluster_id="c", node_id=2)
    server.table.add_waiting(METHOD, pb.ProbeRequest, refusing(wait_in_vain))
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    await server.start(address)
    await client.start(None)
    try:
        await client.peers.connected(address, timeout_ms=10_000)
        with pytest.raises(RefusedByPeerError) as refused:
            await client.peers.ask(address, METHOD, b"", timeout_ms=timeout_ms)
    finally:
        await client.close()
        await server.close()
    said = decode_refusal(refused.value.failure)
    assert (said.code, said.message, said.retry_after_ms) == (ErrorCode.NOT_CONTROLLER, "node 2 leads", 50)
    assert said.leader == LeaderHint(leader_id=2, leader_epoch=7, host="::1", port=9192)


def test_refusal_without_advice_or_a_known_leader_says_nothing_of_them() -> None:
    """A hint without an address would lead nowhere."""
    assert refusal(CommandError(ErrorCode.OVERLOADED, "later")).retry_after_ms == 0
    for leader in (
        QuorumLeader(leader_id=None, quorum_epoch=7, address=None),
        QuorumLeader(leader_id=2, quorum_epoch=7, address=None),
    ):
        assert refusal(CommandError(ErrorCode.NOT_CONTROLLER, "who?", leader=leader)).leader is None


def test_request_for_another_cluster_is_refused_and_internal_ones_name_theirs() -> None:
    """Clients may leave it out."""
    check_cluster("c", "c", required=True)
    check_cluster("", "c", required=False)
    for named, required in (("", True), ("d", True), ("d", False)):
        with pytest.raises(CommandError, match="this is cluster 'c'") as error:
            check_cluster(named, "c", required=required)
        assert error.value.code is ErrorCode.WRONG_CLUSTER
