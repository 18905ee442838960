# SPDX-License-Identifier: Apache-2.0
"""`lograft features`: describe and raise the feature level of the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_MS, Bootstrap, ClusterId, Json, TimeoutMs
from lograft.cli.output import print_facts, print_json, print_table

features_app = typer.Typer(no_args_is_help=True, help="Describe and raise the feature level of the cluster.")


@features_app.command()
def describe(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Show the level, and the levels that the servers can run at."""
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        found = admin.describe_feature_level()
    if as_json:
        print_json(
            {
                "level": found.level,
                "controller_max_level": found.controller_max_level,
                "brokers": [
                    {"broker_id": broker_id, "min_level": lowest, "max_level": highest}
                    for broker_id, (lowest, highest) in found.brokers.items()
                ],
            }
        )
        return
    print_facts({"level": found.level, "highest level of the controller": found.controller_max_level})
    rows = [(broker_id, lowest, highest) for broker_id, (lowest, highest) in found.brokers.items()]
    print_table("brokers", ("broker", "lowest level", "highest level"), rows)


@features_app.command()
def upgrade(
    level: Annotated[int, typer.Argument(help="The new level.")],
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Check only, change nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Raise the level. It never goes down again: upgrade all servers first."""
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        admin.update_feature_level(level, validate_only=validate_only)
    typer.echo(f"the cluster {'could run' if validate_only else 'runs'} at feature level {level}")
