# SPDX-License-Identifier: Apache-2.0
"""`lograft partitions`: elect leaders; reassignment is in `reassign`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_partition
from lograft.cli.options import Json, parse_partitions
from lograft.cli.output import print_json, print_table
from lograft.cli.reassign import reassign
from lograft.types import ElectedLeader, ElectionType

partitions_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Elect leaders of partitions, give them other replicas."
)
admin_command(partitions_app, Admin.alter_partition_reassignments, Admin.list_partition_reassignments)(reassign)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, change nothing.")]


@admin_command(partitions_app, Admin.elect_leaders)
def elect(
    admin: Admin,
    partitions: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC[:PARTITION]...",
            help="Partitions; a topic alone: all that it has.",
            autocompletion=complete_partition,
        ),
    ],
    preferred: Annotated[
        bool, typer.Option("--preferred", help="The first replica leads again, if it is in sync (default).")
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Where no other replica can lead, elect one that may lack records; those records are lost.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before an unclean election.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Elect leaders. Partitions that need no election stay as they are."""
    if preferred and unclean:
        raise typer.BadParameter("give one of --preferred and --unclean", param_hint="--unclean")
    named = parse_partitions(partitions)
    if unclean and not yes and not dry_run:
        typer.confirm(
            "An unclean election loses the records that only replicas away from the cluster have. Go on?",
            abort=True,
            err=True,
        )
    election = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    results = admin.elect_leaders(named, election=election, validate_only=dry_run)
    if as_json:
        print_json([_elected_as_json(each) for each in results])
    else:
        _print_elected(results, dry_run)
    if any(each.error is not None for each in results):
        raise typer.Exit(1)


def _print_elected(results: Sequence[ElectedLeader], dry_run: bool) -> None:
    done = "would be elected" if dry_run else "elected"

    def what(each: ElectedLeader) -> str:
        if each.error is not None:
            return f"refused: {each.error.message}"
        return done if each.elected else "leads already"

    rows = [(each.topic, each.partition, each.leader_id, each.leader_epoch, what(each)) for each in results]
    print_table("leaders", ("topic", "partition", "leader", "leader epoch", "result"), rows)


def _elected_as_json(each: ElectedLeader) -> dict[str, object]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "leader_id": each.leader_id,
        "leader_epoch": each.leader_epoch,
        "elected": each.elected,
        "error": None if each.error is None else {"code": each.error.code.name, "message": each.error.message},
    }
