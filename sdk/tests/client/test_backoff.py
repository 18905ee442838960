# SPDX-License-Identifier: Apache-2.0
"""Delays between attempts."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from lograft._client.backoff import Backoff


@given(
    base=st.integers(1, 10_000),
    extra=st.integers(0, 100_000),
    seed=st.integers(),
    advice=st.lists(st.integers(0, 10**6), max_size=30),
)
def test_every_delay_lies_between_half_the_base_and_the_limit(
    base: int, extra: int, seed: int, advice: list[int]
) -> None:
    """For every random number and every advice of a server, a delay is at least half the base (and 1 ms) and at most the limit."""
    backoff = Backoff(base_ms=base, limit_ms=base + extra, rng=random.Random(seed))
    for at_least_ms in advice:
        delay_ms = backoff.next_delay_ms(at_least_ms=at_least_ms)
        assert max(1, base // 2) <= delay_ms <= base + extra
        assert delay_ms >= min(at_least_ms, base + extra)


def test_delays_double_until_the_limit_and_start_over_after_a_success() -> None:
    """The upper end of the delay doubles with each attempt, up to the limit. A success restores the first delay."""

    class Highest:
        def random(self) -> float:
            return 1.0

    backoff = Backoff(base_ms=50, limit_ms=300, rng=Highest())
    assert [backoff.next_delay_ms() for _ in range(5)] == [50, 100, 200, 300, 300]
    backoff.reset()
    assert backoff.next_delay_ms() == 50
