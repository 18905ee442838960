# SPDX-License-Identifier: Apache-2.0
"""A leader: check quorum, reminders, proposals, progress of replicas; KIP-595."""

from __future__ import annotations

from dataclasses import replace

from metaquorum.raft.effects import (
    AppendAsLeader,
    Rejection,
    RejectProposal,
    Reply,
    Send,
)
from metaquorum.raft.events import Tick
from metaquorum.raft.messages import (
    BeginQuorumEpochResponse,
    PreVoteRequest,
    Refusal,
    VoteResponse,
)
from metaquorum.raft.types import NodeId, QuorumEpoch
from metaquorum.testing.scripted_node import CLUSTER_ID, ScriptedNode, election_state, key
from metaquorum.tests.raft.steps import begins, fetch, leading


def test_leader_resigns_when_no_majority_fetched_for_one_and_a_half_fetch_timeouts() -> None:
    """KIP-595 check-quorum: 1.5 times the fetch timeout."""
    node, _ = leading([1, 2, 3])
    node.advance(1_000)
    fetch(node, 2, 0)
    node.advance(1_499)
    assert node.role == "Leader"
    node.advance(1)
    assert node.role == "Resigned"


def test_leader_whose_time_is_up_resigns_at_a_proposal_too() -> None:
    """Where proposals come faster than ticks, they must not keep a leader without a majority."""
    node, _ = leading([1, 2, 3])
    for _ in range(3):
        node.now_ms += 499
        node.propose()
        assert node.role == "Leader"
    node.now_ms += 3
    node.propose()
    assert node.role == "Resigned"


def test_fetches_of_observers_do_not_keep_a_leader() -> None:
    """KIP-595: only voters count; a leader cut off with its observers must resign."""
    node, _ = leading([1, 2, 3])
    for _ in range(15):
        fetch(node, 9, 0)
        node.advance(100)
    assert node.role == "Resigned"


def test_majority_of_five_needs_two_others() -> None:
    """The leader counts itself, so with five voters the second latest of the others decides."""
    node, _ = leading([1, 2, 3, 4, 5])
    node.advance(1_000)
    fetch(node, 2, 0)
    node.advance(499)
    assert node.role == "Leader"
    node.advance(1)
    assert node.role == "Resigned"


def test_only_voter_never_resigns_for_want_of_fetches() -> None:
    """A quorum of one always has its majority."""
    node, _ = leading([1])
    assert node.raft.deadline_ms() is None
    node.advance(100_000)
    assert node.role == "Leader"


def test_voter_that_does_not_fetch_is_reminded_and_one_that_fetches_is_not() -> None:
    """KIP-595: BeginQuorumEpoch is repeated for half a fetch timeout without a fetch; a fetch acknowledges it."""
    node = ScriptedNode().start()
    node.advance(500)
    node.answer(
        node.sent(PreVoteRequest)[0][0], VoteResponse(quorum_epoch=QuorumEpoch(0), leader_id=None, granted=True)
    )
    for send in [send for send in node.of(Send) if type(send.request).__name__ == "VoteRequest"]:
        node.answer(send, VoteResponse(quorum_epoch=QuorumEpoch(1), leader_id=None, granted=True))
    acknowledged = BeginQuorumEpochResponse(quorum_epoch=QuorumEpoch(1), leader_id=NodeId(1))
    for voter in (2, 3):
        node.answer(begins(node, voter)[0], acknowledged)
    for _ in range(6):
        fetch(node, 2, 0)
        node.advance(100)
    assert len(begins(node, 2)) == 1
    assert len(begins(node, 3)) == 2
    node.fail(begins(node, 3)[1])
    node.advance(20)
    assert len(begins(node, 3)) == 3
    refused = replace(acknowledged, refusal=Refusal.INVALID_VOTER_KEY)
    node.answer(begins(node, 3)[2], refused)
    node.advance(40)
    assert len(begins(node, 3)) == 4
    node.fail(begins(node, 3)[0])
    node.advance(2)
    assert len(begins(node, 3)) == 4


def test_reminder_without_an_answer_is_repeated_after_the_request_timeout() -> None:
    """A lost request does not stop the reminders."""
    node, _ = leading([1, 2, 3], request_timeout_ms=100)
    for _ in range(3):
        fetch(node, 2, 0)
        node.advance(100)
    assert len(begins(node, 3)) >= 2


def test_lost_announcement_is_repeated_before_an_election_would_begin() -> None:
    """With the default times a voter that missed the announcement gets the next one before it starts an election."""
    node, _ = leading([1, 2, 3])
    sent = len(begins(node, 3))
    node.advance(200)
    assert len(begins(node, 3)) == sent + 1


def test_late_answers_to_a_former_leader_do_nothing() -> None:
    """Answers to reminders of an ended leadership only carry their epoch."""
    node = ScriptedNode().start().elect()
    node.now_ms += 1
    node.step(Tick())
    node.advance(1_500)
    sends = begins(node, 3)
    assert node.role == "Resigned"
    node.answer(sends[-1], BeginQuorumEpochResponse(quorum_epoch=QuorumEpoch(1), leader_id=NodeId(1)))
    node.fail(sends[-1])
    assert node.role == "Resigned"
    node.answer(sends[-1], BeginQuorumEpochResponse(quorum_epoch=QuorumEpoch(4), leader_id=NodeId(3)))
    assert node.role == "Follower"


def test_proposal_gets_its_offsets_at_once_and_counts_against_the_limits_until_committed() -> None:
    """Uncommitted bytes and batches are bounded; commits give room back."""
    node, role = leading([1, 2, 3], max_uncommitted_bytes=250)
    (append, *_) = [effect for effect in node.propose(3) if isinstance(effect, AppendAsLeader)]
    assert (append.base_offset, append.next_offset, append.quorum_epoch) == (2, 5, 1)
    node.propose(1)
    assert role.uncommitted_bytes == 200
    node.propose(1)
    assert node.of(RejectProposal)[-1].reason is Rejection.BUSY
    fetch(node, 2, 5)
    assert role.uncommitted_bytes == 100
    node.propose(1)
    assert len(node.of(RejectProposal)) == 1


def test_number_of_uncommitted_batches_is_bounded() -> None:
    """Tiny batches must not grow the leader's memory without bound either."""
    node, _ = leading([1, 2, 3], max_uncommitted_batches=1)
    node.propose()
    node.propose()
    assert [reject.reason for reject in node.of(RejectProposal)] == [Rejection.BUSY]


def test_rejected_proposal_leaves_no_trace() -> None:
    """A proposal for another epoch, a too large one, or one at a follower is not appended."""
    node, _ = leading([1, 2, 3], max_batch_bytes=1_000)
    end_offset = node.state.log.log_end_offset
    node.propose(epoch=2)
    node.propose(size_bytes=1_001)
    assert [reject.reason for reject in node.of(RejectProposal)] == [Rejection.NOT_LEADER, Rejection.TOO_LARGE]
    assert node.state.log.log_end_offset == end_offset
    follower = ScriptedNode(election=election_state(3, leader=2)).start()
    follower.propose()
    assert follower.of(RejectProposal)[0].reason is Rejection.NOT_LEADER


def test_progress_of_replicas_tells_who_has_caught_up_and_when() -> None:
    """KIP-595 DescribeQuorum: a replica has caught up when it has every record of the time of its last fetch."""
    node, role = leading([1, 2, 3])
    progress = role.voters[NodeId(2)]
    start_ms = node.now_ms
    fetch(node, 2, 0)
    assert progress.last_caught_up_ms is None
    node.now_ms += 10
    node.propose(2)
    fetch(node, 2, 2)
    assert progress.last_caught_up_ms == start_ms
    node.now_ms += 10
    fetch(node, 2, 4)
    assert progress.last_caught_up_ms == start_ms + 20
    node.propose(2)
    fetch(node, 2, 3)
    assert progress.last_caught_up_ms == start_ms + 20


def test_silent_observers_are_forgotten_and_their_number_is_bounded() -> None:
    """Observer sessions end; an observer beyond the limit is served and not remembered."""
    node, role = leading([1, 2, 3], observer_session_ms=600, max_observers=2)
    fetch(node, 8, 0)
    node.advance(300)
    fetch(node, 9, 0)
    assert fetch(node, 10, 0, max_wait_ms=0) is not None
    assert [observer.node_id for observer in role.observers] == [8, 9]
    node.advance(300)
    fetch(node, 10, 0)
    assert [observer.node_id for observer in role.observers] == [9, 10]
    fetch(node, 9, 0)
    assert [observer.node_id for observer in role.observers] == [10, 9]


def test_cluster_id_of_the_script_is_the_nodes() -> None:
    """Guards the script itself."""
    assert ScriptedNode().state.identity.cluster_id == CLUSTER_ID


def test_fetch_that_knows_more_than_the_leader_stays_parked() -> None:
    """A replica that knows a higher high watermark than the leader's gains nothing from a lower one."""
    node, role = leading([1, 2, 3])
    node.auto_disk = False
    node.propose(3)
    fetch(node, 2, 2)
    assert fetch(node, 9, 5, high_watermark=99) is None
    assert fetch(node, 2, 5, high_watermark=2) is None
    node.forget()
    fetch(node, 3, 5, high_watermark=2)
    assert role.high_watermark == 5
    node.advance(10)
    assert [fetch.request.replica for fetch in role.parked] == [key(9)]
    assert len(node.of(Reply)) == 2
