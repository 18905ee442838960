# SPDX-License-Identifier: Apache-2.0
"""How the operating system schedules the threads of a server process.

Owns the scheduling policy of the process. Only the owner of a process may call it.

A server has a thread that works, the event loop, and some that sleep: those of gRPC, of the disk. Each of these wakes for some
microseconds, several times for each request. By default Linux lets a thread that wakes push out the one that works. Under load the
event loop is then interrupted three to four times for each change of metadata. With `SCHED_BATCH` a thread that wakes waits until a
core is free or the working thread has had its turn; its share of the processor stays the same. Source: sched(7), ADR 29.
"""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger(__name__)


def use_batch_scheduling() -> None:
    """Let threads of this process that wake not interrupt threads that work: those that run, and those that they start.

    Where the system has no such policy it changes nothing; where it refuses the policy, the log says so.
    """
    if sys.platform != "linux":
        return
    try:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        logger.info("event=batch_scheduling_refused error=%s", error)
