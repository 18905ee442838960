# SPDX-License-Identifier: Apache-2.0
"""`lograft metadata`: export the metadata of the cluster, and show what differs between two exports."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lograft._admin.metadata_export import MetadataChange, diff_exports, read_export
from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.options import Json
from lograft.cli.output import counted, print_json, print_table
from lograft.errors import CorruptDataError

metadata_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Export the metadata of the cluster, compare exports."
)


@admin_command(metadata_app, Admin.export_metadata)
def export(
    admin: Admin,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="File to write; none: standard output.")
    ] = None,
) -> None:
    """Write the whole metadata as of one offset, as lines of JSON in a stable order, with a digest at the end."""
    lines = admin.export_metadata()
    text = "".join(f"{line}\n" for line in lines)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(
            f"{counted(len(lines), 'line')} at metadata offset {json.loads(lines[0])['metadata_offset']} in {output}"
        )


@admin_command(metadata_app, Admin.export_metadata)
def diff(
    admin: Admin,
    before: Annotated[Path, typer.Argument(exists=True, dir_okay=False, metavar="A", help="An export.")],
    after: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, metavar="[B]", help="A later one; none: the cluster as it is now."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what differs: topics, partitions with their replicas before and after, configs, brokers, voters."""
    old = _read(before)
    if after is not None:
        new = _read(after)
    else:
        new = read_export(admin.export_metadata())
    changes = diff_exports(old, new)
    offsets = (old[0]["metadata_offset"], new[0]["metadata_offset"])
    if as_json:
        print_json(
            {"from_offset": offsets[0], "to_offset": offsets[1], "changes": [asdict(change) for change in changes]}
        )
        return
    title = f"{counted(len(changes), 'change')} from metadata offset {offsets[0]} to {offsets[1]}"
    print_table(title, ("kind", "name", "change", "from", "to"), [_row(change) for change in changes])


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        return read_export(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (CorruptDataError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"{path}: {error}") from None


def _row(change: MetadataChange) -> tuple[str, str, str, str | None, str | None]:
    what = "added" if change.before is None else "removed" if change.after is None else "changed"
    return (change.kind, change.name, what, _text(change.before), _text(change.after))


def _text(fields: dict[str, Any] | None) -> str | None:
    if fields is None:
        return None
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
