# SPDX-License-Identifier: Apache-2.0
"""A voter whose address differs from that in the voter set: KIP-853 "UpdateRaftVoter"."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.raft.effects import AppendAsLeader, Send, VotersChange
from metaquorum.raft.events import Failure
from metaquorum.raft.messages import (
    BeginQuorumEpochResponse,
    FetchRequest,
    Refusal,
    UpdateVoterRequest,
    UpdateVoterResponse,
)
from metaquorum.raft.types import NodeId, QuorumEpoch
from metaquorum.raft.voters import Voter
from metaquorum.testing.scripted_node import CLUSTER_ID, ScriptedNode, election_state, key
from metaquorum.tests.raft.steps import fetch, leading


def moved_follower() -> ScriptedNode:
    """Node 1 follows node 2; its listener has another address than its log says."""
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2)
    node.state.identity = replace(node.state.identity, address="moved:1")
    node.start()
    send = node.follow(2, 3)
    assert node.sent(UpdateVoterRequest) == [], "the leader must have answered first"
    node.answer(send, node.leader_answer(2))
    return node


def updates(node: ScriptedNode) -> list[Send]:
    """The updates sent to the leader so far."""
    return [send for send, _ in node.sent(UpdateVoterRequest)]


def keep_following(node: ScriptedNode, duration_ms: int) -> None:
    """Let the leader answer each fetch for some time."""
    for _ in range(duration_ms // 100):
        node.advance(100)
        node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2))


def told(refusal: Refusal | None = None, epoch: int = 3) -> UpdateVoterResponse:
    """Answer of the leader."""
    return UpdateVoterResponse(quorum_epoch=QuorumEpoch(epoch), leader_id=NodeId(2), refusal=refusal)


@pytest.mark.parametrize("refusal", [None, Refusal.UNAVAILABLE])
def test_voter_tells_its_leader_every_two_fetch_timeouts_until_its_log_has_the_address(refusal: Refusal | None) -> None:
    """An answer does not end it: the voter set in the log counts."""
    node = moved_follower()
    [(send, request)] = node.sent(UpdateVoterRequest)
    assert send.address == "n2"
    assert request == UpdateVoterRequest(
        cluster_id=CLUSTER_ID, quorum_epoch=QuorumEpoch(3), voter=key(1), address="moved:1"
    )
    node.answer(send, told(refusal))
    keep_following(node, 1_900)
    assert len(updates(node)) == 1
    keep_following(node, 100)
    assert len(updates(node)) == 2
    node.state.identity = replace(node.state.identity, address="n1")
    keep_following(node, 5_000)
    assert len(updates(node)) == 2


def test_voter_whose_leader_does_not_answer_asks_again_after_a_pause() -> None:
    """It retries after a failure and after silence, with growing pauses; an answer to an earlier request changes nothing."""
    node = moved_follower()
    node.fail(updates(node)[0], Failure.TIMED_OUT)
    keep_following(node, 100)
    assert len(updates(node)) == 2
    keep_following(node, 1_100)
    assert len(updates(node)) == 5
    node.answer(updates(node)[0], told())
    node.fail(updates(node)[0])
    assert node.role == "Follower"


def test_answer_of_a_later_epoch_is_learnt_from() -> None:
    """Every answer has the epoch and its leader."""
    node = moved_follower()
    node.answer(updates(node)[0], told(Refusal.FENCED_EPOCH, epoch=5))
    assert node.state.quorum_epoch == 5


def test_observer_tells_nobody() -> None:
    """Only voters have an address in the set."""
    node = ScriptedNode(number=4, election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    node.receive(node.begin_request(2, 3))
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2))
    assert updates(node) == []


def update_request(node: ScriptedNode, number: int, **changes: object) -> UpdateVoterRequest:
    """A voter reports its new address to node 1."""
    request = UpdateVoterRequest(
        cluster_id=CLUSTER_ID, quorum_epoch=node.state.quorum_epoch, voter=key(number), address=f"moved:{number}"
    )
    return replace(request, **changes)  # pyright: ignore


def settled() -> ScriptedNode:
    """Node 1 leads three voters that have every record."""
    node, _ = leading([1, 2, 3])
    for _ in range(2):
        for voter in (2, 3):
            fetch(node, voter, node.state.log.log_end_offset)
    return node


def test_leader_appends_the_new_address_and_answers_at_once() -> None:
    """The voter sees the commit in its log, so the answer does not wait for it."""
    node = settled()
    answer = node.receive(update_request(node, 2))
    assert isinstance(answer, UpdateVoterResponse)
    assert answer.refusal is None
    assert node.state.voter_set.find(NodeId(2)) == Voter(key=key(2), address="moved:2")
    answer = node.receive(update_request(node, 3))
    assert isinstance(answer, UpdateVoterResponse)
    assert answer.refusal is Refusal.UNAVAILABLE, "one change at a time"
    for voter in (2, 3):
        fetch(node, voter, node.state.log.log_end_offset)
    answer = node.receive(update_request(node, 2))
    assert isinstance(answer, UpdateVoterResponse)
    assert answer.refusal is None, "nothing to change"


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"cluster_id": "another"}, Refusal.WRONG_CLUSTER),
        ({"quorum_epoch": 0}, Refusal.FENCED_EPOCH),
        ({"quorum_epoch": 9}, Refusal.UNKNOWN_EPOCH),
        ({"address": ""}, Refusal.INVALID_REQUEST),
        ({"voter": key(1)}, Refusal.INVALID_REQUEST),
        ({"voter": key(4)}, Refusal.INVALID_VOTER_KEY),
        ({"voter": replace(key(2), directory_id=b"w" * 16)}, Refusal.INVALID_VOTER_KEY),
    ],
)
def test_update_request_is_checked_for_cluster_epoch_and_key(changes: dict[str, object], refusal: Refusal) -> None:
    """If one of them is wrong, nothing happens."""
    node = settled()
    before = node.state.voter_set
    answer = node.receive(update_request(node, 2, **changes))
    assert isinstance(answer, UpdateVoterResponse)
    assert answer.refusal is refusal
    assert node.state.voter_set == before


def test_update_request_to_a_follower_is_refused() -> None:
    """Only the leader appends."""
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    node.follow(2, 3)
    answer = node.receive(update_request(node, 3))
    assert isinstance(answer, UpdateVoterResponse)
    assert answer.refusal is Refusal.NOT_LEADER


def test_leader_sees_to_its_own_address() -> None:
    """It changes the set once a record of its epoch is committed; no request waits for an answer."""
    node, _ = leading([1])
    node.forget()
    node.state.identity = replace(node.state.identity, address="moved:1")
    node.propose()
    records = [effect.content for effect in node.of(AppendAsLeader) if isinstance(effect.content, VotersChange)]
    assert [record.voters.voters for record in records] == [(Voter(key=key(1), address="moved:1"),)]
    node.propose()
    assert len([effect for effect in node.of(AppendAsLeader) if isinstance(effect.content, VotersChange)]) == 1


def test_leader_of_many_whose_own_address_change_is_cut_short_answers_nobody() -> None:
    """A change without a request ends without an answer."""
    node = settled()
    node.forget()
    node.state.identity = replace(node.state.identity, address="moved:1")
    node.advance(100)
    fetch(node, 2, node.state.log.log_end_offset)
    assert node.state.voter_set.find(NodeId(1)) == Voter(key=key(1), address="moved:1")
    node.advance(3_000)
    assert node.role != "Leader"
    assert [type(effect).__name__ for effect in node.effects if type(effect).__name__ == "AnswerVoterChange"] == []


def follower_of_a_moved_leader() -> tuple[ScriptedNode, Send]:
    """Node 1 knows from a third node that node 2 leads epoch 3, and has an old address of it, where no process listens."""
    node = ScriptedNode(election=election_state(3, leader=2), epochs=[(1, 0)], log_end_offset=2).start()
    return node, node.sent(FetchRequest)[-1][0]


def test_follower_believes_the_leader_itself_about_its_address() -> None:
    """Otherwise a voter that missed the new set could never fetch it from the new address (a seed that did not converge)."""
    node, send = follower_of_a_moved_leader()
    assert send.address == "n2"
    answer = node.receive(replace(node.begin_request(2, 3), leader_address="moved:2"))
    assert isinstance(answer, BeginQuorumEpochResponse)
    assert answer.refusal is None
    assert node.role == "Follower"
    assert [send.address for send, _ in node.sent(FetchRequest)] == ["n2", "moved:2"]
    node.fail(send)
    assert node.state.leader_address() == "moved:2"
    before = len(node.sent(FetchRequest))
    node.receive(replace(node.begin_request(2, 3), leader_address="moved:2"))
    assert len(node.sent(FetchRequest)) == before, "no news"


def test_prospective_voter_falls_back_to_where_its_leader_is_now() -> None:
    """It could not reach the leader and became prospective; the leader then announces its new address."""
    node, send = follower_of_a_moved_leader()
    node.fail(send)
    node.advance(400)
    assert node.role == "Prospective"
    node.receive(replace(node.begin_request(2, 3), leader_address="moved:2"))
    assert node.role == "Prospective", "hearing of it is no fetch that was answered"
    node.advance(2_000)
    assert node.role == "Follower"
    assert node.sent(FetchRequest)[-1][0].address == "moved:2"
