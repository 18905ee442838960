# SPDX-License-Identifier: Apache-2.0
"""`lograft topics`: create, list, describe, grow and delete topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_config_value, complete_topic
from lograft.cli.doctor import active_brokers, print_problems
from lograft.cli.extents import Extent, extents_of
from lograft.cli.options import Json, parse_pairs
from lograft.cli.output import counted, format_size, print_facts, print_json, print_table
from lograft.cli.topic_file import read_topics, report
from lograft.diagnosis import MIN_ISR_CONFIG, partition_problems
from lograft.errors import TopicAlreadyExistsError
from lograft.types import NewTopic, PartitionDescription, TopicDescription

topics_app: typer.Typer = typer.Typer(no_args_is_help=True, help="Create, list, describe, grow and delete topics.")

TopicName = Annotated[str, typer.Argument(help="Topic name.", autocompletion=complete_topic)]


@admin_command(topics_app, Admin.create_topic, Admin.create_topics)
def create(
    admin: Admin,
    topic: Annotated[str | None, typer.Argument(help="Topic name; left out with --file.", show_default=False)] = None,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=10_000, help="Number of partitions.")] = 1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", min=1, max=100, help="Replicas of each.")
    ] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="name=value; may be repeated.", autocompletion=complete_config_value),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed when it exists.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help='Create many: each line is a name, or {"topic": "orders", "partitions": 6, "replication_factor": 3, '
            '"configs": {"retention.ms": "1000"}}; "-" is standard input.',
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a topic, or those of a file."""
    configs = dict(parse_pairs(config or [], "--config"))
    if (topic is None) == (file is None):
        raise typer.BadParameter("name a topic, or give a --file of topics, not both", param_hint="TOPIC")
    if file is not None:
        topics = read_topics(file, NewTopic("", partitions, replication_factor, configs))
        _create_all(admin, topics, if_not_exists=if_not_exists, as_json=as_json)
        return
    assert topic is not None, "neither a topic nor a file"
    try:
        created = admin.create_topic(
            topic, partition_count=partitions, replication_factor=replication_factor, configs=configs
        )
    except TopicAlreadyExistsError:
        if not if_not_exists:
            raise
        created = admin.describe_topic(topic)
    if as_json:
        print_json(_topic_as_json(created))
    else:
        typer.echo(f"topic {created.topic} has {counted(created.partition_count, 'partition')}")
        if created.replication_factor > 1:
            min_isr = created.configs.get(MIN_ISR_CONFIG, "1")
            typer.echo(
                f"{created.replication_factor} replicas each; acks=all waits for at least {min_isr} ({MIN_ISR_CONFIG})"
            )


def _create_all(admin: Admin, topics: list[NewTopic], *, if_not_exists: bool, as_json: bool) -> None:
    results = admin.create_topics(topics)
    present = [each for each in results if if_not_exists and isinstance(each.error, TopicAlreadyExistsError)]
    results = [each for each in results if each not in present]
    if as_json:
        print_json(
            [
                {
                    "topic": each.topic,
                    "topic_id": None if each.topic_id is None else each.topic_id.hex(),
                    "partition_count": each.partition_count,
                    "replication_factor": each.replication_factor,
                    "error": None
                    if each.error is None
                    else {"code": each.error.code.name, "message": each.error.message},
                }
                for each in results
            ]
        )
        if any(each.error is not None for each in results):
            raise typer.Exit(1)
        return
    report(results, len(present))


@admin_command(topics_app, Admin.list_topics, name="list")
def list_topics(
    admin: Admin,
    internal: Annotated[bool, typer.Option("--internal", help="Topics of the system, too.")] = False,
    as_json: Json = False,
) -> None:
    """List all topics."""
    topics = admin.list_topics(include_internal=internal)
    if as_json:
        print_json([{**asdict(topic), "topic_id": topic.topic_id.hex()} for topic in topics])
        return
    rows = [(topic.topic, topic.partition_count, topic.replication_factor, topic.topic_id.hex()) for topic in topics]
    columns = ("topic", "partitions", "replicas", "id")
    print_table(counted(len(rows), "topic"), columns, rows, may_go=("id",))


@admin_command(topics_app, Admin.describe_topic)
def describe(admin: Admin, topic: TopicName, as_json: Json = False) -> None:
    """Show the partitions of a topic with their offsets and sizes, and its configs."""
    found = admin.describe_topic(topic)
    active = active_brokers(admin)
    problems = partition_problems(found, active)
    extents = extents_of(admin, found, active)
    if as_json:
        print_json(_topic_as_json(found, extents))
        return
    total = sum(each.size_bytes or 0 for each in extents.values())
    print_facts(
        {
            "topic": found.topic,
            "id": found.topic_id.hex(),
            "partitions": found.partition_count,
            "replicas each": found.replication_factor,
            "offsets": sum(each.offset_count or 0 for each in extents.values()),
            "size": f"{format_size(total)} on the leaders",
        }
    )
    typer.echo()
    print_table(
        "partitions",
        (
            "partition",
            "leader",
            "start",
            "end",
            "size",
            "replicas",
            "in sync",
            "leader epoch",
            "eligible",
            "last known eligible",
        ),
        [_row(part, extents[part.partition]) for part in found.partitions],
        may_go=_unused(found),
    )
    print_problems(problems)
    typer.echo()
    print_table(
        "configs",
        ("name", "value", "source"),
        [
            (name, value, "topic" if name in found.overridden else "inherited")
            for name, value in sorted(found.configs.items())
        ],
    )


@admin_command(topics_app, Admin.create_partitions)
def grow(
    admin: Admin,
    topic: TopicName,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="Number that it is to have, more than it has.")],
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Check only, change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Add partitions to a topic. Keys may go to other partitions from then on."""
    grown = admin.create_partitions(topic, partitions, validate_only=validate_only)
    if as_json:
        print_json(_topic_as_json(grown))
    elif validate_only:
        typer.echo(f"topic {topic} has {counted(grown.partition_count, 'partition')} and could have {partitions}")
    else:
        typer.echo(f"topic {grown.topic} has {counted(grown.partition_count, 'partition')}")


@admin_command(topics_app, Admin.delete_topic)
def delete(
    admin: Admin,
    topic: TopicName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a topic and all its records."""
    if not yes:
        typer.confirm(f"Delete topic {topic} and all its records?", abort=True)
    admin.delete_topic(topic)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        typer.echo(f"topic {topic} is deleted")


def _row(part: PartitionDescription, extent: Extent) -> tuple[object, ...]:
    return (
        part.partition,
        part.leader_id,
        extent.log_start_offset,
        extent.end_offset,
        None if extent.size_bytes is None else format_size(extent.size_bytes),
        _join(part.replicas),
        _join(part.isr),
        part.leader_epoch,
        _join(part.eligible_leader_replicas),
        _join(part.last_known_eligible_leader_replicas),
    )


def _unused(topic: TopicDescription) -> tuple[str, ...]:
    """Return the columns that a narrow terminal does not show: those without anything in them, then the epoch."""
    empty = {
        "last known eligible": not any(each.last_known_eligible_leader_replicas for each in topic.partitions),
        "eligible": not any(each.eligible_leader_replicas for each in topic.partitions),
    }
    return (*(name for name, is_empty in empty.items() if is_empty), "leader epoch")


def _join(ids: tuple[int, ...]) -> str | None:
    return ",".join(map(str, ids)) or None


def _partition_as_json(part: PartitionDescription, extent: Extent | None) -> dict[str, object]:
    awaited = [
        {"broker_id": each.broker_id, "log_directory_ids": [one.hex() for one in each.log_directory_ids]}
        for each in part.awaited_replicas
    ]
    return {**asdict(part), "awaited_replicas": awaited, **({} if extent is None else asdict(extent))}


def _topic_as_json(topic: TopicDescription, extents: Mapping[int, Extent] | None = None) -> dict[str, object]:
    known = extents or {}
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id.hex(),
        "partitions": [_partition_as_json(part, known.get(part.partition)) for part in topic.partitions],
        "configs": dict(topic.configs),
        "overridden": sorted(topic.overridden),
    }
