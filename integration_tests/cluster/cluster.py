# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes on loopback: n `metaquorum` voters and m `brokerd` brokers."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from lograft import Admin
from lograft.errors import LograftError

from integration_tests.cluster.ports import free_port
from integration_tests.cluster.process import Process
from integration_tests.cluster.wait import wait_for

CLUSTER_ID = "integration"
HOST = "127.0.0.1"
BROKER_ID_FIRST = 101
START_TIMEOUT_S = 30.0
ADMIN_TIMEOUT_MS = 5_000


class Cluster:
    """Voters have the node ids 1..n, brokers 101..; a context manager that leaves no process behind."""

    def __init__(self, directory: Path, *, voter_count: int, broker_count: int) -> None:
        addresses = {voter_id: f"{HOST}:{free_port()}" for voter_id in range(1, voter_count + 1)}
        voters = ",".join(f"{voter_id}@{address}" for voter_id, address in addresses.items())
        self.directory = directory
        self.voters = {
            voter_id: self._process(
                f"voter-{voter_id}",
                ["metaquorum", "run", "--first-start", "--voters", voters],
                node_id=voter_id,
                listen=address,
            )
            for voter_id, address in addresses.items()
        }
        self.broker_addresses = {BROKER_ID_FIRST + index: f"{HOST}:{free_port()}" for index in range(broker_count)}
        self.brokers = {
            broker_id: self._process(
                f"broker-{broker_id}",
                ["brokerd", "run", "--quorum", ",".join(addresses.values())],
                node_id=broker_id,
                listen=address,
            )
            for broker_id, address in self.broker_addresses.items()
        }

    def _process(self, name: str, command: list[str], *, node_id: int, listen: str) -> Process:
        arguments = [*command, "--data-dir", str(self.directory / name), "--node-id", str(node_id)]
        arguments += ["--cluster-id", CLUSTER_ID, "--listen", listen]
        return Process(name, arguments, self.directory / f"{name}.log")

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, for clients."""
        return ",".join(self.broker_addresses.values())

    def start(self) -> None:
        """Start everything and wait until a topic could be created."""
        for process in (*self.voters.values(), *self.brokers.values()):
            process.start()
        wait_for(self.serving, timeout_s=START_TIMEOUT_S, what=f"the cluster to serve\n{self.logs()}")

    def serving(self) -> bool:
        """True when a broker answers, knows a quorum leader and is not fenced."""
        try:
            with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
                quorum = admin.describe_quorum()
                cluster = admin.describe_cluster()
        except LograftError:
            return False
        unfenced = [broker for broker in cluster.brokers if not broker.fenced]
        return quorum.leader_id is not None and len(unfenced) == len(self.brokers)

    def logs(self) -> str:
        """Return the ends of all logs, for a failure message."""
        processes = (*self.voters.values(), *self.brokers.values())
        return "\n".join(f"--- {process.name}\n{process.log_tail()}" for process in processes)

    def stop(self) -> None:
        """Kill what still runs."""
        for process in (*self.brokers.values(), *self.voters.values()):
            if process.running:
                process.resume()
                process.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
