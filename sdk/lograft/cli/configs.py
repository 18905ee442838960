# SPDX-License-Identifier: Apache-2.0
"""`lograft configs`: describe, set and unset configs of topics, brokers, groups and the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_broker, complete_config, complete_config_value, complete_topic
from lograft.cli.options import Json, parse_pairs
from lograft.cli.output import counted, print_json, print_table
from lograft.types import ConfigResource, ConfigSource

configs_app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    help="Describe, set and unset configs. A topic's value holds before its broker's, that (and a group's) before the cluster's.",
)

Topic = Annotated[str | None, typer.Option("--topic", "-t", help="For this topic.", autocompletion=complete_topic)]
BrokerId = Annotated[
    int | None,
    typer.Option(
        "--broker",
        min=0,
        help="For this broker: what its replicas of all topics inherit.",
        autocompletion=complete_broker,
    ),
]
Group = Annotated[str | None, typer.Option("--group", "-g", help="For this consumer group, which need not exist yet.")]
OfCluster = Annotated[bool, typer.Option("--cluster", help="For the cluster: what all topics and groups inherit.")]
ValidateOnly = Annotated[bool, typer.Option("--validate-only", help="Check only, change nothing.")]


@admin_command(configs_app, Admin.describe_configs)
def describe(
    admin: Admin,
    topic: Topic = None,
    broker: BrokerId = None,
    group: Group = None,
    cluster: OfCluster = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="Defaults too.")] = False,
    as_json: Json = False,
) -> None:
    """Show configs, the values that hold and where they come from. --topic with --broker: as this broker's replicas have it."""
    resource = _resource(topic, None if topic is not None else broker, group, cluster)
    found = admin.describe_configs([resource], broker_id=broker if topic is not None else None)[resource]
    shown = {name: each for name, each in found.items() if every or each.source is not ConfigSource.DEFAULT}
    if as_json:
        print_json(
            {
                name: {
                    "value": each.value,
                    "source": each.source.value,
                    "default": each.default,
                    "meaning": each.meaning,
                    "allowed": each.allowed,
                }
                for name, each in shown.items()
            }
        )
        return
    print_table(
        f"configs of {_title(resource)}",
        ("name", "value", "source", "default", "allowed"),
        [(name, each.value, each.source.value, each.default, each.allowed) for name, each in shown.items()],
        may_go=("allowed", "default"),
    )


@admin_command(configs_app, Admin.alter_configs, name="set")
def set_configs(
    admin: Admin,
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help="Configs and their new values.", autocompletion=complete_config_value
        ),
    ],
    topic: Topic = None,
    broker: BrokerId = None,
    group: Group = None,
    cluster: OfCluster = False,
    validate_only: ValidateOnly = False,
    as_json: Json = False,
) -> None:
    """Set configs, all that are named or none."""
    resource = _resource(topic, broker, group, cluster)
    changes = dict(parse_pairs(configs, "NAME=VALUE"))
    admin.alter_configs({resource: changes}, validate_only=validate_only)
    _print_changes(resource, changes, validate_only=validate_only, as_json=as_json)


@admin_command(configs_app, Admin.alter_configs)
def unset(
    admin: Admin,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Configs to remove.", autocompletion=complete_config)
    ],
    topic: Topic = None,
    broker: BrokerId = None,
    group: Group = None,
    cluster: OfCluster = False,
    validate_only: ValidateOnly = False,
    as_json: Json = False,
) -> None:
    """Remove what was set, so that the inherited value holds."""
    resource = _resource(topic, broker, group, cluster)
    changes = dict.fromkeys(names)
    admin.alter_configs({resource: changes}, validate_only=validate_only)
    _print_changes(resource, changes, validate_only=validate_only, as_json=as_json)


def _resource(topic: str | None, broker: int | None, group: str | None, cluster: bool) -> ConfigResource:
    chosen = [
        *([ConfigResource.topic(topic)] if topic is not None else []),
        *([ConfigResource.broker(broker)] if broker is not None else []),
        *([ConfigResource.group(group)] if group is not None else []),
        *([ConfigResource.cluster()] if cluster else []),
    ]
    if len(chosen) != 1:
        raise typer.BadParameter("name one of --topic, --broker, --group and --cluster")
    return chosen[0]


def _title(resource: ConfigResource) -> str:
    return f"{resource.type.value} {resource.name}" if resource.name else f"the {resource.type.value}"


def _print_changes(
    resource: ConfigResource, changes: Mapping[str, str | None], *, validate_only: bool, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "type": resource.type.value,
                "name": resource.name,
                "changes": dict(changes),
                "validate_only": validate_only,
            }
        )
        return
    what = "could be changed" if validate_only else "changed"
    typer.echo(f"{counted(len(changes), 'config')} of {_title(resource)} {what}: {', '.join(changes)}")
