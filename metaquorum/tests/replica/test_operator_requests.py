# SPDX-License-Identifier: Apache-2.0
"""Requests of operators that wait for the core: one answer each, also when the node stops or the caller is gone."""

from __future__ import annotations

import asyncio

from metaquorum.metadata.listener import QuorumLeader
from metaquorum.raft.effects import AnswerTransfer, AnswerVoterChange
from metaquorum.raft.events import Event, TransferRequested, VoterChangeRequested
from metaquorum.raft.types import NodeId, Offset
from metaquorum.raft.voter_changes import (
    ChangeCommitted,
    ChangeRefusal,
    ChangeRefused,
    ChangeUnknown,
    RemoveVoter,
    TransferTimedOut,
)
from metaquorum.replica.operator_requests import MAX_REQUESTS, OperatorRequests
from metaquorum.testing.scripted_node import key

CHANGE = RemoveVoter(key=key(3))


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_each_request_gets_the_answer_with_its_token() -> None:
    """Answers come in any order, and a second one for the same token is dropped."""
    events: list[Event] = []
    requests = OperatorRequests(events.append)
    change = asyncio.create_task(requests.change_voters(CHANGE))
    transfer = asyncio.create_task(requests.transfer_leadership(NodeId(2)))
    await settle()
    assert events == [VoterChangeRequested(token=1, change=CHANGE), TransferRequested(token=2, to=NodeId(2))]
    requests.answer(AnswerTransfer(token=2, outcome=TransferTimedOut()))
    requests.answer(AnswerVoterChange(token=1, outcome=ChangeCommitted(next_offset=Offset(5))))
    requests.answer(AnswerVoterChange(token=1, outcome=ChangeUnknown()))
    assert await change == ChangeCommitted(next_offset=Offset(5))
    assert await transfer == TransferTimedOut()


async def test_answer_to_somebody_who_went_away_is_dropped() -> None:
    """The change continues; only its caller is gone."""
    requests = OperatorRequests(lambda event: None)
    change = asyncio.create_task(requests.change_voters(CHANGE))
    await settle()
    change.cancel()
    await settle()
    requests.answer(AnswerVoterChange(token=1, outcome=ChangeUnknown()))
    assert change.cancelled()


async def test_next_leader_is_the_first_of_a_higher_epoch() -> None:
    """Epochs up to the given one, and epochs without a leader, do not count."""
    requests = OperatorRequests(lambda event: None)
    old = QuorumLeader(leader_id=1, quorum_epoch=4, address="a")
    new = QuorumLeader(leader_id=2, quorum_epoch=5, address="b")
    wait = asyncio.create_task(requests.next_leader(old, above_epoch=4))
    await settle()
    requests.announce(old)
    requests.announce(QuorumLeader(leader_id=None, quorum_epoch=5, address=None))
    await settle()
    assert not wait.done()
    requests.announce(new)
    assert await wait == new
    assert await requests.next_leader(new, above_epoch=4) == new


async def test_stop_tells_everybody_what_is_known() -> None:
    """A change may have begun, the leadership was not handed over, and the next leader is unknown."""
    requests = OperatorRequests(lambda event: None)
    change = asyncio.create_task(requests.change_voters(CHANGE))
    transfer = asyncio.create_task(requests.transfer_leadership(None))
    wait = asyncio.create_task(
        requests.next_leader(QuorumLeader(leader_id=None, quorum_epoch=0, address=None), above_epoch=0)
    )
    await settle()
    requests.close()
    assert await change == ChangeUnknown()
    assert await transfer == ChangeRefused(reason=ChangeRefusal.NOT_LEADER)
    assert (await wait).leader_id is None


async def test_too_many_waiting_operators_are_refused() -> None:
    """`MAX_REQUESTS` bounds them; the refusal says that a request is pending."""
    events: list[Event] = []
    requests = OperatorRequests(events.append)
    waiting = [asyncio.create_task(requests.change_voters(CHANGE)) for _ in range(MAX_REQUESTS)]
    await settle()
    assert await requests.change_voters(CHANGE) == ChangeRefused(reason=ChangeRefusal.CHANGE_PENDING)
    assert await requests.transfer_leadership(None) == ChangeRefused(reason=ChangeRefusal.TRANSFER_PENDING)
    assert len(events) == MAX_REQUESTS
    requests.close()
    assert all(outcome == ChangeUnknown() for outcome in await asyncio.gather(*waiting))
