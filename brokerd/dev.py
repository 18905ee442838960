# SPDX-License-Identifier: Apache-2.0
"""`lograft dev` (and `brokerd dev`): a whole cluster in one process, up in a moment.

Owns the command. Without `--data-dir` everything is in a temporary directory that is gone at the end.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from brokerd.process import START_ERRORS, run_process
from brokerd.server import BrokerServer
from brokerd.standalone import standalone_settings

DEFAULT_PORT = 9640
"""Public port of a development cluster."""


def dev(
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="LOGRAFT_DATA_DIR", help="Directory to keep; default: a temporary one."),
    ] = None,
    port: Annotated[
        int, typer.Option(envvar="LOGRAFT_PORT", min=0, max=65_535, help="Port on 127.0.0.1; 0: any free one.")
    ] = DEFAULT_PORT,
    log_level: Annotated[
        str, typer.Option(envvar="LOGRAFT_LOG_LEVEL", help="DEBUG, INFO, WARNING, ERROR.")
    ] = "WARNING",
) -> None:
    """Run a whole cluster in this process, for development: one node, quorum and broker."""
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise typer.BadParameter(f"log level {log_level!r} is not one of DEBUG, INFO, WARNING, ERROR")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with ExitStack() as stack:
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lograft-dev-")))
        try:
            settings = standalone_settings(data_dir, port=port)
        except START_ERRORS as error:
            typer.echo(f"lograft dev: error: {error}", err=True)
            raise typer.Exit(1) from None
        raise typer.Exit(run_process(settings, on_ready=_announce))


def _announce(server: BrokerServer) -> None:
    typer.echo(f"lograft dev: ready on {server.address}")
