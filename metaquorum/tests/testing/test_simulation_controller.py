# SPDX-License-Identifier: Apache-2.0
"""The simulated quorum with a controller on each leader: its laws hold, its events occur, and mistakes are found."""

from __future__ import annotations

from collections import Counter

import pytest

from metaquorum.controller.elections import ElectionRules
from metaquorum.testing.controller_mutants import CONTROLLER_MUTANTS
from metaquorum.testing.mutants import Mutant
from metaquorum.testing.options import controller_storm
from metaquorum.testing.run import find_mutant
from metaquorum.testing.sim_quorum import SimulatedQuorum

pytestmark = pytest.mark.simulation

EVENTS = 3_000


def run(seeds: range) -> Counter[str]:
    """Run seeds; return the counts of their events."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        quorum = SimulatedQuorum(seed, controller_storm(seed))
        quorum.run(EVENTS)
        counts.update(quorum.counts)
    return counts


def test_controllers_come_right_through_changes_of_leadership() -> None:
    """Leaders return, unclean ones are elected where allowed, controllers take over from each other, and no law is broken."""
    counts = run(range(12))
    assert counts["controller active"] >= 40
    assert counts["leader elected"] >= 20
    assert counts["preferred leader returned"] >= 20
    assert counts["unclean leader elected"] >= 5
    assert counts["controller: ElectPreferredLeaders"] >= 20
    assert counts["controller: ElectUncleanLeaders"] >= 5
    for command in ("CreateTopic", "CreatePartitions", "DeleteTopic", "ReassignPartitions", "AlterConfigs"):
        assert counts[f"staged topic: {command}"] >= 10
    assert counts["leader of a reassignment"] >= 20


def test_interval_alone_elects_unclean_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps never elect an unclean leader here; the periodic work still does, and only for topics that allow it."""
    monkeypatch.setattr("metaquorum.controller.elections.rules_of", lambda *_: ElectionRules())
    assert run(range(8))["unclean leader elected"] >= 3


@pytest.mark.parametrize("mutant", CONTROLLER_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(mutant: Mutant) -> None:
    """Each known mistake is found within a few seeds."""
    assert find_mutant(mutant, range(8), EVENTS) is not None


def test_runs_without_a_controller_are_left_alone() -> None:
    """Other storms are about the quorum alone."""
    quorum = SimulatedQuorum(0)
    assert quorum.controllers.has_settled(quorum.nodes[0]) is (quorum.options.controller_every_ms is None)
