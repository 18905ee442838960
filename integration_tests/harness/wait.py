# SPDX-License-Identifier: Apache-2.0
"""Waits for a condition, with a deadline; never for a fixed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
CHECK_INTERVAL_S = 0.02


def wait_for(
    condition: Callable[[], T | None], *, timeout_s: float, what: str, interval_s: float = CHECK_INTERVAL_S
) -> T:
    """Call `condition` until it returns a true value, and return that value.

    Raises:
        TimeoutError: it did not within `timeout_s`; the message has `what`.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_s:.1f} s for {what}")
        pause.wait(interval_s)
