# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-853 (voters change) that no other test shows; `docs/normative.md` has all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    PreVoteRequest,
    VoteResponse,
)
from metaquorum.raft.types import NodeId, Offset, ReplicaKey
from metaquorum.raft.voter_changes import AddVoter, ChangeRefusal, RemoveVoter
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.testing.scripted_node import ScriptedNode, batches, election_state, key
from metaquorum.tests.raft.steps import fetch
from metaquorum.tests.raft.voter_changes import ask, catch_up, ids, refused, settled


def test_requests_to_a_voter_name_its_directory() -> None:
    """Only the meant replica may answer, so the request has its key: node id and directory id."""
    wiped = ReplicaKey(node_id=NodeId(3), directory_id=b"another director")
    new = voter_set([Voter(key=key(1), address="n1"), Voter(key=key(2), address="n2"), Voter(key=wiped, address="n3")])
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    send = node.follow(2, 3)
    content = replace(batches((2, 3, 3)), voters=((Offset(2), new),))
    node.answer(send, node.leader_answer(2, batches=content))
    node.forget()
    node.advance(1_000)
    assert {request.voter for _, request in node.sent(PreVoteRequest)} == {key(2), wiped}
    node.elect()
    node.advance(1_100)
    assert {request.voter for _, request in node.sent(BeginQuorumEpochRequest)} == {key(2), wiped}


def test_successor_is_the_replica_that_is_named_and_not_its_node_id() -> None:
    """EndQuorumEpoch names successors by key: a wiped disk under the same node id does not start an election at once."""
    node = ScriptedNode().start()
    node.follow(2, 4)
    request = node.end_request(2, 4, [1])
    assert isinstance(request, EndQuorumEpochRequest)
    old = ReplicaKey(node_id=NodeId(1), directory_id=b"before the wipe.")
    node.receive(replace(request, preferred_successors=(old,)))
    assert node.role == "Follower"
    node.receive(request)
    assert node.role == "Prospective"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_high_watermark_stays_where_it_is_when_a_voter_comes(count: int) -> None:
    """The new voter has no records yet, and committed records stay committed; further commits need the larger majority."""
    node, role = settled(list(range(1, count + 1)))
    catch_up(node, 6)
    before = role.high_watermark
    assert ask(node, AddVoter(key=key(6))) == []
    assert role.high_watermark == before
    end = node.state.log.log_end_offset
    needed = (count + 1) // 2
    for number, replica in enumerate([*range(2, count + 1), 6]):
        if number < needed:
            assert role.high_watermark == before
        fetch(node, replica, end)
    assert role.high_watermark == end


def test_check_quorum_counts_the_set_in_force() -> None:
    """With a fourth voter the leader needs two others from the append of the record on."""
    node, _ = settled([1, 2, 3])
    catch_up(node, 4)
    ask(node, AddVoter(key=key(4)))
    for _ in range(2):
        node.advance(500)
        fetch(node, 2, node.state.log.log_end_offset)
    node.advance(500)
    assert node.role == "Resigned"
    other, _ = settled([1, 2, 3])
    ask(other, RemoveVoter(key=key(3)))
    for _ in range(4):
        other.advance(500)
        fetch(other, 2, other.state.log.log_end_offset)
    assert other.role == "Leader"


def test_refused_change_leaves_the_log_as_it_is() -> None:
    """Checks come before the record: a refused change appends nothing."""
    node, _ = settled([1, 2, 3])
    end = node.state.log.log_end_offset
    assert ask(node, AddVoter(key=key(2))) == refused(ChangeRefusal.DUPLICATE_VOTER)
    assert ask(node, AddVoter(key=key(9))) == refused(ChangeRefusal.NOT_CAUGHT_UP)
    assert ask(node, RemoveVoter(key=key(9))) == refused(ChangeRefusal.VOTER_NOT_FOUND)
    assert (node.state.log.log_end_offset, ids(node)) == (end, [1, 2, 3])


def test_follower_goes_on_fetching_from_a_leader_that_is_no_voter_any_more() -> None:
    """The removal is committed by fetches from the removed leader, so followers keep fetching from it."""
    without_leader = voter_set([Voter(key=key(number), address=f"n{number}") for number in (1, 3)])
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    send = node.follow(2, 3)
    content = replace(batches((2, 3, 3)), voters=((Offset(2), without_leader),))
    node.answer(send, node.leader_answer(2, batches=content))
    assert ids(node) == [1, 3]
    last, request = node.sent(FetchRequest)[-1]
    assert (last.address, request.fetch_offset) == ("n2", 3)
    node.answer(last, node.leader_answer(2, high_watermark=3))
    assert node.state.high_watermark == 3


def test_vote_is_for_the_replica_and_not_for_its_node_id() -> None:
    """A vote that was given to a node id on one directory is not given again to the same node id on another."""
    node = ScriptedNode(election=election_state(4, voted=7)).start()
    request = node.vote_request(7, 4)
    for directory_id, granted in ((b"another director", False), (key(7).directory_id, True)):
        answer = node.receive(replace(request, candidate=ReplicaKey(node_id=NodeId(7), directory_id=directory_id)))
        assert isinstance(answer, VoteResponse)
        assert answer.granted is granted
    assert node.disk == election_state(4, voted=7)
