# SPDX-License-Identifier: Apache-2.0
"""Steps that tests of changes of voters share."""

from __future__ import annotations

from metaquorum.raft.effects import AnswerVoterChange, AppendAsLeader, VotersChange
from metaquorum.raft.events import VoterChangeRequested
from metaquorum.raft.roles import Leader
from metaquorum.raft.voter_changes import ChangeOutcome, ChangeRefusal, ChangeRefused, VoterChange
from metaquorum.testing.scripted_node import ScriptedNode
from metaquorum.tests.raft.steps import fetch, leading


def settled(voters: list[int], **arguments: object) -> tuple[ScriptedNode, Leader]:
    """Node 1 leads, all voters have caught up and every record is committed."""
    node, role = leading(voters, **arguments)
    catch_up(node, *[voter for voter in voters if voter != 1])
    return node, role


def catch_up(node: ScriptedNode, *replicas: int) -> None:
    """Some replicas fetch everything there is."""
    for _ in range(2):
        for replica in replicas:
            fetch(node, replica, node.state.log.log_end_offset)


def ask(node: ScriptedNode, change: VoterChange, *, token: int = 7) -> list[ChangeOutcome]:
    """Ask for a change; return the answers of that step."""
    effects = node.step(VoterChangeRequested(token=token, change=change))
    return [effect.outcome for effect in effects if isinstance(effect, AnswerVoterChange)]


def answers(node: ScriptedNode) -> list[tuple[int, ChangeOutcome]]:
    """All answers so far."""
    return [(effect.token, effect.outcome) for effect in node.of(AnswerVoterChange)]


def refused(reason: ChangeRefusal) -> list[ChangeOutcome]:
    """The one answer to a change that is refused."""
    return [ChangeRefused(reason=reason)]


def ids(node: ScriptedNode) -> list[int]:
    """Node ids of the voters in force."""
    return [voter.key.node_id for voter in node.state.voter_set.voters]


def changes(node: ScriptedNode) -> list[VotersChange]:
    """Records of voters appended so far."""
    return [effect.content for effect in node.of(AppendAsLeader) if isinstance(effect.content, VotersChange)]
