# SPDX-License-Identifier: Apache-2.0
"""How long a follower waits before it tries its leader again, and the meaning of failures."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.limits import SUBSCRIBE_RETRY_MAX_MS
from brokerd.partition.follower_stream import StreamRetry, is_hopeless
from brokerd.partition.stream_limits import StreamLimits

LIMITS = StreamLimits()


def failed(retry: StreamRetry, now_ms: int, *, is_hopeless: bool = False, jitter: float = 0.0) -> int:
    """Let an attempt fail at once, and return the pause after it."""
    retry.begin(now_ms)
    retry.end(now_ms, is_hopeless=is_hopeless, jitter=jitter)
    return retry.due_ms - now_ms


def test_limits_keep_every_pause_below_a_second() -> None:
    """News of a leader lead to an attempt within a second, even during an attempt that hangs."""
    assert LIMITS.pause_max_ms <= 1_000
    assert LIMITS.connect_ms + LIMITS.news_ms <= LIMITS.pause_max_ms
    assert SUBSCRIBE_RETRY_MAX_MS <= 1_000


def test_pauses_double_up_to_their_bound_also_with_the_random_part() -> None:
    """A leader that is gone is tried more and more rarely, but at least once a second."""
    retry = StreamRetry(LIMITS, 0)
    pauses = [failed(retry, 10_000 * number) for number in range(8)]
    assert pauses == [min(LIMITS.retry_min_ms << number, LIMITS.retry_max_ms) for number in range(8)]
    assert failed(retry, 100_000, jitter=1.0) == LIMITS.pause_max_ms


def test_stream_that_lived_begins_the_pauses_anew() -> None:
    """The stream broke, which does not mean that the leader is gone."""
    retry = StreamRetry(LIMITS, 0)
    for number in range(8):
        failed(retry, 10_000 * number)
    retry.begin(100_000)
    retry.end(100_000 + LIMITS.retry_reset_ms, is_hopeless=False, jitter=0.0)
    assert retry.due_ms == 100_000 + LIMITS.retry_reset_ms + LIMITS.retry_min_ms


def test_news_end_a_pause_and_begin_the_next_ones_anew() -> None:
    """Earlier failures concern the previous leader, or the time before this one was up."""
    retry = StreamRetry(LIMITS, 0)
    for number in range(8):
        failed(retry, 10_000 * number)
    retry.hear(70_400)
    assert retry.due_ms == 70_400
    assert failed(retry, 70_400) == LIMITS.retry_min_ms


def test_many_news_do_not_make_many_attempts() -> None:
    """Thousands of partitions may hear of one leader. Attempts still keep their distance, and none waits longer because of it."""
    retry = StreamRetry(LIMITS, 0)
    for number in range(8):
        failed(retry, 10_000 * number)
    retry.hear(70_001)
    assert retry.due_ms == 70_000 + LIMITS.news_ms
    retry.hear(70_002)
    assert retry.due_ms == 70_000 + LIMITS.news_ms


def test_news_under_an_attempt_make_the_next_pause_the_shortest() -> None:
    """The attempt may go to the leader's old address."""
    retry = StreamRetry(LIMITS, 0)
    for number in range(8):
        failed(retry, 10_000 * number)
    retry.begin(80_000)
    retry.hear(80_300)
    retry.end(80_800, is_hopeless=True, jitter=1.0)
    assert retry.due_ms == 80_800 + LIMITS.news_ms
    assert failed(retry, 90_000) == LIMITS.retry_max_ms


def test_refusal_that_time_does_not_mend_has_the_longest_pause_at_once() -> None:
    """A wrong cluster stays wrong. But the process at that address may be replaced, so the follower tries again."""
    retry = StreamRetry(LIMITS, 0)
    assert failed(retry, 0, is_hopeless=True) == LIMITS.retry_max_ms


@pytest.mark.parametrize(
    "code",
    [
        None,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.OVERLOADED,
        ErrorCode.TIMED_OUT,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.STORAGE_FAILED,
        ErrorCode.INTERNAL,
    ],
)
def test_what_time_may_mend_is_tried_again(code: ErrorCode | None) -> None:
    """A peer that is gone, stopping, behind, or overloaded."""
    assert not is_hopeless(code)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.WRONG_CLUSTER,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_FORMAT,
        ErrorCode.DATA_LOSS,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ],
)
def test_what_time_does_not_mend_is_not_tried_as_if_it_did(code: ErrorCode) -> None:
    """Another cluster, another format, or something that does not exist."""
    assert is_hopeless(code)
