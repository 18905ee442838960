# SPDX-License-Identifier: Apache-2.0
"""Lets threads of Python take shorter turns while some of them work on large batches.

The event loop gives the interpreter up at every call into the transport or the kernel, and waits for it again beside a thread that
works: Python's 5 ms a turn add up to tens of milliseconds for one record. Shorter turns for good would cost a fifth more processor
time for each small batch, because idle threads interrupt the event loop then.

Owns the switch interval of the process. For the owner of a process only: it holds for all threads. Source: sys.setswitchinterval.
"""

from __future__ import annotations

import sys
from typing import Final

SHORT_S: Final = 0.001
"""Seconds that a thread keeps the interpreter while another one wants it and large batches are worked on."""


class ShortTurns:
    """Counts the work that is under way; one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._usual_s = sys.getswitchinterval()

    def begin(self) -> None:
        """Note that work begins."""
        if self._count == 0:
            self._usual_s = sys.getswitchinterval()
            sys.setswitchinterval(SHORT_S)
        self._count += 1

    def end(self) -> None:
        """Note that work ended, once for each that began."""
        assert self._count > 0, "work ended that did not begin"
        self._count -= 1
        if self._count == 0:
            sys.setswitchinterval(self._usual_s)
