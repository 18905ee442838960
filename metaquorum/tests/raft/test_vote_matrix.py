# SPDX-License-Identifier: Apache-2.0
"""The vote matrix of `docs/quorum.md`, cell by cell: role x kind of request x log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaquorum.raft.effects import Send
from metaquorum.raft.messages import FetchRequest, PreVoteRequest, VoteResponse
from metaquorum.testing.scripted_node import ScriptedNode, election_state

EPOCH = 5
LOG_END = 10


def unattached() -> ScriptedNode:
    """Knows the epoch, and neither its leader nor a candidate."""
    return ScriptedNode(election=election_state(EPOCH), epochs=[(3, 0)], log_end_offset=LOG_END).start()


def unattached_voted_for_2() -> ScriptedNode:
    """Gave its vote to node 2."""
    return ScriptedNode(election=election_state(EPOCH, voted=2), epochs=[(3, 0)], log_end_offset=LOG_END).start()


def unattached_voted_for_3() -> ScriptedNode:
    """Gave its vote to node 3."""
    return ScriptedNode(election=election_state(EPOCH, voted=3), epochs=[(3, 0)], log_end_offset=LOG_END).start()


def unattached_with_leader() -> ScriptedNode:
    """Knows that node 8 leads, and not its address."""
    return ScriptedNode(election=election_state(EPOCH, leader=8), epochs=[(3, 0)], log_end_offset=LOG_END).start()


def prospective() -> ScriptedNode:
    """Asks for pre-votes."""
    node = unattached()
    node.advance(500)
    return node


def prospective_voted_for_2() -> ScriptedNode:
    """Asks for pre-votes and has given its vote to node 2."""
    node = unattached_voted_for_2()
    node.advance(500)
    return node


def prospective_voted_for_3() -> ScriptedNode:
    """Asks for pre-votes and has given its vote to node 3."""
    node = unattached_voted_for_3()
    node.advance(500)
    return node


def prospective_with_leader() -> ScriptedNode:
    """Asks for pre-votes because node 3, the leader, is silent."""
    node = follower()
    node.advance(1_000)
    return node


def candidate() -> ScriptedNode:
    """Asks for votes in the epoch."""
    node = ScriptedNode(election=election_state(EPOCH - 1), epochs=[(3, 0)], log_end_offset=LOG_END).start()
    node.advance(500)
    grant = VoteResponse(quorum_epoch=node.state.quorum_epoch, leader_id=None, granted=True)
    node.answer(node.sent(PreVoteRequest)[0][0], grant)
    return node


def leader() -> ScriptedNode:
    """Leads the epoch."""
    return ScriptedNode(election=election_state(EPOCH - 1), epochs=[(3, 0)], log_end_offset=LOG_END - 1).start().elect()


def resigned() -> ScriptedNode:
    """Led the epoch."""
    return ScriptedNode(
        election=election_state(EPOCH, leader=1, voted=1), epochs=[(3, 0)], log_end_offset=LOG_END
    ).start()


def follower() -> ScriptedNode:
    """Follows node 3 and has not fetched yet."""
    return ScriptedNode(election=election_state(EPOCH, leader=3), epochs=[(3, 0)], log_end_offset=LOG_END).start()


def fetched() -> tuple[ScriptedNode, Send]:
    """Follows node 3 and has fetched; with its next fetch."""
    node = follower()
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(3, high_watermark=LOG_END))
    return node, node.sent(FetchRequest)[-1][0]


def follower_that_fetched() -> ScriptedNode:
    """Follows node 3 and has fetched."""
    return fetched()[0]


def follower_of_a_gone_leader() -> ScriptedNode:
    """Has fetched from node 3, which then refused a connection."""
    node, send = fetched()
    node.fail(send)
    return node


def follower_of_a_resigning_leader() -> ScriptedNode:
    """A follower of node 3, which has announced its resignation."""
    node = follower_that_fetched()
    node.receive(node.end_request(3, EPOCH, [2, 1]))
    return node


UP_TO_DATE = (3, LOG_END)
BEHIND = (3, LOG_END - 1)

MATRIX: list[tuple[Callable[[], ScriptedNode], str, bool, bool]] = [
    # (node, role, yes to an up-to-date pre-vote of node 2, yes to an up-to-date vote of node 2)
    (unattached, "Unattached", True, True),
    (unattached_voted_for_2, "Unattached", True, True),
    (unattached_voted_for_3, "Unattached", True, False),
    (unattached_with_leader, "Unattached", True, False),
    (prospective, "Prospective", True, True),
    (prospective_voted_for_2, "Prospective", True, True),
    (prospective_voted_for_3, "Prospective", True, False),
    (prospective_with_leader, "Prospective", True, False),
    (candidate, "Candidate", True, False),
    (leader, "Leader", False, False),
    (resigned, "Resigned", True, False),
    (follower, "Follower", True, False),
    (follower_that_fetched, "Follower", False, False),
    (follower_of_a_gone_leader, "Follower", True, False),
    (follower_of_a_resigning_leader, "Follower", True, False),
]
IDS = [entry[0].__name__ for entry in MATRIX]


def ask(node: ScriptedNode, *, pre_vote: bool, log: tuple[int, int]) -> bool:
    """Let node 2 ask in the node's epoch; return whether it is granted."""
    make = node.pre_vote_request if pre_vote else node.vote_request
    answer = node.receive(make(2, EPOCH, last_epoch=log[0], log_end_offset=log[1]))
    assert isinstance(answer, VoteResponse)
    assert answer.refusal is None
    assert answer.quorum_epoch == EPOCH
    return answer.granted


@pytest.mark.parametrize(("build", "role", "pre_vote", "vote"), MATRIX, ids=IDS)
def test_up_to_date_pre_vote(build: Callable[[], ScriptedNode], role: str, pre_vote: bool, vote: bool) -> None:
    """A pre-vote binds no voter: several candidates may get one, and role and disk stay the same."""
    node = build()
    assert node.role == role
    before = node.disk
    assert ask(node, pre_vote=True, log=UP_TO_DATE) is pre_vote
    assert node.role == role
    assert node.disk == before


@pytest.mark.parametrize(("build", "role", "pre_vote", "vote"), MATRIX, ids=IDS)
def test_up_to_date_vote(build: Callable[[], ScriptedNode], role: str, pre_vote: bool, vote: bool) -> None:
    """A vote is granted once in an epoch, and not if a leader of the epoch is known."""
    node = build()
    before = node.disk
    assert ask(node, pre_vote=False, log=UP_TO_DATE) is vote
    assert node.role == role
    assert node.disk == (election_state(EPOCH, voted=2) if vote else before)


@pytest.mark.parametrize(("build", "role", "pre_vote", "vote"), MATRIX, ids=IDS)
def test_log_that_is_behind_gets_neither(
    build: Callable[[], ScriptedNode], role: str, pre_vote: bool, vote: bool
) -> None:
    """Raft 5.4.1; an earlier vote is not repeated either: the candidate may have returned with a shorter log."""
    node = build()
    assert ask(node, pre_vote=True, log=BEHIND) is False
    assert ask(node, pre_vote=False, log=BEHIND) is False
