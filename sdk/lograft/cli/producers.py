# SPDX-License-Identifier: Apache-2.0
"""`lograft producers`: which producers the leaders of partitions remember."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_partition
from lograft.cli.options import Json, parse_partitions
from lograft.cli.output import counted, print_error, print_json, print_table

producers_app: typer.Typer = typer.Typer(no_args_is_help=True, help="Show the producers of partitions.")


@producers_app.callback()
def _group() -> None:
    """Show the producers of partitions."""


@admin_command(producers_app, Admin.describe_producers, name="list")
def list_producers(
    admin: Admin,
    partitions: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC[:PARTITION]...",
            help="Partitions; a topic alone: all that it has.",
            autocompletion=complete_partition,
        ),
    ],
    as_json: Json = False,
) -> None:
    """List what leaders remember of producers, to recognise batches that were sent again."""
    found = admin.describe_producers(parse_partitions(partitions))
    if as_json:
        print_json(
            [
                {
                    **asdict(each),
                    "error": None
                    if each.error is None
                    else {"code": each.error.code.name, "message": each.error.message},
                }
                for each in found
            ]
        )
    else:
        now_ms = time.time_ns() // 1_000_000
        rows = [
            (
                each.topic,
                each.partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.last_base_offset,
                None if producer.last_append_ms is None else f"{_age(now_ms - producer.last_append_ms)} ago",
            )
            for each in found
            for producer in each.producers
        ]
        count = sum(each.producer_count for each in found)
        shown = "" if len(rows) == count else f", {len(rows)} shown"
        print_table(
            f"{counted(count, 'producer')}{shown}",
            ("topic", "partition", "producer", "epoch", "sequence", "offset", "last append"),
            rows,
        )
    for each in found:
        if each.error is not None:
            print_error(f"{each.topic}:{each.partition}: {each.error.message}")
    if any(each.error is not None for each in found):
        raise typer.Exit(1)


def _age(milliseconds: int) -> str:
    """Return a duration in one unit, such as "51 s" or "3 min"."""
    seconds = max(0, milliseconds) // 1_000
    for limit, size, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"
