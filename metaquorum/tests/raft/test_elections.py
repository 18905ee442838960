# SPDX-License-Identifier: Apache-2.0
"""Elections: pre-vote, votes, terms; Raft 5.2 and 5.4.1, KIP-595, KIP-996."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import (
    AppendAsLeader,
    LeaderChange,
    PersistElectionState,
    Reply,
    VotersChange,
)
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    PreVoteRequest,
    Refusal,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Candidate, Follower, Prospective
from metaquorum.raft.types import NodeId, QuorumEpoch
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key
from metaquorum.tests.raft.votes import granted, refused


def test_voter_without_leader_starts_a_pre_vote_after_the_election_timeout() -> None:
    """Raft 5.2: a voter without word of a leader for the election timeout begins an election; KIP-996: with a pre-vote."""
    node = ScriptedNode().start()
    node.advance(499)
    assert node.role == "Unattached"
    node.advance(1)
    assert node.role == "Prospective"
    assert [request.voter for _, request in node.sent(PreVoteRequest)] == [key(2), key(3)]


def test_pre_vote_changes_nothing_durable() -> None:
    """KIP-996: a pre-vote does not increase the epoch and does not vote."""
    node = ScriptedNode().start()
    node.advance(500)
    assert node.state.quorum_epoch == 0
    assert node.of(PersistElectionState) == []
    assert all(request.quorum_epoch == 0 for _, request in node.sent(PreVoteRequest))


def test_majority_of_pre_votes_opens_the_next_epoch_with_a_vote_for_itself() -> None:
    """Raft 5.2: to begin an election a node increments its term, votes for itself and asks for votes."""
    node = ScriptedNode().start()
    node.advance(500)
    node.answer(node.sent(PreVoteRequest)[0][0], granted(node))
    assert node.role == "Candidate"
    assert node.disk == election_state(1, voted=1)
    assert [request.quorum_epoch for _, request in node.sent(VoteRequest)] == [1, 1]


def test_vote_requests_wait_for_the_own_vote_on_disk() -> None:
    """Raft figure 2: currentTerm and votedFor are updated on stable storage before responding to RPCs."""
    node = ScriptedNode(auto_disk=False).start()
    node.advance(500)
    node.answer(node.sent(PreVoteRequest)[0][0], granted(node))
    assert node.sent(VoteRequest) == []
    node.complete(node.of(PersistElectionState)[0])
    assert len(node.sent(VoteRequest)) == 2


def test_majority_of_votes_makes_a_leader_once_its_leadership_is_on_disk() -> None:
    """Raft 5.2: a candidate wins with votes from a majority; here it appends nothing before its disk has the leadership."""
    node = ScriptedNode(auto_disk=False).start()
    node.advance(500)
    node.answer(node.sent(PreVoteRequest)[0][0], granted(node))
    node.complete(node.of(PersistElectionState)[0])
    node.answer(node.sent(VoteRequest)[1][0], granted(node))
    assert isinstance(node.state.role, Candidate)
    assert node.state.role.is_elected
    assert node.raft.deadline_ms() is None
    assert node.of(AppendAsLeader) == []
    node.complete(node.of(PersistElectionState)[1])
    assert node.role == "Leader"
    assert node.disk == election_state(1, leader=1, voted=1)
    assert [type(append.content) for append in node.of(AppendAsLeader)] == [LeaderChange, VotersChange]


def test_first_record_of_an_epoch_names_leader_and_granting_voters() -> None:
    """KIP-595: a new leader appends a LeaderChange control record first."""
    node = ScriptedNode(epochs=[(1, 0)], log_end_offset=5).start().elect()
    node.advance(1)
    appended = ScriptedNode(epochs=[(1, 0)], log_end_offset=5).start()
    appended.advance(500)
    appended.answer(appended.sent(PreVoteRequest)[1][0], granted(appended))
    appended.answer(appended.sent(VoteRequest)[1][0], granted(appended))
    (append,) = appended.of(AppendAsLeader)
    assert (append.base_offset, append.quorum_epoch) == (5, 2)
    assert append.content == LeaderChange(leader_id=NodeId(1), granting_voters=(NodeId(1), NodeId(3)))


def test_only_voter_leads_in_its_first_step() -> None:
    """A quorum of one does not wait for a timeout: no other voter exists."""
    node = ScriptedNode(voters=[1]).start()
    assert node.role == "Leader"
    assert node.state.high_watermark == 2


def test_only_voter_that_led_before_leads_a_new_epoch_at_once() -> None:
    """A restarted single node is up at once, in an epoch that it has never led."""
    node = ScriptedNode(
        voters=[1], election=election_state(4, leader=1, voted=1), epochs=[(4, 0)], log_end_offset=9
    ).start()
    assert node.role == "Leader"
    assert node.state.quorum_epoch == 6
    assert node.state.high_watermark == 10


def test_new_leader_tells_every_other_voter() -> None:
    """Raft 5.2: a winner sends heartbeats to establish its authority; KIP-595: BeginQuorumEpoch."""
    node = ScriptedNode().start()
    node.advance(500)
    node.answer(node.sent(PreVoteRequest)[0][0], granted(node))
    node.answer(node.sent(VoteRequest)[0][0], granted(node))
    told = [request for _, request in node.sent(BeginQuorumEpochRequest)]
    assert [(request.voter, request.leader_id, request.leader_address) for request in told] == [
        (key(2), 1, "n1"),
        (key(3), 1, "n1"),
    ]


def test_voter_votes_for_at_most_one_candidate_in_an_epoch() -> None:
    """Raft 5.2: each server votes for at most one candidate in a given term, first come first served."""
    node = ScriptedNode().start()
    assert node.receive(node.vote_request(2, 3)) == VoteResponse(
        quorum_epoch=QuorumEpoch(3), leader_id=None, granted=True
    )
    assert node.receive(node.vote_request(3, 3)) == refused(node)
    assert node.receive(node.vote_request(2, 3)) == granted(node)
    assert node.disk == election_state(3, voted=2)


def test_vote_is_not_given_again_to_a_candidate_that_came_back_with_less() -> None:
    """Raft figure 2: a vote is granted only to a log that is up to date, even if the candidate has the vote already.

    Other voters may commit a leader's records before its own disk has them. The leader resigns, becomes a candidate with these
    records in its log, crashes, and returns as candidate of the same epoch without them: a repeated vote would elect a leader that
    lacks committed records.
    """
    node = (
        ScriptedNode(election=election_state(2), epochs=[(2, 0)], log_end_offset=4, voters_in_log=False).start().elect()
    )
    node.auto_disk = False
    node.propose()
    log_end_offset, flushed_offset = node.state.log.log_end_offset, node.state.log.flushed_offset
    for number in (2, 3):
        node.receive(node.fetch_request(number, offset=log_end_offset, last_epoch=3, max_wait_ms=0))
    assert node.state.high_watermark == log_end_offset == flushed_offset + 1
    done = 0
    for _ in range(300):
        node.advance(100)
        for write in node.of(PersistElectionState)[done:]:
            done += 1
            node.complete(write)
        for send, _ in node.sent(PreVoteRequest)[-1:]:
            node.answer(send, granted(node))
        if node.sent(VoteRequest):
            break
    (_, first), *_ = node.sent(VoteRequest)
    assert (first.log_end_offset, node.state.log.flushed_offset) == (log_end_offset, flushed_offset)

    epochs = [(2, 0), (3, 4)]
    back = ScriptedNode(election=node.disk, epochs=epochs, log_end_offset=flushed_offset, voters_in_log=False).start()
    (_, second), *_ = back.sent(VoteRequest)
    assert (second.quorum_epoch, second.log_end_offset) == (first.quorum_epoch, flushed_offset)

    voter = ScriptedNode(number=2, epochs=epochs, log_end_offset=log_end_offset, voters_in_log=False).start()
    answers = [voter.receive(request) for request in (first, first, second)]
    assert [isinstance(answer, VoteResponse) and answer.granted for answer in answers] == [True, True, False]


def test_vote_is_said_only_when_it_is_on_disk() -> None:
    """Raft 5.2 and figure 2: a vote that a crash could lose must not be sent."""
    node = ScriptedNode(auto_disk=False).start()
    assert node.receive(node.vote_request(2, 3)) is None
    assert node.of(Reply) == []
    node.complete(node.of(PersistElectionState)[0])
    (reply,) = node.of(Reply)
    assert reply.response == granted(node)


def test_messages_of_two_states_leave_in_order_as_each_state_reaches_the_disk() -> None:
    """A later state does not join a write under way: it gets its own write."""
    node = ScriptedNode(auto_disk=False).start()
    node.receive(node.vote_request(2, 3))
    node.receive(node.vote_request(3, 4))
    assert len(node.of(PersistElectionState)) == 1
    node.complete(node.of(PersistElectionState)[0])
    assert [reply.response.quorum_epoch for reply in node.of(Reply)] == [3]
    node.complete(node.of(PersistElectionState)[1])
    assert [reply.response.quorum_epoch for reply in node.of(Reply)] == [3, 4]


def test_giving_a_vote_restarts_the_election_timer() -> None:
    """Raft 5.2: a voter that grants a vote puts off its own election."""
    node = ScriptedNode().start()
    node.advance(400)
    node.receive(node.vote_request(2, 1))
    node.advance(499)
    assert node.role == "Unattached"
    node.advance(1)
    assert node.role == "Prospective"


def test_vote_given_while_prospective_keeps_the_round_and_restarts_its_timer() -> None:
    """KIP-996: a prospective voter may give its vote and stays prospective."""
    node = ScriptedNode(election=election_state(2)).start()
    node.advance(500)
    assert isinstance(node.state.role, Prospective)
    node.advance(100)
    assert node.receive(node.vote_request(2, 2)) == granted(node)
    assert isinstance(node.state.role, Prospective)
    assert node.state.role.election_deadline_ms == node.now_ms + 500
    assert node.disk.voted_key == key(2)


@pytest.mark.parametrize(
    ("last_epoch", "log_end_offset", "expected"),
    [(2, 3, False), (2, 99, False), (3, 9, False), (3, 10, True), (3, 11, True), (4, 4, True)],
)
def test_vote_needs_a_log_that_is_up_to_date(last_epoch: int, log_end_offset: int, expected: bool) -> None:
    """Raft 5.4.1: the voter denies its vote if its own log is more up to date, by last term and then by length."""
    node = ScriptedNode(epochs=[(1, 0), (3, 4)], log_end_offset=10).start()
    answer = node.receive(node.vote_request(2, 7, last_epoch=last_epoch, log_end_offset=log_end_offset))
    assert isinstance(answer, VoteResponse)
    assert answer.granted is expected
    assert (node.disk.voted_key == key(2)) is expected


def test_stale_epoch_is_fenced_and_the_answer_names_the_present_one() -> None:
    """Raft 5.1: a request with a stale term is rejected; terms are exchanged whenever servers communicate."""
    node = ScriptedNode(election=election_state(5, leader=2)).start()
    assert node.receive(node.vote_request(3, 4)) == VoteResponse(
        quorum_epoch=QuorumEpoch(5),
        leader_id=NodeId(2),
        leader_address="n2",
        granted=False,
        refusal=Refusal.FENCED_EPOCH,
    )


def test_candidate_or_leader_that_hears_of_a_higher_epoch_steps_down() -> None:
    """Raft 5.1: a candidate or leader that discovers that its term is out of date reverts at once."""
    node = ScriptedNode().start().elect()
    node.receive(node.vote_request(2, 9, last_epoch=8, log_end_offset=100))
    assert node.role == "Unattached"
    assert node.state.quorum_epoch == 9


def test_answer_with_a_higher_epoch_ends_a_candidacy() -> None:
    """Raft 5.1: the epoch of a response counts as well."""
    node = ScriptedNode().start()
    node.advance(500)
    send, _ = node.sent(PreVoteRequest)[0]
    node.answer(send, VoteResponse(quorum_epoch=QuorumEpoch(8), leader_id=None, granted=False))
    assert node.role == "Unattached"
    assert node.state.quorum_epoch == 8


def test_answer_that_names_a_leader_of_a_higher_epoch_makes_a_follower() -> None:
    """KIP-595: a node that learns the leader and its address fetches from it."""
    node = ScriptedNode().start()
    node.advance(500)
    send, _ = node.sent(PreVoteRequest)[0]
    node.answer(send, VoteResponse(quorum_epoch=QuorumEpoch(8), leader_id=NodeId(3), granted=False))
    assert isinstance(node.state.role, Follower)
    assert node.state.role.leader_address == "n3"
    assert node.disk == election_state(8, leader=3)


def test_candidate_recognises_a_leader_of_its_own_epoch() -> None:
    """Raft 5.2: a candidate that hears from a leader of its term returns to follower state."""
    node = ScriptedNode().start()
    node.advance(500)
    node.answer(node.sent(PreVoteRequest)[0][0], granted(node))
    node.receive(node.begin_request(2, 1))
    assert node.role == "Follower"
    assert node.disk == election_state(1, leader=2, voted=1)


def test_split_vote_is_waited_out_and_followed_by_a_new_round() -> None:
    """Raft 5.2: without a winner, candidates time out and start a new election; KIP-996: again with a pre-vote."""
    node = ScriptedNode().start()
    node.advance(500)
    node.answer(node.sent(PreVoteRequest)[0][0], granted(node))
    for send, _ in node.sent(VoteRequest):
        node.answer(send, refused(node))
    assert node.role == "Candidate"
    node.advance(499)
    assert node.role == "Candidate"
    node.advance(1)
    assert node.role == "Prospective"
    assert node.state.quorum_epoch == 1
    assert node.disk == election_state(1, voted=1)
