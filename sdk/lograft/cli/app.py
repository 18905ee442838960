# SPDX-License-Identifier: Apache-2.0
"""The tree of commands, the plugins, and the handling of errors.

The commands themselves are in other modules, which are imported at their use (`tree`). The entry-point group
`lograft.commands` adds more: each is a function with
typer's annotations, or a group of them (`typer.Typer`). `lograft-server` brings `dev` and `log`.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final

import typer

from lograft import __version__
from lograft.cli.output import give_up_output, print_error, print_note
from lograft.cli.tree import Commands, CommandTree, Loaded, Place, in_module
from lograft.errors import LograftError, StaleMetadataWarning, UsageError

PLUGIN_GROUP: Final = "lograft.commands"
"""Entry-point group of additional commands."""

OWN_COMMANDS: Final = {
    "topics": in_module("lograft.cli.topics:topics_app", "Create, list, describe, grow and delete topics."),
    "produce": in_module(
        "lograft.cli.produce:produce", "Send records: one --value, the lines of a --file, or of standard input."
    ),
    "consume": in_module("lograft.cli.consume:consume", "Print the records of a topic."),
    "groups": in_module(
        "lograft.cli.groups:groups_app", "List, describe and delete consumer groups; move their offsets."
    ),
    "ingest": in_module(
        "lograft.cli.ingest:ingest_app",
        "Put files into a topic with Spark, exactly once; list, show and abort ingests.",
    ),
    "replay": in_module(
        "lograft.cli.replay:replay", "Write the records of a topic to files with Spark, or print them."
    ),
    "brokers": in_module("lograft.cli.brokers:brokers_app", "List, describe and remove brokers."),
    "configs": in_module("lograft.cli.configs:configs_app", "Describe, set and unset configs."),
    "partitions": in_module(
        "lograft.cli.partitions:partitions_app", "Elect leaders of partitions, give them other replicas."
    ),
    "producers": in_module("lograft.cli.producers:producers_app", "Show the producers of partitions."),
    "directories": in_module(
        "lograft.cli.directories:directories_app", "Look at a broker's log directories, and move replicas."
    ),
    "features": in_module("lograft.cli.features:features_app", "Describe and raise the feature level of the cluster."),
    "quorum": in_module("lograft.cli.quorum:quorum_app", "Look at the metadata quorum and change it."),
    "metadata": in_module("lograft.cli.metadata:metadata_app", "Export the metadata of the cluster, compare exports."),
    "bench": in_module("lograft.cli.bench:bench", "Measure a cluster, and check every record while it is measured."),
    "doctor": in_module("lograft.cli.doctor:doctor", "Say what is wrong with the cluster and what to do."),
}
"""The commands of this distribution, in the order of the help."""

SERVER_COMMANDS: Final = {
    "dev": "Run a whole cluster on this machine, for development.",
    "log": "Look at logs on disk, without a server; nothing is ever changed.",
}
"""The commands that `lograft-server` brings, with the first lines of their help."""

_SERVER_DISTRIBUTION: Final = "lograft-server"


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
    app = typer.Typer(cls=_Root, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True)
    app.callback()(_root)
    return app


class _Root(CommandTree):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(OWN_COMMANDS, _others)


def _others() -> dict[str, Place]:
    """Return the commands of other distributions, and hidden ones for those of the servers if they are not installed."""
    found: dict[str, Place] = {}
    for point in sorted(entry_points(group=PLUGIN_GROUP), key=lambda point: point.name):
        distribution = point.dist
        is_server = distribution is not None and distribution.name == _SERVER_DISTRIBUTION
        first_line = SERVER_COMMANDS.get(point.name) if is_server else None
        found.setdefault(point.name, Place(partial(_load, point), first_line))
    for name in SERVER_COMMANDS:
        # The command accepts any further words, because in any case the answer is that it is not installed.
        found.setdefault(name, Place(partial(_missing, name), "", hidden=True, takes_anything=True))
    return found


def _load(point: EntryPoint) -> Loaded:
    try:
        command: Loaded = point.load()
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
    try:
        return _run(arguments)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            give_up_output()


def _run(arguments: Sequence[str] | None) -> int:
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
