# SPDX-License-Identifier: Apache-2.0
"""A few hostile inputs to real servers, and the makers of inputs. `make fuzz` sends many."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from lograft.wire.batch import encode_batch

from integration_tests.scenarios.fuzz import (
    admin_requests,
    internal_attacker,
    internal_port,
    internal_requests,
    mutations,
    public_port,
)
from metaquorum.net.methods import Method

SHORT_INPUTS = 400


@pytest.mark.process
@pytest.mark.timeout(240)
def test_hostile_input_harms_nothing(tmp_path: Path) -> None:
    """Mutated input is refused with typed errors. The broker survives, and stored records can be read."""
    outcomes, _, growth = public_port.run(tmp_path, SHORT_INPUTS, seed=3)
    assert growth < public_port.RSS_GROWTH_BYTES_MAX
    assert sum(outcomes.values()) == SHORT_INPUTS
    assert not [outcome for outcome in outcomes if ": UNKNOWN" in outcome or ": INTERNAL" in outcome]
    assert outcomes["ingest OpenIngest: answered"] > 0


@pytest.mark.process
@pytest.mark.timeout(900)
def test_hostile_requests_between_servers_harm_nothing(tmp_path: Path) -> None:
    """Hostile requests in the name of other servers get typed answers. No server ends, prints a traceback or loses data."""
    outcome = internal_port.run(tmp_path, SHORT_INPUTS, seed=3)
    assert outcome.problems == []
    assert sum(outcome.counts.values()) == SHORT_INPUTS
    assert outcome.acknowledged > 0
    missing = {*internal_attacker.methods(), *internal_attacker.others()} - outcome.reached
    assert not missing, f"nothing was looked into of {missing}; FETCH_SNAPSHOT has to send one"


def test_every_method_of_the_carrier_is_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method that the carrier gets, or that the controller answers for a client, needs a maker of requests."""
    assert internal_attacker.methods() == [method.name for method in Method]
    monkeypatch.delitem(internal_requests.CALLS, Method.VOTE)
    monkeypatch.delitem(admin_requests.ADMIN_MAKERS, "ListTopics")
    with pytest.raises(RuntimeError, match=r"'VOTE', 'ADMIN ListTopics'"):
        internal_attacker.methods()


def test_mutations_are_reproducible_by_seed() -> None:
    """The same seed makes the same hostile input."""
    batch = bytes(encode_batch([b"value"], timestamps_ms=1))

    def inputs(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [bytes(rng.choice(mutations.BATCH_MUTATIONS)(rng, batch)) for _ in range(100)]

    assert inputs(5) == inputs(5)
    assert inputs(5) != inputs(6)
