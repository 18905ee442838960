# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-101 (truncation by leader epochs); `docs/normative_replication.md` has all of them."""

from __future__ import annotations

import pytest

from brokerd.partition.effects import (
    BeginLeaderEpoch,
    Effect,
    ForgetEmptyEpoch,
    RestartLog,
    Subscribe,
    TruncateLog,
    Unsubscribe,
)
from brokerd.partition.reconciliation import EpochEnd
from brokerd.tests.replica_logs import answer, content, copy, open_logs, reconcile, write
from brokerd.tests.replication_support import Replica, changed, image
from storage.log.partition_log import PartitionLog
from storage.testing.builders import open_log
from storage.testing.sim_disk import SimDisk
from storage.tests.support import kill


@pytest.fixture
def disk() -> SimDisk:
    """An empty disk."""
    made = SimDisk()
    made.make_directory("/data")
    return made


def cuts(effects: list[Effect]) -> list[Effect]:
    """Return the effects that remove records."""
    return [effect for effect in effects if isinstance(effect, TruncateLog | RestartLog)]


def epoch_ends(log: PartitionLog) -> list[tuple[int, int] | None]:
    """Return a log's answers for the epochs 0 to 8."""
    found = [log.end_offset_for_epoch(epoch) for epoch in range(9)]
    return [None if each is None else (each.epoch, each.end_offset) for each in found]


@pytest.mark.parametrize("is_clean", [True, False])
def test_epochs_and_their_starts_survive_the_process(disk: SimDisk, is_clean: bool) -> None:
    """kip-101-cache-2: each epoch with its first offset is on disk, after a clean shutdown and after a kill."""
    (log,) = open_logs(disk, "a")
    write(log, (1, 3, "a"), (4, 2, "a"), (7, 1, "a"))
    before = epoch_ends(log)
    assert before == [(0, 0), (1, 3), (1, 3), (1, 3), (4, 5), (4, 5), (4, 5), (7, 6), None]
    if is_clean:
        log.close()
    else:
        log.flush()
        kill(disk)
    assert epoch_ends(open_log(disk, "/data/a").log) == before


def test_follower_notes_an_epoch_with_its_first_record(disk: SimDisk) -> None:
    """kip-101-cache-4: a replica that has copied the records answers for their epochs as its leader does."""
    leader, follower = open_logs(disk, "a", "b")
    write(leader, (1, 3, "a"), (4, 2, "a"), (7, 1, "a"))
    copy(leader, follower)
    assert content(follower) == content(leader)
    assert epoch_ends(follower) == epoch_ends(leader)


def test_leader_that_dropped_an_epoch_answers_with_the_start_of_what_it_has(disk: SimDisk) -> None:
    """kip-101-answer-5: records from before its oldest epoch cannot agree beyond the start of that epoch."""
    (leader,) = open_logs(disk, "a")
    write(leader, (1, 3, "a"), (4, 5, "a"))
    leader.truncate_prefix(5, 0)
    assert answer(leader, last_epoch=1, end=7) == EpochEnd(1, 5)
    assert answer(leader, last_epoch=1, end=5) is None


def test_follower_cuts_nothing_by_its_high_watermark() -> None:
    """kip-101-cut-1: it knows of three committed records, has twenty, and asks its leader about twenty."""
    replica = Replica(end=20, last_epoch=4, high_watermark=3)
    effects = replica.step(changed(image(leader_id=2)))
    asked = Subscribe(leader_id=2, leader_epoch=5, session=1, log_end_offset=20, flushed_offset=20, last_epoch=4)
    assert effects == [ForgetEmptyEpoch(), asked]


def test_restarted_follower_that_is_elected_keeps_what_it_has() -> None:
    """kip-101-case-1: its high watermark is behind, and its leader fails before it answers. Nothing committed is lost."""
    replica = Replica(end=2, last_epoch=4, high_watermark=1)
    effects = replica.step(changed(image(leader_id=2)))
    effects += replica.step(changed(image(leader_id=1, leader_epoch=6, partition_epoch=8)))
    assert cuts(effects) == []
    assert effects[-2:] == [Unsubscribe(leader_id=2, session=1), BeginLeaderEpoch(leader_epoch=6)]
    assert replica.core.log_end_offset == 2
    leadership = replica.core.roles.leadership
    assert leadership is not None
    assert leadership.epoch_start_offset == 2


def test_logs_that_parted_at_one_offset_are_made_equal(disk: SimDisk) -> None:
    """kip-101-case-2: after a power loss both have different records at the same offset. The leader's record stays, in both."""
    first, second = open_logs(disk, "a", "b")
    for log in (first, second):
        write(log, (0, 1, "both"))
    write(first, (0, 1, "a"))
    write(second, (1, 1, "b"))
    assert reconcile(second, first) == [(EpochEnd(0, 1), 1)]
    copy(second, first)
    assert content(first) == content(second) == [(0, b"0 by both"), (1, b"1 by b")]


def test_records_that_only_a_deposed_leader_has_go(disk: SimDisk) -> None:
    """kip-101-case-3: no replica copied them, and the next leader begins its epoch below them."""
    deposed, leader = open_logs(disk, "a", "b")
    write(deposed, (1, 4, "a"))
    copy(deposed, leader)
    write(deposed, (1, 3, "a"))
    write(leader, (2, 2, "b"))
    assert reconcile(leader, deposed) == [(EpochEnd(1, 4), 4)]
    copy(leader, deposed)
    assert content(deposed) == content(leader)
    assert leader.log_end_offset == 6


def test_follower_whose_log_is_a_prefix_is_cut_nowhere(disk: SimDisk) -> None:
    """kip-101-cut-4: the leader's epoch ends at or beyond the follower's log end."""
    leader, follower = open_logs(disk, "a", "b")
    write(leader, (1, 4, "a"))
    copy(leader, follower)
    write(leader, (1, 4, "a"), (3, 1, "a"))
    assert reconcile(leader, follower) == []
    assert follower.log_end_offset == 4
