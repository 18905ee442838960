# SPDX-License-Identifier: Apache-2.0
"""Short loops of kill -9; `make kill-quorum` and `make kill-broker` run the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.scenarios import kill_broker, kill_quorum

SHORT_ROUNDS = 2


@pytest.mark.process
@pytest.mark.timeout(240)
def test_kill_of_quorum_leader_loses_no_acknowledged_topic(tmp_path: Path) -> None:
    """After kill -9 of the leader another one leads in time, and every acknowledged topic exists."""
    outcome = kill_quorum.prove(tmp_path, rounds=SHORT_ROUNDS)
    assert outcome.problems == []
    assert int(str(outcome.figures["acknowledged"])) > 0


@pytest.mark.process
@pytest.mark.timeout(240)
def test_kill_of_broker_keeps_every_acknowledged_record_once(tmp_path: Path) -> None:
    """After kill -9 of the broker every acknowledged record exists once, at its offset."""
    outcome = kill_broker.prove(tmp_path, rounds=SHORT_ROUNDS, seed=2)
    assert outcome.problems == []
    assert int(str(outcome.figures["acknowledged"])) >= SHORT_ROUNDS * kill_broker.RECORDS_BEFORE_KILL
