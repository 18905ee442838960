# SPDX-License-Identifier: Apache-2.0
"""Groups under faults, by seed: the laws hold after every step, everything heals, and every mutant is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from brokerd.groups import core, decision_room, offsets
from brokerd.tests.groups import (
    test_committed_offsets,
    test_known_bugs,
    test_membership,
    test_pending_offsets,
    test_static_members,
    test_subscriptions,
    test_targets,
)
from brokerd.tests.groups.group_mutants import MUTANTS, GroupMutant
from brokerd.tests.groups.group_walk import Walk
from metaquorum.testing.mutants import apply

SEEDS = 16
STEPS = 1_200

DIRECTED: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        test_committed_offsets.test_commit_is_judged_for_each_partition,
        test_committed_offsets.test_late_copy_of_a_commit_moves_nothing_back,
        test_known_bugs.test_released_partition_is_pushed_at_once,
        test_known_bugs.test_replacement_takes_over_when_the_stream_is_closed,
        test_membership.test_join_after_a_loss_that_the_coordinator_did_not_see_gets_everything_anew,
        test_membership.test_push_waits_for_the_echo,
        test_pending_offsets.test_expiry_leaves_pending_offsets_alone,
        test_pending_offsets.test_late_copy_of_a_prepare_is_refused,
        test_pending_offsets.test_loaded_coordinator_asks_in_its_own_time,
        test_pending_offsets.test_outcome_counts_for_exactly_the_offsets_that_it_names,
        test_pending_offsets.test_outcome_of_a_higher_epoch_drops_what_a_lower_one_has_prepared,
        test_pending_offsets.test_prepare_checks_as_a_commit_does,
        test_pending_offsets.test_topics_that_are_deleted_together_leave_pending_offsets_together,
        test_static_members.test_takeover_uses_a_new_assignment_epoch,
        test_subscriptions.test_coordinator_that_is_behind_takes_nothing_away,
        test_targets.test_large_target_is_written_in_parts_and_counts_as_a_whole,
        test_targets.test_result_that_nobody_awaits_is_dropped,
    )
}
"""Tests that find a mutant which the walk meets too rarely."""


@pytest.fixture(autouse=True)
def _often_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps come so often that a walk sees expiries."""
    for module in (core, offsets):
        monkeypatch.setattr(module, "OFFSETS_SWEEP_MS", 2_000)


def run(seed: int) -> Counter[str]:
    """Run a seed and let it heal. Return counts of what occurred."""
    walk = Walk(seed)
    walk.run(STEPS)
    walk.heal()
    return walk.counts


@pytest.mark.slow
def test_laws_hold_under_faults_and_everything_heals() -> None:
    """No seed breaks a law, and the seeds reach the situations that they are for."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts.update(run(seed))
    assert counts["stable at the end"] == SEEDS
    for name, least in (
        ("delivered", 50_000),
        ("acknowledged commit", 5_000),
        ("PushAssignment", 200),
        ("ComputeAssignment", 200),
        ("SUPERSEDED", 100),
        ("removed: SESSION_ENDED", 50),
        ("failover", 40),
        ("refused append", 40),
        ("topics", 40),
        ("resubscribe", 40),
        ("broken stream", 40),
        ("STALE_ASSIGNMENT", 10),
        ("OffsetsExpired", 5),
        ("prepared", 250),
        ("committed round", 200),
        ("aborted round", 20),
        ("AskOutcome", 50),
        ("FetchedOffsets: OFFSETS_PENDING", 60),
        ("OffsetResults: OFFSETS_PENDING", 100),
        ("INGEST_FENCED", 5),
        ("INSTANCE_IN_USE", 5),
        ("lost batches", 5),
        ("GROUP_NOT_EMPTY", 5),
        ("removed: REVOCATION_LIMIT", 1),
        ("PROCESSING_LIMIT_EXCEEDED", 1),
    ):
        assert counts[name] >= least, (name, counts)


@pytest.mark.slow
def test_laws_hold_where_targets_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two records to a decision every target takes several, and failovers come in between."""
    monkeypatch.setattr(decision_room, "DECISION_RECORDS", 2)
    for seed in range(100, 104):
        run(seed)


def test_same_seed_gives_the_same_run() -> None:
    """The run depends on nothing but the seed."""
    assert run(3) == run(3)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(mutant: GroupMutant) -> None:
    """Each known mistake breaks a law or the healing in one of its seeds, or its directed test."""
    found = False
    with apply(mutant):
        for attempt in mutant.seeds if not mutant.directed else (0,):
            try:
                if mutant.directed:
                    DIRECTED[mutant.directed]()
                else:
                    run(attempt)
            except AssertionError:
                found = True
                break
    assert found, mutant.name
