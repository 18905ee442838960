# SPDX-License-Identifier: Apache-2.0
"""The sides of `make bench-peers`: servers of each kind on loopback, and the client processes that work with them.

Clients and servers of a checkout run with its own interpreter and its own modules, only the client programs are always those of this
checkout. With one node, the servers that are not measured are stopped (SIGSTOP). Quorums of three stay up, as a quorum whose servers
were stopped would first have to find together again.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.confluent_venv import confluent_python
from benchmarks.kafka_server import kafka_servers
from benchmarks.peers_cells import Side
from benchmarks.peers_task import Sample, Task
from benchmarks.processes import STOP_TIMEOUT_S, ServerProcess, ceiling_server
from metaquorum.testing.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
CLIENT_TIMEOUT_S = 600.0
"""A client process that takes longer hangs."""
CLUSTER_ID = "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A directory with a version of Lograft, and an interpreter that has what this version needs."""

    directory: Path
    python: Path

    @classmethod
    def here(cls) -> Checkout:
        """Return the checkout that runs, with the interpreter that runs it."""
        return cls(directory=ROOT, python=Path(sys.executable))

    @classmethod
    def at(cls, directory: Path) -> Checkout:
        """Return another checkout, with the interpreter of its `.venv`.

        Raises:
            FileNotFoundError: it has none.
        """
        python = directory / ".venv" / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(f"{directory} has no .venv: run `make install` there")
        return cls(directory=directory, python=python)

    @property
    def version(self) -> str:
        """Its commit, with a mark if files differ from it."""
        commit = self._git("rev-parse", "--short", "HEAD")
        return f"{commit} with changes" if self._git("status", "--porcelain", "--untracked-files=no") else commit

    def server_environment(self) -> dict[str, str]:
        """Return the environment of its servers."""
        return _environment(self.directory, self.directory / "sdk")

    def client(self) -> Client:
        """Return how to start its clients."""
        # The SDK comes from the checkout, and the client program from this one.
        return Client(
            python=self.python,
            module="benchmarks.peers_lograft",
            environment=_environment(self.directory / "sdk", ROOT),
        )

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.directory), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _environment(*import_paths: Path) -> dict[str, str]:
    return {**os.environ, "GRPC_VERBOSITY": "ERROR", "PYTHONPATH": os.pathsep.join(map(str, import_paths))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How to start the client processes of a side."""

    python: Path
    module: str
    environment: Mapping[str, str]

    def run(self, task: Task) -> Any:
        """Run a task, and return what its process printed last, as of JSON; None if it printed nothing.

        Raises:
            RuntimeError: the process failed; the text has the end of its messages.
            TimeoutError: it did not end in time.
        """
        try:
            ended = subprocess.run(
                self._command(task),
                capture_output=True,
                text=True,
                env=self.environment,
                cwd=ROOT,
                timeout=CLIENT_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.module} did not end {task.do} within {CLIENT_TIMEOUT_S} s") from None
        if ended.returncode:
            raise RuntimeError(f"{self.module} failed at {task.do}: {ended.stdout[-500:]} {ended.stderr[-2_000:]}")
        lines = ended.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None

    def start(self, task: Task) -> subprocess.Popen[str]:
        """Start a task, with pipes to its process."""
        return subprocess.Popen(
            self._command(task),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
            cwd=ROOT,
        )

    def _command(self, task: Task) -> list[str]:
        return [str(self.python), "-m", self.module, task.argument()]


class System:
    """The servers of one side, and its clients.

    Args:
        side: whose servers these are.
        client: how to start clients.
        bootstrap: bootstrap addresses.
        roots: process ids of the servers.

    Attributes:
        is_quorum: whether there is more than one server.
    """

    def __init__(self, side: Side, client: Client, bootstrap: str, roots: Sequence[int]) -> None:
        self.side, self.client, self.bootstrap = side, client, bootstrap
        self._roots = [psutil.Process(pid) for pid in roots]
        self._is_paused = False
        self.is_quorum = len(roots) > 1

    @property
    def pids(self) -> tuple[int, ...]:
        """The servers and their children."""
        return tuple(each.pid for root in self._roots for each in (root, *root.children(recursive=True)))

    def measure(self, task: Task) -> Sample:
        """Run a task that measures."""
        return Sample(**self.client.run(task))

    def pause(self) -> None:
        """Stop the servers for a while (SIGSTOP)."""
        if not self._is_paused:
            self._signal(signal.SIGSTOP)
            self._is_paused = True

    def resume(self) -> None:
        """Let them go on."""
        if self._is_paused:
            self._signal(signal.SIGCONT)
            self._is_paused = False

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, number)


def confluent_client() -> Client:
    """Return how to start clients of confluent-kafka."""
    return Client(python=confluent_python(), module="benchmarks.peers_confluent", environment=_environment(ROOT))


@contextmanager
def kafka_system(directory: Path, java: Path, *, count: int) -> Generator[System]:
    """Run Apache Kafka on fresh directories, with confluent-kafka as its client."""
    client = confluent_client()
    with kafka_servers(directory, java, count=count) as servers:
        yield from _running(System(Side.PEER, client, servers.bootstrap, servers.pids))


@contextmanager
def lograft_system(directory: Path, side: Side, checkout: Checkout, *, count: int) -> Generator[System]:
    """Run the Lograft of a checkout on fresh directories: `lograft dev`, or servers that are voter and broker each."""
    directory.mkdir(parents=True)
    if count == 1:
        server = ServerProcess(
            ["-m", "brokerd", "dev", "--port", "0", "--data-dir", str(directory / "data")],
            directory / "dev.err",
            python=checkout.python,
            environment=checkout.server_environment(),
            directory=checkout.directory,
        )
        try:
            yield from _running(System(side, checkout.client(), server.address, [server.pid]))
        finally:
            server.stop()
    else:
        cluster = CheckoutCluster(directory, checkout, count=count)
        try:
            cluster.start()
            yield from _running(System(side, checkout.client(), cluster.bootstrap, cluster.pids))
        finally:
            cluster.stop()


@contextmanager
def prototype_system(directory: Path) -> Generator[System]:
    """Run the bare gRPC prototype on a fresh file."""
    directory.mkdir(parents=True)
    client = Client(
        python=Path(sys.executable),
        module="benchmarks.peers_prototype",
        environment=_environment(ROOT / "sdk", ROOT),
    )
    with ceiling_server(directory) as server:
        yield from _running(System(Side.PROTOTYPE, client, server.address, [server.pid]))


def _running(system: System) -> Generator[System]:
    try:
        yield system
    finally:
        # A stopped server does not end.
        system.resume()


class CheckoutCluster:
    """Servers of a checkout that are voter and broker in one process, started as its own container image starts them.

    `integration_tests.harness.cluster.CombinedCluster` starts those of this checkout only: an older one has other arguments.

    Args:
        directory: directory for data directories and logs.
        checkout: whose servers run.
        count: number of servers.
    """

    def __init__(self, directory: Path, checkout: Checkout, *, count: int) -> None:
        self._checkout, self._directory = checkout, directory
        self._hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
        self._broker_port = free_port(*self._hosts)
        ports = {
            "LOGRAFT_BROKER_PORT": str(self._broker_port),
            "LOGRAFT_QUORUM_PORT": str(free_port(*self._hosts)),
            # An older server has a port for each kind of connection; what does not know them does not read them.
            "LOGRAFT_QUORUM_FETCH_PORT": str(free_port(*self._hosts)),
            "LOGRAFT_REPLICATION_PORT": str(free_port(*self._hosts)),
        }
        self._environments = [
            {
                **ports,
                "POD_NAME": f"lograft-{ordinal}",
                "LOGRAFT_CLUSTER_ID": CLUSTER_ID,
                "LOGRAFT_VOTER_COUNT": str(count),
                "LOGRAFT_HOSTS": ",".join(self._hosts),
                "LOGRAFT_BIND_HOST": host,
                "LOGRAFT_DATA_DIR": str(directory / f"data-{ordinal}"),
            }
            for ordinal, host in enumerate(self._hosts)
        ]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses for clients."""
        return ",".join(f"{host}:{self._broker_port}" for host in self._hosts)

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Start the servers. The first topic waits until they have found together."""
        command_line = runpy.run_path(str(self._checkout.directory / "deploy" / "entrypoint.py"))["command_line"]
        for number, environment in enumerate(self._environments):
            with (self._directory / f"{number}.log").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [str(self._checkout.python), "-m", *command_line(environment)],
                        stdout=log,
                        stderr=log,
                        env=self._checkout.server_environment(),
                        cwd=self._checkout.directory,
                    )
                )

    def stop(self) -> None:
        """Stop the servers, and kill those that do not stop."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
