# SPDX-License-Identifier: Apache-2.0
"""Clusters of real processes: separate voters and brokers, combined servers like the pods of the StatefulSet, or `lograft dev`.

Owns command lines, addresses, the wait until clients can work, and the end of every process.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from lograft import Admin

from deploy.entrypoint import command_line
from integration_tests.harness.metadata import quorum_of, unfenced_brokers
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for
from metaquorum.testing.ports import LOOPBACK, free_port

CLUSTER_ID = "integration"
HOST = LOOPBACK
BROKER_ID_FIRST = 101
START_TIMEOUT_S = 120.0
ADMIN_TIMEOUT_MS = 5_000
DEV_READY = re.compile(r"lograft dev: ready on (127\.0\.0\.1:\d+)")


class Servers(ABC):
    """The processes of one cluster; a context manager that ends all of them.

    Args:
        directory: directory for data directories and logs.
        processes: all servers by name.
        voter_count: number of voters among them.
        broker_count: number of brokers among them.

    Attributes:
        start_timeout_s: seconds until clients must be able to work.
    """

    start_timeout_s = START_TIMEOUT_S

    def __init__(
        self, directory: Path, processes: Mapping[str, Process], *, voter_count: int, broker_count: int
    ) -> None:
        self.directory = directory
        self.processes = dict(processes)
        self._voter_count = voter_count
        self._broker_count = broker_count

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """Bootstrap addresses for clients."""

    def start(self) -> None:
        """Start everything and wait until clients can work.

        Raises:
            TimeoutError: clients cannot work in time; the message has the ends of all logs.
        """
        for process in self.processes.values():
            process.start()
        try:
            wait_for(self.is_serving, timeout_s=self.start_timeout_s, what="the cluster to serve")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.logs()}") from None

    def is_serving(self) -> bool:
        """Return True if a broker answers, the quorum has a leader and all its voters, and every broker is unfenced."""
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            quorum = quorum_of(admin)
            if quorum is None or quorum.leader_id is None or len(quorum.voters) != self._voter_count:
                return False
            return len(unfenced_brokers(admin)) == self._broker_count

    def logs(self) -> str:
        """Return the ends of all logs, for a failure message."""
        return "\n".join(f"--- {process.name}\n{process.log_tail()}" for process in self.processes.values())

    def stop(self) -> list[str]:
        """Stop all servers cleanly, one after the other, and return the problems of their ends."""
        return stop_in_order(self.processes.values())

    def kill(self) -> None:
        """Kill every process that still runs."""
        for process in self.processes.values():
            if process.running:
                process.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def stop_in_order(processes: Iterable[Process]) -> list[str]:
    """Stop processes cleanly, one after the other, and return the problems of their ends."""
    problems: list[str] = []
    for process in processes:
        status = process.stop()
        if status != 0:
            problems.append(f"{process.name} ended with {status}: {process.log_tail()}")
    return problems


class Place(Protocol):
    """Where the processes of a cluster run."""

    def address(self, name: str) -> str:
        """Return the `host:port` at which the process of this name listens."""
        ...

    def admin_address(self, name: str) -> str:
        """Return the `host:port` at which the voter of this name serves AdminService."""
        ...

    def prefix(self, name: str) -> Sequence[str]:
        """Return the command that runs the process of this name in its place."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """Further arguments of every server."""
        ...


class Loopback:
    """All processes on 127.0.0.1."""

    arguments: Sequence[str] = ()

    def address(self, name: str) -> str:
        """Return a free port of the loopback address."""
        return f"{HOST}:{free_port()}"

    def admin_address(self, name: str) -> str:
        """Return a free port of the loopback address."""
        return f"{HOST}:{free_port()}"

    def prefix(self, name: str) -> Sequence[str]:
        """Return an empty command."""
        return ()


def voter_name(voter_id: int) -> str:
    """Return the name of a voter's process in a `Cluster`."""
    return f"voter-{voter_id}"


def broker_name(broker_id: int) -> str:
    """Return the name of a broker's process in a `Cluster`."""
    return f"broker-{broker_id}"


def names_of(*, voter_count: int, broker_count: int) -> list[str]:
    """Return the names of all processes of a `Cluster`: voters, then brokers."""
    voters = [voter_name(voter_id) for voter_id in range(1, voter_count + 1)]
    return voters + [broker_name(BROKER_ID_FIRST + index) for index in range(broker_count)]


class Cluster(Servers):
    """`metaquorum` voters with the node ids 1..n and `brokerd` brokers with the ids 101.., each in its own process.

    Args:
        directory: directory for data directories and logs.
        voter_count: number of voters.
        broker_count: number of brokers.
        place: where processes run; None: on loopback.
        broker_arguments: further arguments of every broker.
        voter_arguments: further arguments of every voter.
        launcher: returns, for the name of a process, the module and arguments that start the server's module.
        fronts: addresses of proxies by broker id. A broker advertises the address of its proxy, and clients use it.

    Attributes:
        voters: processes of the voters, by node id.
        brokers: processes of the brokers, by broker id.
        voter_addresses: internal ports of the voters.
        admin_addresses: addresses of the voters' AdminService.
        listening: addresses at which the brokers listen.
        broker_addresses: addresses at which others reach the brokers: that of the proxy, if there is one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        voter_count: int,
        broker_count: int,
        place: Place | None = None,
        broker_arguments: Sequence[str] = (),
        voter_arguments: Sequence[str] = (),
        launcher: Callable[[str], Sequence[str]] | None = None,
        fronts: Mapping[int, str] | None = None,
    ) -> None:
        self._place = place = place or Loopback()
        self._launcher = launcher
        addresses = {voter_id: place.address(voter_name(voter_id)) for voter_id in range(1, voter_count + 1)}
        voters = ",".join(f"{voter_id}@{address}" for voter_id, address in addresses.items())
        self.voter_addresses = addresses
        self.admin_addresses = {voter_id: place.admin_address(voter_name(voter_id)) for voter_id in addresses}
        self.voters = {
            voter_id: self._process(
                directory,
                voter_name(voter_id),
                [
                    *("metaquorum", "run", "--first-start", "--voters", voters),
                    *("--admin-listen", self.admin_addresses[voter_id], *voter_arguments),
                ],
                node_id=voter_id,
                listen=address,
            )
            for voter_id, address in addresses.items()
        }
        broker_ids = range(BROKER_ID_FIRST, BROKER_ID_FIRST + broker_count)
        self.listening = {broker_id: place.address(broker_name(broker_id)) for broker_id in broker_ids}
        fronts = fronts or {}
        self.broker_addresses = {**self.listening, **fronts}
        self.brokers = {
            broker_id: self._process(
                directory,
                broker_name(broker_id),
                [
                    *("brokerd", "run", "--quorum", ",".join(addresses.values()), *broker_arguments),
                    *(("--advertise", fronts[broker_id]) if broker_id in fronts else ()),
                ],
                node_id=broker_id,
                listen=address,
            )
            for broker_id, address in self.listening.items()
        }
        processes = {process.name: process for process in (*self.voters.values(), *self.brokers.values())}
        super().__init__(directory, processes, voter_count=voter_count, broker_count=broker_count)

    def _process(self, directory: Path, name: str, command: list[str], *, node_id: int, listen: str) -> Process:
        arguments = [*command, "--data-dir", str(directory / name), "--node-id", str(node_id)]
        arguments += ["--cluster-id", CLUSTER_ID, "--listen", listen, *self._place.arguments]
        if self._launcher is not None:
            arguments = [*self._launcher(name), *arguments]
        return Process(name, ["-m", *arguments], directory / f"{name}.log", prefix=self._place.prefix(name))

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, for clients."""
        return ",".join(self.broker_addresses.values())

    def data_directory(self, process: Process) -> Path:
        """Return the data directory of one of the servers."""
        return self.directory / process.name


class CombinedCluster(Servers):
    """Servers that are voter and broker in one process, started like the pods of the StatefulSet.

    The command line is the one that `deploy/entrypoint.py` makes from a pod's environment. Each server has its own loopback address.

    Args:
        directory: directory for data directories and logs.
        count: number of servers, odd; all of them vote.
        arguments: further arguments of every server.

    Attributes:
        hosts: loopback address of each server.
        broker_port: public port of every server.
        quorum_port: internal port of every server.
        directories: data directories.
    """

    def __init__(self, directory: Path, *, count: int = 3, arguments: Sequence[str] = ()) -> None:
        self.hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
        self.broker_port, self.quorum_port = free_port(*self.hosts), free_port(*self.hosts)
        self.directories = [directory / f"data-{ordinal}" for ordinal in range(count)]
        processes: dict[str, Process] = {}
        for ordinal, host in enumerate(self.hosts):
            environment = {
                "POD_NAME": f"lograft-{ordinal}",
                "LOGRAFT_CLUSTER_ID": CLUSTER_ID,
                "LOGRAFT_VOTER_COUNT": str(count),
                "LOGRAFT_HOSTS": ",".join(self.hosts),
                "LOGRAFT_BIND_HOST": host,
                "LOGRAFT_BROKER_PORT": str(self.broker_port),
                "LOGRAFT_QUORUM_PORT": str(self.quorum_port),
                "LOGRAFT_DATA_DIR": str(self.directories[ordinal]),
            }
            name = environment["POD_NAME"]
            command = ["-m", *command_line(environment), *arguments]
            processes[name] = Process(name, command, directory / f"{name}.log")
        super().__init__(directory, processes, voter_count=count, broker_count=count)

    @property
    def addresses(self) -> dict[str, str]:
        """Return the address of each server for clients, by name."""
        return {name: f"{host}:{self.broker_port}" for name, host in zip(self.processes, self.hosts, strict=True)}

    @property
    def bootstrap(self) -> str:
        """Addresses of all servers, for clients."""
        return ",".join(self.addresses.values())

    def disk_bytes(self) -> int:
        """Return the current size of all files of all servers in bytes."""
        total = 0
        for directory in self.directories:
            for file in directory.rglob("*"):
                try:
                    total += file.stat().st_size
                except FileNotFoundError:
                    continue
        return total


class DevServer(Servers):
    """`lograft dev`: a whole cluster in one process, on any free port. It is stopped cleanly at the end.

    Args:
        directory: directory for the data directory `data` and the log.
        name: name of the process and its log.
    """

    def __init__(self, directory: Path, *, name: str = "lograft-dev") -> None:
        arguments = ["-m", "brokerd", "dev", "--port", "0", "--data-dir", str(directory / "data")]
        self.process = Process(name, arguments, directory / f"{name}.log")
        super().__init__(directory, {name: self.process}, voter_count=1, broker_count=1)

    @property
    def bootstrap(self) -> str:
        """Its address, once it serves."""
        found = DEV_READY.search(self.process.log_text())
        assert found is not None, f"{self.process.name} does not serve yet"
        return found[1]

    def is_serving(self) -> bool:
        """Return True if its log says that it is ready.

        Raises:
            RuntimeError: the process has ended.
        """
        if not self.process.running:
            raise RuntimeError(f"{self.process.name} ended before it was ready:\n{self.process.log_tail()}")
        return DEV_READY.search(self.process.log_text()) is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.running:
            self.process.stop()
