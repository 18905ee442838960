# SPDX-License-Identifier: Apache-2.0
"""The world simulator: smoke seeds, determinism, mutants, and reports that can be used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from integration_tests.simulation.mutants import MUTANTS, WorldMutant
from metaquorum.testing.mutants import apply

pytestmark = pytest.mark.simulation

SMOKE_SEEDS = "24"
SMOKE_EVENTS = "6000"

QUICKLY_FOUND = {
    "a log that diverges is accepted": "6",
    "who follows the metadata is not told of an installed snapshot": "2",
    "a leader that others have replaced says where its partition ends": "11",
    "an append is acknowledged as flushed when its flush begins": "4",
    "what was flushed before a truncation is told behind it": "2",
    "a broker that lost its disk is trusted": "6",
    "sequences are forgotten at an unclean start": "4",
    "a producer's sequence is not looked at": "4",
    "a follower gives readers what is not committed": "1",
    "any replica replaces a lost leader": "4",
    "the last one in sync leads without its disk": "4",
    "a second loss changes which directories are awaited": "4",
    "an epoch that no node has reached is believed": "1",
    "a broker may have applied records that no leader has appended": "2",
    "the session of one stream of a follower counts for the next": "3",
    "a channel that owes an answer is kept, and pings never end a connection": "2",
    "a coordinator answers before its records are committed": "1",
    "a coordinator does not read the log above its snapshot": "3",
    "a broker says that it does not know the members of another coordinator": "4",
    "the end of a stream is the end of its members": "4",
    "a partition is given before its owner has given it up": "2",
    "partitions that a member keeps get a new assignment epoch": "2",
    "a member reads on after the end of its session": "3",
    "an ingest is published before its decision is committed": "1",
    "a fenced client commits": "1",
    "a fenced client opens and seals attempts": "1",
    "another manifest of an ingest gets the first answer": "1",
    "a commit of an ingest is answered before everything is published": "1",
    "the tasks of a decision are published in the wrong order": "1",
    "a part is answered before it is committed": "1",
    "a reader waits while something is staged": "1",
}
"""Mutants that a few seeds find, and the number of seeds to run."""


def in_a_process(*arguments: str, hash_seed: str = "1") -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process, so that a broken world leaves nothing behind in other tests."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_smoke_seeds_are_clean_and_every_fault_occurs() -> None:
    """Every law holds in seeds of all kinds, and the seeds do cause the faults that they are for.

    A lost last disk is too rare for so few seeds. The mutants of it, which run in a storm of their own, are found only if it occurs.
    """
    found = in_a_process("-m", "integration_tests.simulation.run", "--seeds", SMOKE_SEEDS, "--events", SMOKE_EVENTS)
    assert found.returncode == 0, found.stdout
    assert f"{SMOKE_SEEDS} seeds clean, 0 failed" in found.stdout
    assert not found.stderr, "clients that were killed speak up"
    _, _, everything = found.stdout.partition("everything:")
    for name in (
        "acknowledged",
        "records polled",
        "reader at a follower",
        "batch deduplicated",
        "partition leader change",
        "ISR shrink",
        "ISR growth",
        "truncation",
        "kill of a broker",
        "kill of a voter",
        "power loss of a broker",
        "crash that loses unflushed data",
        "torn write",
        "pause of a broker",
        "orderly stop of a broker",
        "cut",
        "power lost everywhere at the end",
        "log directory failed of a broker",
        "snapshot install of a broker",
        "snapshot install of a voter",
        "voter change",
        "disk full of a broker",
        "absurd epoch forged in a request of the quorum",
        "absurd epoch forged in an answer",
        "absurd epoch forged in a heartbeat",
        "absurd epoch forged in a proposal",
        "absurd epoch forged in an opening of a follower",
        "absurd epoch forged in subscriptions of a follower",
        "absurd epoch forged in a request for a range",
        "half-open connection of gRPC",
        "half-open link",
        "dead connection found by a ping",
        "group record delivered",
        "group commit acknowledged",
        "group partition revoked",
        "group partition lost",
        "coordinator loaded",
        "coordinator moved",
        "ingest record published",
        "ingest offset committed",
        "ingest commit answered",
        "ingest fenced by an open",
        "ingest attempt goes on",
        "transform round",
    ):
        assert f"  {name} " in everything, f"no {name!r}: {everything}"


def test_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    """Two processes with different PYTHONHASHSEED print the same digests."""
    outputs: list[list[str]] = []
    for hash_seed in ("1", "2"):
        arguments = ("-m", "integration_tests.simulation.run", "--seeds", "4", "--events", "3000", "--digest")
        found = in_a_process(*arguments, hash_seed=hash_seed)
        assert found.returncode == 0, found.stdout
        outputs.append([line for line in found.stdout.splitlines() if line.startswith("seed ")])
    assert len(outputs[0]) == 4
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_a_known_mistake_is_found(name: str) -> None:
    """One of a few seeds breaks a law. `--mutants` hunts all mutants."""
    assert name in {mutant.name for mutant in MUTANTS}
    found = in_a_process(
        "-m", "integration_tests.simulation.run", "--mutants", "--only", name, "--seeds", QUICKLY_FOUND[name]
    )
    assert found.returncode == 0, found.stdout
    assert "mutants: 1 of 1 found" in found.stdout


BROKEN_RUN = """
from integration_tests.simulation.mutants import MUTANTS
from integration_tests.simulation.run import main
from metaquorum.testing.mutants import apply
with apply(next(each for each in MUTANTS if each.name == "a producer's sequence is not looked at")):
    raise SystemExit(main(["--seeds", "6", "--events", "8000"]))
"""

FAULTY_RUN = """
from integration_tests.simulation.run import be_quiet
from integration_tests.simulation.world import World
from metaquorum.testing.invariants import InvariantViolation
be_quiet()
world = World(3)
world.scheduler.after(1_000, lambda: world.on_fault("broker-101/0: scripted: ValueError()"))
try:
    world.run(8_000)
except InvariantViolation as violation:
    print(violation)
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mistake_can_be_made(mutant: WorldMutant) -> None:
    """The code that a mutant changes exists. Otherwise the hunt would stop at it."""
    with apply(mutant):
        pass


def test_a_failure_says_where_everything_stands_and_how_to_repeat_it() -> None:
    """The report names the seed, the servers, the partitions and the command."""
    found = in_a_process("-c", BROKEN_RUN)
    assert found.returncode == 1, found.stderr
    for text in ("FAILED", "broker-101 ", "hw=", "repeat: python -m integration_tests.simulation.run --first-seed"):
        assert text in found.stdout


def test_a_fault_of_a_server_fails_the_seed() -> None:
    """An unexpected exception of a server is a violation, not only a line in a log."""
    found = in_a_process("-c", FAULTY_RUN)
    assert "scripted" in found.stdout, found.stderr
