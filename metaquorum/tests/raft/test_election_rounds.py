# SPDX-License-Identifier: Apache-2.0
"""Rounds of an election: lost, late, repeated and refused requests, and the search for a leader; KIP-595, KIP-996."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import (
    AnnounceLeader,
    ReportViolation,
    Send,
)
from metaquorum.raft.events import Failure
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Follower, Leader, Prospective, Unattached
from metaquorum.raft.types import NodeId, QuorumEpoch, ReplicaKey
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key
from metaquorum.tests.raft.votes import granted, refused


def test_lost_pre_vote_without_a_known_leader_falls_back_to_unattached() -> None:
    """KIP-996: a prospective that loses and knows no leader becomes unattached and tries again later."""
    node = ScriptedNode().start()
    node.advance(500)
    for send, _ in node.sent(PreVoteRequest):
        node.answer(send, refused(node))
    assert node.role == "Unattached"


def test_lost_pre_vote_with_a_known_leader_falls_back_to_it() -> None:
    """KIP-996: a prospective that loses and knows a leader with its address follows that leader again."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.advance(1_000)
    assert node.role == "Prospective"
    for send, _ in node.sent(PreVoteRequest):
        node.answer(send, refused(node, leader=2))
    assert isinstance(node.state.role, Follower)
    assert node.state.role.leader_id == 2


def test_name_of_the_silent_leader_does_not_end_a_pre_vote() -> None:
    """A follower that grants a pre-vote names the silent leader; the prospective knows it already (found by the simulator)."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.advance(1_000)
    send, _ = node.sent(PreVoteRequest)[1]
    node.answer(send, VoteResponse(quorum_epoch=QuorumEpoch(3), leader_id=NodeId(2), granted=True))
    assert node.role == "Candidate"


def test_vote_answer_tells_where_the_silent_leader_is_now() -> None:
    """Otherwise a voter with an old voter set that the leader cannot reach would use the old address for ever (seed 802)."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.advance(1_000)
    assert node.state.leader_address() == "n2"
    for send, _ in node.sent(PreVoteRequest):
        named = VoteResponse(quorum_epoch=QuorumEpoch(3), leader_id=NodeId(2), leader_address="n2.1", granted=False)
        node.answer(send, named)
    assert node.role == "Follower"
    send, _ = node.sent(FetchRequest)[-1]
    assert send.address == "n2.1"


def test_vote_answer_without_an_address_takes_none_away() -> None:
    """The leader's own word about its address wins over the voter set, to which an answer without an address refers."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.receive(replace(node.begin_request(2, 3), leader_address="n2.1"))
    node.advance(1_000)
    for send, _ in node.sent(PreVoteRequest):
        node.answer(send, refused(node, leader=2))
    send, _ = node.sent(FetchRequest)[-1]
    assert send.address == "n2.1"


def test_vote_answer_of_a_follower_names_its_leader_and_where_it_is() -> None:
    """Like every answer that names a leader, it has the leader's address."""
    node = ScriptedNode().start()
    node.follow(2, 3)
    answer = node.receive(node.pre_vote_request(3, 3))
    assert isinstance(answer, VoteResponse)
    assert (answer.leader_id, answer.leader_address) == (2, "n2")


def test_pre_vote_round_ends_at_its_timeout() -> None:
    """KIP-996: a prospective gives up at the election timeout."""
    node = ScriptedNode().start()
    node.advance(500)
    node.advance(499)
    assert node.role == "Prospective"
    node.advance(1)
    assert node.role == "Unattached"


def test_unanswered_vote_request_is_repeated_with_growing_pauses() -> None:
    """Raft 5.5: servers retry RPCs that are not answered; every retry here has a bounded back-off."""
    node = ScriptedNode().start()
    node.advance(500)
    send, _ = node.sent(PreVoteRequest)[0]
    node.fail(send)
    node.advance(20)
    second, _ = [entry for entry in node.sent(PreVoteRequest) if entry[1].voter == key(2)][1]
    node.fail(second, Failure.TIMED_OUT)
    node.advance(39)
    assert len([1 for _, request in node.sent(PreVoteRequest) if request.voter == key(2)]) == 2
    node.advance(1)
    assert len([1 for _, request in node.sent(PreVoteRequest) if request.voter == key(2)]) == 3


def test_unavailable_voter_is_asked_again_and_not_counted() -> None:
    """A voter that is starting has not refused."""
    node = ScriptedNode().start()
    node.advance(500)
    send, _ = node.sent(PreVoteRequest)[0]
    node.answer(
        send,
        VoteResponse(quorum_epoch=QuorumEpoch(0), leader_id=None, granted=False, refusal=Refusal.UNAVAILABLE),
    )
    assert isinstance(node.state.role, Prospective)
    assert node.state.role.votes[NodeId(2)].granted is None


def test_votes_of_an_earlier_round_do_not_count() -> None:
    """A late grant of a pre-vote does not count as a vote, nor one of an old epoch in the new one."""
    node = ScriptedNode(voters=[1, 2, 3, 4, 5]).start()
    node.advance(500)
    pre_votes = [send for send, _ in node.sent(PreVoteRequest)]
    node.answer(pre_votes[0], granted(node))
    node.answer(pre_votes[1], granted(node))
    assert node.role == "Candidate"
    node.answer(pre_votes[2], granted(node))
    node.answer(pre_votes[3], granted(node))
    assert node.role == "Candidate"
    votes = [send for send, _ in node.sent(VoteRequest)]
    old = VoteResponse(quorum_epoch=QuorumEpoch(0), leader_id=None, granted=True)
    node.answer(votes[0], old)
    node.answer(votes[1], old)
    assert node.role == "Candidate"
    node.answer(votes[2], granted(node))
    node.answer(votes[2], granted(node))
    assert node.role == "Candidate"
    node.answer(votes[3], granted(node))
    assert node.role == "Leader"


def test_late_answers_and_failures_of_other_roles_do_nothing() -> None:
    """An answer that arrives after a change of role is dropped."""
    node = ScriptedNode().start()
    node.advance(500)
    (first, _), (second, _) = node.sent(PreVoteRequest)
    node.receive(node.begin_request(2, 4))
    node.answer(first, VoteResponse(quorum_epoch=QuorumEpoch(0), leader_id=None, granted=True))
    node.fail(second)
    assert node.role == "Follower"


@pytest.mark.parametrize("pre_vote", [True, False])
def test_request_of_another_cluster_or_for_another_voter_key_is_refused(pre_vote: bool) -> None:
    """KIP-853: a request for another directory id is for another voter; KIP-595: other clusters are refused."""
    node = ScriptedNode(number=1).start()
    other = ScriptedNode(number=2).start()
    make = other.pre_vote_request if pre_vote else other.vote_request
    answer = node.receive(make(3, 5))
    assert isinstance(answer, VoteResponse)
    assert answer.refusal is Refusal.INVALID_VOTER_KEY
    kind = PreVoteRequest if pre_vote else VoteRequest
    foreign = kind(
        cluster_id="another",
        quorum_epoch=QuorumEpoch(5),
        candidate=key(2),
        voter=key(1),
        last_epoch=QuorumEpoch(0),
        log_end_offset=node.state.log.log_end_offset,
    )
    answer = node.receive(foreign)
    assert isinstance(answer, VoteResponse)
    assert answer.refusal is Refusal.WRONG_CLUSTER
    assert node.state.quorum_epoch == 0


def test_wiped_voter_gets_no_vote_and_moves_no_epoch() -> None:
    """A known node id on another disk may have forgotten its vote: it is refused, whatever its epoch."""
    node = ScriptedNode().start()
    wiped = ReplicaKey(node_id=NodeId(2), directory_id=b"a-fresh-disk-000")
    answer = node.receive(replace(node.vote_request(2, 9), candidate=wiped))
    assert isinstance(answer, VoteResponse)
    assert answer.refusal is Refusal.INVALID_VOTER_KEY
    assert node.state.quorum_epoch == 0


def test_candidate_outside_the_voter_set_may_get_a_vote() -> None:
    """KIP-853: voter sets may be out of step, so a voter answers candidates that it does not know yet."""
    node = ScriptedNode().start()
    answer = node.receive(node.vote_request(7, 1))
    assert isinstance(answer, VoteResponse)
    assert answer.granted


@pytest.mark.parametrize(("epoch", "last_epoch"), [(5, 5), (5, 6)])
def test_vote_request_with_a_log_of_its_own_epoch_is_invalid(epoch: int, last_epoch: int) -> None:
    """KIP-595: a candidate's log ends in an epoch before the one that it opens."""
    node = ScriptedNode().start()
    answer = node.receive(node.vote_request(2, epoch, last_epoch=last_epoch, log_end_offset=1))
    assert isinstance(answer, VoteResponse)
    assert answer.refusal is Refusal.INVALID_REQUEST


def test_pre_vote_request_with_a_log_of_its_own_epoch_is_valid() -> None:
    """KIP-996: a pre-vote has the present epoch, and the candidate's log may end in it."""
    node = ScriptedNode().start()
    answer = node.receive(node.pre_vote_request(2, 5, last_epoch=5, log_end_offset=1))
    assert isinstance(answer, VoteResponse)
    assert answer.granted


def test_observer_never_starts_an_election() -> None:
    """KIP-595: observers do not vote and are not voted for."""
    node = ScriptedNode(number=9).start()
    node.advance(60_000)
    assert node.role == "Unattached"
    assert node.sent(PreVoteRequest) == []
    assert isinstance(node.state.role, Unattached)
    assert node.state.role.election_deadline_ms is None


def test_observer_answers_a_vote_request_and_remembers_its_vote() -> None:
    """KIP-853: a node that does not know yet that it is a voter answers as one."""
    node = ScriptedNode(number=9).start()
    answer = node.receive(node.vote_request(2, 1))
    assert isinstance(answer, VoteResponse)
    assert answer.granted
    assert node.disk == election_state(1, voted=2)


def test_unattached_node_asks_each_peer_in_turn_for_the_leader() -> None:
    """KIP-595: an unattached node finds the leader by Fetch from any voter."""
    node = ScriptedNode(number=9, config=RaftConfig(request_timeout_ms=1_000)).start()
    asked: list[str] = []
    for _ in range(4):
        send, _ = node.sent(FetchRequest)[-1]
        asked.append(send.address)
        node.answer(
            send,
            FetchResponse(quorum_epoch=QuorumEpoch(0), leader_id=None, leader_address=None, refusal=Refusal.NOT_LEADER),
        )
        node.advance(400)
    assert asked == ["n1", "n2", "n3", "n1"]


def test_answer_to_the_search_makes_a_follower_of_a_node_without_voters() -> None:
    """KIP-595: the answer of any node names leader and address."""
    node = ScriptedNode(number=9, knows_voters=False).start()
    send, _ = node.sent(FetchRequest)[0]
    node.answer(
        send,
        FetchResponse(
            quorum_epoch=QuorumEpoch(4),
            leader_id=NodeId(2),
            leader_address="elsewhere:1",
            refusal=Refusal.FENCED_EPOCH,
        ),
    )
    assert isinstance(node.state.role, Follower)
    assert node.state.role.leader_address == "elsewhere:1"
    assert node.sent(FetchRequest)[-1][0].address == "elsewhere:1"


def test_leader_without_a_known_address_is_remembered_until_the_address_comes() -> None:
    """KIP-595: unattached may know the leader and not its address; it gives no vote against it."""
    node = ScriptedNode(number=9, knows_voters=False).start()
    send, _ = node.sent(FetchRequest)[0]
    node.answer(
        send,
        FetchResponse(
            quorum_epoch=QuorumEpoch(4), leader_id=NodeId(2), leader_address=None, refusal=Refusal.FENCED_EPOCH
        ),
    )
    assert node.role == "Unattached"
    assert node.disk == election_state(4, leader=2)
    answer = node.receive(node.vote_request(3, 4))
    assert isinstance(answer, VoteResponse)
    assert not answer.granted
    node.advance(400)
    node.answer(
        node.sent(FetchRequest)[-1][0],
        FetchResponse(
            quorum_epoch=QuorumEpoch(4), leader_id=NodeId(2), leader_address="n2", refusal=Refusal.NOT_LEADER
        ),
    )
    assert node.role == "Follower"


def test_leader_name_learnt_in_the_same_epoch_without_address_is_recorded() -> None:
    """The name alone is stored: it rules out a vote for another node."""
    node = ScriptedNode(number=9, knows_voters=False).start()
    for leader_id in (None, NodeId(2)):
        send, _ = node.sent(FetchRequest)[-1]
        node.answer(
            send,
            FetchResponse(
                quorum_epoch=QuorumEpoch(4),
                leader_id=leader_id,
                leader_address=None,
                refusal=Refusal.NOT_LEADER,
            ),
        )
        node.advance(400)
    assert node.disk == election_state(4, leader=2)


def test_second_leader_of_an_epoch_is_refused_and_reported() -> None:
    """Raft 5.2 Election Safety: at most one leader per term; a peer that claims otherwise changes nothing."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    answer = node.receive(node.begin_request(3, 3))
    assert answer is not None
    assert answer.refusal is Refusal.INVALID_REQUEST
    assert len(node.of(ReportViolation)) == 1
    assert node.disk.leader_id == 2


def test_begin_quorum_epoch_is_checked_like_every_request() -> None:
    """KIP-595: stale epoch, wrong key and a leader of this node's own id are refused."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    stale = node.receive(node.begin_request(2, 2))
    own = node.receive(node.begin_request(1, 4))
    assert stale is not None
    assert stale.refusal is Refusal.FENCED_EPOCH
    assert own is not None
    assert own.refusal is Refusal.INVALID_REQUEST
    assert node.state.quorum_epoch == 3


def test_repeated_begin_quorum_epoch_of_the_same_leader_is_no_news() -> None:
    """Duplicates do no harm."""
    node = ScriptedNode().start()
    node.follow(2, 4)
    role = node.state.role
    answer = node.receive(node.begin_request(2, 4))
    assert answer is not None
    assert answer.refusal is None
    assert node.state.role is role


def test_word_that_an_earlier_life_of_this_node_leads_is_ignored() -> None:
    """Peers may still name a wiped node as leader; its successor on a fresh disk only learns the epoch."""
    node = ScriptedNode(number=9).start()
    send: Send = node.sent(FetchRequest)[0][0]
    node.answer(
        send,
        FetchResponse(
            quorum_epoch=QuorumEpoch(6), leader_id=NodeId(9), leader_address="n9", refusal=Refusal.NOT_LEADER
        ),
    )
    assert node.role == "Unattached"
    assert node.disk == election_state(6)
    assert isinstance(node.state.role, Unattached)


def test_leader_gives_no_vote_and_no_pre_vote_in_its_epoch() -> None:
    """KIP-996: a leader answers no to both."""
    node = ScriptedNode().start().elect()
    assert isinstance(node.state.role, Leader)
    for request in (
        node.vote_request(2, 1, last_epoch=0, log_end_offset=0),
        node.pre_vote_request(2, 1, last_epoch=1, log_end_offset=99),
    ):
        answer = node.receive(request)
        assert isinstance(answer, VoteResponse)
        assert not answer.granted
        assert answer.leader_id == 1


def test_lost_vote_request_is_repeated_within_the_round() -> None:
    """Raft 5.5: a request without an answer expires and is sent again."""
    node = ScriptedNode(config=RaftConfig(request_timeout_ms=200)).start()
    node.advance(500)
    node.advance(219)
    assert len(node.sent(PreVoteRequest)) == 2
    node.advance(1)
    assert len(node.sent(PreVoteRequest)) == 4


def test_lost_vote_does_not_cost_the_round() -> None:
    """With the default times a lost request or answer is repeated before the round is given up."""
    node = ScriptedNode().start()
    node.advance(500)
    assert node.role == "Prospective"
    node.forget()
    node.advance(200)
    again, _ = node.sent(PreVoteRequest)[0]
    node.answer(again, VoteResponse(quorum_epoch=QuorumEpoch(0), leader_id=None, granted=True))
    assert node.role == "Candidate"
    node.forget()
    node.advance(200)
    again, _ = node.sent(VoteRequest)[0]
    node.answer(again, VoteResponse(quorum_epoch=QuorumEpoch(1), leader_id=None, granted=True))
    assert node.role == "Leader"


def test_late_vote_counts_in_its_round() -> None:
    """A voter with a slow disk is asked a second time; its answer to the first request counts as well."""
    node = ScriptedNode().start()
    node.advance(500)
    first, _ = node.sent(PreVoteRequest)[0]
    node.advance(400)
    assert len(node.sent(PreVoteRequest)) > 2
    node.answer(first, VoteResponse(quorum_epoch=QuorumEpoch(0), leader_id=None, granted=True))
    assert node.role == "Candidate"


def test_lost_search_for_a_leader_goes_on_with_the_next_peer() -> None:
    """Neither a silent nor a refusing peer ends the search."""
    node = ScriptedNode(number=9, config=RaftConfig(request_timeout_ms=200)).start()
    node.advance(220)
    node.fail(node.sent(FetchRequest)[-1][0])
    node.advance(40)
    assert [send.address for send, _ in node.sent(FetchRequest)] == ["n1", "n2", "n3"]


def test_node_without_peers_waits_without_a_deadline() -> None:
    """An observer that knows no peers has nothing to do."""
    node = ScriptedNode(number=9, voters=[]).start()
    assert node.raft.deadline_ms() is None
    assert node.effects[-1] == AnnounceLeader(quorum_epoch=QuorumEpoch(0), leader_id=None, address=None)


def test_configured_addresses_win_over_those_of_the_voter_set() -> None:
    """A voter that moved is found by its configured address until the voter set has the new one."""
    node = ScriptedNode(addresses={2: "moved:2"}).start()
    node.advance(500)
    assert [send.address for send, _ in node.sent(PreVoteRequest)] == ["moved:2", "n3"]
    assert node.state.address_of(NodeId(2)) == "moved:2"
    assert node.state.address_of(NodeId(7)) is None


def test_voter_that_asks_itself_is_asked_again() -> None:
    """Two voters that notice a silent leader one after the other need not wait a whole round for each other's pre-vote."""
    node = ScriptedNode(election=election_state(3, leader=2), epochs=[(2, 0)], log_end_offset=9).start()
    node.advance(1_000)
    pre_votes = [entry for entry in node.sent(PreVoteRequest) if entry[1].voter == key(3)]
    node.answer(pre_votes[0][0], refused(node, leader=2))
    assert node.role == "Prospective"
    answer = node.receive(node.pre_vote_request(3, 3, last_epoch=2, log_end_offset=5))
    assert answer == replace(refused(node, leader=2), leader_address="n2")
    again, _ = [entry for entry in node.sent(PreVoteRequest) if entry[1].voter == key(3)][1]
    node.receive(node.pre_vote_request(7, 3, last_epoch=2, log_end_offset=5))
    node.answer(again, VoteResponse(quorum_epoch=QuorumEpoch(3), leader_id=NodeId(2), granted=True))
    assert node.role == "Candidate"


def test_fallback_to_a_silent_leader_gives_it_no_second_fetch_timeout() -> None:
    """The leader has been silent before the lost round: it is given up again soon unless it answers."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.advance(1_000)
    for send, _ in node.sent(PreVoteRequest):
        node.answer(send, refused(node, leader=2))
    assert node.role == "Follower"
    node.advance(99)
    assert node.role == "Follower"
    node.advance(1)
    assert node.role == "Prospective"
