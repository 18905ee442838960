# SPDX-License-Identifier: Apache-2.0
"""`lograft dev` (and `brokerd dev`): a whole cluster in one process, ready within a moment, or with --nodes in several.

Owns the command. Without `--data-dir` all data is in a temporary directory, which the command deletes at its end. The servers'
modules are imported when they are needed: a help text, completion and the parent of several nodes need none of them.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokerd.process.dev_cluster import MAX_NODES, run_cluster
from storage.directory.space import DEFAULT_SOFT_BYTES

if TYPE_CHECKING:
    from brokerd.process.server import BrokerServer

DEFAULT_PORT = 9640
"""Public port of a development cluster."""

MinFreeBytes = Annotated[
    int,
    typer.Option(
        envvar="LOGRAFT_MIN_FREE_BYTES",
        help="Free bytes of a data directory below which appends are refused (reads and deletes go on); 0: never.",
    ),
]
"""The option `--min-free-bytes` of every command that runs a broker."""


def configure_logging(level: str) -> None:
    """Write log lines of `level` and above to stderr."""
    if level.upper() not in logging.getLevelNamesMapping():
        raise typer.BadParameter(f"log level {level!r} is not one of DEBUG, INFO, WARNING, ERROR")
    from metaquorum.process.logging_setup import log_to_stderr

    log_to_stderr(level.upper(), line_format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def dev(
    data_dir: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="LOGRAFT_DATA_DIR",
            help="Directory to keep; default: a temporary one. Given again: further directories for logs.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(envvar="LOGRAFT_PORT", min=0, max=65_535, help="Port on 127.0.0.1; 0: any free one.")
    ] = DEFAULT_PORT,
    nodes: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_NODES,
            help="Servers, each a process of its own with a log and metrics; their ports follow --port. 1: all in this process.",
        ),
    ] = 1,
    min_free_bytes: MinFreeBytes = DEFAULT_SOFT_BYTES,
    log_level: Annotated[
        str, typer.Option(envvar="LOGRAFT_LOG_LEVEL", help="DEBUG, INFO, WARNING, ERROR.")
    ] = "WARNING",
) -> None:
    """Run a whole cluster on this machine, for development."""
    configure_logging(log_level)
    if nodes > 1:
        if data_dir and len(data_dir) > 1:
            raise typer.BadParameter("give one; each node gets a directory in it", param_hint="--data-dir")
        if port > 65_535 - nodes:
            raise typer.BadParameter(f"leaves no room for {nodes} ports", param_hint="--port")
        raise typer.Exit(
            run_cluster(
                nodes,
                data_directory=data_dir[0] if data_dir else None,
                port=port,
                min_free_bytes=min_free_bytes,
                log_level=log_level,
            )
        )
    from brokerd.process.main import START_ERRORS, run_process
    from brokerd.process.standalone import standalone_settings

    is_kept = bool(data_dir)
    with ExitStack() as stack:
        if not data_dir:
            data_dir = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lograft-dev-")))]
        try:
            settings = standalone_settings(
                data_dir[0], port=port, more_data_directories=tuple(data_dir[1:]), min_free_bytes=min_free_bytes
            )
        except START_ERRORS as error:
            typer.echo(f"lograft dev: error: {error}", err=True)
            raise typer.Exit(1) from None
        where = str(data_dir[0]) + ("" if is_kept else " (temporary, gone at the end; --data-dir keeps it)")
        raise typer.Exit(run_process(settings, on_ready=partial(_announce, where)))


def _announce(where: str, server: BrokerServer) -> None:
    address = str(server.address)
    option = "" if address == f"127.0.0.1:{DEFAULT_PORT}" else f" --bootstrap {address}"
    typer.echo(f"lograft dev: ready on {address}")
    typer.echo(f"  data: {where}")
    typer.echo(f"  next: lograft topics create events --partitions 3{option}")
    typer.echo(f"        echo hello | lograft produce events{option}")
