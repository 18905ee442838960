# SPDX-License-Identifier: Apache-2.0
"""Command line of the broker: `brokerd run` and `brokerd dev`.

Owns the options and their environment variables. The variable of an option is `LOGRAFT_` and the option's name in capitals, with
underscores for dashes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final

import typer

from brokerd.limits import PRODUCER_ID_EXPIRATION_MS, RETENTION_CHECK_MS
from brokerd.process.dev import MinFreeBytes, configure_logging, dev
from brokerd.process.main import run_process
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings, CombinedSettings
from metaquorum.process.settings import SettingsError, parse_address, parse_voters
from metaquorum.replica.quorum_settings import SnapshotSettings
from storage.directory.space import DEFAULT_SOFT_BYTES

app = typer.Typer(
    name="brokerd",
    help="The Lograft broker: keeps partition logs and serves them over gRPC.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
logger = logging.getLogger("brokerd")

SNAPSHOTS: Final = SnapshotSettings()
"""Default values of the snapshot options."""


@app.command()
def run(
    # The broker.
    data_dir: Annotated[
        list[Path],
        typer.Option(
            envvar="LOGRAFT_DATA_DIR",
            help="Directory of logs and metadata; given again: further directories for logs (in the variable: joined by ':').",
        ),
    ],
    node_id: Annotated[int, typer.Option(envvar="LOGRAFT_NODE_ID", help="Id of this broker, from 0.")],
    listen: Annotated[str, typer.Option(envvar="LOGRAFT_LISTEN", help="host:port to listen on.")] = "127.0.0.1:9640",
    advertise: Annotated[
        str, typer.Option(envvar="LOGRAFT_ADVERTISE", help="host:port that clients use; default: as listened on.")
    ] = "",
    metrics_listen: Annotated[
        str,
        typer.Option(
            envvar="LOGRAFT_METRICS_LISTEN",
            help="host:port at which metrics of the quorum node are served over HTTP, at /metrics; empty: nowhere.",
        ),
    ] = "",
    cluster_id: Annotated[
        str, typer.Option(envvar="LOGRAFT_CLUSTER_ID", help="Id of the cluster; formats an empty directory.")
    ] = "",
    quorum: Annotated[
        str, typer.Option(envvar="LOGRAFT_QUORUM", help="host:port,... of the metadata quorum; not with --combined.")
    ] = "",
    rack: Annotated[str, typer.Option(envvar="LOGRAFT_RACK", help="Rack of this broker.")] = "",
    # The voter of the metadata quorum in this process.
    combined: Annotated[
        bool, typer.Option(envvar="LOGRAFT_COMBINED", help="Run a voter of the metadata quorum in this process too.")
    ] = False,
    quorum_listen: Annotated[
        str, typer.Option(envvar="LOGRAFT_QUORUM_LISTEN", help="host:port of the quorum listener (--combined).")
    ] = "127.0.0.1:9641",
    quorum_fetch_port: Annotated[
        int | None,
        typer.Option(
            envvar="LOGRAFT_QUORUM_FETCH_PORT", hidden=True, help="Not needed any more: --quorum-listen carries it all."
        ),
    ] = None,
    quorum_advertise: Annotated[
        str, typer.Option(envvar="LOGRAFT_QUORUM_ADVERTISE", help="host:port at which voters reach this one.")
    ] = "",
    voters: Annotated[
        str, typer.Option(envvar="LOGRAFT_VOTERS", help="id@host:port,... of all voters (--combined).")
    ] = "",
    first_start: Annotated[
        bool,
        typer.Option(envvar="LOGRAFT_FIRST_START", help="Format a new directory when the voters agree (--combined)."),
    ] = False,
    snapshot_log_bytes: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_SNAPSHOT_LOG_BYTES",
            min=1,
            help="Bytes of metadata log after which the voter makes a snapshot (--combined).",
        ),
    ] = SNAPSHOTS.log_bytes,
    snapshot_interval_ms: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_SNAPSHOT_INTERVAL_MS",
            min=1,
            help="Or milliseconds after the first change since the last one (--combined).",
        ),
    ] = SNAPSHOTS.interval_ms,
    kept_snapshots: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_KEPT_SNAPSHOTS",
            min=1,
            help="Newest snapshots that the voter keeps; its log begins at the oldest of so many (--combined).",
        ),
    ] = SNAPSHOTS.kept,
    # Limits, and settings for the whole process.
    insecure_plaintext: Annotated[
        bool,
        typer.Option(envvar="LOGRAFT_INSECURE_PLAINTEXT", help="Allow plaintext on an address that others can reach."),
    ] = False,
    min_free_bytes: MinFreeBytes = DEFAULT_SOFT_BYTES,
    producer_id_expiration_ms: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_PRODUCER_ID_EXPIRATION_MS",
            help="Milliseconds without a batch after which a partition forgets a producer.",
        ),
    ] = PRODUCER_ID_EXPIRATION_MS,
    retention_check_ms: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_RETENTION_CHECK_MS",
            help="Milliseconds between two looks for segments that retention lets go; a log grows beyond retention.bytes meanwhile.",
        ),
    ] = RETENTION_CHECK_MS,
    replication_port: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_REPLICATION_PORT",
            min=0,
            max=65535,
            help="Port at the host of --listen for replication, where the other brokers connect; 0: any.",
        ),
    ] = 0,
    fetch_buffer_max_bytes: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_FETCH_BUFFER_MAX_BYTES",
            min=0,
            help="Bytes that are read for fetch streams and not yet taken by their clients; 0: by the memory limit of the container.",
        ),
    ] = 0,
    inflate_max_bytes: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_INFLATE_MAX_BYTES",
            min=0,
            help="Bytes of compressed batches that are being inflated; 0: by the memory limit of the container.",
        ),
    ] = 0,
    ingest_staging_max_bytes: Annotated[
        int,
        typer.Option(
            envvar="LOGRAFT_INGEST_STAGING_MAX_BYTES",
            min=0,
            help="Bytes that clients may stage for ingests in the partitions that this broker leads; 0: a quarter of the disk.",
        ),
    ] = 0,
    log_level: Annotated[str, typer.Option(envvar="LOGRAFT_LOG_LEVEL", help="DEBUG, INFO, WARNING, ERROR.")] = "INFO",
) -> None:
    """Run a broker until SIGTERM."""
    # Accepted and ignored: start scripts for versions with a second port still work.
    del quorum_fetch_port
    configure_logging(log_level)
    try:
        settings = BrokerSettings(
            data_directory=data_dir[0],
            more_data_directories=tuple(data_dir[1:]),
            min_free_bytes=min_free_bytes,
            producer_id_expiration_ms=producer_id_expiration_ms,
            retention_check_ms=retention_check_ms,
            replication_port=replication_port,
            fetch_buffer_max_bytes=fetch_buffer_max_bytes or None,
            inflate_max_bytes=inflate_max_bytes or None,
            staging_max_bytes=ingest_staging_max_bytes or None,
            node_id=node_id,
            listen=parse_address(listen),
            advertise=parse_address(advertise) if advertise else None,
            metrics_listen=parse_address(metrics_listen) if metrics_listen else None,
            cluster_id=cluster_id or None,
            quorum_addresses=tuple(address.strip() for address in quorum.split(",") if address.strip()),
            rack=rack,
            insecure_plaintext=insecure_plaintext,
            combined=CombinedSettings(
                quorum_listen=parse_address(quorum_listen),
                quorum_advertise=parse_address(quorum_advertise) if quorum_advertise else None,
                voters=parse_voters(voters),
                first_start=first_start,
                snapshots=SnapshotSettings(
                    log_bytes=snapshot_log_bytes, interval_ms=snapshot_interval_ms, kept=kept_snapshots
                ),
            )
            if combined
            else None,
        )
    except SettingsError as error:
        typer.echo(f"brokerd: error: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(run_process(settings, on_ready=_announce))


app.command(name="dev")(dev)


def _announce(server: BrokerServer) -> None:
    logger.info("ready on %s", server.address)


def main() -> None:
    """Entry point of the `brokerd` command."""
    app()


if __name__ == "__main__":
    main()
