# SPDX-License-Identifier: Apache-2.0
"""The command `metaquorum`: formats a data directory, runs a quorum server.

Owns the command line and the process: signals, exit status, one clear line for an error. Every option is also an environment
variable: `LOGRAFT_` and the option's name in capitals. Exit status: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from lograft.wire.malloc import tune_allocator

from metaquorum.collector import freeze_started
from metaquorum.process.epoch_reset import read_epochs, reset_epoch
from metaquorum.process.logging_setup import log_to_stderr
from metaquorum.process.server import QuorumServer, ServerError
from metaquorum.process.settings import (
    QuorumServerSettings,
    SettingsError,
    check_cluster_id,
    check_node_id,
    parse_address,
    parse_node_id,
    parse_voters,
)
from metaquorum.replica.election_store import VoteFileLostError
from metaquorum.replica.first_start import (
    FirstStartRefusedError,
    InitialVoter,
    format_observer,
    format_standalone,
    format_with_voters,
)
from metaquorum.replica.log_store import DamagedLogError
from metaquorum.replica.quorum_node import QuorumError, SnapshotSettings
from storage.errors import StorageError

logger = logging.getLogger("metaquorum")

DIRECTORY_ID_BYTES: Final = 16
"""Bytes of a directory id."""

LOG_FORMAT: Final = "time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
"""Format of a log line: key=value pairs."""

EXPECTED_FAILURES: Final = (
    SettingsError,
    ServerError,
    StorageError,
    QuorumError,
    FirstStartRefusedError,
    VoteFileLostError,
    DamagedLogError,
    OSError,
)
"""Failures of settings and environment: they print one clear line instead of a traceback."""

app = typer.Typer(
    name="metaquorum",
    help="The metadata quorum of Lograft: voters and the controller.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class UsageError(Exception):
    """Options contradict each other, or one is malformed."""


DataDir = Annotated[Path, typer.Option("--data-dir", envvar="LOGRAFT_DATA_DIR", help="Data directory of this node.")]
NodeId = Annotated[int, typer.Option("--node-id", envvar="LOGRAFT_NODE_ID", min=0, help="Id of this node.")]
ClusterId = Annotated[str, typer.Option("--cluster-id", envvar="LOGRAFT_CLUSTER_ID", help="Id of the cluster.")]


_SNAPSHOTS: Final = SnapshotSettings()

SnapshotLogBytes = Annotated[
    int,
    typer.Option(
        "--snapshot-log-bytes",
        envvar="LOGRAFT_SNAPSHOT_LOG_BYTES",
        min=1,
        help="Bytes of metadata log after which a snapshot is made.",
    ),
]
SnapshotIntervalMs = Annotated[
    int,
    typer.Option(
        "--snapshot-interval-ms",
        envvar="LOGRAFT_SNAPSHOT_INTERVAL_MS",
        min=1,
        help="Or milliseconds after the first change since the last one.",
    ),
]
KeptSnapshots = Annotated[
    int,
    typer.Option(
        "--kept-snapshots",
        envvar="LOGRAFT_KEPT_SNAPSHOTS",
        min=1,
        help="Newest snapshots that are kept; the log begins at the oldest of so many.",
    ),
]


FetchPort = Annotated[
    int | None,
    typer.Option(
        "--fetch-port", envvar="LOGRAFT_FETCH_PORT", hidden=True, help="Not needed any more: --listen carries it all."
    ),
]

AdminListen = Annotated[
    str | None,
    typer.Option(
        "--admin-listen",
        envvar="LOGRAFT_ADMIN_LISTEN",
        help="host:port at which AdminService and health checks are served by gRPC; else at none.",
    ),
]

MetricsListen = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen",
        envvar="LOGRAFT_METRICS_LISTEN",
        help="host:port at which metrics are served over HTTP, at /metrics; else nowhere.",
    ),
]


@app.command("format")
def format_command(
    data_dir: DataDir,
    node_id: NodeId,
    cluster_id: ClusterId,
    *,
    standalone: Annotated[
        bool, typer.Option("--standalone", envvar="LOGRAFT_STANDALONE", help="The only voter of a new cluster.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option("--address", envvar="LOGRAFT_ADDRESS", help="With --standalone: host:port of its listener."),
    ] = None,
    initial_voters: Annotated[
        str | None,
        typer.Option(
            "--initial-voters",
            envvar="LOGRAFT_INITIAL_VOTERS",
            help="id@host:port:directory-id-in-hex, separated by commas; the same for every voter.",
        ),
    ] = None,
    no_initial_voters: Annotated[
        bool,
        typer.Option(
            "--no-initial-voters",
            envvar="LOGRAFT_NO_INITIAL_VOTERS",
            help="An observer of a quorum that is there already; `lograft quorum add-voter` makes a voter of it.",
        ),
    ] = False,
    directory_id: Annotated[
        str | None,
        typer.Option(
            "--directory-id", envvar="LOGRAFT_DIRECTORY_ID", help="Id of the directory, 32 hex digits; else drawn."
        ),
    ] = None,
) -> None:
    """Give an empty data directory its identity, once."""

    def run() -> None:
        check_cluster_id(cluster_id)
        check_node_id(node_id)
        own_id = None if directory_id is None else parse_directory_id(directory_id)
        if sum((standalone, initial_voters is not None, no_initial_voters)) != 1:
            raise UsageError("give one of --standalone with --address, --initial-voters, and --no-initial-voters")
        if (address is not None) != standalone:
            raise UsageError("--standalone needs --address, and nothing else takes it")
        if address is not None:
            where = str(parse_address(address))
            format_standalone(data_dir, node_id=node_id, cluster_id=cluster_id, address=where, directory_id=own_id)
        elif initial_voters is not None:
            voters = parse_initial_voters(initial_voters)
            format_with_voters(data_dir, node_id=node_id, cluster_id=cluster_id, voters=voters, directory_id=own_id)
        else:
            format_observer(data_dir, node_id=node_id, cluster_id=cluster_id, directory_id=own_id)
        typer.echo(f"formatted {data_dir} for node {node_id} of cluster {cluster_id}")

    raise typer.Exit(guarded(run))


@app.command("reset-epoch")
def reset_epoch_command(
    data_dir: DataDir,
    to: Annotated[
        int | None,
        typer.Option(
            "--to", min=0, help="Epoch to go back to: the largest that is shown for any voter, the same for all."
        ),
    ] = None,
) -> None:
    """Show the epochs of a stopped voter, or with --to reset one whose epoch is so high that no node can be elected."""

    def run() -> None:
        if to is None:
            found = read_epochs(data_dir)
            typer.echo(
                f"node {found.node_id}: quorum epoch {found.quorum_epoch}, largest epoch in its log {found.log_epoch}"
            )
            return
        found = reset_epoch(data_dir, to)
        typer.echo(f"node {found.node_id} goes back from quorum epoch {found.quorum_epoch} to {to}")

    raise typer.Exit(guarded(run))


@app.command("run")
def run_command(
    data_dir: DataDir,
    node_id: NodeId,
    cluster_id: ClusterId,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", envvar="LOGRAFT_LISTEN", help="host:port of the internal port, which other servers dial."
        ),
    ] = "127.0.0.1:9641",
    *,
    admin_listen: AdminListen = None,
    fetch_port: FetchPort = None,
    metrics_listen: MetricsListen = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", envvar="LOGRAFT_ADVERTISE", help="host:port that peers use; else --listen."),
    ] = None,
    voters: Annotated[
        str, typer.Option("--voters", envvar="LOGRAFT_VOTERS", help="id@host:port of every voter, by commas.")
    ] = "",
    first_start: Annotated[
        bool,
        typer.Option(
            "--first-start", envvar="LOGRAFT_FIRST_START", help="Format an empty directory once the voters agree."
        ),
    ] = False,
    auto_join: Annotated[
        bool,
        typer.Option(
            "--auto-join",
            envvar="LOGRAFT_AUTO_JOIN",
            help="As an observer, ask to vote once caught up; an old replica of this node that is silent is removed.",
        ),
    ] = False,
    snapshot_log_bytes: SnapshotLogBytes = _SNAPSHOTS.log_bytes,
    snapshot_interval_ms: SnapshotIntervalMs = _SNAPSHOTS.interval_ms,
    kept_snapshots: KeptSnapshots = _SNAPSHOTS.kept,
    insecure_plaintext: Annotated[
        bool,
        typer.Option(
            "--insecure-plaintext",
            envvar="LOGRAFT_INSECURE_PLAINTEXT",
            help="Accept plaintext on an address that other machines can reach.",
        ),
    ] = False,
) -> None:
    """Run a voter until SIGTERM or SIGINT."""
    # Accepted, so that start scripts for versions with a second port still work.
    del fetch_port

    def run() -> None:
        settings = QuorumServerSettings(
            node_id=node_id,
            cluster_id=cluster_id,
            listen=parse_address(listen),
            admin_listen=parse_address(admin_listen) if admin_listen else None,
            advertise=parse_address(advertise) if advertise else None,
            metrics_listen=parse_address(metrics_listen) if metrics_listen else None,
            voters=parse_voters(voters),
            first_start=first_start,
            auto_join=auto_join,
            insecure_plaintext=insecure_plaintext,
            snapshots=SnapshotSettings(
                log_bytes=snapshot_log_bytes, interval_ms=snapshot_interval_ms, kept=kept_snapshots
            ),
        )
        settings.check()
        tune_allocator()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(QuorumServer(settings, data_dir)))

    log_to_stderr("INFO", line_format=LOG_FORMAT)
    raise typer.Exit(guarded(run))


def guarded(run: Callable[[], None]) -> int:
    """Run a command. Print one line for an expected failure. Return the exit status."""
    try:
        run()
    except UsageError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    except EXPECTED_FAILURES as error:
        typer.echo(f"error: {error}", err=True)
        return 1
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if it is installed, else None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(server: QuorumServer) -> None:
    """Run a server until a signal stops it, or until it fails.

    Raises:
        ServerError, StorageError, QuorumError: it could not start, or a failure stopped it.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    waiting = loop.create_task(asked.wait())
    starting = loop.create_task(server.start())
    await asyncio.wait((waiting, starting), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # Stopped by a signal while it waits for its peers.
        starting.cancel()
        await asyncio.wait((starting,))
        logger.info("event=server_stopped before=start")
        return
    try:
        await starting
        freeze_started()
        stopped = loop.create_task(server.wait_stopped())
        await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            await stopped
            raise ServerError("the quorum node stopped by itself; the log above says why")
        stopped.cancel()
        logger.info("event=server_stopping")
    finally:
        waiting.cancel()
        await server.stop()
    logger.info("event=server_stopped")


def parse_directory_id(text: str) -> bytes:
    """Return the directory id of a text.

    Raises:
        UsageError: it is not 32 hexadecimal digits.
    """
    try:
        value = bytes.fromhex(text.strip())
    except ValueError:
        value = b""
    if len(value) != DIRECTORY_ID_BYTES:
        raise UsageError(f"directory id {text!r} is not {2 * DIRECTORY_ID_BYTES} hexadecimal digits")
    return value


def parse_initial_voters(text: str) -> list[InitialVoter]:
    """Return the voters of a text `id@host:port:directory-id-hex`, separated by commas.

    Raises:
        UsageError, SettingsError: a voter is malformed or named twice, or there is none.
    """
    voters: list[InitialVoter] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        node, _, rest = part.partition("@")
        address, separator, directory = rest.rpartition(":")
        if not separator:
            raise UsageError(f"initial voter {part!r} is not id@host:port:directory-id")
        voter = InitialVoter(
            node_id=parse_node_id(node),
            address=str(parse_address(address)),
            directory_id=parse_directory_id(directory),
        )
        if any(other.node_id == voter.node_id for other in voters):
            raise UsageError(f"initial voter {voter.node_id} is named twice")
        voters.append(voter)
    if not voters:
        raise UsageError("--initial-voters names no voter")
    return voters


def main() -> None:
    """Run the command line."""
    if not __debug__:
        # Assertions protect the log: without them a bug would write wrong data instead of stopping the process.
        sys.exit("error: metaquorum does not run under python -O")
    app()


if __name__ == "__main__":
    main()
