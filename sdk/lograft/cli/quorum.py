# SPDX-License-Identifier: Apache-2.0
"""`lograft quorum`: the state of the metadata quorum."""

from __future__ import annotations

from dataclasses import asdict

import typer

from lograft.admin import Admin
from lograft.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_MS, Bootstrap, ClusterId, Json, TimeoutMs
from lograft.cli.output import print_facts, print_json, print_table
from lograft.types import QuorumDescription, QuorumReplicaDescription

quorum_app = typer.Typer(no_args_is_help=True, help="Look at the metadata quorum.")


@quorum_app.command()
def status(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Show leader, voters, observers and brokers."""
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        quorum = admin.describe_quorum()
        cluster = admin.describe_cluster()
    if as_json:
        print_json({**_quorum_as_json(quorum), "brokers": [asdict(broker) for broker in cluster.brokers]})
        return
    print_facts(
        {
            "cluster": quorum.cluster_id,
            "leader": quorum.leader_id,
            "quorum epoch": quorum.quorum_epoch,
            "high watermark": quorum.high_watermark,
        }
    )
    replicas = [("voter", replica) for replica in quorum.voters] + [("observer", each) for each in quorum.observers]
    print_table(
        "metadata quorum",
        ("role", "node", "address", "log end", "last fetch (ms)", "caught up (ms)", "directory"),
        [_row("leader" if replica.node_id == quorum.leader_id else role, replica) for role, replica in replicas],
    )
    print_table(
        "brokers",
        ("node", "address", "rack", "state"),
        [
            (broker.broker_id, f"{broker.host}:{broker.port}", broker.rack, "fenced" if broker.fenced else "active")
            for broker in cluster.brokers
        ],
    )


def _group() -> None:
    """Look at the metadata quorum."""


# With a callback, a group of one command keeps the command's name: `lograft quorum status`.
quorum_app.callback()(_group)


def _row(role: str, replica: QuorumReplicaDescription) -> tuple[object, ...]:
    return (
        role,
        replica.node_id,
        replica.address,
        replica.log_end_offset,
        replica.last_fetch_age_ms,
        replica.last_caught_up_age_ms,
        None if replica.directory_id is None else replica.directory_id.hex(),
    )


def _replica_as_json(replica: QuorumReplicaDescription) -> dict[str, object]:
    directory_id = None if replica.directory_id is None else replica.directory_id.hex()
    return {**asdict(replica), "directory_id": directory_id}


def _quorum_as_json(quorum: QuorumDescription) -> dict[str, object]:
    return {
        **asdict(quorum),
        "voters": [_replica_as_json(replica) for replica in quorum.voters],
        "observers": [_replica_as_json(replica) for replica in quorum.observers],
    }
