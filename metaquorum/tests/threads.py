# SPDX-License-Identifier: Apache-2.0
"""What Linux says about the threads of a process."""

from __future__ import annotations

import os
from contextlib import suppress


def policies(pid: int) -> set[int]:
    """Return the scheduling policies of the threads of a process. A thread may end meanwhile."""
    found: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            found.add(os.sched_getscheduler(int(thread)))
    return found
