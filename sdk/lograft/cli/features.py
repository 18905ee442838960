# SPDX-License-Identifier: Apache-2.0
"""`lograft features`: describe and raise the feature level of the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.options import Json
from lograft.cli.output import print_facts, print_json, print_table

features_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Describe and raise the feature level of the cluster."
)


@admin_command(features_app, Admin.describe_feature_level)
def describe(admin: Admin, as_json: Json = False) -> None:
    """Show the level, and the levels that the servers can run at."""
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
    typer.echo()
    print_table("brokers", ("broker", "lowest level", "highest level"), rows)


@admin_command(features_app, Admin.update_feature_level)
def upgrade(
    admin: Admin,
    level: Annotated[int, typer.Argument(help="The new level.")],
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Check only, change nothing.")] = False,
) -> None:
    """Raise the level. It never goes down again: upgrade all servers first."""
    admin.update_feature_level(level, validate_only=validate_only)
    typer.echo(f"the cluster {'could run' if validate_only else 'runs'} at feature level {level}")
