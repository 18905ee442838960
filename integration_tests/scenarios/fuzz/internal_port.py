# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`, second part: hostile servers at the internal ports of three combined servers.

Every carrier method gets valid, changed, damaged and shuffled messages. Its connections get invalid frames and prefaces. No process may
end and no log may have a traceback. Every request gets one typed final frame within `ANSWER_S`, or the connection ends. A producer's
records are acknowledged all the time. Afterwards every server is shut down cleanly, and then killed; each time it must serve again with
every acknowledged record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lograft import Admin, Producer, TopicPartition
from lograft.errors import LograftError
from lograft.internal.v1 import controller_pb2

from integration_tests.harness.cluster import CombinedCluster
from integration_tests.harness.history.checker import check
from integration_tests.harness.history.events import HISTORY_FILE, HistoryFile, read_history
from integration_tests.harness.load.readers import read_everything, read_partitions
from integration_tests.harness.load.senders import Acknowledgements, Sender
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.fuzz.carrier_client import ANSWER_S, CarrierClient
from integration_tests.scenarios.fuzz.carrier_damage import FORBIDDEN
from integration_tests.scenarios.fuzz.cluster_facts import ID_BYTES, Facts, Stranger, gather
from integration_tests.scenarios.fuzz.internal_attacker import Attacker, Outcome, methods, others
from metaquorum.net.hello import Identity
from metaquorum.net.methods import Method

QUIET: Final = "fuzz-quiet"
"""The topic that the requests concern: it has records from the start, and no writer."""
LIVELY: Final = "fuzz-lively"
"""The topic of the producer."""
PARTITIONS: Final = 3
STRANGER_ID: Final = 77
STALL_S: Final = 90.0
"""Maximum seconds in which the producer may get no acknowledgement."""
SERVE_S: Final = 120.0
"""Maximum seconds until a cluster serves again."""
RATE_PER_S: Final = 20
"""Records per second of the producer."""
SNAPSHOTS: Final = ("--snapshot-interval-ms", "2000", "--kept-snapshots", "20")
"""Options with which each server soon has a snapshot of the metadata, and keeps it for longer than an attacker uses its facts."""
FAULTS_IN_LOGS: Final = ("Traceback (most recent call last)", "event=quorum_node_failed", "AssertionError")


def values_of(bootstrap: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Return the values of a topic by partition and offset.

    Raises:
        TimeoutError: a reader got nothing for too long.
    """
    records = read_partitions(bootstrap, places_of(topic), timeout_s=SERVE_S)
    return {(record.partition, record.offset): record.value or b"" for record in records}


def places_of(topic: str) -> list[TopicPartition]:
    """Return all partitions of a topic."""
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


def run(directory: Path, inputs: int, seed: int) -> Outcome:
    """Attack three servers, restart them, and read everything.

    Args:
        directory: directory for data and logs.
        inputs: number of inputs for all servers together.
        seed: determines the inputs.
    """
    outcome = Outcome()
    with (
        HistoryFile(directory / HISTORY_FILE) as history,
        CombinedCluster(directory, count=3, arguments=SNAPSHOTS) as nodes,
        Admin(nodes.bootstrap) as admin,
    ):
        for topic in (QUIET, LIVELY):
            admin.create_topic(
                topic, partition_count=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
            )
        quiet = _fill(nodes.bootstrap)
        ends = [sum(partition == each for partition, _ in quiet) for each in range(PARTITIONS)]
        stranger = register_stranger(nodes, admin)
        wait_for(
            lambda: admin.describe_quorum().latest_snapshot,
            timeout_s=SERVE_S,
            what="a snapshot of the metadata",
            interval_s=0.2,
        )
        acknowledgements = Acknowledgements(PARTITIONS)
        sender = Sender(
            nodes.bootstrap,
            "s0",
            topic=LIVELY,
            partitions=list(range(PARTITIONS)),
            rate_per_s=RATE_PER_S,
            delivery_timeout_ms=int(STALL_S * 1_000),
            history=history,
            acknowledgements=acknowledgements,
        )
        started_s = time.monotonic()
        sender.start()
        _attack_all(nodes, inputs, seed, lambda: gather(admin, topic=QUIET, ends=ends, stranger=stranger), outcome)
        try:
            sender.join()
        except (TimeoutError, RuntimeError) as error:
            outcome.fail(f"the producer ended: {error}, {sender.broken!r}")
        for what, count in sender.failures.items():
            outcome.fail(f"{count} records of the producer were not acknowledged: {what}")
        for partition in range(PARTITIONS):
            stalled_s = acknowledgements.longest_gap_s(partition, started_s, time.monotonic())
            if stalled_s > STALL_S:
                outcome.fail(f"partition {partition} acknowledged nothing for {stalled_s:.0f} s")
        outcome.acknowledged = sender.acknowledged_count
        for process in nodes.processes.values():
            if not process.running:
                outcome.fail(f"{process.name} ended: {process.log_tail()}")
        outcome.problems += _log_problems(nodes)
        if any(topic.topic == FORBIDDEN for topic in admin.list_topics()):
            outcome.fail("a request behind a greeting that does not fit was carried out")
        if outcome.problems:
            return outcome
        _compare(nodes, quiet, history, outcome, "after the attack")
        for process in nodes.processes.values():
            _restart(nodes, process.stop, outcome)
            process.start()
            _wait_until_serving(nodes, admin)
            _restart(nodes, process.kill, outcome)
            process.start()
            _wait_until_serving(nodes, admin)
        _compare(nodes, quiet, history, outcome, "after the restarts")
        outcome.problems += [f"after the restarts: {problem}" for problem in _log_problems(nodes)]
    return outcome


def _restart(nodes: CombinedCluster, end: Callable[[], int | None], outcome: Outcome) -> None:
    status = end()
    if status:
        outcome.fail(f"a server ended with {status}: {nodes.logs()}")


def _fill(bootstrap: str) -> dict[tuple[int, int], bytes]:
    with Producer(bootstrap, acks="all") as producer:
        for number in range(100):
            producer.send(QUIET, b"quiet-%d" % number, partition=number % PARTITIONS)
        producer.flush()
    return values_of(bootstrap, QUIET)


def register_stranger(nodes: CombinedCluster, admin: Admin) -> Stranger:
    """Register a broker that has no process.

    Raises:
        TimeoutError: no controller accepted it.
    """
    incarnation_id, directory_id = bytes(range(ID_BYTES)), bytes(range(1, ID_BYTES + 1))
    cluster_id = admin.describe_quorum().cluster_id
    hello = Identity(cluster_id=cluster_id, node_id=STRANGER_ID, incarnation_id=incarnation_id, address=None).encode()
    request = controller_pb2.RegisterBrokerRequest(
        cluster_id=cluster_id,
        broker_id=STRANGER_ID,
        incarnation_id=incarnation_id,
        host="127.0.0.1",
        port=1,
        log_directory_ids=[directory_id],
        feature_level=controller_pb2.FeatureRange(min_level=1, max_level=100),
    )

    def register() -> Stranger | None:
        for host in nodes.hosts:
            with CarrierClient(host, nodes.quorum_port) as client:
                client.greet(hello)
                call_id = client.request(Method.REGISTER_BROKER, request.SerializeToString())
                client.settle()
            for answer in client.calls[call_id].answers:
                return Stranger(
                    broker_id=STRANGER_ID,
                    incarnation_id=incarnation_id,
                    directory_id=directory_id,
                    broker_epoch=controller_pb2.RegisterBrokerResponse.FromString(answer).broker_epoch,
                )
        return None

    return wait_for(register, timeout_s=SERVE_S, what="a controller", interval_s=0.5)


def _attack_all(nodes: CombinedCluster, inputs: int, seed: int, facts: Callable[[], Facts], outcome: Outcome) -> None:
    attackers = [Attacker(nodes, 1 + number, seed * 10 + number, facts, outcome) for number in range(3)]
    threads = [
        threading.Thread(target=attacker.attack, args=(inputs // 3 + (number < inputs % 3),), daemon=True)
        for number, attacker in enumerate(attackers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for attacker in attackers:
        attacker.close()


def _log_problems(nodes: CombinedCluster) -> list[str]:
    problems: list[str] = []
    for process in nodes.processes.values():
        text = process.log_text()
        for fault in FAULTS_IN_LOGS:
            if fault in text:
                position = text.index(fault)
                excerpt = text[max(0, position - 500) : position + 3_000]
                problems.append(f"{process.name} logs {fault!r} {text.count(fault)} times: {excerpt}")
                break
    return problems


def _wait_until_serving(nodes: CombinedCluster, admin: Admin) -> None:
    """Wait until every replica is in sync again, so that one more server may be taken away.

    Raises:
        TimeoutError: not within `SERVE_S`.
    """

    def is_serving() -> bool:
        try:
            cluster = admin.describe_cluster()
            fenced = {broker.broker_id for broker in cluster.brokers if broker.fenced}
            topics = [admin.describe_topic(topic) for topic in (QUIET, LIVELY)]
        except LograftError:
            return False
        partitions = [partition for topic in topics for partition in topic.partitions]
        # Some of the requests register brokers without a process.
        return not fenced & set(range(1, len(nodes.hosts) + 1)) and all(
            len(partition.isr) == 3 for partition in partitions
        )

    try:
        wait_for(is_serving, timeout_s=SERVE_S, what="all replicas to be in sync", interval_s=0.2)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{nodes.logs()}") from None


def _compare(
    nodes: CombinedCluster, quiet: dict[tuple[int, int], bytes], history: HistoryFile, outcome: Outcome, when: str
) -> None:
    if (found := values_of(nodes.bootstrap, QUIET)) != quiet:
        outcome.fail(f"{when}: {QUIET} has {len(found)} records, and had {len(quiet)}")
    for problem in read_everything(nodes.bootstrap, places_of(LIVELY), history):
        outcome.fail(f"{when}: {problem}")
    history.flush()
    for anomaly in check(read_history(history.path)).anomalies:
        outcome.fail(f"{when}: {anomaly}")


def report(outcome: Outcome, inputs: int, seed: int) -> int:
    """Print the result of a run and return the exit status."""
    kinds = [*methods(), *others()]
    missing = [kind for kind in kinds if kind not in outcome.reached]
    for kind in kinds:
        found = {answer: count for (each, answer), count in outcome.counts.items() if each == kind}
        answers = ", ".join(f"{name} {count}" for name, count in sorted(found.items(), key=lambda item: -item[1]))
        print(f"{sum(found.values()):7d}  {kind}: {answers}")
    for problem in outcome.problems[:20]:
        print(f"PROBLEM {problem}")
    for kind in missing:
        print(f"NOT REACHED {kind}: no request was looked into")
    print(
        f"{sum(outcome.counts.values())} of {inputs} inputs of seed {seed} to three servers; {outcome.acknowledged} records taken "
        f"meanwhile; slowest answer {outcome.slowest_s:.1f} s (bound {ANSWER_S:.0f} s); {len(outcome.problems)} problems"
    )
    return 1 if outcome.problems or missing else 0
