# SPDX-License-Identifier: Apache-2.0
"""Short rounds of the fault proofs with real processes; the `make` verbs run the long ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from lograft.wire.batch import encode_batch

from integration_tests.scenarios import kill_broker, kill_quorum
from integration_tests.scenarios.fuzz import (
    admin_requests,
    fuzz_internal,
    internal_attacker,
    internal_requests,
    mutations,
)
from integration_tests.scenarios.fuzz import run as fuzz
from metaquorum.net.methods import Method

SHORT_ROUNDS = 2
SHORT_INPUTS = 400


@pytest.mark.process
@pytest.mark.timeout(240)
def test_kill_of_quorum_leader_loses_no_acknowledged_topic(tmp_path: Path) -> None:
    """After kill -9 of the leader another one leads in time and every acknowledged topic is there."""
    rounds, lost, seen = kill_quorum.run(tmp_path, SHORT_ROUNDS)
    assert not lost
    assert seen.acknowledged
    assert all(r.new_leader_ms < kill_quorum.NEW_LEADER_MS_MAX for r in rounds)


@pytest.mark.process
@pytest.mark.timeout(240)
def test_kill_of_broker_keeps_every_acknowledged_record_once(tmp_path: Path) -> None:
    """After kill -9 of the broker every acknowledged record is there once, at its offset."""
    history, problems, _ = kill_broker.run(tmp_path, SHORT_ROUNDS, seed=2)
    assert problems == []
    assert history.acknowledged_count >= SHORT_ROUNDS * kill_broker.RECORDS_BEFORE_KILL


@pytest.mark.process
@pytest.mark.timeout(240)
def test_hostile_input_harms_nothing(tmp_path: Path) -> None:
    """Mutated input is refused with typed errors; the broker lives, and what is stored can be read."""
    outcomes, _, growth = fuzz.run(tmp_path, SHORT_INPUTS, seed=3)
    assert growth < fuzz.RSS_GROWTH_BYTES_MAX
    assert sum(outcomes.values()) == SHORT_INPUTS
    assert not [outcome for outcome in outcomes if ": UNKNOWN" in outcome or ": INTERNAL" in outcome]


@pytest.mark.process
@pytest.mark.timeout(900)
def test_hostile_requests_between_servers_harm_nothing(tmp_path: Path) -> None:
    """Whatever servers are sent in the name of others: typed answers, no end, no traceback, and everything is there after restarts."""
    outcome = fuzz_internal.run(tmp_path, SHORT_INPUTS, seed=3)
    assert outcome.problems == []
    assert sum(outcome.counts.values()) == SHORT_INPUTS
    assert outcome.acknowledged > 0
    missing = {*internal_attacker.methods(), *internal_attacker.others()} - outcome.reached
    assert not missing, f"nothing was looked into of {missing}; FETCH_SNAPSHOT has to send one"


def test_every_method_of_the_carrier_is_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that the carrier gets, or the controller answers for a client, has to get a maker of requests."""
    assert internal_attacker.methods() == [method.name for method in Method]
    monkeypatch.delitem(internal_requests.CALLS, Method.VOTE)
    monkeypatch.delitem(admin_requests.ADMIN_MAKERS, "ListTopics")
    with pytest.raises(RuntimeError, match=r"'VOTE', 'ADMIN ListTopics'"):
        internal_attacker.methods()


def test_comparison_notices_lost_moved_and_repeated_records() -> None:
    """The check of the broker proof finds each kind of damage."""
    history = kill_broker.History()
    history.sent[0] = [b"a", b"b", b"c"]
    history.acknowledged[0] = {0: b"a", 1: b"b"}
    good = [(0, b"a"), (1, b"b"), (2, b"c")]
    assert kill_broker.compare(history, 0, good) == []
    assert kill_broker.compare(history, 0, good[:2]) == []
    assert kill_broker.compare(history, 0, good[:1])
    assert kill_broker.compare(history, 0, [(0, b"b"), (1, b"a")])
    assert kill_broker.compare(history, 0, [*good, (3, b"c")])


def test_mutations_are_reproducible_by_seed() -> None:
    """The same seed makes the same hostile input."""
    batch = bytes(encode_batch([b"value"], timestamps_ms=1))

    def inputs(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [bytes(rng.choice(mutations.BATCH_MUTATIONS)(rng, batch)) for _ in range(100)]

    assert inputs(5) == inputs(5)
    assert inputs(5) != inputs(6)
