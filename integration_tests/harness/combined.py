# SPDX-License-Identifier: Apache-2.0
"""Servers of a soak: each is a voter of the quorum and a broker in one process, started as the pods of the StatefulSet are.

The command line is the one that `deploy/entrypoint.py` makes of a pod's environment, on a loopback address for each.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lograft import Admin
from lograft.errors import LograftError

from deploy.entrypoint import command_line
from integration_tests.harness.ports import free_port
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for

START_TIMEOUT_S = 120.0
ADMIN_TIMEOUT_MS = 5_000


class CombinedNodes:
    """A context manager that leaves no process behind.

    Args:
        directory: for data directories and logs.
        count: servers, an odd number; all of them vote.
        arguments: further arguments of every server.
    """

    def __init__(self, directory: Path, *, count: int = 3, arguments: Sequence[str] = ()) -> None:
        self.hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
        self.broker_port, self.quorum_port = port_free_on(self.hosts), port_free_on(self.hosts)
        self.processes: dict[str, Process] = {}
        self.directories = [directory / f"data-{ordinal}" for ordinal in range(count)]
        for ordinal, host in enumerate(self.hosts):
            environment = {
                "POD_NAME": f"lograft-{ordinal}",
                "LOGRAFT_CLUSTER_ID": "soak",
                "LOGRAFT_VOTER_COUNT": str(count),
                "LOGRAFT_HOSTS": ",".join(self.hosts),
                "LOGRAFT_BIND_HOST": host,
                "LOGRAFT_BROKER_PORT": str(self.broker_port),
                "LOGRAFT_QUORUM_PORT": str(self.quorum_port),
                "LOGRAFT_DATA_DIR": str(self.directories[ordinal]),
            }
            name = environment["POD_NAME"]
            self.processes[name] = Process(name, [*command_line(environment), *arguments], directory / f"{name}.log")

    @property
    def addresses(self) -> dict[str, str]:
        """Address of each server for clients, by name."""
        return {name: f"{host}:{self.broker_port}" for name, host in zip(self.processes, self.hosts, strict=True)}

    @property
    def bootstrap(self) -> str:
        """Addresses of all servers, for clients."""
        return ",".join(self.addresses.values())

    def disk_bytes(self) -> int:
        """Bytes of all files of all servers, as they are now."""
        total = 0
        for directory in self.directories:
            for file in directory.rglob("*"):
                try:
                    total += file.stat().st_size
                except FileNotFoundError:
                    continue
        return total

    def stop(self) -> list[str]:
        """Stop all servers in order; returns what was wrong with their ends."""
        problems: list[str] = []
        for process in self.processes.values():
            status = process.stop()
            if status != 0:
                problems.append(f"{process.name} ended with {status}: {process.log_tail()}")
        return problems

    def logs(self) -> str:
        """Ends of all logs, for a failure message."""
        return "\n".join(f"--- {process.name}\n{process.log_tail()}" for process in self.processes.values())

    def __enter__(self) -> Self:
        try:
            for process in self.processes.values():
                process.start()
            wait_for(self._is_serving, timeout_s=START_TIMEOUT_S, what="all servers to lead and follow")
        except TimeoutError as error:
            self._kill()
            raise TimeoutError(f"{error}\n{self.logs()}") from None
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def _kill(self) -> None:
        for process in self.processes.values():
            if process.running:
                process.kill()

    def _is_serving(self) -> bool:
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            try:
                quorum, cluster = admin.describe_quorum(), admin.describe_cluster()
            except LograftError:
                return False
        unfenced = [broker for broker in cluster.brokers if not broker.fenced]
        voters = {voter.node_id for voter in quorum.voters}
        return quorum.leader_id is not None and len(unfenced) == len(voters) == len(self.processes)


def port_free_on(hosts: Sequence[str]) -> int:
    """Return a port that is free on each of some addresses."""
    while True:
        port = free_port(hosts[0])
        try:
            for host in hosts[1:]:
                with socket.socket() as probe:
                    probe.bind((host, port))
        except OSError:
            continue
        return port
