# SPDX-License-Identifier: Apache-2.0
"""The machinery of `make jepsen` on one broker, and its parts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration_tests.harness.faults.namespaces import is_inside
from integration_tests.harness.faults.skewed_clock import read_skew_ms
from integration_tests.harness.history.events import HISTORY_FILE
from integration_tests.harness.outcome import keep_evidence
from integration_tests.harness.scene import Shape
from integration_tests.scenarios.jepsen.nemeses import skew_path
from integration_tests.scenarios.jepsen.run import NEED_NAMESPACES, NEMESES, Result, make_nemeses, run

SMALL = Shape(
    voters=1,
    brokers=1,
    partitions=3,
    replicas=1,
    senders=1,
    pollers=1,
    lasting_pollers=1,
    rate_per_s=60,
    delivery_timeout_ms=20_000,
)
SECONDS = 10.0


@pytest.mark.process
@pytest.mark.timeout(400)
# The only voter may have been killed a moment ago: whoever is asked then says so.
@pytest.mark.filterwarnings("ignore::lograft.errors.StaleMetadataWarning")
def test_short_run_is_healed_read_and_judged(tmp_path: Path) -> None:
    """Kills, pauses, wrong clocks and dead connections leave a history without an anomaly; what cannot be tried is named."""
    assert not is_inside()
    result = run(
        tmp_path, shape=SMALL, seconds=SECONDS, seed=3, names=["kill", "pause", "clock", "half-open", "partition"]
    )
    assert (result.problems, result.lines[-1]) == ([], "PASSED")
    assert any("blows to connections alone" in line for line in result.lines)
    assert result.not_run.keys() == {"partition"}
    assert result.exit_status == 2
    assert (tmp_path / HISTORY_FILE).exists()


def test_exit_status_tells_failed_from_not_tried() -> None:
    """A problem outweighs everything; what could not be tried or read outweighs a history that passes."""
    assert Result(status=0).exit_status == 0
    assert Result(status=1, not_run={"partition": "why"}).exit_status == 1
    assert Result(status=0, problems=["a server ended"]).exit_status == 1
    assert Result(status=0, not_run={"partition": "why"}).exit_status == 2
    assert Result().exit_status == 2


def test_every_nemesis_can_be_made(tmp_path: Path) -> None:
    """Each name has its nemesis, but for cuts, which need a network that can be cut."""
    names = [name for name in NEMESES if name != "partition"]
    assert [each.name for each in make_nemeses(names, tmp_path, small=tmp_path, network=None)] == names
    assert set(NEMESES) > NEED_NAMESPACES
    with pytest.raises(AssertionError, match="namespaces"):
        make_nemeses(["partition"], tmp_path, small=tmp_path, network=None)


def test_skewed_clock_shifts_the_time_of_day_alone(tmp_path: Path) -> None:
    """A module that is run with a skew sees another time of day, and the monotonic clock and its own arguments as they are."""
    (tmp_path / "shown.py").write_text(
        "import sys, time\nprint(time.time_ns() // 10**9, int(time.time()), int(time.monotonic()), *sys.argv[1:])\n"
    )
    skew = skew_path(tmp_path, "broker-101")
    skew.write_text("-3600000")
    command = [sys.executable, "-m", "integration_tests.harness.faults.skewed_clock", str(skew), "shown", "a", "b"]
    began_s, began_monotonic_s = time.time(), time.monotonic()
    root = Path(__file__).resolve().parents[3]
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


def test_evidence_of_a_failed_run_is_kept_with_the_command(tmp_path: Path) -> None:
    """Logs and history are copied, and the last line judges the history again."""
    (tmp_path / HISTORY_FILE).write_text("")
    (tmp_path / "broker-101.log").write_text("what happened")
    where, command = keep_evidence(tmp_path, "test")
    kept = Path(where.rpartition(" ")[2])
    try:
        assert (kept / "broker-101.log").read_text() == "what happened"
        assert command.endswith(f"integration_tests.harness.history.check {kept / HISTORY_FILE}")
    finally:
        for file in kept.iterdir():
            file.unlink()
        kept.rmdir()
