# SPDX-License-Identifier: Apache-2.0
"""The tree of commands, the plugins, and the handling of errors.

The commands themselves are in other modules. The entry-point group `lograft.commands` adds more: each is a function with
typer's annotations, or a group of them (`typer.Typer`). `lograft-server` brings `dev` and `log`.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Final

import typer

from lograft import __version__
from lograft.cli.brokers import brokers_app
from lograft.cli.configs import configs_app
from lograft.cli.consume import consume
from lograft.cli.directories import directories_app
from lograft.cli.doctor import doctor
from lograft.cli.features import features_app
from lograft.cli.groups import groups_app
from lograft.cli.metadata import metadata_app
from lograft.cli.output import print_error, print_note
from lograft.cli.partitions import partitions_app
from lograft.cli.produce import produce
from lograft.cli.producers import producers_app
from lograft.cli.quorum import quorum_app
from lograft.cli.topics import topics_app
from lograft.errors import LograftError, StaleMetadataWarning, UsageError

PLUGIN_GROUP: Final = "lograft.commands"
"""Entry-point group of additional commands."""

_SERVER_COMMANDS: Final = ("dev", "log")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lograft {__version__}")
        raise typer.Exit


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    print_note(str(message))


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    log_level: Annotated[
        str, typer.Option(envvar="LOGRAFT_LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR, for the client's own log.")
    ] = "ERROR",
) -> None:
    """Lograft: a log store on a Raft quorum."""
    del version
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise typer.BadParameter(f"{log_level!r} is not one of DEBUG, INFO, WARNING, ERROR", param_hint="--log-level")
    warnings.showwarning = _show_warning
    warnings.simplefilter("once", StaleMetadataWarning)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def make_app() -> typer.Typer:
    """Return the app with all commands."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True)
    app.callback()(_root)
    app.add_typer(topics_app, name="topics")
    app.add_typer(groups_app, name="groups")
    app.add_typer(brokers_app, name="brokers")
    app.add_typer(configs_app, name="configs")
    app.add_typer(features_app, name="features")
    app.add_typer(metadata_app, name="metadata")
    app.add_typer(partitions_app, name="partitions")
    app.add_typer(producers_app, name="producers")
    app.add_typer(quorum_app, name="quorum")
    app.add_typer(directories_app, name="directories")
    app.command()(produce)
    app.command()(consume)
    app.command()(doctor)
    known: set[str] = set()
    for point in sorted(entry_points(group=PLUGIN_GROUP), key=lambda point: point.name):
        if point.name not in known:
            known.add(point.name)
            command = _load(point)
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=point.name)
            else:
                app.command(name=point.name)(command)
    for name in _SERVER_COMMANDS:
        if name not in known:
            # The command accepts any further words, because in any case the answer is that it is not installed.
            any_words = {"allow_extra_args": True, "ignore_unknown_options": True}
            app.command(name=name, hidden=True, context_settings=any_words)(_missing(name))
    return app


def _load(point: EntryPoint) -> Callable[..., object] | typer.Typer:
    try:
        command: Callable[..., object] | typer.Typer = point.load()
    except Exception as error:
        # A broken plugin must not break the other commands.
        return _broken(point.name, error)
    return command


def _broken(name: str, error: Exception) -> Callable[[], None]:
    message = f"the command {name!r} cannot be loaded: {error!r}"

    def command() -> None:
        print_error(message)
        raise typer.Exit(1)

    command.__doc__ = f"(cannot be loaded: {error})"
    return command


def _missing(name: str) -> Callable[[], None]:
    def command() -> None:
        print_error(f"{name!r} needs the servers: pip install lograft-server")
        raise typer.Exit(1)

    return command


def run(arguments: Sequence[str] | None) -> int:
    """Run a command line and return its exit code."""
    app = make_app()
    try:
        app(list(sys.argv[1:] if arguments is None else arguments), prog_name="lograft")
    except UsageError as error:
        print_error(error.message)
        return 2
    except LograftError as error:
        print_error(error.message)
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
