# SPDX-License-Identifier: Apache-2.0
"""How long to wait before the next attempt.

It owns the growth of the delay. It must not sleep, and draws only from the generator that the caller passes in.
Law: without a server's advice, every delay lies in [base / 2, limit]. So it causes neither a tight loop nor an endless pause.
"""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """Source of randomness; `random.Random` is one."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


class Backoff:
    """Doubling delay with jitter. Each delay is drawn uniformly from the upper half of the current span."""

    __slots__ = ("_base_ms", "_limit_ms", "_rng", "_span_ms")

    def __init__(self, *, base_ms: int, limit_ms: int, rng: Rng) -> None:
        assert 0 < base_ms <= limit_ms, f"base {base_ms} ms, limit {limit_ms} ms"
        self._base_ms = base_ms
        self._limit_ms = limit_ms
        self._rng = rng
        self._span_ms = base_ms

    def next_delay_ms(self, *, at_least_ms: int = 0) -> int:
        """Return the milliseconds to wait now, and double the span.

        Args:
            at_least_ms: the server's advice. The delay is at least as long, up to the limit.
        """
        span_ms = self._span_ms
        self._span_ms = min(span_ms * 2, self._limit_ms)
        delay_ms = round(span_ms * (0.5 + self._rng.random() / 2))
        return min(max(delay_ms, at_least_ms, 1), self._limit_ms)

    def reset(self) -> None:
        """Start again from the base after a successful attempt."""
        self._span_ms = self._base_ms
