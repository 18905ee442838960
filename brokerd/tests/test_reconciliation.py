# SPDX-License-Identifier: Apache-2.0
"""Where two logs diverge: KIP-101, KIP-279, Kafka's PartitionTest.testLastFetchedOffsetValidation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError, compared, truncation_offset
from brokerd.tests.replication_nodes import Entry, SimLog

LOG_START = 0


def leader_log() -> SimLog:
    """Epochs 0: 0-1, 3: 2-7, 4: 8-12, 7: 13, 9: 14-16; the present one is 10."""
    log = SimLog()
    for epoch, count in ((0, 2), (3, 6), (4, 5), (7, 1), (9, 3)):
        for _ in range(count):
            log.append(Entry(epoch, log.end))
    log.assign_epoch(10)
    return log


def ask(
    log: SimLog, last_epoch: int | None, end: int, *, start: int = 0, hidden_from: int | None = None
) -> EpochEnd | SubscriptionError | None:
    """Compare a follower's end with a log."""
    return compared(
        last_epoch=last_epoch,
        follower_end_offset=end,
        epoch_end=log.epoch_end(last_epoch),
        hidden_from=hidden_from,
        log_start_offset=start,
        log_end_offset=log.end,
    )


@pytest.mark.parametrize(
    ("last_epoch", "end", "answer"),
    [
        (2, 5, EpochEnd(0, 2)),
        (0, 4, EpochEnd(0, 2)),
        (6, 6, EpochEnd(4, 13)),
        (5, 9, EpochEnd(4, 13)),
        (10, 18, EpochEnd(10, 17)),
        (0, 2, None),
        (7, 14, None),
        (9, 17, None),
        (10, 17, None),
        (11, 5, SubscriptionError.LOG_AHEAD),
    ],
)
def test_leader_answers_with_its_largest_epoch_not_above_the_followers(
    last_epoch: int, end: int, answer: EpochEnd | SubscriptionError | None
) -> None:
    """The table of Kafka's PartitionTest.testLastFetchedOffsetValidation."""
    assert ask(leader_log(), last_epoch, end) == answer


def test_follower_below_the_log_start_is_told_so() -> None:
    """Its log cannot be continued, whatever its epoch is."""
    assert ask(leader_log(), 3, 4, start=5) is SubscriptionError.BELOW_LOG_START


@pytest.mark.parametrize(
    ("last_epoch", "end", "is_said"),
    [(3, 5, True), (3, 6, True), (3, 7, False), (3, 8, False), (3, 9, False), (1, 2, False), (2, 8, False)],
)
def test_end_that_damage_hides_is_not_said(last_epoch: int, end: int, is_said: bool) -> None:
    """Damage up to offset 8 may hide the first records of epoch 4. Only a log that ends before it is known to be a prefix."""
    log = leader_log()
    assert ask(log, last_epoch, end, hidden_from=6) is (None if is_said else SubscriptionError.STORAGE_FAILED)


def test_follower_without_records_is_a_prefix_up_to_the_leaders_end() -> None:
    """An empty log has no epoch to compare. One that begins beyond the leader's end goes back to that end."""
    assert ask(leader_log(), None, 17) is None
    assert ask(leader_log(), None, 18) == EpochEnd(None, 17)


@pytest.mark.parametrize(
    ("leader_end", "own_end", "end", "cut"),
    [
        (EpochEnd(3, 8), EpochEnd(3, 6), 20, 6),
        (EpochEnd(3, 8), EpochEnd(3, 12), 20, 8),
        (EpochEnd(3, 8), EpochEnd(2, 5), 20, 5),
        (EpochEnd(3, 8), EpochEnd(2, 11), 20, 8),
        (EpochEnd(3, 8), EpochEnd(3, 20), 7, 7),
        (EpochEnd(None, 8), None, 20, 8),
    ],
    ids=["own epoch ends first", "leader's ends first", "own lacks it", "own lacks it, and is long", "short", "none"],
)
def test_follower_cuts_to_the_lowest_of_the_ends(
    leader_end: EpochEnd, own_end: EpochEnd | None, end: int, cut: int
) -> None:
    """KIP-279: if the follower does not have the leader's epoch, its own older epochs limit what may agree."""
    assert truncation_offset(leader_end=leader_end, own_end=own_end, log_end_offset=end) == cut


def reconcile(leader: SimLog, follower: SimLog) -> int:
    """Let a follower subscribe and truncate until its log is a prefix. Return the number of rounds."""
    rounds = 0
    follower.truncate(follower.end)
    while (answer := ask(leader, follower.last_epoch, follower.end)) is not None:
        assert isinstance(answer, EpochEnd), answer
        own_end = follower.epoch_end(answer.epoch)
        before = (follower.end, follower.last_epoch)
        follower.truncate(truncation_offset(leader_end=answer, own_end=own_end, log_end_offset=follower.end))
        assert (follower.end, follower.last_epoch) != before, f"no progress at {before}"
        rounds += 1
    return rounds


LEADERSHIPS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 4), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=3)
    ),
    min_size=1,
    max_size=8,
)


@given(LEADERSHIPS)
def test_rounds_of_subscriptions_make_any_follower_a_prefix(
    leaderships: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    """Kafka's testDivergingEpochs, for all histories of three logs: any of them may lead, and some follow and copy a part."""
    logs = [SimLog() for _ in range(3)]
    value = 0
    for epoch, (leader_index, appended, copies) in enumerate(leaderships):
        leader = logs[leader_index]
        leader.assign_epoch(epoch)
        for _ in range(appended):
            value += 1
            leader.append(Entry(epoch, value))
        for index, count in copies:
            if index != leader_index:
                follower = logs[index]
                assert reconcile(leader, follower) <= epoch + 1
                assert follower.entries == leader.entries[: follower.end]
                for entry in leader.entries[follower.end : follower.end + count]:
                    follower.append(entry)
