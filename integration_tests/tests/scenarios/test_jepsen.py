# SPDX-License-Identifier: Apache-2.0
"""The machinery of `make jepsen` on one broker, and its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.harness.faults.namespaces import is_inside
from integration_tests.harness.history.events import HISTORY_FILE
from integration_tests.harness.scene import Shape
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
# The only voter may have been killed a moment ago. A broker that is asked then says so.
@pytest.mark.filterwarnings("ignore::lograft.errors.StaleMetadataWarning")
def test_short_run_is_healed_read_and_judged(tmp_path: Path) -> None:
    """Kills, pauses, wrong clocks and dead connections leave a history without an anomaly. Impossible nemeses are named."""
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
    """A problem outweighs everything. Nemeses or reads that were not possible outweigh a history that passes."""
    assert Result(status=0).exit_status == 0
    assert Result(status=1, not_run={"partition": "why"}).exit_status == 1
    assert Result(status=0, problems=["a server ended"]).exit_status == 1
    assert Result(status=0, not_run={"partition": "why"}).exit_status == 2
    assert Result().exit_status == 2


def test_every_nemesis_can_be_made(tmp_path: Path) -> None:
    """Each name has its nemesis, except cuts, which need a network that can be cut."""
    names = [name for name in NEMESES if name != "partition"]
    assert [each.name for each in make_nemeses(names, tmp_path, small=tmp_path, network=None)] == names
    assert set(NEMESES) > NEED_NAMESPACES
    with pytest.raises(AssertionError, match="namespaces"):
        make_nemeses(["partition"], tmp_path, small=tmp_path, network=None)
