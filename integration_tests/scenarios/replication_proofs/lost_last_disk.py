# SPDX-License-Identifier: Apache-2.0
"""Proof: the last in-sync replica loses its disk, in every order of stops and starts, and no acknowledged record is lost silently.

The other replicas stop first. The last one acknowledges alone if `min.insync.replicas` allows it, stops, and its directory is moved
away. Then all start. A partition now has no leader, or one with everything, and `lograft doctor` names the broker and the directory.
The directory comes back. In every other case it never does, and an unclean election gives up what only it had.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lograft import Admin, Producer, TopicPartition
from lograft.types import ElectionType, PartitionDescription

from integration_tests.harness.cli import run_lograft
from integration_tests.harness.cluster import Cluster, stop_in_order
from integration_tests.harness.load.readers import read_partitions
from integration_tests.harness.metadata import are_in_sync, partitions_of, unfenced_brokers
from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Shape
from integration_tests.harness.wait import wait_for

RECORDS = 3_000
"""Number of records that all replicas have."""
ALONE = 100
"""Number of records that the last replica acknowledges alone, if it may."""
PARTITIONS = 6
WAIT_S = 60.0
TIMEOUT_MS = 20_000
ORDERS = ("last first", "last at the end", "together")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One variant of the proof.

    Attributes:
        replicas: replicas of each partition.
        min_isr: `min.insync.replicas`.
        is_killed: True for kill -9, False for SIGTERM.
        order: order in which the brokers start again.
        is_gone: True if the directory never comes back.
    """

    replicas: int
    min_isr: int
    is_killed: bool
    order: str
    is_gone: bool

    def __str__(self) -> str:
        end = "killed" if self.is_killed else "stopped"
        return f"RF {self.replicas}, min ISR {self.min_isr}, {end}, {self.order}, {'gone' if self.is_gone else 'back'}"


def cases() -> list[Case]:
    """Return every combination. Whether the directory comes back alternates."""
    ways = itertools.product((2, 3), (1, 2), (False, True), ORDERS)
    return [
        Case(replicas=replicas, min_isr=min_isr, is_killed=is_killed, order=order, is_gone=bool(number % 2))
        for number, (replicas, min_isr, is_killed, order) in enumerate(ways)
    ]


class Scene:
    """A cluster whose brokers stop and start, and the topics of the cases."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def state(self, topic: str) -> Sequence[PartitionDescription] | None:
        """Return the partitions of a topic; None while no broker answers."""
        with Admin(self.cluster.bootstrap, request_timeout_ms=TIMEOUT_MS) as admin:
            return partitions_of(admin, topic)

    def active(self) -> set[int]:
        """Return the unfenced brokers."""
        with Admin(self.cluster.bootstrap, request_timeout_ms=TIMEOUT_MS) as admin:
            return unfenced_brokers(admin)

    def wait_active(self) -> None:
        """Wait until all brokers are unfenced."""
        wait_for(lambda: self.active() == set(self.cluster.brokers), timeout_s=WAIT_S, what="all brokers to be active")

    def stop(self, broker_id: int, *, is_killed: bool) -> None:
        """Stop or kill a broker."""
        process = self.cluster.brokers[broker_id]
        if is_killed:
            process.kill()
        elif problems := stop_in_order([process]):
            raise AssertionError(problems[0])

    def path(self, broker_id: int) -> Path:
        """Return the data directory of a broker."""
        return self.cluster.data_directory(self.cluster.brokers[broker_id])

    def doctor(self) -> tuple[int, str]:
        """Return exit status and output of `lograft doctor`."""
        done = run_lograft("doctor", "--bootstrap", self.cluster.bootstrap, timeout_s=WAIT_S)
        return done.returncode, done.stdout + done.stderr


def send(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    """Send values to all partitions in turn, and wait until all in-sync replicas have acknowledged them."""
    with Producer(bootstrap, delivery_timeout_ms=TIMEOUT_MS) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % PARTITIONS)
        producer.flush()


def read(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return every value of a topic."""
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    return [record.value for record in read_partitions(bootstrap, places, timeout_s=WAIT_S)]


def run_case(scene: Scene, case: Case, topic: str) -> list[str]:
    """Run one case and return its problems."""
    cluster = scene.cluster
    with Admin(cluster.bootstrap, request_timeout_ms=TIMEOUT_MS) as admin:
        configs = {"min.insync.replicas": str(case.min_isr)}
        created = admin.create_topic(
            topic, partition_count=PARTITIONS, replication_factor=case.replicas, configs=configs
        )
    values = [b"%d" % number for number in range(RECORDS)]
    send(cluster.bootstrap, topic, values)
    last = created.partitions[0].replicas[0]
    others = [broker_id for broker_id in cluster.brokers if broker_id != last]
    for broker_id in others:
        scene.stop(broker_id, is_killed=case.is_killed)

    def is_alone() -> bool:
        partitions = scene.state(topic)
        return partitions is not None and all(each.isr == (last,) for each in partitions if last in each.replicas)

    wait_for(is_alone, timeout_s=WAIT_S, what=f"broker {last} to be the last one")
    alone = _write_alone(scene, case, topic, last)
    scene.stop(last, is_killed=case.is_killed)
    path = scene.path(last)
    shelf = path.with_name(f"{path.name}.shelf")
    shutil.move(path, shelf)
    orders = {"last first": [last, *others], "last at the end": [*others, last], "together": [*others, last]}
    for broker_id in orders[case.order]:
        cluster.brokers[broker_id].start()
        if case.order != "together":
            wait_for(lambda id_=broker_id: id_ in scene.active(), timeout_s=WAIT_S, what=f"broker {broker_id}")
    scene.wait_active()
    problems = _while_gone(scene, case, topic, last)
    if case.is_gone:
        shutil.rmtree(shelf)
        with Admin(cluster.bootstrap, request_timeout_ms=TIMEOUT_MS) as admin:
            offline = [each.partition for each in scene.state(topic) or () if each.leader_id is None]
            if offline:
                places = [TopicPartition(topic, partition) for partition in offline]
                admin.elect_leaders(places, election=ElectionType.UNCLEAN)
    else:
        scene.stop(last, is_killed=case.is_killed)
        shutil.rmtree(path)
        shutil.move(shelf, path)
        cluster.brokers[last].start()

    def is_whole() -> bool:
        partitions = scene.state(topic)
        return partitions is not None and are_in_sync(partitions)

    wait_for(is_whole, timeout_s=WAIT_S, what="all replicas in sync again")
    found = read(cluster.bootstrap, topic)
    lacking = set(values) | (set() if case.is_gone else set(alone))
    lacking -= {value for value in found if value is not None}
    if lacking:
        problems.append(f"{len(lacking)} acknowledged records are lost")
    if len(set(found)) != len(found):
        problems.append(f"{len(found) - len(set(found))} records are there twice")
    return problems


def _write_alone(scene: Scene, case: Case, topic: str, last: int) -> list[bytes]:
    """Let the last replica acknowledge records alone, if the minimum allows it."""
    partitions = scene.state(topic) or ()
    if case.min_isr > 1 or any(each.leader_id != last for each in partitions):
        return []
    values = [b"alone-%d" % number for number in range(ALONE)]
    send(scene.cluster.broker_addresses[last], topic, values)
    return values


def _while_gone(scene: Scene, case: Case, topic: str, last: int) -> list[str]:
    """Check the partitions while the directory is away, and return the problems."""
    problems: list[str] = []
    status, said = scene.doctor()
    for each in scene.state(topic) or ():
        if last not in each.replicas:
            continue
        awaited = [replica.broker_id for replica in each.awaited_replicas]
        if each.leader_id == last:
            problems.append(f"partition {each.partition}: broker {last} leads without its directory")
        elif each.leader_id is None and (awaited != [last] or f"{topic}:{each.partition} is offline" not in said):
            problems.append(
                f"partition {each.partition} is offline and the reason is not told: {awaited}, {said[:200]}"
            )
        elif each.leader_id is not None and case.min_isr == 1:
            problems.append(f"partition {each.partition}: broker {each.leader_id} leads, which was not in sync")
    if any(each.leader_id is None for each in scene.state(topic) or ()) and status != 1:
        problems.append(f"doctor ends with {status} although partitions are offline")
    return problems


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run every case `rounds` times and judge it."""
    del seed
    figures: dict[str, str | int | float | dict[str, int] | list[int]] = {"rounds": rounds, "cases": len(cases())}
    outcome = Outcome(proof="lost-last-disk", figures=figures)
    if shape.brokers < 3:
        outcome.not_run = "it needs three brokers"
        return outcome
    with Cluster(directory, voter_count=shape.voters, broker_count=3) as cluster:
        scene = Scene(cluster)
        for number, case in enumerate(case for _ in range(rounds) for case in cases()):
            started_s = time.monotonic()
            problems = run_case(scene, case, f"case-{number}")
            took_s = time.monotonic() - started_s
            outcome.problems += [f"{case}: {problem}" for problem in problems]
            print(f"  case {number:3d}: {case}: {'FAILED' if problems else 'right'}, {took_s:.1f} s", flush=True)
            with Admin(cluster.bootstrap, request_timeout_ms=TIMEOUT_MS) as admin:
                admin.delete_topic(f"case-{number}")
    return outcome
