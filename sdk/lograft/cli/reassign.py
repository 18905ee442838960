# SPDX-License-Identifier: Apache-2.0
"""`lograft partitions reassign`: gives partitions other replicas, lists and cancels reassignments under way.

This module owns the form of a plan: a JSON object with the list `reassignments`; each entry has `topic`, `partition` and
`replicas`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from lograft.admin import Admin
from lograft.cli.completion import complete_partition
from lograft.cli.options import Json, parse_partitions
from lograft.cli.output import counted, print_json, print_table
from lograft.types import PartitionReassignment, TopicPartition

MAX_PLAN_BYTES: Final = 256 * 1024 * 1024
"""Largest plan that is read, in bytes."""

MAX_NODE_DIGITS: Final = 10
"""Digits of the highest node id."""

Changes = dict[TopicPartition, list[int] | None]


def reassign(
    admin: Admin,
    partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]...",
            help="Partitions; a topic alone: all that it has.",
            autocompletion=complete_partition,
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="Node ids of the replicas, 1,2,3; the first is to lead.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            exists=True,
            dir_okay=False,
            help='A plan: {"reassignments": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}.',
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop what is under way for the partitions, or for those of the plan.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List what is under way.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would move, change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Give partitions other replicas. It is under way when this returns: --list tells when it is done."""
    named = partitions or []
    _check_usage(named, to=to, file=file, cancel=cancel, show=show, dry_run=dry_run)
    plan = {} if file is None else read_plan(file)
    target = None if to is None else _node_ids(to)
    if show:
        topics = [each if isinstance(each, str) else each.topic for each in parse_partitions(named)]
        results = admin.list_partition_reassignments(topics or None)
    else:
        changes: Changes = dict.fromkeys(_every(admin, named), target)
        changes.update({where: None if cancel else replicas for where, replicas in plan.items()})
        results = admin.alter_partition_reassignments(changes, validate_only=dry_run)
    if as_json:
        print_json([as_json_object(each) for each in results])
    else:
        _print(results, "would move" if dry_run else "under way" if show else "reassigned")
    if any(each.error is not None for each in results):
        raise typer.Exit(1)


def _check_usage(
    named: Sequence[str], *, to: str | None, file: Path | None, cancel: bool, show: bool, dry_run: bool
) -> None:
    if show:
        wrong = to is not None or file is not None or cancel or dry_run
    elif file is not None:
        wrong = to is not None or bool(named)
    else:
        wrong = (to is not None) == cancel or not named
    if wrong:
        raise typer.BadParameter("give partitions with one of --to and --cancel, or --file [--cancel], or --list")


def _every(admin: Admin, named: Sequence[str]) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for each in parse_partitions(named):
        if isinstance(each, str):
            found += [TopicPartition(each, part.partition) for part in admin.describe_topic(each).partitions]
        else:
            found.append(each)
    return found


def _node_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= MAX_NODE_DIGITS for part in parts):
        raise typer.BadParameter(f"{text!r} is no list of node ids such as 1,2,3", param_hint="--to")
    return list(map(int, parts))


def read_plan(file: Path) -> dict[TopicPartition, list[int]]:
    """Read a plan.

    Raises:
        typer.BadParameter: the file is not a plan; the message says where.
    """
    if file.stat().st_size > MAX_PLAN_BYTES:
        raise typer.BadParameter(f"{file} has more than {MAX_PLAN_BYTES} bytes; divide it", param_hint="--file")
    try:
        document = json.loads(file.read_bytes())
        entries = document["reassignments"]
        rows = [(TopicPartition(row["topic"], row["partition"]), row["replicas"]) for row in entries]
    except (ValueError, LookupError, TypeError) as error:
        raise typer.BadParameter(f"{file} is no plan: {error!r}; see --help", param_hint="--file") from None
    plan: dict[TopicPartition, list[int]] = {}
    for where, replicas in rows:
        if type(where.topic) is not str or type(where.partition) is not int or type(replicas) is not list:
            raise typer.BadParameter(
                f"{file}: a reassignment has a topic, a partition number and a list of replicas, not {where}: {replicas!r}",
                param_hint="--file",
            )
        if where in plan:
            raise typer.BadParameter(f"{file} names {where} twice", param_hint="--file")
        plan[where] = cast("list[int]", replicas)
    return plan


def _print(results: Sequence[PartitionReassignment], title: str) -> None:
    rows = [
        (
            each.topic,
            each.partition,
            _ids(each.replicas_before),
            _ids(each.replicas),
            _ids(each.adding),
            _ids(each.removing),
            _ids(each.isr),
            _what(each),
        )
        for each in results
    ]
    columns = ("topic", "partition", "from", "to", "adding", "removing", "in sync", "state")
    print_table(
        f"{counted(len(rows), 'partition') if rows else 'no partitions'} {title}", columns, rows, may_go=("in sync",)
    )


def _what(each: PartitionReassignment) -> str:
    if each.error is not None:
        return f"refused: {each.error.message}"
    return "moves" if each.is_under_way else "settled"


def _ids(node_ids: Sequence[int]) -> str | None:
    return ", ".join(map(str, node_ids)) or None


def as_json_object(each: PartitionReassignment) -> dict[str, object]:
    """Return a reassignment for --json. Its `topic`, `partition` and `replicas` have the form of a plan."""
    return {
        "topic": each.topic,
        "partition": each.partition,
        "replicas_before": list(each.replicas_before),
        "replicas": list(each.replicas),
        "adding": list(each.adding),
        "removing": list(each.removing),
        "isr": list(each.isr),
        "leader_id": each.leader_id,
        "error": None if each.error is None else {"code": each.error.code.name, "message": each.error.message},
    }
