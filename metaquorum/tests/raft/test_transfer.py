# SPDX-License-Identifier: Apache-2.0
"""Handing the leadership over: Raft dissertation 3.10."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import (
    AdvanceCommit,
    AnswerTransfer,
    Deactivate,
    Effect,
    Rejection,
    RejectProposal,
)
from metaquorum.raft.events import ShutdownRequested, TransferRequested, VoterChangeRequested
from metaquorum.raft.messages import EndQuorumEpochRequest
from metaquorum.raft.roles import Leader
from metaquorum.raft.types import NodeId, QuorumEpoch
from metaquorum.raft.voter_changes import (
    ChangeRefusal,
    ChangeRefused,
    RemoveVoter,
    TransferOutcome,
    TransferResigned,
    TransferTimedOut,
)
from metaquorum.testing.scripted_node import ScriptedNode, key
from metaquorum.tests.raft.steps import fetch, leading


def settled(voters: list[int]) -> tuple[ScriptedNode, Leader]:
    """Node 1 leads, and all voters have every record."""
    node, role = leading(voters)
    for _ in range(2):
        for voter in voters[1:]:
            fetch(node, voter, node.state.log.log_end_offset)
    node.forget()
    return node, role


def ask(node: ScriptedNode, to: int | None, *, token: int = 5) -> list[Effect]:
    """Ask for a transfer."""
    return node.step(TransferRequested(token=token, to=None if to is None else NodeId(to)))


def answers(node: ScriptedNode) -> list[tuple[int, TransferOutcome]]:
    """All answers so far."""
    return [(effect.token, effect.outcome) for effect in node.of(AnswerTransfer)]


@pytest.mark.parametrize(("to", "successors"), [(3, (3, 2)), (2, (2, 3)), (None, (2, 3))])
def test_leader_resigns_at_once_for_a_voter_that_has_everything(to: int | None, successors: tuple[int, ...]) -> None:
    """EndQuorumEpoch names the successor first, so that it starts its election without waiting."""
    node, _ = settled([1, 2, 3])
    epoch = node.state.quorum_epoch
    ask(node, to)
    assert node.role == "Resigned"
    assert answers(node) == [(5, TransferResigned(quorum_epoch=epoch, successor=key(successors[0])))]
    named = {request.preferred_successors for _, request in node.sent(EndQuorumEpochRequest)}
    assert named == {tuple(key(number) for number in successors)}


def test_proposals_wait_while_the_successor_catches_up() -> None:
    """Otherwise it might never catch up; all appended records are committed and delivered first."""
    node, _ = settled([1, 2, 3])
    node.propose()
    end = node.state.log.log_end_offset
    ask(node, 2)
    node.propose()
    assert [effect.reason for effect in node.of(RejectProposal)] == [Rejection.BUSY]
    fetch(node, 3, end)
    assert node.role == "Leader", "node 3 was not asked to lead"
    node.forget()
    fetch(node, 2, end)
    node.advance(0)
    assert node.role == "Resigned"
    assert [effect.outcome for effect in node.of(AnswerTransfer)] == [
        TransferResigned(quorum_epoch=QuorumEpoch(1), successor=key(2))
    ]


def test_commit_is_delivered_before_the_leadership_ends() -> None:
    """The proposer sees the commit, and not an unknown outcome."""
    node, _ = settled([1, 2, 3])
    node.propose()
    ask(node, 3)
    node.forget()
    fetch(node, 3, node.state.log.log_end_offset)
    assert node.raft.deadline_ms() is not None
    node.advance(0)
    kinds = [type(effect) for effect in node.effects if isinstance(effect, AdvanceCommit | Deactivate)]
    assert kinds == [AdvanceCommit, Deactivate]


def test_leader_gives_up_after_the_transfer_timeout_and_leads_on() -> None:
    """A successor that does not catch up must not stop the cluster."""
    node, role = settled([1, 2, 3])
    node.propose()
    end = node.state.log.log_end_offset
    ask(node, 3)
    for _ in range(19):
        node.advance(100)
        fetch(node, 2, end)
    assert answers(node) == []
    node.advance(100)
    assert answers(node) == [(5, TransferTimedOut())]
    assert node.role == "Leader"
    assert role.transfer is None
    node.forget()
    node.propose()
    assert node.of(RejectProposal) == []


def test_anybody_is_the_first_that_has_everything() -> None:
    """Without a named successor, the first voter that catches up becomes leader."""
    node, _ = settled([1, 2, 3])
    node.propose()
    ask(node, None)
    fetch(node, 3, node.state.log.log_end_offset)
    node.advance(0)
    assert [outcome for _, outcome in answers(node)] == [
        TransferResigned(quorum_epoch=QuorumEpoch(1), successor=key(3))
    ]


def refusal(node: ScriptedNode, to: int | None) -> ChangeRefusal | None:
    """Return why a transfer is refused; None if it is not."""
    node.forget()
    ask(node, to, token=6)
    match answers(node):
        case [(6, ChangeRefused(reason=reason))]:
            return reason
        case _:
            return None


def test_transfer_is_refused_for_what_it_cannot_do() -> None:
    """The refusals are typed; the leadership does not change."""
    node, _ = settled([1, 2, 3])
    assert refusal(node, 1) is ChangeRefusal.ALREADY_LEADER
    assert refusal(node, 9) is ChangeRefusal.VOTER_NOT_FOUND
    node.advance(1_000)
    fetch(node, 2, node.state.log.log_end_offset)
    node.advance(501)
    assert refusal(node, 3) is ChangeRefusal.NO_SUCCESSOR
    node.step(VoterChangeRequested(token=1, change=RemoveVoter(key=key(3))))
    assert refusal(node, 2) is ChangeRefusal.CHANGE_PENDING
    assert node.role == "Leader"


def test_only_voter_and_a_leader_without_a_commit_have_no_successor() -> None:
    """It has no other voter, or none that may lead yet."""
    node, _ = leading([1])
    assert refusal(node, None) is ChangeRefusal.NO_SUCCESSOR
    node, _ = leading([1, 2, 3])
    assert refusal(node, None) is ChangeRefusal.NOT_READY


def test_follower_has_nothing_to_hand_over() -> None:
    """Only a leader is asked in earnest."""
    node = ScriptedNode().start()
    node.follow(2, 3)
    assert refusal(node, None) is ChangeRefusal.NOT_LEADER


def test_one_transfer_at_a_time_and_no_change_of_voters_meanwhile() -> None:
    """Both are refused until it has ended."""
    node, _ = settled([1, 2, 3])
    node.propose()
    ask(node, 2)
    assert refusal(node, 3) is ChangeRefusal.TRANSFER_PENDING
    node.forget()
    node.step(VoterChangeRequested(token=1, change=RemoveVoter(key=key(3))))
    assert "TRANSFER_PENDING" in str(node.effects)


@pytest.mark.parametrize("is_shutdown", [True, False])
def test_leadership_that_ends_otherwise_answers_the_transfer_once(*, is_shutdown: bool) -> None:
    """The transfer has failed: another node may lead without it."""
    node, _ = settled([1, 2, 3])
    node.propose()
    ask(node, 2)
    if is_shutdown:
        node.step(ShutdownRequested())
    else:
        node.receive(node.begin_request(3, 9))
    node.advance(5_000)
    assert answers(node) == [(5, ChangeRefused(reason=ChangeRefusal.NOT_LEADER))]
