# SPDX-License-Identifier: Apache-2.0
"""`lograft quorum`: the state of the metadata quorum, its voters and its leadership."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.options import Json
from lograft.cli.output import counted, print_facts, print_json, print_table
from lograft.types import QuorumDescription, QuorumReplicaDescription

quorum_app: typer.Typer = typer.Typer(no_args_is_help=True, help="Look at the metadata quorum and change it.")

Node = Annotated[int, typer.Argument(help="Node id.", min=0)]
Directory = Annotated[str | None, typer.Option("--directory", help="Id of its metadata directory, in hex.")]


@admin_command(quorum_app, Admin.describe_quorum, Admin.describe_cluster, name="describe")
@admin_command(quorum_app, Admin.describe_quorum, Admin.describe_cluster, name="status")
def describe(admin: Admin, as_json: Json = False) -> None:
    """Show leader, voters, observers and brokers. Lag is counted in records behind the longest log."""
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
            "log start": quorum.log_start_offset,
            "latest snapshot": None if quorum.latest_snapshot is None else quorum.latest_snapshot.end_offset,
        }
    )
    replicas = [("voter", replica) for replica in quorum.voters] + [("observer", each) for each in quorum.observers]
    typer.echo()
    print_table(
        "metadata quorum",
        ("node", "role", "address", "log end", "lag", "fetched ms ago", "caught up ms ago", "directory"),
        [_row(role, replica, quorum) for role, replica in replicas],
        may_go=("directory",),
    )
    typer.echo()
    print_table(
        counted(len(cluster.brokers), "broker"),
        ("broker", "address", "state", "rack"),
        [
            (broker.broker_id, f"{broker.host}:{broker.port}", "fenced" if broker.fenced else "active", broker.rack)
            for broker in cluster.brokers
        ],
    )


@admin_command(quorum_app, Admin.add_voter, name="add-voter")
def add_voter(admin: Admin, node: Node, directory: Directory = None, as_json: Json = False) -> None:
    """Make a voter of an observer that has caught up."""
    found = admin.add_voter(node, directory_id=_directory_id(directory))
    _print_voter("votes now", node, found, as_json)


@admin_command(quorum_app, Admin.remove_voter, name="remove-voter")
def remove_voter(admin: Admin, node: Node, directory: Directory = None, as_json: Json = False) -> None:
    """Make an observer of a voter; refused when it would lose the quorum."""
    found = admin.remove_voter(node, directory_id=_directory_id(directory))
    _print_voter("votes no more", node, found, as_json)


@admin_command(quorum_app, Admin.replace_voter, name="replace-voter")
def replace_voter(admin: Admin, node: Node, as_json: Json = False) -> None:
    """Replace a voter whose disk was lost with the replica that now fetches under its node id."""
    found = admin.replace_voter(node)
    _print_voter("votes now", node, found, as_json)


@admin_command(quorum_app, Admin.transfer_leadership, name="transfer-leader")
def transfer_leader(
    admin: Admin,
    node: Annotated[int | None, typer.Argument(help="Node id of the voter that is to lead; none: any.", min=0)] = None,
    as_json: Json = False,
) -> None:
    """Have the leader hand over to a voter that has everything."""
    leader_id = admin.transfer_leadership(node)
    if as_json:
        print_json({"leader_id": leader_id})
    else:
        typer.echo(f"node {leader_id} leads the metadata quorum")


def _directory_id(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not 32 hexadecimal digits", param_hint="--directory") from None


def _print_voter(what: str, node: int, directory_id: bytes, as_json: bool) -> None:
    if as_json:
        print_json({"node_id": node, "directory_id": directory_id.hex()})
    else:
        typer.echo(f"node {node} (directory {directory_id.hex()}) {what}")


def _row(role: str, replica: QuorumReplicaDescription, quorum: QuorumDescription) -> tuple[object, ...]:
    return (
        replica.node_id,
        "leader" if replica.node_id == quorum.leader_id and role == "voter" else role,
        replica.address,
        replica.log_end_offset,
        _lag(replica, quorum),
        replica.last_fetch_age_ms,
        replica.last_caught_up_age_ms,
        None if replica.directory_id is None else replica.directory_id.hex(),
    )


def _lag(replica: QuorumReplicaDescription, quorum: QuorumDescription) -> int | None:
    """Return the records behind the longest log that the leader knows; None: not known."""
    if replica.log_end_offset is None:
        return None
    return max(each.log_end_offset or 0 for each in (*quorum.voters, *quorum.observers)) - replica.log_end_offset


def _replica_as_json(replica: QuorumReplicaDescription, quorum: QuorumDescription) -> dict[str, object]:
    directory_id = None if replica.directory_id is None else replica.directory_id.hex()
    return {**asdict(replica), "directory_id": directory_id, "lag": _lag(replica, quorum)}


def _quorum_as_json(quorum: QuorumDescription) -> dict[str, object]:
    return {
        **asdict(quorum),
        "voters": [_replica_as_json(replica, quorum) for replica in quorum.voters],
        "observers": [_replica_as_json(replica, quorum) for replica in quorum.observers],
    }
