# SPDX-License-Identifier: Apache-2.0
"""Answers of a leader: high watermark, parked fetches; Raft 5.3 and 5.4.2, KIP-595."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.raft.effects import (
    Activate,
    AdvanceCommit,
    Deactivate,
    FlushLog,
    Reply,
    ReplyWithBatches,
)
from metaquorum.raft.events import SnapshotCreated
from metaquorum.raft.messages import (
    FetchResponse,
    Refusal,
)
from metaquorum.raft.roles import Leader
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey, SnapshotId
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key
from metaquorum.tests.raft.steps import fetch, leading


def to_observer(node: ScriptedNode) -> list[tuple[int, int | None]]:
    """Offset and high watermark of the answers with everything that is committed."""
    return [
        (reply.fetch_offset, reply.response.high_watermark)
        for reply in node.of(ReplyWithBatches)
        if reply.response.high_watermark == node.state.log.log_end_offset
    ]


def high_watermarks(node: ScriptedNode) -> list[int | None]:
    """High watermarks of the answers without data since the last `forget`."""
    answers = [reply.response for reply in node.of(Reply)]
    return [answer.high_watermark for answer in answers if isinstance(answer, FetchResponse)]


@pytest.mark.parametrize(
    ("voters", "offsets", "expected"),
    [
        ([1], {}, 5),
        ([1, 2], {2: 0}, None),
        ([1, 2], {2: 1}, 1),
        ([1, 2], {2: 5}, 5),
        ([1, 2, 3], {2: 0, 3: 0}, None),
        ([1, 2, 3], {2: 4, 3: 0}, 4),
        ([1, 2, 3], {2: 4, 3: 5}, 5),
        ([1, 2, 3], {2: 3, 3: 2}, 3),
        ([1, 2, 3, 4], {2: 5, 3: 0, 4: 0}, None),
        ([1, 2, 3, 4], {2: 5, 3: 4, 4: 0}, 4),
        ([1, 2, 3, 4, 5], {2: 5, 3: 4, 4: 1, 5: 0}, 4),
    ],
)
def test_high_watermark_is_what_a_majority_has_flushed(
    voters: list[int], offsets: dict[int, int], expected: int | None
) -> None:
    """Raft 5.3: a record is committed once the leader has it on a majority; KIP-595: by the fetch offsets."""
    node, role = leading(voters)
    node.propose(3)
    assert node.state.log.log_end_offset == 5
    for replica, offset in offsets.items():
        fetch(node, replica, offset)
    assert role.high_watermark == expected


def test_record_of_an_older_epoch_is_not_committed_by_counting() -> None:
    """Raft 5.4.2 and figure 8: only records of the leader's own term are committed by counting replicas."""
    node = ScriptedNode(epochs=[(1, 0)], log_end_offset=8).start().elect()
    assert isinstance(node.state.role, Leader)
    assert node.state.role.epoch_start_offset == 8
    fetch(node, 2, 8, last_epoch=1)
    fetch(node, 3, 8, last_epoch=1)
    assert node.state.role.high_watermark is None
    assert node.of(Activate) == []
    fetch(node, 2, 9, last_epoch=2)
    assert node.state.role.high_watermark == 9
    assert node.of(Activate) == [Activate(quorum_epoch=QuorumEpoch(2), start_offset=Offset(9))]


def test_leader_counts_itself_only_as_far_as_flushed() -> None:
    """RaftFsync specification: a leader that counts unflushed records may commit records that a crash takes back."""
    node, role = leading([1, 2])
    node.auto_disk = False
    node.propose(3)
    fetch(node, 2, 5)
    assert role.high_watermark == 2
    node.complete(node.of(FlushLog)[-1])
    assert role.high_watermark == 5


def test_majority_without_the_leader_commits_before_the_leader_has_flushed() -> None:
    """The leader's disk is one of several; the leader delivers only after its own flush."""
    node, role = leading([1, 2, 3])
    node.auto_disk = False
    node.propose(3)
    fetch(node, 2, 5)
    fetch(node, 3, 5)
    assert role.high_watermark == 5
    assert AdvanceCommit(commit_offset=Offset(5)) not in node.effects
    node.complete(node.of(FlushLog)[-1])
    assert node.of(AdvanceCommit)[-1] == AdvanceCommit(commit_offset=Offset(5))


def test_one_flush_is_under_way_and_takes_what_was_appended_before_it() -> None:
    """Group commit: appends during a flush join the next one."""
    node, _ = leading([1])
    node.forget()
    node.auto_disk = False
    for _ in range(3):
        node.propose()
    assert len(node.of(FlushLog)) == 1
    node.complete(node.of(FlushLog)[0])
    assert node.of(AdvanceCommit)[-1].commit_offset == 3
    assert len(node.of(FlushLog)) == 2
    node.complete(node.of(FlushLog)[1])
    assert node.of(AdvanceCommit)[-1].commit_offset == 5
    assert len(node.of(FlushLog)) == 2


def test_fetch_offset_that_falls_does_not_take_back_what_was_counted() -> None:
    """Requests may arrive out of order; the high watermark never falls."""
    node, role = leading([1, 2, 3])
    node.propose(3)
    fetch(node, 2, 5)
    fetch(node, 2, 2)
    assert role.high_watermark == 5
    assert role.voters[NodeId(2)].end_offset == 5


def test_observer_and_wiped_voter_count_for_nothing() -> None:
    """KIP-595: observers are not counted; KIP-853: neither is a voter's node id on another disk."""
    node, role = leading([1, 2, 3])
    node.propose(3)
    fetch(node, 9, 5)
    wiped = ReplicaKey(node_id=NodeId(2), directory_id=b"a-fresh-disk-000")
    node.receive(replace(node.fetch_request(2, offset=5, last_epoch=1), replica=wiped))
    assert role.high_watermark is None
    assert list(role.observers) == [key(9), wiped]


def test_fetch_below_the_end_is_answered_with_batches_and_the_high_watermark() -> None:
    """KIP-595: records from the fetch offset on, and the high watermark."""
    node, _ = leading([1, 2, 3])
    node.propose(3)
    fetch(node, 2, 5)
    fetch(node, 3, 2)
    reply = node.of(ReplyWithBatches)[-1]
    assert (reply.fetch_offset, reply.max_bytes) == (2, 1_000_000)
    assert reply.response.high_watermark == 5


def test_fetch_at_the_end_waits_for_new_data() -> None:
    """KIP-595: a fetch with nothing to send is parked; an append answers it at once."""
    node, _ = leading([1, 2, 3])
    assert fetch(node, 2, 2) is None
    assert fetch(node, 2, 2, high_watermark=2) is None
    node.forget()
    node.propose()
    assert [reply.fetch_offset for reply in node.of(ReplyWithBatches)] == [2]


def test_voter_hears_of_a_commit_with_the_next_data_or_a_little_later() -> None:
    """KIP-595 answers at once when the high watermark moved; here no voter waits for it, and this saves an exchange."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 2, high_watermark=2)
    node.propose(3)
    node.forget()
    assert fetch(node, 2, 5, high_watermark=2) is None
    assert role.high_watermark == 5
    assert node.of(Reply) == []
    node.advance(9)
    assert node.of(Reply) == []
    node.advance(1)
    assert high_watermarks(node) == [5]
    assert fetch(node, 2, 5, high_watermark=5) is None
    node.propose()
    assert [reply.response.high_watermark for reply in node.of(ReplyWithBatches)] == [5]


def test_parked_voter_hears_a_little_later_that_the_high_watermark_moved() -> None:
    """The time runs from the commit, not from the fetch."""
    node, role = leading([1, 2, 3])
    node.auto_disk = False
    node.propose(3)
    fetch(node, 2, 2)
    assert fetch(node, 2, 5, high_watermark=2) is None
    node.advance(100)
    node.forget()
    assert fetch(node, 3, 5, high_watermark=2) is None
    assert role.high_watermark == 5
    node.advance(9)
    assert high_watermarks(node) == []
    node.advance(1)
    assert high_watermarks(node) == [5, 5]
    assert len(role.parked) == 0
    node.advance(1_000)
    assert high_watermarks(node) == [5, 5]


def test_observer_is_sent_what_is_committed() -> None:
    """It uses only committed records, so it needs one exchange for each commit and not two."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 2, high_watermark=2)
    assert fetch(node, 9, 2, high_watermark=2) is None
    node.advance(10)
    node.forget()
    node.propose(3)
    assert [reply.fetch_offset for reply in node.of(ReplyWithBatches)] == [2]
    fetch(node, 2, 5, high_watermark=2)
    assert [(reply.fetch_offset, reply.response.high_watermark) for reply in node.of(ReplyWithBatches)][1:] == [(2, 5)]
    assert key(9) in role.observers


def test_observer_hears_of_commits_in_a_row_together() -> None:
    """The first commit after a pause is sent at once; those within the next 10 ms share one exchange."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 2, high_watermark=2)
    assert fetch(node, 9, 2, high_watermark=2) is None
    node.forget()
    node.propose()
    fetch(node, 2, 3, high_watermark=2)
    node.advance(4)
    node.propose()
    fetch(node, 2, 4, high_watermark=3)
    assert role.high_watermark == 4
    assert to_observer(node) == []
    node.advance(5)
    assert to_observer(node) == []
    node.advance(1)
    assert to_observer(node) == [(2, 4)]


def test_observer_that_comes_right_after_a_commit_waits_for_the_next_ones() -> None:
    """It had everything at its last fetch; an observer that is behind is answered at once, whatever it asks for."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 2, high_watermark=2)
    assert fetch(node, 9, 2, high_watermark=2) is None
    node.advance(10)
    node.propose()
    fetch(node, 2, 3, high_watermark=2)
    node.propose()
    fetch(node, 2, 4, high_watermark=3)
    assert role.high_watermark == 4
    node.forget()
    assert fetch(node, 9, 3, high_watermark=3) is None
    assert to_observer(node) == []
    node.advance(10)
    assert to_observer(node) == [(3, 4)]
    node.propose(3)
    fetch(node, 2, 7, high_watermark=4)
    node.forget()
    fetch(node, 8, 2, high_watermark=2)
    fetch(node, 8, 3, high_watermark=2)
    assert to_observer(node) == [(2, 7), (3, 7)]


def test_observer_whose_fetch_waited_while_the_log_was_trimmed_gets_the_snapshot() -> None:
    """The requested records are gone when its answer is due."""
    node, _ = leading([1, 2, 3], kept_snapshots=1)
    fetch(node, 2, 2, high_watermark=2)
    assert fetch(node, 9, 2, high_watermark=2) is None
    node.propose()
    fetch(node, 2, 3, high_watermark=2)
    fetch(node, 3, 3, high_watermark=2)
    snapshot = SnapshotId(end_offset=Offset(3), epoch=node.state.quorum_epoch)
    node.step(SnapshotCreated(snapshot=snapshot))
    assert node.state.log.log_start_offset == 3
    node.forget()
    node.advance(10)
    answers = [reply.response for reply in node.of(Reply) if isinstance(reply.response, FetchResponse)]
    assert [answer.snapshot for answer in answers if answer.snapshot is not None] == [snapshot]
    assert to_observer(node) == []


def test_parked_fetch_is_answered_at_its_deadline_which_the_leader_bounds() -> None:
    """A fetch waits no longer than it asks for, and no longer than the leader allows."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 2)
    assert fetch(node, 2, 2, high_watermark=2, max_wait_ms=100) is None
    assert fetch(node, 3, 2, high_watermark=2, max_wait_ms=100_000) is None
    node.forget()
    node.advance(99)
    assert node.of(Reply) == []
    node.advance(1)
    assert len(node.of(Reply)) == 1
    node.advance(300)
    assert len(node.of(Reply)) == 2
    assert len(role.parked) == 0


def test_fetch_that_does_not_want_to_wait_is_answered_at_once() -> None:
    """A node that only looks for the leader asks with no waiting time."""
    node, _ = leading([1, 2, 3])
    fetch(node, 2, 2)
    answer = fetch(node, 2, 2, high_watermark=2, max_wait_ms=0)
    assert answer is not None
    assert answer.refusal is None


def test_newer_fetch_of_a_replica_takes_the_place_of_its_parked_one() -> None:
    """A replica that asks again has given the older request up; the leader answers the older one so that nothing leaks."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 2)
    fetch(node, 2, 2, high_watermark=2)
    node.forget()
    assert fetch(node, 2, 2, high_watermark=2) is None
    assert len(node.of(Reply)) == 1
    assert len(role.parked) == 1


def test_parked_fetches_are_bounded() -> None:
    """Beyond the limit a fetch is answered at once instead of parked."""
    node, role = leading([1, 2, 3], max_parked_fetches=1)
    fetch(node, 2, 2)
    assert fetch(node, 3, 2, high_watermark=2) is not None
    assert len(role.parked) == 1


def test_parked_fetches_are_refused_when_leadership_ends() -> None:
    """KIP-595: a fetch that waits at a former leader is refused, with the new leader if it is known."""
    node, _ = leading([1, 2, 3])
    fetch(node, 2, 2)
    fetch(node, 2, 2, high_watermark=2)
    node.forget()
    node.receive(node.begin_request(3, 9))
    (parked,) = [r.response for r in node.of(Reply) if isinstance(r.response, FetchResponse)]
    assert parked == FetchResponse(
        quorum_epoch=QuorumEpoch(9), leader_id=NodeId(3), leader_address="n3", refusal=Refusal.NOT_LEADER
    )
    assert node.of(Deactivate) == [Deactivate(quorum_epoch=QuorumEpoch(1))]


def test_commit_of_the_step_that_ends_the_leadership_is_delivered_before_its_end() -> None:
    """On a slow disk the leader's flush completes a majority after no voter has fetched for too long."""
    node, _ = leading([1, 2, 3])
    fetch(node, 2, 2)
    node.auto_disk = False
    node.propose()
    (flush,) = node.of(FlushLog)[-1:]
    fetch(node, 2, 3)
    node.forget()
    node.now_ms += node.config.check_quorum_timeout_ms
    node.complete(flush)
    assert node.role == "Resigned"
    kinds = [type(effect) for effect in node.effects if isinstance(effect, AdvanceCommit | Deactivate)]
    assert kinds == [AdvanceCommit, Deactivate]


def test_leader_that_was_never_active_is_not_deactivated() -> None:
    """Users see the end of a leadership only if they saw its start."""
    node, _ = leading([1, 2, 3])
    node.receive(node.begin_request(3, 9))
    assert node.of(Deactivate) == []


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"cluster_id": "another"}, Refusal.WRONG_CLUSTER),
        ({"quorum_epoch": QuorumEpoch(0)}, Refusal.FENCED_EPOCH),
        ({"quorum_epoch": QuorumEpoch(2)}, Refusal.UNKNOWN_EPOCH),
        ({"replica": key(1)}, Refusal.INVALID_REQUEST),
        ({"last_fetched_epoch": QuorumEpoch(2)}, Refusal.INVALID_REQUEST),
        ({"last_fetched_epoch": QuorumEpoch(0)}, Refusal.INVALID_REQUEST),
        ({"fetch_offset": Offset(0)}, Refusal.INVALID_REQUEST),
    ],
)
def test_fetch_is_checked(change: dict[str, object], refusal: Refusal) -> None:
    """KIP-595: cluster, then epoch, then the fields; a refused fetch changes nothing."""
    node, role = leading([1, 2, 3])
    request = replace(node.fetch_request(2, offset=2, last_epoch=1), **change)  # pyright: ignore
    answer = node.receive(request)
    assert isinstance(answer, FetchResponse)
    assert answer.refusal is refusal
    assert (answer.quorum_epoch, answer.leader_id, answer.leader_address) == (1, 1, "n1")
    assert role.voters[NodeId(2)].last_fetch_ms is None
    assert node.state.quorum_epoch == 1


def test_follower_names_its_leader_to_those_who_fetch_from_it() -> None:
    """KIP-595: any node that knows the leader names it with its address."""
    node = ScriptedNode(election=election_state(4, leader=2)).start()
    answer = node.receive(node.fetch_request(9, offset=0, last_epoch=0))
    assert answer == FetchResponse(
        quorum_epoch=QuorumEpoch(4), leader_id=NodeId(2), leader_address="n2", refusal=Refusal.NOT_LEADER
    )
