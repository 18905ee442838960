# SPDX-License-Identifier: Apache-2.0
"""Short rounds of the proofs of the quorum, without their limits of time; `make quorum-proofs` runs the long ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from integration_tests.harness.load.metadata_load import Operation
from integration_tests.scenarios.quorum_proofs import (
    kill_calls,
    kill_leader,
    partition,
    pause_leader,
    rolling_restart,
    wiped_voter,
)

VOTERS = 3
RATE_PER_S = 20


@pytest.mark.process
@pytest.mark.timeout(600)
def test_killed_leaders_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """After kill -9 of two leaders every acknowledged change exists, none twice, and all images are equal."""
    outcome = kill_leader.prove(tmp_path, voters=VOTERS, rounds=2, rate_per_s=RATE_PER_S, unavailable_s_max=math.inf)
    assert outcome.problems == []


@pytest.mark.process
@pytest.mark.timeout(600)
def test_calls_that_meet_a_kill_all_end(tmp_path: Path) -> None:
    """Every call ends within its time limit, and the logs show the time without a leader."""
    outcome = kill_calls.prove(tmp_path, voters=VOTERS, rounds=1, rate_per_s=RATE_PER_S)
    assert outcome.problems == []
    assert {"gap_max_ms", "call_p50_ms", "call_p99_ms", "call_worst_ms", "worst_less_gap_ms"} <= outcome.figures.keys()


def test_worst_call_less_the_gap_is_of_one_round() -> None:
    """A long call in a round with a long gap may be less than a short one in a round with a short gap."""
    rounds = [
        kill_calls.Round(killed_s=10, active_s=12, ended_s=20, is_disturbed=False),
        kill_calls.Round(killed_s=30, active_s=30.5, ended_s=40, is_disturbed=False),
    ]
    spans = [Operation(9, 12.25, 1), Operation(13, 13.5, 1), Operation(25, 26, 1), Operation(30, 32, 1)]
    figures = kill_calls.call_figures(rounds, spans)
    assert (figures["calls"], figures["met_calls"], figures["gap_max_ms"]) == (3, 2, 2_000)
    assert (figures["call_p50_ms"], figures["call_worst_ms"], figures["worst_less_gap_ms"]) == (2_000, 3_250, 1_500)


def test_late_call_is_one_beyond_the_limits_of_its_calls() -> None:
    """A creation has the time limit twice, and process pauses do not count."""
    spans = [Operation(0, 30, 1), Operation(0, 32, 1), Operation(0, 60, 2), Operation(0, 62, 2)]
    assert kill_calls.late_calls(spans, standstill_s=0.0) == [spans[1], spans[3]]
    assert kill_calls.late_calls(spans, standstill_s=5.0) == []


def test_activations_are_read_from_a_log() -> None:
    """Lines of other events, and those of other controllers, do not count."""
    lines = [
        "time=2026-01-02 03:04:05,678 level=INFO logger=metaquorum.controller_service event=controller_active quorum_epoch=7 brokers=1",
        "time=2026-01-02 03:04:06,000 level=INFO logger=metaquorum.controller_service event=controller_inactive quorum_epoch=7",
        "time=2026-01-02 03:04:06,178 level=INFO logger=metaquorum.controller_service event=controller_active quorum_epoch=9 brokers=1",
    ]
    first, second = kill_calls.activations("\n".join(lines))
    assert (first[1], second[1]) == (7, 9)
    assert second[0] - first[0] == pytest.approx(0.5)


@pytest.mark.process
@pytest.mark.timeout(600)
def test_woken_leader_of_old_serves_nothing_stale(tmp_path: Path) -> None:
    """Reads and writes that wait for a stopped leader are refused when it wakes, or true."""
    outcome = pause_leader.prove(tmp_path, voters=VOTERS, rounds=1, rate_per_s=RATE_PER_S)
    assert outcome.problems == []


@pytest.mark.process
@pytest.mark.timeout(600)
def test_wiped_leader_is_replaced_under_load(tmp_path: Path) -> None:
    """The leader loses its disk; one command, and nothing acknowledged is lost."""
    outcome = wiped_voter.prove(tmp_path, voters=VOTERS, rounds=1, rate_per_s=RATE_PER_S, unavailable_s_max=math.inf)
    assert outcome.problems == []


@pytest.mark.process
@pytest.mark.timeout(600)
def test_rolling_restart_fails_no_call(tmp_path: Path) -> None:
    """All voters are restarted one after the other, and every call of the clients succeeds."""
    outcome = rolling_restart.prove(tmp_path, voters=VOTERS, rounds=1, rate_per_s=RATE_PER_S)
    assert (outcome.verdict, outcome.problems) == ("PASSED", [])


def test_minorities_are_minorities() -> None:
    """No cut takes a majority. The leader and followers are both isolated, in both directions and in one."""
    for voters in (3, 5):
        found = partition.cases(voters)
        assert all(2 * (case.has_leader + case.follower_count) < voters for case in found)
        assert {(case.has_leader, case.lost) for case in found} == {
            (has_leader, lost) for has_leader in (True, False) for lost in partition.Lost
        }
        assert max(case.has_leader + case.follower_count for case in found) == (voters - 1) // 2
