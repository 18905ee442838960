# SPDX-License-Identifier: Apache-2.0
"""The counters of a running core, under a clock that only the test moves."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import AdvanceCommit, AppendAsFollower, AppendAsLeader, Proposal, TruncateLog
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.replica.latency_window import BUCKETS_S, MAX_SLOTS, SLOT_S, LatencyWindow
from metaquorum.replica.quorum_metrics import LoopClock, QuorumMeter
from metaquorum.testing.scripted_node import ScriptedNode, batches


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def append(base: int, following: int) -> AppendAsLeader:
    """A leader appends one batch."""
    return AppendAsLeader(
        base_offset=Offset(base),
        next_offset=Offset(following),
        quorum_epoch=QuorumEpoch(1),
        content=Proposal(proposal_id=1),
    )


def commit(offset: int) -> AdvanceCommit:
    """Everything below is committed."""
    return AdvanceCommit(commit_offset=Offset(offset))


def test_window_tells_sums_for_ever_and_average_and_maximum_of_the_last_minute() -> None:
    """Samples older than the window stay in sum and buckets; the bounds of buckets are inclusive."""
    window = LatencyWindow()
    empty = window.read(now_s=0.0)
    assert (empty.count, empty.sum_s, empty.recent_avg_s, empty.recent_max_s) == (0, 0.0, None, None)
    window.note(BUCKETS_S[0], now_s=0.0)
    window.note(BUCKETS_S[-1] + 1, now_s=1.0)
    window.note(0.003, now_s=SLOT_S * (MAX_SLOTS - 1))
    full = window.read(now_s=SLOT_S * MAX_SLOTS - 0.1)
    assert full.count == 3
    assert (full.bucket_counts[0], full.bucket_counts[-1]) == (1, 1)
    assert full.recent_max_s == BUCKETS_S[-1] + 1
    assert full.recent_avg_s == pytest.approx(full.sum_s / 3)
    later = window.read(now_s=SLOT_S * MAX_SLOTS)
    assert (later.count, later.sum_s) == (3, full.sum_s)
    assert (later.recent_avg_s, later.recent_max_s) == (0.003, 0.003)
    assert window.read(now_s=SLOT_S * 100).recent_max_s is None


def test_one_record_of_those_that_wait_is_timed_to_its_commit() -> None:
    """The next record is timed from that commit on; a commit below the timed record does not end its time."""
    clock = Clock()
    meter = QuorumMeter(clock, quorum_epoch=0)
    meter.note(append(0, 3))
    clock.now_s += 0.25
    meter.note(append(3, 4))
    meter.note(commit(2))
    assert meter.read().commits.count == 0
    clock.now_s += 0.25
    meter.note(commit(4))
    reading = meter.read()
    assert (reading.commits.count, reading.commits.sum_s) == (1, 0.5)
    assert reading.appended_records == 4
    meter.note(commit(5))
    meter.note(append(4, 5))
    clock.now_s += 1
    meter.note(commit(5))
    assert meter.read().commits.recent_max_s == 1.0


def test_records_and_cuts_are_counted() -> None:
    """A follower's records are fetched and appended."""
    meter = QuorumMeter(Clock(), quorum_epoch=0)
    meter.note(AppendAsFollower(batches=batches((5, 7, 1), (7, 10, 1))))
    meter.note(TruncateLog(to_offset=Offset(6)))
    reading = meter.read()
    assert (reading.appended_records, reading.fetched_records, reading.truncations) == (5, 5, 1)


def test_election_is_timed_from_the_loss_of_the_leader_to_the_next_one() -> None:
    """A leader that returns in its own epoch is not an election; the record whose commit was being timed is dropped."""
    clock = Clock()
    node = ScriptedNode().start()
    meter = QuorumMeter(clock, quorum_epoch=node.state.quorum_epoch)
    meter.settled(node.state)
    clock.now_s += 2
    node.follow(2, 1)
    meter.settled(node.state)
    assert (meter.read().elections.count, meter.read().elections.sum_s) == (1, 2.0)
    node.advance(1_000)
    assert node.role == "Prospective"
    meter.settled(node.state)
    clock.now_s += 5
    while node.role != "Follower":
        node.advance(10)
    meter.settled(node.state)
    assert meter.read().elections.count == 1, "the same leader, of the same epoch"
    node.forget()
    node.elect()
    meter.note(append(0, 1))
    meter.settled(node.state)
    elected = meter.read()
    assert elected.elections.count == 2
    clock.now_s += 3
    node.receive(node.vote_request(3, int(node.state.quorum_epoch) + 1))
    meter.settled(node.state)
    clock.now_s += 4
    meter.settled(node.state)
    node.follow(3, int(node.state.quorum_epoch))
    meter.settled(node.state)
    reading = meter.read()
    assert (reading.elections.count, reading.elections.recent_max_s) == (3, 4.0)
    meter.note(commit(1))
    assert meter.read().commits.count == 0, "a deposed leader times nothing"


def test_idle_share_of_the_loop_is_that_since_the_last_look() -> None:
    """The first reading has no earlier one; rounding never gives a share above 1 or below 0."""
    clock, busy = Clock(), Clock()
    loop = LoopClock(thread_s=busy, now_s=clock)
    assert loop.read() == (1_000.0, None)
    clock.now_s += 10
    busy.now_s += 2.5
    assert loop.read() == (1_002.5, 0.75)
    assert loop.read() == (1_002.5, None), "no time has passed"
    clock.now_s += 1
    busy.now_s += 2
    assert loop.read()[1] == 0.0
    real_s, ratio = LoopClock().read()
    assert real_s > 0
    assert ratio is None
