# SPDX-License-Identifier: Apache-2.0
"""The cluster of `lograft dev --nodes`: several servers as processes of their own, each a broker and a voter.

Owns the ports and directories of the servers and their lives: all end with this process, however it ends. Its file
`dev-cluster.json` in the data directory keeps what a later start needs.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import typer

HOST: Final = "127.0.0.1"
"""Address of all listeners."""

MAX_NODES: Final = 9
"""Servers of one cluster, at most."""

PORTS: Final = range(10_000, 20_000)
"""Ports to choose from. Systems do not give them to clients, so those of the quorum are free again at a later start."""

PORT_ATTEMPTS_MAX: Final = 1_000
"""Ports that are tried at most."""

STATE_FILE: Final = "dev-cluster.json"
"""File in the data directory with the shape of its cluster."""

READY_LIMIT_S: Final = 120.0
"""Seconds until all servers must serve."""

CALL_LIMIT_S: Final = 2.0
"""Seconds for one question whether a server serves."""

POLL_S: Final = 0.2
"""Seconds between two looks at the servers."""

STOP_LIMIT_S: Final = 30.0
"""Seconds that the servers have to stop cleanly. They are killed then."""

TAIL_LINES: Final = 5
"""Lines of a server's log that are shown when it ends before it served."""

_PR_SET_PDEATHSIG: Final = 1
"""prctl(2): the signal that a process gets when its parent ends."""


class DevClusterError(Exception):
    """The cluster cannot run. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a cluster outlives its processes.

    Attributes:
        cluster_id: id of the cluster.
        quorum_ports: port of the quorum listener of each server.
    """

    cluster_id: str
    quorum_ports: tuple[int, ...]


@dataclass(slots=True)
class _Node:
    """A server. `Servers` is the only writer."""

    node_id: int
    port: int
    metrics_port: int
    log: Path
    process: subprocess.Popen[bytes]
    is_gone: bool = False


def run_cluster(nodes: int, *, data_directory: Path | None, port: int, min_free_bytes: int, log_level: str) -> int:
    """Run a cluster until SIGTERM, SIGINT or the end of all its servers, and return the exit code.

    Args:
        nodes: number of servers, 1 to `MAX_NODES`.
        data_directory: directory to keep; None: a temporary one.
        port: public port of the first server; the others follow. 0: any free ports.
        min_free_bytes: as in `BrokerSettings`.
        log_level: level of the servers' logs.
    """
    asked = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    with ExitStack() as stack:
        kept = data_directory
        directory = kept or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lograft-dev-")))
        try:
            shape = _shape(directory, nodes, port=port)
            servers = Servers(directory, shape, port=port, more=_more(min_free_bytes, log_level))
            stack.callback(servers.stop)
            if servers.wait_serving(asked):
                _announce(
                    servers, str(directory) + ("" if kept else " (temporary, gone at the end; --data-dir keeps it)")
                )
                servers.watch(asked)
        except (DevClusterError, OSError) as error:
            typer.echo(f"lograft dev: error: {error}", err=True)
            return 1
    return 0


class Servers:
    """The running servers of a cluster."""

    def __init__(self, directory: Path, shape: Shape, *, port: int, more: Sequence[str]) -> None:
        """Start all servers.

        Args:
            directory: data directory of the cluster.
            shape: what a start before this one has laid down.
            port: public port of the first server; 0: any free ports.
            more: further arguments of each.

        Raises:
            DevClusterError: a port is in use.
        """
        count = len(shape.quorum_ports)
        ports = [port + at for at in range(count)] if port else free_ports(count, chosen=shape.quorum_ports)
        _check_free([*(ports if port else ()), *shape.quorum_ports])
        metrics_ports = free_ports(count, chosen=(*shape.quorum_ports, *ports))
        voters = ",".join(f"{at + 1}@{HOST}:{quorum}" for at, quorum in enumerate(shape.quorum_ports))
        self.nodes: list[_Node] = []
        try:
            for at, (public, metrics) in enumerate(zip(ports, metrics_ports, strict=True)):
                log = directory / f"node-{at + 1}.log"
                arguments = [
                    *("--node-id", str(at + 1), "--data-dir", str(directory / f"node-{at + 1}")),
                    *("--listen", f"{HOST}:{public}", "--metrics-listen", f"{HOST}:{metrics}"),
                    *("--combined", "--first-start", "--cluster-id", shape.cluster_id, "--voters", voters),
                    *("--quorum-listen", f"{HOST}:{shape.quorum_ports[at]}"),
                    *more,
                ]
                self.nodes.append(_Node(at + 1, public, metrics, log, _started(arguments, log)))
        except BaseException:
            self.stop()
            raise

    @property
    def addresses(self) -> str:
        """The public addresses, with commas."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def wait_serving(self, asked: threading.Event) -> bool:
        """Wait until every server serves and knows all brokers. Return False if the end was asked for before.

        Raises:
            DevClusterError: a server ended, or `READY_LIMIT_S` passed.
        """
        deadline_s = time.monotonic() + READY_LIMIT_S
        missing = list(self.nodes)
        while missing:
            for node in self.nodes:
                if node.process.poll() is not None:
                    raise DevClusterError(f"node {node.node_id} ended at its start:\n{_tail(node.log)}")
            if missing and _serves(missing[0].port, len(self.nodes)):
                missing.pop(0)
                continue
            if time.monotonic() > deadline_s:
                raise DevClusterError(
                    f"node {missing[0].node_id} does not serve after {READY_LIMIT_S:.0f} s:\n{_tail(missing[0].log)}"
                )
            if asked.wait(POLL_S):
                return False
        return True

    def watch(self, asked: threading.Event) -> None:
        """Wait until the end is asked for, and tell of servers that end by themselves: they may be killed on purpose.

        Raises:
            DevClusterError: none is left.
        """
        while not asked.wait(POLL_S):
            for node in self.nodes:
                status = node.process.poll()
                if status is not None and not node.is_gone:
                    node.is_gone = True
                    typer.echo(f"lograft dev: node {node.node_id} {_end_of(status)}; its log: {node.log}", err=True)
            if all(node.is_gone for node in self.nodes):
                raise DevClusterError("no server is left")

    def stop(self) -> None:
        """End all servers: all are asked at once, and killed if they do not end within `STOP_LIMIT_S`."""
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.terminate()
        deadline_s = time.monotonic() + STOP_LIMIT_S
        for node in self.nodes:
            try:
                node.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()


def _shape(directory: Path, nodes: int, *, port: int) -> Shape:
    """Return the shape of the cluster in a directory, and lay one down in a new directory."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / STATE_FILE
    if file.exists():
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
            shape = Shape(str(fields["cluster_id"]), tuple(int(port) for port in fields["quorum_ports"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DevClusterError(f"{file} is damaged: {error!r}") from None
        if len(shape.quorum_ports) != nodes:
            raise DevClusterError(
                f"{directory} holds a cluster of {len(shape.quorum_ports)} nodes, not {nodes}: give --nodes "
                f"{len(shape.quorum_ports)} or another --data-dir"
            )
        return shape
    if any(directory.iterdir()):
        raise DevClusterError(
            f"{directory} has something else in it than a cluster of --nodes; give another --data-dir"
        )
    shape = Shape(f"dev-{os.urandom(6).hex()}", tuple(free_ports(nodes, chosen=range(port, port + nodes))))
    file.write_text(json.dumps(asdict(shape)), encoding="utf-8")
    return shape


def _more(min_free_bytes: int, log_level: str) -> list[str]:
    return ["--min-free-bytes", str(min_free_bytes), "--log-level", log_level]


def _started(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "brokerd", "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(os.environ),
            # Ctrl-C goes to all processes of a terminal's group; only this one decides who ends when.
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables that are options of the servers: they are meant for this command."""
    return {name: value for name, value in environment.items() if not name.startswith("LOGRAFT_")}


def _end_with_parent() -> Callable[[], None] | None:
    """Return what makes a child end with this process. It has one thread, so code may run between fork and exec."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask


def free_ports(count: int, *, chosen: Collection[int] = ()) -> list[int]:
    """Return ports at which nothing listens now, none of which was `chosen` before.

    Raises:
        DevClusterError: too few were found.
    """
    found: list[int] = []
    for port in random.sample(PORTS, PORT_ATTEMPTS_MAX):
        if port in chosen:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise DevClusterError(
        f"of {PORT_ATTEMPTS_MAX} ports of {HOST} from {PORTS[0]} to {PORTS[-1]} only {len(found)} are free; "
        f"{count} are needed: end servers that listen there"
    )


def _check_free(ports: Sequence[int]) -> None:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise DevClusterError(
                    f"port {port} of {HOST} cannot be used ({error.strerror}); give another --port, or 0 for free ones"
                ) from None


def _serves(port: int, broker_count: int) -> bool:
    """Return whether the server at a port serves and knows so many brokers that may lead."""
    # Loaded when the servers have been started, so that no child is forked from a process with gRPC's threads.
    import grpc
    from lograft.v1 import metadata_pb2
    from lograft.v1.metadata_pb2_grpc import MetadataServiceStub

    with suppress(grpc.RpcError), grpc.insecure_channel(f"{HOST}:{port}") as channel:
        request = metadata_pb2.GetClusterRequest(topics=["-"])
        cluster = MetadataServiceStub(channel).GetCluster(request, timeout=CALL_LIMIT_S)
        return sum(not broker.fenced for broker in cluster.brokers) == broker_count
    return False


def _announce(servers: Servers, where: str) -> None:
    first = servers.nodes[0]
    count = len(servers.nodes)
    typer.echo(f"lograft dev: ready on {servers.addresses}")
    for node in servers.nodes:
        typer.echo(f"  node {node.node_id}: {HOST}:{node.port}, pid {node.process.pid}, log {node.log}")
        typer.echo(f"          metrics http://{HOST}:{node.metrics_port}/metrics")
    typer.echo(f"  data: {where}")
    typer.echo(f"  next: export LOGRAFT_BOOTSTRAP={servers.addresses}")
    typer.echo(f"        lograft topics create events --partitions 3 --replication-factor {min(count, 3)}")
    typer.echo("        echo hello | lograft produce events")
    if count > 2:
        typer.echo(
            f"        kill -9 {first.process.pid}    # and see `lograft doctor`: nothing that was acknowledged is lost"
        )


def _end_of(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or "  (its log is empty)"
