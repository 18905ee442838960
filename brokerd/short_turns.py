# SPDX-License-Identifier: Apache-2.0
"""Shortens the switch interval of Python's threads while some of them work on large batches.

The event loop releases the interpreter lock at every call into the transport or the kernel. Beside a working thread it then waits
for the lock again. At Python's 5 ms per wait, one record takes tens of milliseconds. A short interval at all times would cost a
fifth more processor time for each small batch, because idle threads would interrupt the event loop.

Owns the switch interval of the process. It holds for all threads, so only the owner of a process may use this module. Source:
sys.setswitchinterval.
"""

from __future__ import annotations

import sys
from typing import Final

SHORT_S: Final = 0.001
"""Seconds that a thread keeps the interpreter lock while large batches are under way and another thread wants the lock."""


class ShortTurns:
    """Shortens the switch interval while any work is under way. Belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._usual_s = sys.getswitchinterval()

    def begin(self) -> None:
        """Begin a piece of work: the first one shortens the interval."""
        if self._count == 0:
            self._usual_s = sys.getswitchinterval()
            sys.setswitchinterval(SHORT_S)
        self._count += 1

    def end(self) -> None:
        """End a piece of work, once for each `begin`: the last one restores the interval."""
        assert self._count > 0, "work ended that did not begin"
        self._count -= 1
        if self._count == 0:
            sys.setswitchinterval(self._usual_s)
