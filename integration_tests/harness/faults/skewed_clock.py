# SPDX-License-Identifier: Apache-2.0
"""Runs a server whose wall clock is wrong: `python -m integration_tests.harness.faults.skewed_clock FILE brokerd run ...`.

FILE holds milliseconds and is read a few times a second. They are added to `time.time()` and `time.time_ns()`, from which all code of
the servers takes the time of day. Monotonic clocks stay right, as on a machine whose time of day is set. Times that C libraries read
are not shifted; no decision of the servers depends on them.
"""

from __future__ import annotations

import runpy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

READ_INTERVAL_S = 0.2


def skew_path(directory: Path, name: str) -> Path:
    """Return the path of the file with the clock skew of a server of a cluster."""
    return directory / f"{name}.skew"


def skewable(directory: Path) -> Callable[[str], Sequence[str]]:
    """Return the launcher of a `Cluster` whose servers have clocks that can be set wrong."""
    return lambda name: ("integration_tests.harness.faults.skewed_clock", str(skew_path(directory, name)))


def install(path: Path) -> None:
    """Shift the wall clock of this process from now on by the milliseconds in the file. Without a valid number it is not shifted."""
    real_ns = time.time_ns
    skew_ns = 0

    def skewed_ns() -> int:
        return real_ns() + skew_ns

    def skewed() -> float:
        return skewed_ns() / 1e9

    def follow() -> None:
        nonlocal skew_ns
        pause = threading.Event()
        while not pause.wait(READ_INTERVAL_S):
            skew_ns = read_skew_ms(path) * 1_000_000

    skew_ns = read_skew_ms(path) * 1_000_000
    time.time_ns, time.time = skewed_ns, skewed
    threading.Thread(target=follow, name="skew", daemon=True).start()


def read_skew_ms(path: Path) -> int:
    """Return the milliseconds in the file; 0 if it has none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def main() -> None:
    """Install the skewed clock and run the module."""
    path, module = Path(sys.argv[1]), sys.argv[2]
    install(path)
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
