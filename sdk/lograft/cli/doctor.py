# SPDX-License-Identifier: Apache-2.0
"""`lograft doctor`: which partitions do not serve, why, and what to do."""

from __future__ import annotations

from dataclasses import asdict

import typer

from lograft.admin import Admin
from lograft.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_MS, Bootstrap, ClusterId, Json, TimeoutMs
from lograft.cli.output import print_json
from lograft.diagnosis import PartitionProblem, partition_problems
from lograft.errors import UnknownTopicError


def doctor(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Say what is wrong with the cluster's partitions and what to do; the exit status is 1 if anything is."""
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        active = active_brokers(admin)
        found: list[PartitionProblem] = []
        topics = admin.list_topics()
        for summary in topics:
            try:
                found += partition_problems(admin.describe_topic(summary.topic), active)
            except UnknownTopicError:
                continue  # the topic was deleted since the list
    if as_json:
        print_json([asdict(problem) for problem in found])
    else:
        print_problems(found)
        if not found:
            typer.echo(f"nothing is wrong: {len(topics)} topics, {len(active)} active brokers")
    if found:
        raise typer.Exit(1)


def active_brokers(admin: Admin) -> frozenset[int]:
    """Return the node ids of the brokers that may lead."""
    return frozenset(broker.broker_id for broker in admin.describe_cluster().brokers if not broker.fenced)


def print_problems(problems: list[PartitionProblem]) -> None:
    """Print each problem in three lines."""
    for problem in problems:
        typer.echo(f"{problem.topic}:{problem.partition} is {problem.kind}")
        typer.echo(f"  why:     {problem.reason}")
        typer.echo(f"  to do:   {problem.advice}")
