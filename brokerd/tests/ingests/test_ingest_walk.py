# SPDX-License-Identifier: Apache-2.0
"""Ingests under faults, by seed: the laws hold, everything heals and ends, and every mutant is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from brokerd.ingests import asks, state, sweep
from brokerd.ingests.codec import IngestRecordError
from brokerd.tests.ingests import test_attempts, test_publication
from brokerd.tests.ingests.ingest_mutants import MUTANTS, IngestMutant
from brokerd.tests.ingests.ingest_walk import Walk
from metaquorum.testing.mutants import apply

SEEDS = 16
STEPS = 3_000

DIRECTED: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        test_attempts.test_late_copy_of_a_seal_of_the_last_round,
        test_publication.test_late_answer_about_a_forgotten_ingest_is_ignored,
        test_publication.test_outcome_is_that_of_the_offsets_that_the_decision_names,
        test_publication.test_question_about_a_fenced_epoch_disturbs_nobody,
        test_publication.test_sequences_wrap_around,
    )
}
"""Tests that find a mutant which the walk meets too rarely."""


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let times be short and pieces small, so that a walk sees the ends of both."""
    monkeypatch.setattr(state, "COMMITTED_KEEP_MS", 60_000)
    monkeypatch.setattr(state, "ABORTED_KEEP_MS", 30_000)
    monkeypatch.setattr(state, "REPEATED_KEEP_MS", 90_000)
    monkeypatch.setattr(sweep, "SWEEP_RECORDS", 3)
    monkeypatch.setattr(asks, "PUBLISHING_MAX", 3)


def run(seed: int) -> Counter[str]:
    """Run a seed and let it heal. Return counts of what occurred."""
    walk = Walk(seed)
    walk.run(STEPS)
    walk.heal()
    return walk.counts


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_laws_hold_under_faults_and_everything_ends() -> None:
    """No seed breaks a law, and the seeds reach the situations that they are for."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts += run(seed)
    for name, least in (
        ("nothing left", SEEDS),
        ("decided", 300),
        ("decided with offsets", 100),
        ("failover", 100),
        ("lost batches", 15),
        ("refused append", 100),
        ("published halfway", 30),
        ("published twice", 50),
        ("asked a deposed coordinator", 300),
        ("freed", 2_000),
        ("watermark below something", 200),
        ("forgotten", 50),
        ("IngestExpired", 50),
        ("OutcomeKnown", 30),
        ("late prepare", 50),
        ("late prepare of what was applied", 10),
        ("records lost", 10),
        ("published after a loss", 5),
        ("killed client", 30),
        ("deleted topic", 8),
        ("commit: INGEST_FENCED", 20),
        ("commit: INGEST_ABORTED", 20),
        ("commit: INGEST_INCOMPLETE", 20),
        ("commit: INGEST_CONFLICT", 1),
    ):
        assert counts[name] >= least, (name, counts)


@pytest.mark.usefixtures("_small")
def test_same_seed_gives_the_same_run() -> None:
    """The run depends on nothing but the seed."""
    assert run(3) == run(3)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.usefixtures("_small")
def test_mutant_is_found(mutant: IngestMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each known mistake breaks a law or the healing in one of its seeds, or its directed test."""
    found = False
    if mutant.directed:
        monkeypatch.undo()
    with apply(mutant):
        for attempt in mutant.seeds if not mutant.directed else (0,):
            try:
                if mutant.directed:
                    DIRECTED[mutant.directed]()
                else:
                    run(attempt)
            except (AssertionError, KeyError, IngestRecordError):
                found = True
                break
    assert found, mutant.name
