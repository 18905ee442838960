# SPDX-License-Identifier: Apache-2.0
"""Normative statements of the Raft paper's sections 6 (voters change) and 7 (snapshots) that no other test shows."""

from __future__ import annotations

import itertools

import pytest

from metaquorum.raft.effects import AppendAsLeader, DownloadSnapshot, Proposal, ReportViolation, TrimLog
from metaquorum.raft.events import SnapshotCreated, SnapshotDownloaded
from metaquorum.raft.messages import FetchRequest, FetchResponse, VoteResponse
from metaquorum.raft.types import Offset
from metaquorum.raft.voter_changes import AddVoter, ChangeCommitted, ChangeRefusal, RemoveVoter
from metaquorum.raft.voters import Voter, VoterSet, voter_set
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key, snapshot_id
from metaquorum.tests.raft.roles import EPOCH, LOG_END, follower
from metaquorum.tests.raft.steps import fetch
from metaquorum.tests.raft.voter_changes import answers, ask, catch_up, ids, refused, settled

# 6: changes of the voters.


def members(count: int) -> VoterSet:
    """Nodes 1 to count."""
    return voter_set([Voter(key=key(number), address=f"n{number}") for number in range(1, count + 1)])


@pytest.mark.parametrize("count", range(1, 9))
def test_majorities_before_and_after_one_change_share_a_voter(count: int) -> None:
    """6, dissertation 4.1: at the change no two leaders can be elected, for any two sets that differ by one voter."""
    smaller, larger = members(count), members(count + 1)
    for few in itertools.combinations(smaller.voters, smaller.majority):
        for many in itertools.combinations(larger.voters, larger.majority):
            assert set(few) & set(many)


def test_new_server_gets_the_log_before_it_counts() -> None:
    """6: servers join without a vote first, get the log, and count for majorities only afterwards."""
    node, _ = settled([1, 2, 3])
    fetch(node, 4, 0)
    assert ask(node, AddVoter(key=key(4), address="n4")) == refused(ChangeRefusal.NOT_CAUGHT_UP)
    node.propose(3)
    catch_up(node, 4)
    assert node.state.high_watermark == 2, "an observer commits nothing"
    assert ask(node, AddVoter(key=key(4), address="n4")) == []
    assert ids(node) == [1, 2, 3, 4]


def test_requests_are_served_while_the_voters_change() -> None:
    """6: the cluster serves client requests during a change, and commits them by the new set."""
    node, _ = settled([1, 2, 3])
    assert ask(node, RemoveVoter(key=key(3))) == []
    node.propose(2)
    assert isinstance(node.of(AppendAsLeader)[-1].content, Proposal)
    fetch(node, 2, 5)
    assert answers(node) == [(7, ChangeCommitted(next_offset=Offset(3)))]
    assert node.state.high_watermark == 5


def test_removed_server_that_has_not_heard_disturbs_nobody() -> None:
    """6: a removed server times out and asks for votes; servers that hear from the leader keep term and leader."""
    node = follower()
    send, _ = node.sent(FetchRequest)[-1]
    node.answer(send, node.leader_answer(3, high_watermark=LOG_END))
    role = node.state.role
    for _ in range(3):
        answer = node.receive(node.pre_vote_request(7, EPOCH, last_epoch=3, log_end_offset=LOG_END))
        assert isinstance(answer, VoteResponse)
        assert not answer.granted
    assert node.state.role is role
    assert node.disk == election_state(EPOCH, leader=3)


def test_server_answers_others_whatever_its_own_set_of_voters_says() -> None:
    """6: requests of servers outside the node's own set are served: votes are granted, and the log is sent."""
    voter = ScriptedNode(election=election_state(2), epochs=[(2, 0)], log_end_offset=4).start()
    answer = voter.receive(voter.vote_request(7, 3, last_epoch=2, log_end_offset=4))
    assert isinstance(answer, VoteResponse)
    assert answer.granted
    node, _ = settled([1, 2, 3])
    served = fetch(node, 7, 0)
    assert isinstance(served, FetchResponse)
    assert served.refusal is None


# 7: snapshots.


@pytest.mark.parametrize("offer", [(5, 1), (6, 1)])
def test_snapshot_of_what_the_log_has_takes_nothing_away(offer: tuple[int, int]) -> None:
    """7: records after a snapshot's end stay in the log: a snapshot of a prefix of the log is refused and reported."""
    node = ScriptedNode(election=election_state(5), epochs=[(1, 0)], log_end_offset=6, committed_offset=4).start()
    send = node.follow(2, 6)
    node.answer(send, node.leader_answer(2, snapshot=offer))
    assert node.of(DownloadSnapshot) == []
    assert len(node.of(ReportViolation)) == 1
    assert node.state.log.log_end_offset == 6


def test_every_node_makes_its_own_snapshots_of_what_is_committed() -> None:
    """7: each server, leader or follower, makes snapshots itself, and drops older ones and the log below them."""
    trimmed: list[list[TrimLog]] = []
    for leads in (True, False):
        node = ScriptedNode(
            election=election_state(5), epochs=[(1, 0)], log_end_offset=9, committed_offset=9, snapshots=[(3, 1)]
        ).start()
        if leads:
            node.elect()
        node.step(SnapshotCreated(snapshot=snapshot_id(6, 1)))
        node.step(SnapshotCreated(snapshot=snapshot_id(9, 1)))
        trimmed.append(node.of(TrimLog))
        assert node.state.snapshots.ids == (snapshot_id(6, 1), snapshot_id(9, 1))
    assert trimmed == [[TrimLog(snapshot=snapshot_id(3, 1)), TrimLog(snapshot=snapshot_id(6, 1))]] * 2


def test_second_snapshot_takes_the_place_of_the_first() -> None:
    """7: a log that begins at a snapshot begins at the newer one afterwards, with the epoch before its start."""
    node = ScriptedNode(
        election=election_state(5), start=(10, 2), epochs=[(2, 10)], log_end_offset=12, snapshots=[(10, 2)]
    ).start()
    send = node.follow(2, 6)
    node.answer(send, node.leader_answer(2, snapshot=(20, 3)))
    (download,) = node.of(DownloadSnapshot)
    node.step(SnapshotDownloaded(download_id=download.download_id, voters=members(3)))
    assert (node.state.log.log_start_offset, node.state.log.start_epoch) == (20, 3)
    request = node.sent(FetchRequest)[-1][1]
    assert (request.fetch_offset, request.last_fetched_epoch) == (20, 3)
