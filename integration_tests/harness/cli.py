# SPDX-License-Identifier: Apache-2.0
"""The command line `lograft` in its own process, as an operator runs it."""

from __future__ import annotations

import subprocess
import sys

TIMEOUT_S = 60.0
LOGRAFT = (sys.executable, "-c", "from lograft.cli import main; main()")
"""The command `lograft`, without arguments."""


def run_lograft(*arguments: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run `lograft` with arguments to its end, and return exit status and outputs.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    return subprocess.run([*LOGRAFT, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)
