# SPDX-License-Identifier: Apache-2.0
"""A process whose wall clock is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from integration_tests.harness.faults.skewed_clock import read_skew_ms, skew_path


def test_skewed_clock_shifts_the_time_of_day_alone(tmp_path: Path) -> None:
    """With a skew, a module sees another time of day, but the same monotonic clock and its own arguments."""
    (tmp_path / "shown.py").write_text(
        "import sys, time\nprint(time.time_ns() // 10**9, int(time.time()), int(time.monotonic()), *sys.argv[1:])\n"
    )
    skew = skew_path(tmp_path, "broker-101")
    skew.write_text("-3600000")
    command = [sys.executable, "-m", "integration_tests.harness.faults.skewed_clock", str(skew), "shown", "a", "b"]
    began_s, began_monotonic_s = time.time(), time.monotonic()
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{root}:{root / 'sdk'}:{tmp_path}"},
    )
    time_ns_s, time_s, monotonic_s, *arguments = done.stdout.split()
    assert arguments == ["a", "b"]
    took_s = time.monotonic() - began_monotonic_s
    for shown_s in (int(time_ns_s), int(time_s)):
        assert began_s - 3_601 <= shown_s <= began_s - 3_599 + took_s
    assert began_monotonic_s - 1 <= int(monotonic_s) <= began_monotonic_s + took_s + 1
    assert read_skew_ms(tmp_path / "none") == 0
    skew.write_text("soon")
    assert read_skew_ms(skew) == 0
