# SPDX-License-Identifier: Apache-2.0
"""Groups under faults, as a state machine of hypothesis: it chooses the faults and when they come, and makes a failing run short.

The world, its laws and its random details are those of `group_walk`, where a seed chooses the faults as well.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from brokerd.groups import core, offsets
from brokerd.tests.groups.group_mutants import MUTANTS, GroupMutant
from brokerd.tests.groups.group_walk import GROUPS, Process, Walk
from brokerd.tests.groups.model_client import Phase
from metaquorum.testing.mutants import apply

RUNS: Final = 50
RULES: Final = 60
STEPS_MAX: Final = 40
"""Steps of at most 60 ms between two faults."""

QUICKLY_FOUND: Final = frozenset(
    {
        "a partition is given before its owner has released it",
        "a revocation is confirmed by any beat",
        "partitions that stay get a new assignment epoch",
        "a partition is taken away without a revocation",
        "a late copy of a commit counts",
        "the number of a commit before the first beat at a coordinator is forgotten",
        "a coordinator whose topics are behind takes partitions away",
        "changed topics raise no epoch",
        "a result that is not awaited is stored",
        "a beat does not extend the session",
        "an assignment is repeated under the same number",
    }
)
"""Mistakes that the machine finds within seconds. The walk of `test_group_walk` finds all of them."""


class Steered(Walk):
    """A world whose faults somebody else chooses."""

    def start(self, group_id: str, instance_id: str | None) -> None:
        """Start a process, unless a living one has the instance id."""
        if instance_id is None or instance_id not in {each.client.instance_id for each in self._alive()}:
            self._start(instance_id, GROUPS[0] if instance_id is not None else group_id)

    def hurt(self, fault: str) -> None:
        """Let a fault happen to a living process, a stream, the topics or the coordinator."""
        faults = {
            "leave": self._incident_leave,
            "kill": self._incident_kill,
            "pause": self._incident_pause,
            "stall": self._incident_stall,
            "break": self._incident_break,
            "topics": self._incident_topics,
            "resubscribe": self._incident_resubscribe,
            "alter": self._incident_alter,
        }
        if fault == "fail over":
            self.fail_over()
        else:
            faults[fault](self._alive())

    def _alive(self) -> list[Process]:
        return [each for each in self.processes if not each.is_killed and each.client.phase is not Phase.ENDED]


class GroupMachine(RuleBasedStateMachine):
    """Processes of two groups, their coordinator, and what befalls them. Every step checks the laws; the end checks the healing."""

    walk: Steered

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        """Make the world; the seed decides about delays, losses and positions."""
        self.walk = Steered(seed)

    @rule(steps=st.integers(1, STEPS_MAX))
    def let_pass(self, steps: int) -> None:
        """Let time pass."""
        for _ in range(steps):
            self.walk.step()

    @rule(group_id=st.sampled_from(GROUPS), instance_id=st.sampled_from((None, None, "i1", "i2")))
    def start(self, group_id: str, instance_id: str | None) -> None:
        """Start a process, static or not."""
        self.walk.start(group_id, instance_id)

    @rule(
        fault=st.sampled_from(
            ("leave", "kill", "pause", "stall", "break", "topics", "resubscribe", "alter", "fail over")
        )
    )
    def hurt(self, fault: str) -> None:
        """Let a fault happen."""
        self.walk.hurt(fault)

    def teardown(self) -> None:
        """End all faults: everything heals."""
        self.walk.heal()


@pytest.fixture(autouse=True)
def _often_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps come so often that a run sees expiries."""
    for module in (core, offsets):
        monkeypatch.setattr(module, "OFFSETS_SWEEP_MS", 2_000)


def search(*phases: HypothesisPhase) -> None:
    """Choose and run faults, the same ones each time."""
    chosen = settings(
        max_examples=RUNS,
        stateful_step_count=RULES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(GroupMachine, settings=chosen)


@pytest.mark.slow
def test_laws_hold_whatever_is_chosen() -> None:
    """No choice of faults breaks a law or the healing."""
    search(HypothesisPhase.generate, HypothesisPhase.shrink)


@pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.name in QUICKLY_FOUND], ids=lambda mutant: mutant.name
)
def test_mutant_is_found(mutant: GroupMutant) -> None:
    """The machine breaks a law for each of these mistakes."""
    with apply(mutant), pytest.raises(AssertionError, match=r"P\d: "):
        search(HypothesisPhase.generate)
