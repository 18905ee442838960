# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run that failed: the history and the logs of all servers, and the one command that judges the history again."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from integration_tests.harness.load.record_load import HISTORY_FILE


def keep_evidence(directory: Path, name: str) -> list[str]:
    """Copy logs and history of a run to a directory that stays; returns lines that say where, and what to do with them."""
    kept = Path(tempfile.mkdtemp(prefix=f"lograft-{name}-kept-"))
    for file in (*directory.glob("*.log"), *directory.glob("*.jsonl")):
        shutil.copy(file, kept)
    lines = [f"history and logs of the servers: {kept}"]
    if (kept / HISTORY_FILE).exists():
        lines.append(f"judge it again: python -m integration_tests.harness.history.check {kept / HISTORY_FILE}")
    return lines
