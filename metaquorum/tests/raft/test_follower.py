# SPDX-License-Identifier: Apache-2.0
"""A follower: divergence, flush rules, patience with its leader; Raft 5.3, KIP-595, KIP-101."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.raft.effects import (
    AdvanceCommit,
    AppendAsFollower,
    FlushLog,
    PersistElectionState,
    ReportViolation,
    Send,
    TruncateLog,
)
from metaquorum.raft.events import Failure, ShutdownRequested, Tick
from metaquorum.raft.messages import (
    FetchedBatches,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.types import EpochEnd, NodeId, Offset, QuorumEpoch
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.testing.scripted_node import ScriptedNode, batches, election_state, key
from metaquorum.tests.raft.steps import fetch, leading


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        # The leader's log: epoch 1 [0, 4), epoch 3 [4, 9), epoch 5 [9, 10).
        (0, 0, None),
        (4, 1, None),
        (2, 1, None),
        (9, 3, None),
        (10, 5, None),
        (5, 1, (1, 4)),
        (10, 3, (3, 9)),
        (6, 2, (1, 4)),
        (11, 5, (5, 10)),
        (12, 4, (3, 9)),
    ],
)
def test_divergence_is_found_by_the_epoch_before_the_fetch_offset(
    offset: int, last_epoch: int, expected: tuple[int, int] | None
) -> None:
    """KIP-595: the largest epoch not above the follower's and its end; a mismatch shows where the logs diverge."""
    node = ScriptedNode(election=election_state(4), epochs=[(1, 0), (3, 4)], log_end_offset=9).start().elect()
    assert isinstance(node.state.role, Leader)
    answer = fetch(node, 2, offset, last_epoch=last_epoch, max_wait_ms=0)
    assert answer is not None
    assert answer.refusal is None
    end = None
    if expected is not None:
        end = EpochEnd(epoch=QuorumEpoch(expected[0]), end_offset=Offset(expected[1]))
    assert answer.diverging == end
    assert node.state.role.voters[NodeId(2)].end_offset == (offset if expected is None else None)
    assert node.state.role.voters[NodeId(2)].last_fetch_ms == node.now_ms


@pytest.mark.parametrize(
    ("diverging", "expected"),
    [
        # The follower's log: epoch 1 [0, 4), epoch 3 [4, 9), epoch 4 [9, 12).
        ((3, 6), 6),
        ((3, 20), 9),
        ((4, 10), 10),
        ((2, 7), 4),
        ((1, 3), 3),
        ((0, 0), 0),
    ],
)
def test_follower_cuts_to_where_the_logs_part(diverging: tuple[int, int], expected: int) -> None:
    """KIP-595: truncate to the smaller end of that epoch, or to the own end of the next lower one; then ask again."""
    node = ScriptedNode(
        election=election_state(5, leader=2), epochs=[(1, 0), (3, 4), (4, 9)], log_end_offset=12
    ).start()
    node.answer(node.sent(FetchRequest)[0][0], node.leader_answer(2, diverging=diverging))
    assert node.of(TruncateLog) == [TruncateLog(to_offset=Offset(expected))]
    again = node.sent(FetchRequest)[-1][1]
    assert again.fetch_offset == expected
    assert again.last_fetched_epoch == node.state.log.last_epoch


@pytest.mark.parametrize("diverging", [(3, 6), (4, 12), (9, 40)])
def test_cut_below_the_high_watermark_or_at_the_end_is_refused_and_reported(diverging: tuple[int, int]) -> None:
    """Raft State Machine Safety: committed records are never cut, whatever a leader says."""
    node = ScriptedNode(
        election=election_state(5, leader=2), epochs=[(1, 0), (3, 4), (4, 9)], log_end_offset=12
    ).start()
    node.answer(node.sent(FetchRequest)[0][0], node.leader_answer(2, high_watermark=8))
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2, diverging=diverging))
    assert node.of(TruncateLog) == []
    assert len(node.of(ReportViolation)) == 1
    assert node.state.log.log_end_offset == 12


def test_cut_takes_back_the_voters_of_the_records_that_go() -> None:
    """KIP-853: a truncated VotersRecord never was."""
    node = ScriptedNode(voters=[1, 2, 3], election=election_state(5, leader=2), epochs=[(1, 0)], log_end_offset=2)
    node.start()
    fourth = voter_set([Voter(key=key(number), address=f"n{number}") for number in (1, 2, 3, 4)])
    fetched = FetchedBatches(data=b"", spans=batches((2, 3, 5)).spans, voters=((Offset(2), fourth),))
    node.answer(node.sent(FetchRequest)[0][0], node.leader_answer(2, batches=fetched))
    assert node.state.voter_set == fourth
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2, diverging=(1, 2)))
    assert [voter.key.node_id for voter in node.state.voter_set.voters] == [1, 2, 3]


def test_voter_flushes_before_its_next_fetch() -> None:
    """KIP-595: with its fetch offset a voter promises that everything below is on stable storage."""
    node = ScriptedNode(election=election_state(3, leader=2), auto_disk=False).start()
    send = node.sent(FetchRequest)[0][0]
    node.forget()
    node.answer(send, node.leader_answer(2, batches=batches((0, 4, 2), (4, 6, 3)), high_watermark=5))
    assert [type(effect) for effect in node.effects] == [AppendAsFollower, FlushLog]
    node.advance(10)
    assert node.sent(FetchRequest) == []
    node.complete(node.of(FlushLog)[0])
    (request,) = [request for _, request in node.sent(FetchRequest)]
    assert (request.fetch_offset, request.last_fetched_epoch, request.high_watermark) == (6, 3, 5)
    assert node.of(AdvanceCommit) == [AdvanceCommit(commit_offset=Offset(5))]


def test_observer_fetches_on_and_delivers_what_it_has_flushed() -> None:
    """An observer's offset does not count, so it need not wait; it delivers only what is on its disk."""
    node = ScriptedNode(number=9, election=election_state(3, leader=2), auto_disk=False).start()
    send = node.sent(FetchRequest)[0][0]
    node.forget()
    node.answer(send, node.leader_answer(2, batches=batches((0, 4, 2)), high_watermark=4))
    assert node.sent(FetchRequest)[0][1].fetch_offset == 4
    assert node.of(AdvanceCommit) == []
    node.complete(node.of(FlushLog)[0])
    assert node.of(AdvanceCommit) == [AdvanceCommit(commit_offset=Offset(4))]


def test_flush_that_a_cut_overtook_proves_nothing() -> None:
    """An observer may cut its log during a flush: records appended after the cut need their own flush."""
    node = ScriptedNode(number=9, election=election_state(3, leader=2), auto_disk=False).start()
    node.answer(node.sent(FetchRequest)[0][0], node.leader_answer(2, batches=batches((0, 4, 1), (4, 8, 2))))
    first = node.of(FlushLog)[0]
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2, diverging=(1, 4)))
    second = node.of(FlushLog)[1]
    node.complete(first)
    assert node.state.log.flushed_offset == 0
    node.complete(second)
    assert node.state.log.flushed_offset == 4
    node.complete(second)
    assert node.state.log.flushed_offset == 4


def test_high_watermark_of_a_follower_is_bounded_by_its_log_and_never_falls() -> None:
    """Raft 5.3: min(leaderCommit, index of the last entry)."""
    node = ScriptedNode(election=election_state(3, leader=2), epochs=[(1, 0)], log_end_offset=4).start()
    node.answer(node.sent(FetchRequest)[0][0], node.leader_answer(2, high_watermark=100))
    assert node.state.high_watermark == 4
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2, high_watermark=2))
    assert node.state.high_watermark == 4


@pytest.mark.parametrize(
    "spans",
    [
        [(5, 6, 3)],
        [(3, 6, 3)],
        [(4, 4, 3)],
        [(4, 6, 0)],
        [(4, 6, 1)],
        [(4, 6, 4)],
        [(4, 6, 3), (7, 8, 3)],
        [(4, 6, 3), (6, 8, 2)],
    ],
)
def test_batches_that_do_not_continue_the_log_are_not_appended(spans: list[tuple[int, int, int]]) -> None:
    """KafkaRaftClient: random or invalid batches never reach the log, not even in part."""
    node = ScriptedNode(election=election_state(3, leader=2), epochs=[(2, 0)], log_end_offset=4).start()
    node.answer(node.sent(FetchRequest)[0][0], node.leader_answer(2, batches=batches(*spans)))
    assert node.of(AppendAsFollower) == []
    assert node.state.log.log_end_offset == 4
    assert len(node.of(ReportViolation)) == 1
    assert node.role == "Follower"


def test_answer_of_a_node_that_does_not_lead_is_not_taken() -> None:
    """Only the leader of the epoch supplies records."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    answer = replace(node.leader_answer(2, batches=batches((0, 1, 3))), leader_id=None)
    node.answer(node.sent(FetchRequest)[0][0], answer)
    assert node.of(AppendAsFollower) == []
    assert len(node.of(ReportViolation)) == 1


def test_valid_answer_restarts_the_fetch_timer_and_a_refusal_does_not() -> None:
    """KIP-595: the fetch timer is reset by successful answers of the leader only."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.advance(400)
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2))
    assert isinstance(node.state.role, Follower)
    deadline_ms = node.state.role.fetch_deadline_ms
    assert deadline_ms == node.now_ms + 1_000
    node.advance(100)
    refusal = replace(node.leader_answer(2), refusal=Refusal.INVALID_REQUEST)
    node.answer(node.sent(FetchRequest)[-1][0], refusal)
    assert isinstance(node.state.role, Follower)
    assert node.state.role.fetch_deadline_ms == deadline_ms
    node.advance(899)
    assert node.role == "Follower"
    node.advance(1)
    assert node.role == "Prospective"


def test_silent_leader_is_given_up_after_the_fetch_timeout() -> None:
    """KIP-595: a follower that cannot fetch starts an election; its lost requests time out and are repeated."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.advance(999)
    assert node.role == "Follower"
    assert len(node.sent(FetchRequest)) > 2
    node.advance(1)
    assert node.role == "Prospective"


@pytest.mark.parametrize("lost_count", [1, 2])
def test_lost_fetch_does_not_cost_the_leader(lost_count: int) -> None:
    """The follower repeats it in time and asks for an answer at once: it hears from the leader before giving it up."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    while len(node.sent(FetchRequest)) <= lost_count:
        node.advance(1)
        assert node.role == "Follower"
    again, request = node.sent(FetchRequest)[-1]
    assert request.max_wait_ms == node.config.fetch_retry_wait_ms
    node.advance(request.max_wait_ms)
    assert node.role == "Follower"
    node.answer(again, node.leader_answer(2))
    assert node.sent(FetchRequest)[-1][1].max_wait_ms == node.config.fetch_wait_ms
    node.advance(999)
    assert node.role == "Follower"


def test_late_answer_to_a_fetch_counts() -> None:
    """A slow leader is asked a second time; the follower takes the first answer, and the second changes nothing."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    first, _ = node.sent(FetchRequest)[-1]
    node.advance(800)
    second, _ = node.sent(FetchRequest)[1]
    answer = node.leader_answer(2, batches=batches((0, 4, 3)))
    node.answer(first, answer)
    assert node.state.log.log_end_offset == 4
    node.forget()
    node.answer(second, answer)
    assert node.of(ReportViolation) == []
    assert node.state.log.log_end_offset == 4
    node.advance(999)
    assert node.role == "Follower"


def test_late_failure_of_a_fetch_says_that_the_leader_is_gone() -> None:
    """The leader's process ends after its follower has sent a second fetch: the connections break one by one."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    first, _ = node.sent(FetchRequest)[-1]
    node.advance(600)
    node.fail(first, Failure.REFUSED)
    node.advance(300)
    assert node.role == "Prospective"


def stalled() -> tuple[ScriptedNode, FlushLog]:
    """A voter that has appended records of its leader and is flushing them."""
    node = ScriptedNode(election=election_state(3, leader=2), auto_disk=False).start()
    node.advance(400)
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2, batches=batches((0, 4, 3))))
    (flush,) = node.of(FlushLog)
    node.forget()
    return node, flush


def test_leader_is_not_given_up_for_the_voters_own_slow_disk() -> None:
    """A voter does not fetch during its flush and cannot hear from its leader; the time-out starts again after the flush."""
    node, flush = stalled()
    assert node.raft.deadline_ms() is None
    node.advance(3_000)
    node.step(Tick())
    assert node.role == "Follower"
    assert node.of(Send) == []
    node.complete(flush)
    assert [request.fetch_offset for _, request in node.sent(FetchRequest)] == [4]
    node.advance(999)
    assert node.role == "Follower"
    node.advance(1)
    assert node.role == "Prospective"


def test_leader_that_resigns_is_not_waited_for_during_a_flush() -> None:
    """The leader has announced its resignation: the time-out keeps running, and the end of the flush does not renew it."""
    node, flush = stalled()
    node.receive(node.end_request(2, 3, [3]))
    node.advance(200)
    node.complete(flush)
    node.advance(300)
    assert node.role == "Prospective"
    node, _ = stalled()
    node.receive(node.end_request(2, 3, [1]))
    assert node.role == "Prospective"


def test_voter_that_waits_for_its_disk_does_not_speak_for_a_leader_that_it_has_not_heard_of_lately() -> None:
    """Otherwise one slow disk would keep the others from electing a new leader after the old one died."""
    node, flush = stalled()
    request = node.pre_vote_request(3, 3, last_epoch=3, log_end_offset=4)
    node.advance(999)
    answer = node.receive(request)
    assert isinstance(answer, VoteResponse)
    assert not answer.granted
    node.advance(1)
    answer = node.receive(request)
    assert isinstance(answer, VoteResponse)
    assert answer.granted
    assert node.role == "Follower"
    node.complete(flush)
    answer = node.receive(request)
    assert isinstance(answer, VoteResponse)
    assert not answer.granted


def test_flush_of_an_observer_is_no_word_of_the_leader() -> None:
    """It fetches while it flushes, so its fetch timeout depends on the leader alone."""
    node = ScriptedNode(number=9, election=election_state(3, leader=2), auto_disk=False).start()
    node.answer(node.sent(FetchRequest)[0][0], node.leader_answer(2, batches=batches((0, 4, 2))))
    node.advance(600)
    node.complete(node.of(FlushLog)[0])
    node.advance(399)
    assert node.role == "Follower"
    node.advance(1)
    assert node.role == "Unattached"


@pytest.mark.parametrize("how", ["refused connection", "not leader", "unavailable"])
def test_leader_that_refuses_is_given_up_sooner(how: str) -> None:
    """A dead leader's port refuses connections within a millisecond: the follower need not wait out the fetch timeout."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    send = node.sent(FetchRequest)[0][0]
    if how == "refused connection":
        node.fail(send)
    else:
        refusal = Refusal.NOT_LEADER if how == "not leader" else Refusal.UNAVAILABLE
        epoch = QuorumEpoch(3 if how == "not leader" else 0)
        node.answer(send, FetchResponse(quorum_epoch=epoch, leader_id=None, leader_address=None, refusal=refusal))
    node.advance(99)
    assert node.role == "Follower"
    node.advance(1)
    assert node.role == "Prospective"


def test_leader_that_is_back_in_time_is_not_given_up() -> None:
    """One refused connection causes no election if the next fetch succeeds."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.fail(node.sent(FetchRequest)[0][0])
    node.advance(20)
    node.answer(node.sent(FetchRequest)[-1][0], node.leader_answer(2))
    assert isinstance(node.state.role, Follower)
    assert not node.state.role.is_leader_gone
    assert node.state.role.fetch_deadline_ms == node.now_ms + 1_000


def test_refusals_one_after_the_other_do_not_shorten_the_patience_again() -> None:
    """The shorter patience is drawn once."""
    node = ScriptedNode(election=election_state(3, leader=2)).start()
    node.fail(node.sent(FetchRequest)[0][0])
    assert isinstance(node.state.role, Follower)
    deadline_ms = node.state.role.fetch_deadline_ms
    node.advance(40)
    node.fail(node.sent(FetchRequest)[-1][0])
    assert isinstance(node.state.role, Follower)
    assert node.state.role.fetch_deadline_ms == deadline_ms


def test_observer_without_its_leader_looks_for_one() -> None:
    """KIP-595: an observer only moves between unattached and follower."""
    node = ScriptedNode(number=9, election=election_state(3, leader=2)).start()
    node.fail(node.sent(FetchRequest)[0][0], Failure.TIMED_OUT)
    node.advance(1_000)
    assert node.role == "Unattached"
    assert node.disk == election_state(3, leader=2)
    assert node.sent(PreVoteRequest) == []


def test_unattached_former_leader_looks_for_a_leader_with_flushed_offsets_only() -> None:
    """The node that it asks may lead, and trusts the fetch offset (found by the simulator)."""
    node, _ = leading([1, 2, 3])
    node.auto_disk = False
    node.propose(5)
    node.forget()
    node.step(Tick())
    node.receive(node.vote_request(2, 9, last_epoch=8, log_end_offset=99))
    node.complete(node.of(PersistElectionState)[0])
    assert node.role == "Unattached"
    assert node.sent(FetchRequest) == []


def test_a_leaving_follower_starts_no_election() -> None:
    """It waits for its last flush only; a silent leader matters only to the others."""
    node = ScriptedNode(
        auto_disk=False, election=election_state(1, leader=2), epochs=[(1, 0)], log_end_offset=2
    ).start()
    send, _ = node.sent(FetchRequest)[-1]
    node.answer(send, node.leader_answer(2, batches=batches((2, 3, 1))))
    node.now_ms += 900
    node.step(ShutdownRequested())
    node.now_ms += 200
    node.step(Tick())
    assert node.role == "Follower"


def test_a_candidate_that_hears_of_a_leader_without_an_address_goes_on() -> None:
    """It could not fetch from that leader; its own round decides."""
    node = ScriptedNode(election=election_state(3, voted=1)).start()
    assert node.role == "Candidate"
    send, _ = node.sent(VoteRequest)[-1]
    node.answer(send, VoteResponse(quorum_epoch=QuorumEpoch(3), leader_id=NodeId(99), granted=False))
    assert node.role == "Candidate"
    assert node.state.election.leader_id is None
