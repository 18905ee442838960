# SPDX-License-Identifier: Apache-2.0
"""`lograft ingest`: files to a topic with Spark, exactly once; and list, show and abort ingests and transactions.

The job itself is in `ingest_job`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_ingest
from lograft.cli.default_command import DEFAULT, DefaultCommand, GroupWithDefault
from lograft.cli.ingest_job import ingest
from lograft.cli.options import Json, format_time
from lograft.cli.output import counted, print_error, print_facts, print_json, print_table
from lograft.types import IngestDescription, IngestResult, IngestState

ingest_app: typer.Typer = typer.Typer(cls=GroupWithDefault, no_args_is_help=True, help=ingest.__doc__)
ingest_app.command(DEFAULT, cls=DefaultCommand, hidden=True, no_args_is_help=True)(ingest)

IngestId = Annotated[
    str, typer.Argument(metavar="INGEST", help="Id of an ingest, or of transactions.", autocompletion=complete_ingest)
]

STATES: Final = tuple(each.value for each in IngestState if each is not IngestState.UNKNOWN)
"""What --state takes."""


@admin_command(ingest_app, Admin.list_ingests, name="list")
def list_ingests(
    admin: Admin,
    state: Annotated[
        list[str] | None, typer.Option("--state", help=f"Only ingests that are {', '.join(STATES)}; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the ingests and the ids of transactions."""
    for each in state or ():
        if each not in STATES:
            raise typer.BadParameter(f"{each!r} is not one of {', '.join(STATES)}", param_hint="--state")
    found = admin.list_ingests([IngestState(each) for each in state] if state else None)
    if as_json:
        print_json(
            {
                "ingests": [_as_json(each) for each in found.ingests],
                "missing_coordinator_ids": list(found.missing_coordinator_ids),
            }
        )
    else:
        print_table(
            counted(len(found.ingests), "ingest"),
            ("ingest", "kind", "state", "round", "epoch", "last call"),
            [
                (
                    each.ingest_id,
                    each.kind.value,
                    each.state.value,
                    each.round,
                    each.epoch,
                    format_time(each.touched_ms),
                )
                for each in found.ingests
            ],
            may_go=("epoch", "round"),
        )
    if found.missing_coordinator_ids:
        names = ", ".join("nobody yet" if each < 0 else f"broker {each}" for each in found.missing_coordinator_ids)
        print_error(f"the list lacks ingests that are coordinated by {names}: no answer in time, try again")
        raise typer.Exit(1)


@admin_command(ingest_app, Admin.describe_ingest)
def show(admin: Admin, ingest: IngestId, as_json: Json = False) -> None:
    """Show an ingest: where it stands, how much is staged, and what was committed last."""
    found = admin.describe_ingest(ingest)
    if as_json:
        print_json(_as_json(found))
        return
    print_facts(
        {
            "ingest": found.ingest_id,
            "kind": found.kind.value,
            "state": found.state.value,
            "round": found.round,
            "epoch": found.epoch,
            "topics": ", ".join(found.topics),
            "last call": format_time(found.touched_ms),
            "time to live": f"{found.ttl_ms} ms",
            "attempts": f"{found.open_attempts} open, {found.sealed_attempts} sealed",
            "staged": counted(found.sealed_records, "record"),
            "published": f"{found.published_parts} of {counted(found.parts, 'partition')}",
        }
    )
    if found.result is not None:
        _print_result(found.result)


@admin_command(ingest_app, Admin.abort_ingest)
def abort(
    admin: Admin,
    ingest: IngestId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """End an ingest, or the present transaction of an id, without publishing anything."""
    if not yes:
        typer.confirm(f"Abort ingest {ingest} and drop what it has staged?", abort=True)
    admin.abort_ingest(ingest)
    if as_json:
        print_json({"ingest": ingest, "aborted": True})
    else:
        typer.echo(f"ingest {ingest} is aborted")


def _print_result(result: IngestResult) -> None:
    print_table(
        f"round {result.round}: {counted(result.records, 'record')} published",
        ("topic", "partition", "records", "first", "end"),
        [(each.topic, each.partition, each.records, each.first_offset, each.end_offset) for each in result.partitions],
    )


def _as_json(found: IngestDescription) -> dict[str, Any]:
    return {**asdict(found), "kind": found.kind.value, "state": found.state.value}
