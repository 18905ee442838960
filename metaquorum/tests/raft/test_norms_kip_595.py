# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-595 (the quorum's protocol) that no other test shows; `docs/normative.md` has all of them."""

from __future__ import annotations

import itertools

import pytest
from lograft.wire.batch import iter_batches

from metaquorum.raft.effects import (
    Activate,
    AdvanceCommit,
    AnnounceLeader,
    AppendAsLeader,
    LeaderChange,
    PersistElectionState,
    Proposal,
    Reply,
    ReplyWithBatches,
    TruncateLog,
)
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.types import NodeId, QuorumEpoch
from metaquorum.testing.scripted_node import ScriptedNode, batches, election_state, key
from metaquorum.tests.metadata_logs import log_of
from metaquorum.tests.raft.roles import EPOCH, LOG_END, follower, leader, resigned
from metaquorum.tests.raft.steps import fetch, leading

# Vote.


def test_vote_request_names_the_end_of_the_log() -> None:
    """A candidate states the epoch of its last record and the end of its log, so that voters can compare."""
    node = ScriptedNode(election=election_state(4), epochs=[(1, 0), (3, 6)], log_end_offset=9).start()
    node.advance(500)
    for _, request in node.sent(PreVoteRequest):
        assert (request.candidate, request.last_epoch, request.log_end_offset) == (key(1), 3, 9)
    node.answer(
        node.sent(PreVoteRequest)[0][0], VoteResponse(quorum_epoch=QuorumEpoch(4), leader_id=None, granted=True)
    )
    for _, request in node.sent(VoteRequest):
        assert (request.candidate, request.last_epoch, request.log_end_offset) == (key(1), 3, 9)


def test_refused_vote_names_the_leader_that_is_known() -> None:
    """A refused candidate learns the leader from the answer."""
    answer = follower().receive(follower().vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END))
    assert answer == VoteResponse(
        quorum_epoch=QuorumEpoch(EPOCH), leader_id=NodeId(3), leader_address="n3", granted=False
    )


# BeginQuorumEpoch.


def test_voter_of_another_candidate_follows_the_winner_and_keeps_its_vote() -> None:
    """A voter follows the leader of the epoch, whichever candidate it voted for; its vote stays stored."""
    node = ScriptedNode(election=election_state(4, voted=3)).start()
    node.receive(node.begin_request(2, 4))
    assert node.role == "Follower"
    assert node.disk == election_state(4, leader=2, voted=3)


def test_leader_is_on_disk_before_its_word_is_answered() -> None:
    """The answer to BeginQuorumEpoch, and the first fetch, wait until epoch and leader are on disk."""
    node = ScriptedNode(auto_disk=False).start()
    node.forget()
    assert node.receive(node.begin_request(2, 4)) is None
    assert node.sent(FetchRequest) == []
    (write,) = node.of(PersistElectionState)
    assert write.state == election_state(4, leader=2)
    effects = node.complete(write)
    (reply,) = [effect for effect in effects if isinstance(effect, Reply)]
    assert reply.response == BeginQuorumEpochResponse(quorum_epoch=QuorumEpoch(4), leader_id=NodeId(2))
    assert [send.address for send, _ in node.sent(FetchRequest)] == ["n2"]


def test_begin_quorum_epoch_goes_to_voters_only_and_says_where_the_leader_is() -> None:
    """Observers find the leader by Fetch; voters get its id, epoch and address."""
    node, _ = leading([1, 2, 3])
    fetch(node, 9, 0)
    node.advance(1_200)
    sent = node.sent(BeginQuorumEpochRequest)
    assert {request.voter for _, request in sent} == {key(2), key(3)}
    assert {(request.leader_id, request.leader_address, request.quorum_epoch) for _, request in sent} == {(1, "n1", 1)}


# EndQuorumEpoch.


def test_end_quorum_epoch_goes_to_every_other_voter_and_lists_all_of_them() -> None:
    """A resigning leader informs all voters, and each finds its place among the successors; no observer is listed."""
    node, _ = leading([1, 2, 3])
    fetch(node, 9, 0)
    fetch(node, 3, 2)
    node.advance(1_500 + 1)
    sent = node.sent(EndQuorumEpochRequest)
    assert node.role == "Resigned"
    assert {send.address for send, _ in sent} == {"n2", "n3"}
    assert {request.preferred_successors for _, request in sent} == {(key(3), key(2))}


def test_resigned_leader_takes_nothing_and_serves_nothing() -> None:
    """In the epoch that it led it neither appends nor answers fetches, and does not name itself as leader."""
    node = resigned()
    before = node.state.log.log_end_offset
    node.propose(1)
    answer = node.receive(node.fetch_request(2, offset=4, last_epoch=3))
    assert answer == FetchResponse(
        quorum_epoch=QuorumEpoch(EPOCH), leader_id=None, leader_address=None, refusal=Refusal.NOT_LEADER
    )
    assert (node.of(AppendAsLeader), node.state.log.log_end_offset) == ([], before)
    assert {effect.leader_id for effect in node.of(AnnounceLeader)} == {None}


# Fetch: the leader.


def test_new_leader_has_no_high_watermark_before_it_has_committed_itself() -> None:
    """A new leader neither knows nor reports a high watermark before a record of its epoch is on a majority."""
    node = ScriptedNode(election=election_state(4), epochs=[(3, 0)], log_end_offset=9).start().elect()
    role = node.state.role
    assert isinstance(role, Leader)
    first = node.receive(node.fetch_request(2, offset=9, last_epoch=3, max_wait_ms=0))
    assert isinstance(first, FetchResponse)
    assert first.high_watermark is None
    assert node.of(Activate) == node.of(AdvanceCommit) == []
    second = node.receive(node.fetch_request(2, offset=10, last_epoch=5, max_wait_ms=0))
    assert isinstance(second, FetchResponse)
    assert second.high_watermark == role.high_watermark == 10
    assert node.of(Activate) == [Activate(quorum_epoch=QuorumEpoch(5), start_offset=node.state.log.log_end_offset)]


@pytest.mark.parametrize(("count", "others"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_high_watermark_is_what_a_majority_of_voters_has(count: int, others: int) -> None:
    """For each number of voters: one fetch less than a majority commits nothing, a majority commits everything."""
    node, role = leading(list(range(1, count + 1)))
    end = node.state.log.log_end_offset
    for replica in range(2, 2 + others):
        assert role.high_watermark is None
        fetch(node, replica, end)
    assert role.high_watermark == end


def test_fetch_that_does_not_match_the_log_is_no_progress() -> None:
    """A replica whose log diverges from the leader's has none of it, whatever its offset is."""
    node = leader()
    role = node.state.role
    assert isinstance(role, Leader)
    node.propose(5)
    before = (role.high_watermark, role.voters[NodeId(2)].end_offset)
    for offset, last_epoch in ((5, 4), (LOG_END + 5, 4), (LOG_END + 4, 3), (LOG_END + 50, EPOCH)):
        answer = node.receive(node.fetch_request(2, offset=offset, last_epoch=last_epoch))
        assert isinstance(answer, FetchResponse)
        assert answer.diverging is not None
        assert (role.high_watermark, role.voters[NodeId(2)].end_offset) == before


def test_answer_begins_at_the_offset_that_was_asked_for() -> None:
    """Records continue the follower's log without a gap; the size of the answer is bounded by the request."""
    node, _ = leading([1, 2, 3])
    node.propose(5)
    for offset in range(2, 7):
        node.forget()
        fetch(node, 2, offset)
        (reply,) = node.of(ReplyWithBatches)
        assert (reply.fetch_offset, reply.max_bytes) == (offset, 1_000_000)


def test_batch_that_is_larger_than_the_limit_is_sent_alone() -> None:
    """The answer has at least one batch, so that a follower never waits for ever for a large one."""
    _, store = log_of(4)
    one = store.read(0, 1)
    assert [header.base_offset for _, header in iter_batches(memoryview(one))] == [0]
    assert len(one) > 1
    two = store.read(1, 2 * len(one) + 1)
    assert [header.base_offset for _, header in iter_batches(memoryview(two))] == [1, 2]
    store.close(is_clean=True)


# Fetch: the follower.


def test_follower_that_is_ahead_of_the_leader_it_asks_keeps_its_epoch_and_asks_again() -> None:
    """UNKNOWN_EPOCH: the leader does not know the epoch yet; the follower keeps everything and asks again."""
    node = follower()
    role, (send, _) = node.state.role, node.sent(FetchRequest)[-1]
    node.answer(
        send,
        FetchResponse(
            quorum_epoch=QuorumEpoch(EPOCH - 1), leader_id=None, leader_address=None, refusal=Refusal.UNKNOWN_EPOCH
        ),
    )
    assert (node.state.role, node.disk) == (role, election_state(EPOCH, leader=3))
    node.forget()
    node.advance(20)
    assert len(node.sent(FetchRequest)) == 1


def test_follower_that_is_fenced_goes_to_the_newer_leader() -> None:
    """FENCED_EPOCH names the newer epoch and, if known, its leader with the address."""
    node = follower()
    send, _ = node.sent(FetchRequest)[-1]
    node.answer(
        send,
        FetchResponse(
            quorum_epoch=QuorumEpoch(EPOCH + 1),
            leader_id=NodeId(2),
            leader_address="n2",
            refusal=Refusal.FENCED_EPOCH,
        ),
    )
    assert node.role == "Follower"
    assert node.disk == election_state(EPOCH + 1, leader=2)
    assert node.sent(FetchRequest)[-1][0].address == "n2"


def test_follower_fetches_again_from_where_it_cut() -> None:
    """After a truncation the next fetch has the new end of the log and the epoch before it; it appends nothing first."""
    node = ScriptedNode(election=election_state(EPOCH, leader=3), epochs=[(1, 0), (3, 6)], log_end_offset=9).start()
    send, _ = node.sent(FetchRequest)[-1]
    node.answer(send, node.leader_answer(3, diverging=(1, 4), high_watermark=4))
    assert node.of(TruncateLog) == [TruncateLog(to_offset=node.state.log.log_end_offset)]
    request = node.sent(FetchRequest)[-1][1]
    assert (request.fetch_offset, request.last_fetched_epoch) == (4, 1)
    assert node.state.high_watermark is None, "what was said of the other log is not taken"


def test_one_fetch_is_under_way_at_a_time() -> None:
    """The next fetch is sent when the one before was answered or has failed, so that answers cannot overtake each other."""
    node = follower()
    (first,) = node.sent(FetchRequest)
    node.advance(300)
    assert node.sent(FetchRequest) == [first]
    node.answer(first[0], node.leader_answer(3, batches=batches((LOG_END, LOG_END + 2, EPOCH))))
    assert len(node.sent(FetchRequest)) == 2
    node.answer(first[0], node.leader_answer(3, batches=batches((LOG_END + 2, LOG_END + 4, EPOCH))))
    assert node.state.log.log_end_offset == LOG_END + 2, "the answer to a request that is over is nobody's"
    assert len(node.sent(FetchRequest)) == 2


def test_fetch_without_progress_still_keeps_the_leader() -> None:
    """An answer without records is a sign of life; a quiet log is no reason for an election."""
    node = follower()
    for _ in range(10):
        send, _ = node.sent(FetchRequest)[-1]
        node.advance(400)
        node.answer(send, node.leader_answer(3, high_watermark=LOG_END))
    assert isinstance(node.state.role, Follower)
    assert node.state.role.fetch_deadline_ms == node.now_ms + 1_000


# Leadership.


def test_users_hear_of_each_change_of_leader_once() -> None:
    """The users of a node learn each change of epoch or leader, in order and once."""
    node = ScriptedNode().start()
    node.receive(node.begin_request(2, 4))
    node.receive(node.begin_request(2, 4))
    node.receive(node.vote_request(3, 5))
    node.receive(node.begin_request(3, 5))
    told = [(effect.quorum_epoch, effect.leader_id) for effect in node.of(AnnounceLeader)]
    assert told == [(0, None), (4, 2), (5, None), (5, 3)]
    assert all(first != second for first, second in itertools.pairwise(told))


def test_leader_change_is_the_first_record_of_its_epoch_and_the_only_one() -> None:
    """The control record that opens an epoch comes before every record of a user, and is never repeated."""
    node = ScriptedNode(voters=[1], election=election_state(4), epochs=[(3, 0)], log_end_offset=9).start()
    for _ in range(3):
        node.propose(1)
        node.advance(5_000)
    appends = node.of(AppendAsLeader)
    assert [type(append.content) for append in appends] == [LeaderChange, Proposal, Proposal, Proposal]
    assert [append.base_offset for append in appends] == [9, 10, 11, 12]
    assert {append.quorum_epoch for append in appends} == {5}
