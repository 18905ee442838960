# SPDX-License-Identifier: Apache-2.0
"""Notes the exit statuses of the children of another project's program: `os.waitpid` writes its result to a file and returns it."""

from __future__ import annotations

import os
from pathlib import Path


def note_statuses(path: Path) -> None:
    """Append a line with the exit status of each child that this process waits for from now on; signals are below zero."""
    wait, owner = os.waitpid, os.getpid()

    def noting(pid: int, options: int) -> tuple[int, int]:
        done, status = wait(pid, options)
        if done and os.getpid() == owner:
            with path.open("a") as file:
                file.write(f"{os.waitstatus_to_exitcode(status)}\n")
        return done, status

    os.waitpid = noting
