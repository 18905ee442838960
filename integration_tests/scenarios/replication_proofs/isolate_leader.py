# SPDX-License-Identifier: Apache-2.0
"""Proof: an isolated leader acknowledges nothing that is lost, and others take over. Clients reach all servers at all times.

Servers run in their own network namespaces (`integration_tests.harness.faults.namespaces`). A round isolates the leader of a random
partition: from brokers and voters, in both directions or only one; from brokers alone; from voters alone. During the cut a guest
producer, which asked only that broker for leaders, sends to its partitions. What the guest is told is part of the history.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

from integration_tests.harness.cluster import names_of
from integration_tests.harness.faults.namespaces import Namespaces, is_inside, run_inside, unshare_command
from integration_tests.harness.outcome import Outcome, read_outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, prove

LIMITS = {"unavailable": Limits(max_s=6.0)}
HOLD_S = 10.0
"""Seconds of a cut: three sessions, two lag times."""
GUEST_DELIVERY_TIMEOUT_MS = 8_000
"""Shorter than a cut: sends of the guest during the cut may end with an unknown outcome."""
OUTCOME_FILE = "outcome.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The servers from which a leader is isolated, and the direction.

    A leader that is isolated only from voters is fenced like a dead one. A leader that is isolated only from other brokers looks
    alive to the controller, but has too few in-sync replicas to acknowledge anything, so it resigns.
    """

    text: str
    voters: bool = True
    brokers: bool = True
    sent: bool = True
    received: bool = True


CASES = (
    Case(text="from all, both ways"),
    Case(text="from all, what it sends", received=False),
    Case(text="from all, what it should receive", sent=False),
    Case(text="from voters", brokers=False),
    Case(text="from brokers", voters=False),
)


class IsolatingRounds:
    """Rounds in a network that can be cut."""

    def __init__(self, network: Namespaces) -> None:
        self._network = network

    def run_round(self, scene: Scene, rng: random.Random, number: int) -> Round:
        """Isolate one leader and heal it. The cases take turns."""
        case = CASES[number % len(CASES)]
        leaders = scene.leaders()
        broker_id = leaders[rng.choice(scene.partitions)]
        led = scene.led_by(leaders, broker_id)
        guest = scene.load.add_guest(
            scene.bootstrap_of([broker_id]),
            f"g{time.monotonic_ns()}",
            led,
            delivery_timeout_ms=GUEST_DELIVERY_TIMEOUT_MS,
        )
        started_s = time.monotonic()
        self._cut(scene, broker_id, case)
        scene.hurt.add(broker_id)
        late: list[str] = []
        try:
            if scene.shape.is_redundant:
                late = scene.served_despite(f"broker {broker_id} cut off {case.text}")
            served_s = time.monotonic()
            # The others may have taken over long before, but the guest continues for the whole cut.
            scene.load.hold(started_s + HOLD_S)
        finally:
            self._network.heal()
            scene.hurt.discard(broker_id)
        healed_s = time.monotonic()
        scene.wait_in_sync()
        scene.load.wait_acknowledged(scene.partitions, time.monotonic())
        ended_s = time.monotonic()
        guest.join()
        times_s = {
            "after_healing": scene.load.longest_gaps_s(scene.partitions, healed_s, ended_s),
            "unavailable": scene.load.longest_gaps_s(led, started_s, served_s),
        }
        return Round(
            text=f"broker {broker_id} cut off {case.text}, leader of {len(led)}, guest got {guest.acknowledged_count}",
            started_s=started_s,
            ended_s=ended_s,
            times_s=times_s,
            late=late,
        )

    def _cut(self, scene: Scene, broker_id: int, case: Case) -> None:
        one = [scene.cluster.brokers[broker_id].name]
        others = [process.name for process in scene.cluster.voters.values()] if case.voters else []
        if case.brokers:
            others += [process.name for each, process in scene.cluster.brokers.items() if each != broker_id]
        if case.sent:
            self._network.cut(one, others)
        if case.received:
            self._network.cut(others, one)


def prove_inside(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them. Only inside namespaces."""
    network = Namespaces(names_of(voter_count=shape.voters, broker_count=shape.brokers))
    run_round = IsolatingRounds(network).run_round
    limits = LIMITS if shape.is_redundant else {}
    return prove(
        "isolate-leader", directory, run_round, shape=shape, rounds=rounds, seed=seed, limits=limits, place=network
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run the proof in its own process inside namespaces. NOT RUN if they are not permitted."""
    command = unshare_command()
    if isinstance(command, str):
        return Outcome(proof="isolate-leader", figures={"rounds": rounds}, not_run=command)
    arguments = {"shape": dataclasses.asdict(shape), "rounds": rounds, "seed": seed}
    own = "integration_tests.scenarios.replication_proofs.isolate_leader"
    status = run_inside(command, own, str(directory), json.dumps(arguments))
    if status != 0:
        raise RuntimeError(f"the process inside of namespaces ended with {status}")
    return read_outcome(directory / OUTCOME_FILE)


def main() -> None:
    """Run inside namespaces and write the outcome to a file."""
    parser = argparse.ArgumentParser(description="the part of the proof that runs inside of namespaces")
    parser.add_argument("directory", type=Path)
    parser.add_argument("arguments", help="JSON")
    given = parser.parse_args()
    assert is_inside(), "run integration_tests.scenarios.replication_proofs.run: it makes the namespaces"
    arguments = json.loads(given.arguments)
    shape = Shape(**arguments.pop("shape"))
    outcome = prove_inside(given.directory, shape=shape, **arguments)
    outcome.write(given.directory / OUTCOME_FILE)


if __name__ == "__main__":
    main()
