# SPDX-License-Identifier: Apache-2.0
"""The example programs of README and docs, unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1:9640"
TIMEOUT_S = 300


def examples(document: str, beginning: str) -> list[str]:
    """Return the Python programs of a document that begin with a text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith(beginning)]


def run(program: str, bootstrap: str) -> str:
    """Run a program with another address to its end, and return its standard error."""
    assert ADDRESS in program, "an example that reaches no cluster"
    command = [sys.executable, "-c", program.replace(ADDRESS, bootstrap)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr
