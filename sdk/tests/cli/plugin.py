# SPDX-License-Identifier: Apache-2.0
"""A command and a group of commands of another distribution, for the tests of plugins."""

from __future__ import annotations

from typing import Annotated

import typer


def hello(name: Annotated[str, typer.Option(help="Whom to greet.")] = "world") -> None:
    """Greet."""
    typer.echo(f"hello {name}")


def bye() -> None:
    """Leave."""


group = typer.Typer()
group.command()(hello)
group.command()(bye)
