# SPDX-License-Identifier: Apache-2.0
"""`lograft doctor`: what is wrong with a cluster, why, and what to do."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Annotated, Final

import typer

from lograft import __version__
from lograft.admin import Admin
from lograft.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_MS, Bootstrap, ClusterId, Json, TimeoutMs
from lograft.cli.output import GREEN, RED, YELLOW, counted, format_size, print_json, styled
from lograft.cluster_checks import (
    BrokerProbe,
    Check,
    Finding,
    address_findings,
    clock_findings,
    disk_findings,
    internal_topic_findings,
    no_controller,
    quorum_findings,
    version_findings,
)
from lograft.diagnosis import PartitionProblem, partition_problems
from lograft.errors import LograftError, RetriableError, UnknownTopicError
from lograft.types import BrokerDescription, ClusterDescription, TopicDescription

PROBE_LIMIT_S: Final = 3.0
"""Seconds for the connection to a broker, and again for its answers."""

MAX_PROBES_AT_ONCE: Final = 16
"""Brokers that are asked at the same time."""


@dataclass(slots=True)
class _Examination:
    """What was found, and one line for each subject."""

    findings: list[Finding] = field(default_factory=list[Finding])
    problems: list[PartitionProblem] = field(default_factory=list[PartitionProblem])
    facts: dict[Check, str] = field(default_factory=dict[Check, str])


def doctor(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    partitions_only: Annotated[
        bool, typer.Option("--partitions", help="Look at the partitions only, without a connection to each broker.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with the cluster and what to do; the exit status is 1 if anything is."""
    seen = _Examination()
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        if not partitions_only:
            _look_at_brokers(admin, seen)
        topic_count, broker_count = _look_at_partitions(admin, seen)
    if as_json:
        print_json([*map(_problem_as_json, seen.problems), *map(_finding_as_json, seen.findings)])
    else:
        _print(seen)
        if not seen.problems and not any(not each.is_note for each in seen.findings):
            typer.echo(f"nothing is wrong: {counted(topic_count, 'topic')}, {counted(broker_count, 'active broker')}")
    if seen.problems or any(not each.is_note for each in seen.findings):
        raise typer.Exit(1)


def active_brokers(admin: Admin) -> frozenset[int]:
    """Return the node ids of the brokers that may lead."""
    return frozenset(broker.broker_id for broker in admin.describe_cluster().brokers if not broker.fenced)


def print_problems(problems: Sequence[PartitionProblem]) -> None:
    """Print each problem in three lines."""
    for problem in problems:
        typer.echo(f"{problem.topic}:{problem.partition} is {problem.kind}")
        typer.echo(f"  why:     {problem.reason}")
        typer.echo(f"  to do:   {problem.advice}")


def _look_at_brokers(admin: Admin, seen: _Examination) -> None:
    cluster = admin.describe_cluster()
    probes = _probe_all(cluster)
    answered = [each for each in probes if each.directories is not None]
    versions = sorted({each.directories.software_version or "older" for each in answered if each.directories})
    seen.facts[Check.ADDRESSES] = (
        f"{len(answered)} of {counted(len(probes), 'broker')} reached at the advertised addresses"
    )
    seen.facts[Check.VERSIONS] = f"brokers {', '.join(versions) or 'unknown'}"
    try:
        brokers, levels, quorum = admin.describe_brokers(), admin.describe_feature_level(), admin.describe_quorum()
    except RetriableError as error:
        # The brokers' own answers are still worth a look.
        seen.findings.append(no_controller(error.message))
        seen.facts[Check.QUORUM] = "the active controller does not answer"
        brokers = ()
    else:
        seen.findings += version_findings(__version__, levels, probes)
        seen.facts[Check.VERSIONS] += f"; feature level {levels.level}"
        seen.findings += quorum_findings(quorum)
        leader = "no node leads" if quorum.leader_id is None else f"node {quorum.leader_id} leads"
        seen.facts[Check.QUORUM] = f"{leader} {counted(len(quorum.voters), 'voter')}"
    seen.findings += address_findings(brokers, probes)
    seen.findings += clock_findings(probes)
    seen.facts[Check.CLOCKS] = _clock_fact(answered)
    seen.findings += disk_findings(probes)
    free = [
        each.free_bytes
        for probe in answered
        if probe.directories
        for each in probe.directories.directories
        if each.free_bytes is not None
    ]
    count = sum(len(each.directories.directories) for each in answered if each.directories)
    least = f", at least {format_size(min(free))} free in each" if free else ""
    seen.facts[Check.DISKS] = f"{counted(count, 'log directory', 'log directories')}{least}"


def _look_at_partitions(admin: Admin, seen: _Examination) -> tuple[int, int]:
    active = active_brokers(admin)
    topics = admin.list_topics(include_internal=True)
    seen.findings += internal_topic_findings(topics, len(admin.describe_cluster().brokers))
    partition_count = lagging = 0
    for summary in topics:
        try:
            topic = admin.describe_topic(summary.topic)
        except UnknownTopicError:
            continue  # the topic was deleted since the list
        seen.problems += partition_problems(topic, active)
        partition_count += topic.partition_count
        lagging += _lagging(topic)
    behind = f", {lagging} with replicas that are not in sync" if lagging else ""
    internal = sum(each.is_internal for each in topics)
    of_topics = counted(len(topics), "topic") + (f" ({internal} internal)" if internal else "")
    seen.facts[Check.PARTITIONS] = f"{counted(partition_count, 'partition')} of {of_topics}{behind}"
    return len(topics), len(active)


def _lagging(topic: TopicDescription) -> int:
    return sum(len(each.isr) < len(each.replicas) for each in topic.partitions)


def _probe_all(cluster: ClusterDescription) -> list[BrokerProbe]:
    if not cluster.brokers:
        return []
    with ThreadPoolExecutor(min(len(cluster.brokers), MAX_PROBES_AT_ONCE)) as pool:
        answers = [pool.submit(_probe, broker, cluster.cluster_id) for broker in cluster.brokers]
        return [each.result() for each in answers]


def _probe(broker: BrokerDescription, cluster_id: str | None) -> BrokerProbe:
    """Ask a broker at the address that clients get, over a connection of its own."""
    address = f"{broker.host}:{broker.port}"
    try:
        socket.create_connection((broker.host, broker.port), PROBE_LIMIT_S).close()
        with Admin(address, cluster_id=cluster_id, request_timeout_ms=int(PROBE_LIMIT_S * 1000)) as admin:
            # The first question opens the connection, the second one is timed.
            admin.describe_log_directories(broker.broker_id)
            asked_ms = time.time_ns() // 1_000_000
            directories = admin.describe_log_directories(broker.broker_id)
            answered_ms = time.time_ns() // 1_000_000
    except OSError as error:
        return BrokerProbe(broker_id=broker.broker_id, address=address, failure=error.strerror or str(error))
    except LograftError as error:
        return BrokerProbe(broker_id=broker.broker_id, address=address, failure=error.message)
    return BrokerProbe(
        broker_id=broker.broker_id,
        address=address,
        directories=directories,
        asked_ms=asked_ms,
        answered_ms=answered_ms,
    )


def _clock_fact(probes: Sequence[BrokerProbe]) -> str:
    known = [(abs(difference), each) for each in probes if (difference := each.clock_difference_ms) is not None]
    if not known:
        return "no broker tells its time"
    most, probe = max(known, key=lambda each: each[0])
    return f"at most {most} ms from this machine's, to {probe.clock_uncertainty_ms} ms"


def _print(seen: _Examination) -> None:
    for check in Check:
        if check not in seen.facts:
            continue
        problems = sum(each.check is check and not each.is_note for each in seen.findings)
        notes = sum(each.check is check and each.is_note for each in seen.findings)
        if check is Check.PARTITIONS:
            problems += len(seen.problems)
        state, style = ("wrong", RED) if problems else ("note", YELLOW) if notes else ("ok", GREEN)
        typer.echo(f"{check:<12}{styled(f'{state:<7}', style)}{seen.facts[check]}")
    print_problems(seen.problems)
    for finding in seen.findings:
        typer.echo(finding.what)
        typer.echo(f"  why:     {finding.reason}")
        typer.echo(f"  to do:   {finding.advice}")


def _problem_as_json(problem: PartitionProblem) -> dict[str, object]:
    return {"check": Check.PARTITIONS, **asdict(problem), "is_note": False}


def _finding_as_json(finding: Finding) -> dict[str, object]:
    return asdict(finding)
