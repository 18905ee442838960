# SPDX-License-Identifier: Apache-2.0
"""The group of all commands, which imports the module of a command only when the command is used.

Most of a short command's time went into modules of other commands: the clients, the servers of a plugin. The list of commands
in `--help` and completion needs only names and first lines, which are in a table (`Place`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from lograft.cli.output import give_up_output

Loaded = Callable[..., object] | typer.Typer
"""What a module has as a command: a function with typer's annotations, or a group of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is, and what the list of commands says of it.

    Attributes:
        load: imports the command.
        help: first line of its help; None: the command is loaded for it.
        hidden: True if lists leave it out.
        takes_anything: True if any further words are accepted.
    """

    load: Callable[[], Loaded]
    help: str | None = None
    hidden: bool = False
    takes_anything: bool = False


def in_module(where: str, help: str) -> Place:
    """Return the place of a command of this distribution, given as "module:name"."""
    module, _, name = where.partition(":")

    def load() -> Loaded:
        return cast("Loaded", getattr(import_module(module), name))

    return Place(load, help)


class Commands(MutableMapping[str, Any]):
    """The commands by name. A command is loaded when it is looked up."""

    def __init__(self, own: Mapping[str, Place], find_others: Callable[[], Mapping[str, Place]]) -> None:
        """Take the table, without loading anything.

        Args:
            own: the commands of this distribution.
            find_others: finds the commands of others; called when a name is not among the own ones, or for a list.
        """
        self._own = own
        self._find_others = find_others
        self._all: Mapping[str, Place] | None = None
        self._loaded: dict[str, Any] = {}

    def places(self) -> Mapping[str, Place]:
        """Return all places, the own ones first."""
        if self._all is None:
            self._all = {**self._own, **{k: v for k, v in self._find_others().items() if k not in self._own}}
        return self._all

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            place = self._own.get(name) or self.places()[name]
            self._loaded[name] = _as_command(name, place)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self.places()

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self.places())

    def __len__(self) -> int:
        return len(self.places())

    def stubs(self) -> dict[str, TyperCommand]:
        """Return commands that have only what a list shows."""
        found: dict[str, TyperCommand] = {}
        for name, place in self.places().items():
            text = place.help if place.help is not None else cast("str | None", self[name].help)
            found[name] = TyperCommand(name, help=text, hidden=place.hidden)
        return found


class CommandTree(TyperGroup):
    """The group of all commands. Its help and its completion load none of them."""

    _stubs: Mapping[str, TyperCommand] | None = None

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the table."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while a list is made, one that has only its first line."""
        return super().get_command(ctx, cmd_name) if self._stubs is None else self._stubs.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. It ends well when nobody reads its output any more, as in `lograft consume orders | head`."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            give_up_output()
            raise typer.Exit from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program."""
        with self._listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands and options that begin with what is there."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Generator[None]:
        self._stubs = cast("Commands", self.commands).stubs()
        try:
            yield
        finally:
            self._stubs = None


def _as_command(name: str, place: Place) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    loaded = place.load()
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=name)
    else:
        settings = {"allow_extra_args": True, "ignore_unknown_options": True} if place.takes_anything else None
        app.command(name=name, hidden=place.hidden, context_settings=settings)(loaded)
    group: Any = typer.main.get_group(app)
    return group.commands[name]
