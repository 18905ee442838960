# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-279 (logs that part in fast leader fail-overs); `docs/normative_replication.md` has all of them."""

from __future__ import annotations

import pytest

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.tests.replica_logs import answer, content, copy, open_logs, reconcile, write
from storage.testing.sim_disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    """An empty disk."""
    made = SimDisk()
    made.make_directory("/data")
    return made


def test_follower_that_lacks_the_leaders_epoch_is_cut_below_the_end_that_it_was_told(disk: SimDisk) -> None:
    """kip-279-case-1: by the leader's end alone the follower would keep records that differ from those in the leader's log."""
    leader, follower = open_logs(disk, "a", "b")
    write(leader, (1, 5, "both"))
    copy(leader, follower)
    write(leader, (1, 5, "a"), (3, 5, "a"))
    write(follower, (2, 10, "b"))
    assert reconcile(leader, follower) == [(EpochEnd(1, 10), 5)]
    copy(leader, follower)
    assert content(follower) == content(leader)


def test_each_round_compares_an_older_epoch(disk: SimDisk) -> None:
    """kip-279-cut-3: leaders that alternate without hearing of each other leave several places where logs diverge."""
    leader, follower = open_logs(disk, "a", "b")
    write(leader, (0, 5, "both"))
    copy(leader, follower)
    write(leader, (1, 3, "a"), (3, 4, "a"), (5, 4, "a"))
    write(follower, (2, 5, "b"), (4, 6, "b"))
    assert reconcile(leader, follower) == [(EpochEnd(3, 12), 10), (EpochEnd(1, 8), 5)]
    copy(leader, follower)
    assert content(follower) == content(leader)


def test_leader_that_began_an_epoch_without_a_record_answers_with_the_one_before(disk: SimDisk) -> None:
    """kip-279-answer-3: an epoch without a record says nothing about the content of a log."""
    leader, follower = open_logs(disk, "a", "b")
    write(leader, (1, 5, "both"))
    copy(leader, follower)
    leader.assign_epoch(2)
    leader.assign_epoch(4)
    write(follower, (3, 2, "b"))
    assert reconcile(leader, follower) == [(EpochEnd(1, 5), 5)]
    assert content(follower) == content(leader)


def test_follower_with_an_epoch_above_all_of_the_leaders_is_not_guessed_about(disk: SimDisk) -> None:
    """kip-279-answer-4: no epoch of the leader limits what may agree, so it refuses instead."""
    (leader,) = open_logs(disk, "a")
    write(leader, (1, 5, "a"))
    assert answer(leader, last_epoch=2, end=3) is SubscriptionError.LOG_AHEAD
