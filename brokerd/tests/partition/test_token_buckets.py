# SPDX-License-Identifier: Apache-2.0
"""How fast a leader sends to followers out of sync: token buckets, alone and as the rates of a leader."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.partition.replication_rates import NO_LIMIT, RATE_LOOK_MS, ReplicationRates, TokenBucket, Traffic
from brokerd.tests.partition.leader_sessions import LIMITS

MIB = 1024 * 1024
IN_SYNC, CATCH_UP, MOVING = Traffic


def test_only_a_limit_that_differs_is_set() -> None:
    """With the same limits the buckets stay as they are. With others, only the changed ones start again."""
    rates = ReplicationRates(catch_up_limit=100)
    rates.spend(300, CATCH_UP)
    assert not rates.set_limits(catch_up_limit=100, move_limit=NO_LIMIT, now_ms=0)
    assert rates.held_by(CATCH_UP, 0) is rates.held_by(MOVING, 0) is not None
    assert rates.set_limits(catch_up_limit=100, move_limit=50, now_ms=0)
    assert rates.held_by(CATCH_UP, 0) is not None
    assert rates.set_limits(catch_up_limit=NO_LIMIT, move_limit=50, now_ms=0)
    assert rates.held_by(CATCH_UP, 0) is None
    rates.spend(50, MOVING)
    assert rates.held_by(MOVING, 0) is not None
    assert rates.held_by(IN_SYNC, 0) is rates.held_by(CATCH_UP, 0) is None


def test_the_bucket_holds_one_second() -> None:
    """After any time without sending, one second's worth may be sent at once, plus the excess of one message."""
    rate = TokenBucket(100)
    assert rate.is_open(10_000_000)
    rate.spend(99)
    assert rate.is_open(10_000_000)
    rate.spend(51)
    assert not rate.is_open(10_000_000)
    assert rate.due_ms() == 10_000_501
    assert not rate.is_open(10_000_500)
    assert rate.is_open(10_000_501)


def test_a_deep_debt_is_looked_at_every_second() -> None:
    """A stream that waits asks again each second, so that a changed limit is noticed."""
    rate = TokenBucket(1)
    rate.spend(MIB)
    assert not rate.is_open(500)
    assert rate.due_ms() == 500 + RATE_LOOK_MS
    rate.set_limit(NO_LIMIT, now_ms=600)
    assert rate.due_ms() == 600
    assert rate.is_open(600)
    rate.spend(MIB)
    assert rate.is_open(600)
    rate.set_limit(50, now_ms=700)
    assert rate.is_open(700), "a bucket that had no limit begins full"


def test_a_changed_limit_keeps_the_debt_and_bounds_the_bucket() -> None:
    """A lower limit leaves no more than its own second in the bucket; a debt is paid at the new rate."""
    rate = TokenBucket(1_000)
    rate.set_limit(100, now_ms=0)
    rate.spend(100)
    assert not rate.is_open(0)
    rate.spend(100)
    rate.set_limit(1_000, now_ms=0)
    assert not rate.is_open(100)
    assert rate.is_open(101)


def test_the_clock_of_the_bucket_never_goes_back() -> None:
    """A time before the last one adds nothing."""
    rate = TokenBucket(10)
    rate.spend(20)
    assert not rate.is_open(500)
    assert not rate.is_open(100)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 10**7),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, LIMITS.chunk_bytes)), min_size=1, max_size=60),
)
def test_no_more_than_the_rate_is_sent(limit: int, sends: list[tuple[int, int]]) -> None:
    """Over any time, at most one second's worth, plus rate times time, plus one message is sent."""
    rate = TokenBucket(limit)
    now_ms = sent_bytes = 0
    for pause_ms, size_bytes in sends:
        now_ms += pause_ms
        if rate.is_open(now_ms):
            assert sent_bytes <= limit + limit * now_ms / 1000
            rate.spend(size_bytes)
            sent_bytes += size_bytes
        else:
            assert rate.due_ms() > now_ms
