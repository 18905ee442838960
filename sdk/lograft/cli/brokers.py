# SPDX-License-Identifier: Apache-2.0
"""`lograft brokers`: list and describe brokers, remove those that are gone for good."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_broker
from lograft.cli.options import Json
from lograft.cli.output import counted, print_error, print_facts, print_json, print_table
from lograft.types import BrokerStatus

brokers_app: typer.Typer = typer.Typer(no_args_is_help=True, help="List, describe and remove brokers.")

BrokerId = Annotated[
    int, typer.Argument(metavar="ID", help="Node id.", min=0, max=2**31 - 1, autocompletion=complete_broker)
]


@admin_command(brokers_app, Admin.describe_brokers, name="list")
def list_brokers(admin: Admin, as_json: Json = False) -> None:
    """List the registered brokers, with their states and what they host."""
    found = admin.describe_brokers()
    if as_json:
        print_json([_as_json(each) for each in found])
        return
    print_table(
        counted(len(found), "broker"),
        ("broker", "address", "state", "rack", "leads", "replicas", "heard ms ago", "epoch"),
        [
            (
                each.broker_id,
                f"{each.host}:{each.port}",
                each.state.value,
                each.rack,
                each.leader_count,
                each.replica_count,
                each.last_heard_age_ms,
                each.broker_epoch,
            )
            for each in found
        ],
        may_go=("epoch",),
    )


@admin_command(brokers_app, Admin.describe_brokers)
def describe(admin: Admin, broker_id: BrokerId, as_json: Json = False) -> None:
    """Show all that the controller knows of a broker."""
    found = admin.describe_brokers([broker_id])
    if not found:
        print_error(f"no broker {broker_id} is registered")
        raise typer.Exit(1)
    (broker,) = found
    if as_json:
        print_json(_as_json(broker))
        return
    print_facts(
        {
            "broker": broker.broker_id,
            "state": broker.state.value,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "epoch": broker.broker_epoch,
            "incarnation": broker.incarnation_id.hex(),
            "feature levels": f"{broker.min_feature_level} to {broker.max_feature_level}",
            "leads": broker.leader_count,
            "replicas": broker.replica_count,
            "stopped uncleanly": "yes" if broker.unclean else "no",
            "last heard (ms)": broker.last_heard_age_ms,
            "metadata offset": broker.metadata_offset,
        }
    )
    offline = broker.offline_log_directory_ids
    rows = [(each.hex(), "failed" if each in offline else "online") for each in broker.log_directory_ids]
    typer.echo()
    print_table("log directories", ("id", "state"), rows)


@admin_command(brokers_app, Admin.remove_broker)
def remove(
    admin: Admin,
    broker_id: BrokerId,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Check only, change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """End the registration of a broker that has stopped for good; refused while it lives or has replicas."""
    admin.remove_broker(broker_id, validate_only=validate_only)
    if as_json:
        print_json({"broker_id": broker_id, "removed": not validate_only})
    else:
        typer.echo(f"broker {broker_id} {'could be' if validate_only else 'is'} removed")


def _as_json(broker: BrokerStatus) -> dict[str, object]:
    return {
        **asdict(broker),
        "state": broker.state.value,
        "incarnation_id": broker.incarnation_id.hex(),
        "log_directory_ids": [each.hex() for each in broker.log_directory_ids],
        "offline_log_directory_ids": [each.hex() for each in broker.offline_log_directory_ids],
    }
