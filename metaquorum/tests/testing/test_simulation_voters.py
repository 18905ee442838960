# SPDX-License-Identifier: Apache-2.0
"""The simulated operator and the laws of changing voters, each against a hand-made violation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.raft.effects import AnswerTransfer, AnswerVoterChange, AppendAsLeader, TruncateLog, VotersChange
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.raft.voter_changes import ChangeCommitted, ChangeOutcome, TransferResigned
from metaquorum.raft.voters import VoterSet, voter_set
from metaquorum.testing.invariants import Checker, InvariantViolation
from metaquorum.testing.options import SimOptions, membership_storm
from metaquorum.testing.scripted_node import ScriptedNode, key
from metaquorum.testing.sim_log import SimDisk
from metaquorum.testing.sim_node import SimNode
from metaquorum.testing.sim_operator import SimOperator
from metaquorum.testing.sim_quorum import SimulatedQuorum

pytestmark = pytest.mark.simulation

CALM = replace(
    membership_storm(2),
    crash_every_ms=None,
    cut_every_ms=None,
    loss=0.0,
    change_every_ms=None,
    transfer_every_ms=None,
)
"""Three voters and two observers without faults."""


class AskedOperator(SimOperator):
    """An operator that acts only when the test calls it."""

    def ask_change(self, node: SimNode) -> int:
        """Register a request for a pointless change under a token."""
        token = self._ask(node)
        self._change_of[token] = self._senseless([node.key])
        return token


def settled(options: SimOptions = CALM) -> tuple[SimulatedQuorum, SimNode, AskedOperator]:
    """A world after 1.5 s, its leader, and an operator."""
    world = SimulatedQuorum(2, options)
    world.run(1_500)
    return world, next(node for node in world.nodes if node.is_leader), AskedOperator(world)


def test_answer_that_comes_twice_or_from_another_is_seen() -> None:
    """Each request has exactly one answer, from the process that got it."""
    world, leader, operator = settled()
    token = operator.ask_change(leader)
    answer = AnswerVoterChange(token=token, outcome=ChangeCommitted(next_offset=Offset(2)))
    other = next(node for node in world.nodes if node is not leader)
    with pytest.raises(InvariantViolation, match="an answer comes once"):
        operator.on_change_answer(other, answer)
    with pytest.raises(InvariantViolation, match="an answer comes once"):
        operator.on_change_answer(leader, answer)


@pytest.mark.parametrize(
    ("outcome", "law"),
    [
        (ChangeCommitted(next_offset=Offset(10**9)), "answered when it is committed"),
        (ChangeCommitted(next_offset=Offset(1)), "the one asked for"),
    ],
)
def test_commit_that_is_none_is_seen(outcome: ChangeOutcome, law: str) -> None:
    """A change that is reported as committed is in the committed log."""
    _, leader, operator = settled()
    token = operator.ask_change(leader)
    with pytest.raises(InvariantViolation, match=law):
        operator.on_change_answer(leader, AnswerVoterChange(token=token, outcome=outcome))


def test_leader_that_hands_over_and_leads_on_is_seen() -> None:
    """A leader that reports its resignation must have resigned."""
    _, leader, operator = settled()
    token = operator.ask_change(leader)
    outcome = TransferResigned(quorum_epoch=QuorumEpoch(1), successor=key(2))
    with pytest.raises(InvariantViolation, match="leads no more"):
        operator.on_transfer_answer(leader, AnswerTransfer(token=token, outcome=outcome))


def test_request_without_an_answer_is_seen_unless_its_process_is_gone() -> None:
    """A crash is the only excuse."""
    _, leader, operator = settled()
    operator.ask_change(leader)
    with pytest.raises(InvariantViolation, match="every request is answered"):
        operator.require_all_answered()
    operator.on_stop(leader)
    operator.require_all_answered()


def test_no_disk_is_lost_while_the_voters_disagree_or_are_few() -> None:
    """The fault budget: a voter set that shrinks at this moment may have no voter left to lose."""
    world, leader, operator = settled()
    lost = operator.disk_to_lose(())
    assert lost is not None
    assert lost in world.nodes
    batch = leader.disk.batches[-1]
    fewer = voter_set([voter for voter in leader.initial_voters.voters if voter.key != lost.key])
    leader.disk.batches[-1] = replace(batch, voters=fewer, voters_after=fewer)
    assert operator.disk_to_lose(()) is None


def test_no_disk_is_lost_beside_a_damaged_one() -> None:
    """The fault budget: with one damaged voter the others are needed."""
    _, leader, operator = settled()
    assert operator.disk_to_lose((leader.key,)) is None


def log_with(*sets: VoterSet | None) -> SimDisk:
    """A disk with one batch of epoch 1 for each entry."""
    disk = SimDisk()
    for number, voters in enumerate(sets, 1):
        disk.append(next_offset=Offset(number), epoch=QuorumEpoch(1), payload="x", voters=voters)
    return disk


def test_second_uncommitted_set_of_voters_is_seen() -> None:
    """KIP-853: one at a time."""
    node = ScriptedNode().start().elect()
    voters = node.state.voter_set
    effect = AppendAsLeader(
        base_offset=Offset(2), next_offset=Offset(3), quorum_epoch=QuorumEpoch(1), content=VotersChange(voters=voters)
    )
    checker = Checker()
    checker.on_effect(node.state, log_with(None, None, voters), effect)
    with pytest.raises(InvariantViolation, match="one change of voters at a time"):
        checker.on_effect(node.state, log_with(voters, None, voters), effect)
    checker.committed_end_offset = Offset(1)
    checker.on_effect(node.state, log_with(voters, None, voters), effect)


def test_voters_that_are_not_the_newest_in_the_log_are_seen() -> None:
    """After a truncation the set before it is in force."""
    node = ScriptedNode().start().elect()
    other = voter_set(node.state.voter_set.voters[:2])
    effect = TruncateLog(to_offset=Offset(1))
    checker = Checker()
    checker.on_effect(node.state, log_with(None, node.state.voter_set, None), effect)
    checker.on_effect(node.state, log_with(None), effect)
    with pytest.raises(InvariantViolation, match="newest in the log"):
        checker.on_effect(node.state, log_with(node.state.voter_set, other), effect)
