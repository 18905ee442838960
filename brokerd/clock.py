# SPDX-License-Identifier: Apache-2.0
"""The two clocks of the shells, in milliseconds. Cores never read them; they get `now_ms`."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return the milliseconds of a clock that never goes back; for deadlines and intervals."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return the milliseconds since 1970-01-01 UTC; for timestamps in records and files."""
    return time.time_ns() // 1_000_000
