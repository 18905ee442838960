# SPDX-License-Identifier: Apache-2.0
"""Changes of voters that elections, truncations and restarts cut short: KIP-853, Raft dissertation chapter 4."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.raft.effects import Activate, ReportViolation
from metaquorum.raft.events import ShutdownRequested
from metaquorum.raft.messages import (
    BeginQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch
from metaquorum.raft.voter_changes import (
    ChangeCommitted,
    ChangeUnknown,
    RemoveVoter,
    UpdateVoter,
)
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.testing.scripted_node import ScriptedNode, batches, election_state, key
from metaquorum.tests.raft.steps import begins, fetch, leading
from metaquorum.tests.raft.voter_changes import answers, ask, catch_up, changes, ids, settled

# How a change ends without a commit.


def test_outcome_is_unknown_when_leadership_ends_before_the_commit() -> None:
    """The next leader may have the record or cut it off."""
    node, _ = settled([1, 2, 3])
    ask(node, RemoveVoter(key=key(3)))
    node.receive(node.vote_request(2, 9, last_epoch=1, log_end_offset=99))
    assert answers(node) == [(7, ChangeUnknown())]
    assert ids(node) == [1, 2], "as long as the record is in the log"


def test_shutdown_answers_a_change_once() -> None:
    """Exactly one answer, whatever comes."""
    node, _ = settled([1, 2, 3])
    ask(node, RemoveVoter(key=key(3)))
    node.step(ShutdownRequested())
    node.advance(5_000)
    assert answers(node) == [(7, ChangeUnknown())]


def test_truncated_record_brings_the_old_voters_back() -> None:
    """KIP-853: 'replicas use the latest VotersRecord in their log'; a truncated one no longer counts."""
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    send = node.follow(2, 3)
    new = voter_set([Voter(key=key(number), address=f"n{number}") for number in (2, 3)])
    content = replace(batches((2, 3, 3)), voters=((Offset(2), new),))
    node.answer(send, node.leader_answer(2, batches=content))
    assert ids(node) == [2, 3]
    assert not node.state.is_voter
    node.receive(node.begin_request(3, 4))
    send, _ = node.sent(FetchRequest)[-1]
    node.answer(send, node.leader_answer(3, diverging=(1, 2)))
    assert ids(node) == [1, 2, 3]
    assert node.state.is_voter
    assert node.of(ReportViolation) == []


@pytest.mark.parametrize(
    ("number", "members", "high_watermark", "expected"),
    [
        (1, (2, 3), 3, "Unattached"),
        (1, (2, 3), 2, "Prospective"),
        (4, (1, 2, 3, 4), 2, "Prospective"),
        (5, (1, 2, 3, 4), 2, "Unattached"),
    ],
    ids=["removed", "removal not committed", "added", "observer"],
)
def test_follower_campaigns_by_the_record_in_its_log(
    number: int, members: tuple[int, ...], high_watermark: int, expected: str
) -> None:
    """The record makes voters of observers and observers of voters; a removal counts once its commit is known.

    Source: Raft dissertation 4.2.2: a server outside of its latest configuration still starts elections until that configuration is
    committed, because its log may be the only one that can win.
    """
    node = ScriptedNode(number=number, election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    node.receive(node.begin_request(2, 3))
    send, _ = node.sent(FetchRequest)[-1]
    new = voter_set([Voter(key=key(member), address=f"n{member}") for member in members])
    content = replace(batches((2, 3, 3)), voters=((Offset(2), new),))
    node.answer(send, node.leader_answer(2, batches=content, high_watermark=high_watermark))
    node.advance(1_000)
    assert node.role == expected


def test_removed_voter_wins_by_the_votes_of_others_alone_and_finishes_its_removal() -> None:
    """Raft dissertation 4.2.2: with {1, 2} and 1 removing itself, 2 cannot win against the longer log of 1."""
    node, _ = settled([1, 2])
    ask(node, RemoveVoter(key=key(1)))
    end = node.state.log.log_end_offset
    restarted = ScriptedNode(
        voters=[1, 2], election=election_state(1, leader=1, voted=1), epochs=[(1, 0)], log_end_offset=int(end)
    )
    restarted.state.voters.append(Offset(end - 1), voter_set([Voter(key=key(2), address="n2")]))
    restarted.start()
    assert restarted.role == "Resigned"
    restarted.advance(1_000)
    votes = restarted.sent(PreVoteRequest)
    assert restarted.role == "Prospective", "no majority of {2} has answered yet"
    restarted.answer(votes[-1][0], VoteResponse(quorum_epoch=QuorumEpoch(2), leader_id=None, granted=True))
    assert restarted.role == "Candidate", "its own vote does not count"
    vote, _ = restarted.sent(VoteRequest)[-1]
    restarted.answer(vote, VoteResponse(quorum_epoch=QuorumEpoch(3), leader_id=None, granted=True))
    assert restarted.role == "Leader"
    assert restarted.of(Activate) == []
    fetch(restarted, 2, restarted.state.log.log_end_offset)
    restarted.advance(0)
    assert len(restarted.of(Activate)) == 1
    assert restarted.role == "Resigned"
    restarted.advance(60_000)
    assert restarted.role == "Unattached"


def test_new_leader_counts_by_the_record_it_inherits() -> None:
    """The set at the end of the log is in force for a leader, committed or not; its commit ends the change."""
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    send = node.follow(2, 3)
    new = voter_set([Voter(key=key(number), address=f"n{number}") for number in (1, 2)])
    node.answer(send, node.leader_answer(2, batches=replace(batches((2, 3, 3)), voters=((Offset(2), new),))))
    node.elect()
    catch_up(node, 3)
    assert node.of(Activate) == []
    catch_up(node, 2)
    assert len(node.of(Activate)) == 1


# Votes while the sets differ.


def test_vote_is_given_to_a_replaced_voter_whose_log_is_ahead() -> None:
    """A voter that does not know of the replacement must not block it: its own set is behind."""
    wiped = replace(key(3), directory_id=b"w" * 16)
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    same = replace(node.vote_request(3, 2, last_epoch=1, log_end_offset=2), candidate=wiped)
    answer = node.receive(same)
    assert isinstance(answer, VoteResponse)
    assert answer.refusal is Refusal.INVALID_VOTER_KEY
    answer = node.receive(replace(same, log_end_offset=Offset(3)))
    assert isinstance(answer, VoteResponse)
    assert answer.granted


# Announcements of a leader to a voter that it has removed since.


def test_late_answer_of_a_removed_voter_does_no_harm() -> None:
    """Its call is forgotten with it."""
    node, _ = leading([1, 2, 3])
    catch_up(node, 2, 3)
    node.forget()
    node.advance(500)
    sends = begins(node, 3)
    ask(node, RemoveVoter(key=key(3)))
    for send in sends:
        node.answer(send, BeginQuorumEpochResponse(quorum_epoch=QuorumEpoch(1), leader_id=NodeId(1)))
        node.fail(send)
    assert node.role == "Leader"


@pytest.mark.parametrize("address", ["n2", "moved:2"])
def test_operator_may_update_an_address_and_nothing_to_change_is_done_at_once(address: str) -> None:
    """UpdateVoter: a record only when the address differs."""
    node, role = settled([1, 2, 3])
    node.forget()
    outcome = ask(node, UpdateVoter(key=key(2), address=address))
    assert len(changes(node)) == (address != "n2")
    if address == "n2":
        assert role.high_watermark is not None
        assert outcome == [ChangeCommitted(next_offset=role.high_watermark)]
    else:
        assert outcome == []
        assert role.voters[NodeId(2)].address == address
    assert isinstance(fetch(node, 2, 0, max_wait_ms=0), FetchResponse)
