# SPDX-License-Identifier: Apache-2.0
"""The machinery of the proofs of replication on one broker; `make replication-proofs` runs them on three."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from integration_tests.harness.load.times import Wait
from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs import kill_all, rolling_restart, wiped_directory
from integration_tests.scenarios.replication_proofs.isolate_leader import CASES
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, judge_waits, line_of, prove

SMALL = Shape(voters=1, brokers=1, partitions=3, replicas=1, senders=1, pollers=1, rate_per_s=60)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_kill_of_the_only_broker_loses_nothing(tmp_path: Path) -> None:
    """The rounds of a proof run, its history passes, and the figures have the time without acknowledgements."""
    outcome = kill_all.run(tmp_path, shape=SMALL, rounds=1, seed=1)
    assert outcome.problems == []
    assert outcome.figures["rounds"] == 1
    assert "unavailable_max_ms" in outcome.figures


@pytest.mark.process
@pytest.mark.timeout(300)
def test_rolling_restart_of_one_broker_fails_no_send(tmp_path: Path) -> None:
    """The producers wait for the end of a clean restart of the only broker."""
    outcome = rolling_restart.run(tmp_path, shape=SMALL, rounds=1, seed=1)
    assert outcome.problems == []
    assert int(str(outcome.figures["restart_wait_max_ms"])) > int(str(outcome.figures["calm_wait_p50_ms"])) > 0


def lose_a_log(scene: Scene, rng: random.Random, number: int) -> Round:
    """Kill the only broker and empty the log of one partition, which one replica cannot survive."""
    process = next(iter(scene.cluster.brokers.values()))
    started_s = time.monotonic()
    process.kill()
    partition = next((scene.cluster.directory / process.name / "partitions").glob("*-0"))
    shutil.rmtree(partition)
    process.start()
    scene.wait_in_sync()
    scene.load.wait_acknowledged(scene.partitions, time.monotonic())
    return Round(text="a log was lost", started_s=started_s, ended_s=time.monotonic())


@pytest.mark.process
@pytest.mark.timeout(300)
def test_planted_loss_is_found_by_every_proof(tmp_path: Path) -> None:
    """A log that is lost between two rounds shows as anomalies of the history: all proofs end with the same judgement."""
    outcome = prove("planted", tmp_path, lose_a_log, shape=SMALL, rounds=1, seed=1, limits={})
    assert any(problem.startswith("ANOMALY") for problem in outcome.problems)
    assert outcome.verdict == "FAILED"


def test_limits_are_compared_with_median_and_maximum() -> None:
    """A p50 or a maximum over its limit is a problem; no times and no limits are none."""
    limits = Limits(median_s=1.0, max_s=3.0)
    assert limits.check("unavailable", [0.5, 0.9, 2.9]) == []
    assert len(limits.check("unavailable", [0.5, 1.1, 2.9])) == 1
    assert len(limits.check("unavailable", [0.5, 0.6, 3.1])) == 1
    assert len(limits.check("unavailable", [4.0, 4.0])) == 2
    assert limits.check("unavailable", []) == []
    assert Limits().check("unavailable", [1e9]) == []


def test_line_of_a_round_says_what_took_how_long() -> None:
    """Every time of a round that was measured is on its line."""
    times_s = {"unavailable": [0.25, 0.5], "others": list[float]()}
    this = Round(text="broker 101 killed", started_s=1.0, ended_s=3.5, times_s=times_s)
    assert line_of(this) == "broker 101 killed, unavailable max 500 ms, round 2.5 s"


def test_proofs_that_need_replicas_say_so(tmp_path: Path) -> None:
    """With one replica a lost directory is a lost partition. Nothing is proved, and the verdict says so."""
    assert wiped_directory.run(tmp_path, shape=SMALL, rounds=1, seed=1).verdict == "NOT RUN"


def test_cases_of_cuts_differ() -> None:
    """Both directions, either direction, and each kind of server alone: five different cuts, each between existing servers."""
    assert len({(case.voters, case.brokers, case.sent, case.received) for case in CASES}) == len(CASES) == 5
    assert all((case.voters or case.brokers) and (case.sent or case.received) for case in CASES)


def test_waits_are_judged_in_their_spans() -> None:
    """Only waits that touch a span count for it. A wait over the limit is a problem, and so is a span without any value."""
    waits = [Wait(0, 0.0, 0.9), Wait(1, 1.1, 1.4), Wait(1, 5.0, 5.1)]
    limits = {"restart_wait": Limits(max_s=0.5)}
    outcome = Outcome(proof="test")
    judge_waits(waits, {"restart": [(1.0, 2.0)], "calm": [(4.0, 6.0)]}, limits, outcome)
    assert outcome.problems == []
    assert (outcome.figures["restart_wait_max_ms"], outcome.figures["restart_wait_values"]) == (300, 1)
    assert outcome.figures["calm_wait_max_ms"] == 100
    judge_waits(waits, {"restart": [(0.0, 2.0)]}, limits, outcome)
    assert len(outcome.problems) == 1
    assert outcome.problems[0].startswith("restart_wait: max is 0.90 s")
    nothing = Outcome(proof="test")
    judge_waits(waits, {"restart": [(8.0, 9.0)]}, limits, nothing)
    assert nothing.problems == ["restart_wait: no values"]
