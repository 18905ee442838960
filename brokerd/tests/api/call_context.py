# SPDX-License-Identifier: Apache-2.0
"""A call context for tests that run a broker's calls without a connection."""

from __future__ import annotations

import asyncio


class GivenContext:
    """The context of a client's call.

    Args:
        seconds: seconds until its deadline; None: no deadline.
    """

    def __init__(self, *, seconds: float | None) -> None:
        self._end_s = None if seconds is None else asyncio.get_running_loop().time() + seconds

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self._end_s is None else self._end_s - asyncio.get_running_loop().time()
