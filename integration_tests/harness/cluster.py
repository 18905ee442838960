# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes on loopback: n `metaquorum` voters and m `brokerd` brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from lograft import Admin
from lograft.errors import LograftError

from integration_tests.harness.ports import free_port
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for

CLUSTER_ID = "integration"
HOST = "127.0.0.1"
BROKER_ID_FIRST = 101
START_TIMEOUT_S = 120.0
ADMIN_TIMEOUT_MS = 5_000


class Place(Protocol):
    """Where the processes of a cluster run."""

    def address(self, name: str) -> str:
        """`host:port` for the process of this name to listen on."""
        ...

    def admin_address(self, name: str) -> str:
        """`host:port` for the voter of this name to serve AdminService at."""
        ...

    def prefix(self, name: str) -> Sequence[str]:
        """Command that runs the process of this name where it belongs."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """Further arguments of every server."""
        ...


class Loopback:
    """All processes on 127.0.0.1."""

    arguments: Sequence[str] = ()

    def address(self, name: str) -> str:
        """Any free port."""
        return f"{HOST}:{free_port()}"

    def admin_address(self, name: str) -> str:
        """Any free port."""
        return f"{HOST}:{free_port()}"

    def prefix(self, name: str) -> Sequence[str]:
        """Nothing."""
        return ()


class Cluster:
    """Voters have the node ids 1..n, brokers 101..; a context manager that leaves no process behind.

    Args:
        directory: for data directories and logs.
        voter_count: voters.
        broker_count: brokers.
        place: where processes run; None: on loopback.
        broker_arguments: further arguments of every broker.
        voter_arguments: further arguments of every voter.
        launcher: for the process of a name, a module and its arguments that start the server's module.
        fronts: by broker id, the address of a proxy before it, which it advertises, and where clients look for it.

    Attributes:
        voter_addresses: internal ports of the voters.
        admin_addresses: where each voter serves AdminService.
        listening: where each broker listens.
        broker_addresses: where others find it: its front, if it has one.
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
        addresses = {voter_id: place.address(f"voter-{voter_id}") for voter_id in range(1, voter_count + 1)}
        voters = ",".join(f"{voter_id}@{address}" for voter_id, address in addresses.items())
        self.directory = directory
        self.voter_addresses = addresses
        self.admin_addresses = {voter_id: place.admin_address(f"voter-{voter_id}") for voter_id in addresses}
        self.voters = {
            voter_id: self._process(
                f"voter-{voter_id}",
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
        self.listening = {broker_id: place.address(f"broker-{broker_id}") for broker_id in broker_ids}
        fronts = fronts or {}
        self.broker_addresses = {**self.listening, **fronts}
        self.brokers = {
            broker_id: self._process(
                f"broker-{broker_id}",
                [
                    *("brokerd", "run", "--quorum", ",".join(addresses.values()), *broker_arguments),
                    *(("--advertise", fronts[broker_id]) if broker_id in fronts else ()),
                ],
                node_id=broker_id,
                listen=address,
            )
            for broker_id, address in self.listening.items()
        }

    def _process(self, name: str, command: list[str], *, node_id: int, listen: str) -> Process:
        arguments = [*command, "--data-dir", str(self.directory / name), "--node-id", str(node_id)]
        arguments += ["--cluster-id", CLUSTER_ID, "--listen", listen, *self._place.arguments]
        if self._launcher is not None:
            arguments = [*self._launcher(name), *arguments]
        return Process(name, arguments, self.directory / f"{name}.log", prefix=self._place.prefix(name))

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, for clients."""
        return ",".join(self.broker_addresses.values())

    def start(self) -> None:
        """Start everything and wait until a topic could be created."""
        for process in (*self.voters.values(), *self.brokers.values()):
            process.start()
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            try:
                wait_for(lambda: self._serving(admin), timeout_s=START_TIMEOUT_S, what="the cluster to serve")
            except TimeoutError as error:
                raise TimeoutError(f"{error}\n{self.logs()}") from None

    def serving(self) -> bool:
        """True when a broker answers, knows a quorum leader and is not fenced."""
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            return self._serving(admin)

    def _serving(self, admin: Admin) -> bool:
        try:
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
