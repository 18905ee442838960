# SPDX-License-Identifier: Apache-2.0
"""The two clocks of the clients."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return the monotonic time in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def wall_clock_ms() -> int:
    """Return the milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
