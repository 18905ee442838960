# SPDX-License-Identifier: Apache-2.0
"""Three replicas under faults, by seed: the laws hold, everything recovers after the faults, and every mutant is found."""

from __future__ import annotations

from collections import Counter

import pytest

from brokerd.partition import cut_off
from brokerd.tests.replication_model import Model
from brokerd.tests.replication_mutants import MUTANTS, ReplicationMutant
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.testing.mutants import apply

SEEDS = 24
STEPS = 600
CUTS = 5


def run(seed: int, policy: FlushPolicy) -> Counter[str]:
    """Run a seed, calm or stormy, and let it heal. Return counts of what occurred."""
    model = Model(seed, policy)
    model.run(STEPS, faults=1 + seed % 4)
    model.heal()
    model.counts["committed"] += len(model.committed)
    return model.counts


@pytest.mark.parametrize("policy", [FlushPolicy.ACK, FlushPolicy.NONE])
def test_no_acknowledged_record_is_lost_and_all_replicas_agree(policy: FlushPolicy) -> None:
    """The laws hold after every step of every seed, and afterwards all replicas are in sync, equal and committed."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts.update(run(seed, policy))
    # The seeds reach the situations that they are for.
    for name, least in (("committed", 200), ("cut", 15), ("stop that loses records", 5), ("accepted proposal", 100)):
        assert counts[name] >= least, counts
    for name in ("unanswered proposal", "refused proposal", "late message", "failed ack: NOT_ENOUGH_REPLICAS"):
        assert counts[name] >= 10, counts
    assert counts["ack: FLUSHED" if policy is FlushPolicy.ACK else "ack: REPLICATED"] >= 30, counts


def run_cut_off(seed: int, policy: FlushPolicy) -> Counter[str]:
    """Run a seed in which leaders are isolated from their followers now and then. Return counts of what occurred."""
    model = Model(seed, policy)
    for _ in range(CUTS):
        model.run(STEPS // CUTS, faults=1)
        model.cut_off_id = model.partition.leader_id
        for stream in [each for each in model.streams if each.is_open and each.leader_id == model.cut_off_id]:
            model.break_stream(stream)
        model.run(STEPS // CUTS, faults=1)
        model.cut_off_id = None
    model.heal()
    return model.counts


@pytest.mark.parametrize("policy", [FlushPolicy.ACK, FlushPolicy.NONE])
def test_laws_hold_where_leaders_resign(policy: FlushPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolated leaders resign. Committed and acknowledged records stay, and everything heals."""
    monkeypatch.setattr(cut_off, "RESIGN_AFTER_MS", 50)
    monkeypatch.setattr(cut_off, "RESIGN_RETRY_MS", 20)
    counts = Counter[str]()
    for seed in range(3 * SEEDS):
        counts.update(run_cut_off(seed, policy))
    assert counts["leader resigns"] >= 10, counts


def test_same_seed_gives_the_same_run() -> None:
    """The run depends on nothing but the seed."""
    assert run(3, FlushPolicy.ACK) == run(3, FlushPolicy.ACK)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(mutant: ReplicationMutant) -> None:
    """Each known mistake breaks a law, or the healing, in one of its seeds."""
    found = False
    with apply(mutant):
        for seed in mutant.seeds:
            try:
                run(seed, mutant.policy)
            except AssertionError:
                found = True
                break
    assert found, mutant.name
