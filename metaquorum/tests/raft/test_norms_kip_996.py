# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-996 (pre-vote) that no other test shows; `docs/normative.md` has all of them."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import PersistElectionState
from metaquorum.raft.events import Failure
from metaquorum.raft.messages import FetchRequest, PreVoteRequest, VoteRequest, VoteResponse
from metaquorum.raft.roles import Follower, Prospective, Unattached
from metaquorum.raft.types import NodeId, QuorumEpoch
from metaquorum.testing.scripted_node import ScriptedNode, election_state
from metaquorum.tests.raft.roles import (
    EPOCH,
    LOG_END,
    candidate,
    follower,
    leader,
    prospective,
    prospective_with_leader,
    unattached,
)
from metaquorum.tests.raft.votes import granted, refused


def fetched() -> ScriptedNode:
    """Follows node 3 and has fetched from it."""
    node = follower()
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(3, high_watermark=LOG_END))
    return node


def test_silent_leader_makes_a_prospective_of_the_same_epoch() -> None:
    """After its fetch timeout a follower asks for pre-votes in its current epoch, and for no votes."""
    node = fetched()
    node.forget()
    node.advance(1_000)
    assert node.role == "Prospective"
    assert {request.quorum_epoch for _, request in node.sent(PreVoteRequest)} == {EPOCH}
    assert node.sent(VoteRequest) == []
    assert node.of(PersistElectionState) == []


def test_voter_that_was_cut_off_comes_back_in_its_epoch() -> None:
    """A voter without a connection for a minute has not raised its epoch, so its return deposes no leader."""
    node = fetched()
    while node.now_ms < 70_000:
        node.forget()
        deadline_ms = node.raft.deadline_ms()
        assert deadline_ms is not None
        node.advance(max(1, deadline_ms - node.now_ms))
        for kind in (FetchRequest, PreVoteRequest):
            for send, _ in node.sent(kind):
                node.fail(send, Failure.TIMED_OUT)
        assert node.sent(VoteRequest) == []
    assert node.disk == election_state(EPOCH, leader=3)


def test_leader_says_no_to_a_pre_vote_and_names_itself() -> None:
    """A leader stays leader, and its answer to the pre-vote says so."""
    node = leader()
    role = node.state.role
    answer = node.receive(node.pre_vote_request(2, EPOCH, last_epoch=EPOCH, log_end_offset=LOG_END + 5))
    assert answer == VoteResponse(
        quorum_epoch=QuorumEpoch(EPOCH), leader_id=NodeId(1), leader_address="n1", granted=False
    )
    assert node.state.role is role


def test_answer_that_names_a_leader_ends_a_pre_vote() -> None:
    """A prospective that knew no leader and learns one follows it."""
    node = prospective()
    send, _ = node.sent(PreVoteRequest)[-1]
    node.answer(send, refused(node, leader=3))
    assert node.role == "Follower"
    assert node.disk == election_state(EPOCH, leader=3)


def test_pre_votes_of_one_epoch_may_go_to_several() -> None:
    """A pre-vote promises nothing: every up-to-date candidate gets one, and the vote may go to another."""
    node = unattached()
    for number in (2, 3, 2, 7):
        answer = node.receive(node.pre_vote_request(number, EPOCH, last_epoch=3, log_end_offset=LOG_END))
        assert isinstance(answer, VoteResponse)
        assert answer.granted
    assert node.of(PersistElectionState) == []
    answer = node.receive(node.vote_request(3, EPOCH, last_epoch=3, log_end_offset=LOG_END))
    assert isinstance(answer, VoteResponse)
    assert answer.granted


def test_pre_vote_that_is_given_moves_no_timer() -> None:
    """Only a vote puts off the voter's own election; a pre-vote changes nothing."""
    node = unattached()
    role = node.state.role
    assert isinstance(role, Unattached)
    before = role.election_deadline_ms
    node.now_ms += 100
    node.receive(node.pre_vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END))
    assert role.election_deadline_ms == before
    asks = prospective()
    round_of = asks.state.role
    assert isinstance(round_of, Prospective)
    before = round_of.election_deadline_ms
    asks.now_ms += 100
    asks.receive(asks.pre_vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END))
    assert round_of.election_deadline_ms == before


def test_two_prospective_voters_may_elect_one_of_them() -> None:
    """Prospective voters give each other pre-votes and votes: when the leader is gone, one of them wins."""
    first, second = (
        prospective_with_leader(),
        ScriptedNode(number=2, election=election_state(EPOCH, leader=3), epochs=[(3, 0)], log_end_offset=LOG_END),
    )
    second.start().advance(1_000)
    assert (first.role, second.role) == ("Prospective", "Prospective")
    send, request = next(entry for entry in first.sent(PreVoteRequest) if entry[1].voter == second.state.key)
    answer = second.receive(request)
    assert isinstance(answer, VoteResponse)
    first.answer(send, answer)
    assert first.role == "Candidate"
    send, vote = next(entry for entry in first.sent(VoteRequest) if entry[1].voter == second.state.key)
    answer = second.receive(vote)
    assert isinstance(answer, VoteResponse)
    first.answer(send, answer)
    assert (first.role, second.role) == ("Leader", "Unattached")


@pytest.mark.parametrize(("voters", "needed"), [(2, 1), (3, 1), (4, 2), (5, 2)])
def test_pre_vote_needs_a_majority_of_all_voters(voters: int, needed: int) -> None:
    """Only a candidate that would win raises the epoch: one pre-vote less than a majority is not enough."""
    node = ScriptedNode(voters=list(range(1, voters + 1))).start()
    node.advance(500)
    sends = [send for send, _ in node.sent(PreVoteRequest)]
    for send in sends[: needed - 1]:
        node.answer(send, granted(node))
        node.answer(send, granted(node))
    assert (node.role, node.state.quorum_epoch) == ("Prospective", 0)
    node.answer(sends[needed - 1], granted(node))
    assert (node.role, node.state.quorum_epoch) == ("Candidate", 1)


def test_candidate_whose_time_passes_asks_for_pre_votes_in_its_epoch() -> None:
    """A candidate does not raise the epoch again: it becomes prospective first, and keeps its own vote."""
    node = candidate()
    node.forget()
    node.advance(500)
    assert node.role == "Prospective"
    assert node.disk == election_state(EPOCH, voted=1)
    assert {request.quorum_epoch for _, request in node.sent(PreVoteRequest)} == {EPOCH}


def test_follower_that_has_not_fetched_may_give_a_pre_vote_and_one_that_has_may_not() -> None:
    """A follower that knows its leader by name only cannot vouch for it; after one successful fetch it can."""
    for node, expected in ((follower(), True), (fetched(), False)):
        answer = node.receive(node.pre_vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END))
        assert isinstance(answer, VoteResponse)
        assert answer.granted is expected
        assert isinstance(node.state.role, Follower)


def test_follower_that_gave_a_pre_vote_still_follows() -> None:
    """Its leader may still live: it continues to fetch, and the fetch timeout runs as before."""
    node = follower()
    role = node.state.role
    assert isinstance(role, Follower)
    before = role.fetch_deadline_ms
    node.receive(node.pre_vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END))
    assert (node.state.role, role.fetch_deadline_ms) == (role, before)
