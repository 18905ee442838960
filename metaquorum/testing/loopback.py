# SPDX-License-Identifier: Apache-2.0
"""Real quorum nodes with real disks and connections over 127.0.0.1, in one process, for tests of the shell.

Owns addresses that survive a restart, and two ways to end a node: `stop` (orderly) and `kill` (the server is gone at once, and
nothing is handed over or flushed). A kill inside one process leaves the page cache as `kill -9` does.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from metaquorum.metadata.image_format import LoadedImage
from metaquorum.net.carrier import Carrier
from metaquorum.replica.first_start import FirstStart, InitialVoter, format_observer, format_with_voters
from metaquorum.replica.quorum_node import (
    CommittedBatch,
    QuorumLeader,
    QuorumNode,
    QuorumSettings,
    QuorumTimers,
)
from metaquorum.replica.quorum_service import QuorumService
from storage.directory.data_directory import DataDirectory
from storage.files.posix import PosixDisk

CLUSTER_ID = "loopback"


async def wait_for(condition: Callable[[], bool], what: str, *, timeout_ms: int = 15_000) -> None:
    """Wait until the condition holds.

    Raises:
        TimeoutError: it did not hold in time; the text names the condition.
    """
    deadline = time.monotonic() + timeout_ms / 1_000
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_ms} ms: {what}")
        await asyncio.sleep(0.005)


class RecordingListener:
    """Remembers what it received, and checks the order."""

    def __init__(self) -> None:
        self.applied_offset = 0
        self.may_lag = False
        self.records: list[bytes] = []
        self.batches: list[CommittedBatch] = []
        self.leaders: list[QuorumLeader] = []
        self.active_epoch: int | None = None
        self.activations: list[tuple[int, int]] = []
        self.failure: Exception | None = None

    def on_commit(self, batch: CommittedBatch) -> None:
        """Store a batch, which must continue the one before."""
        if self.failure is not None:
            raise self.failure
        assert batch.base_offset == self.applied_offset, f"{batch} after {self.applied_offset}"
        self.applied_offset = batch.next_offset
        self.batches.append(batch)
        if not batch.is_control:
            self.records.extend(batch.records)

    def settle(self) -> None:
        """Do nothing: no work was postponed."""

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Refuse a snapshot: this listener has no image."""
        raise AssertionError(f"snapshot at {loaded.image.metadata_offset} for a listener without an image")

    def on_leader(self, leader: QuorumLeader) -> None:
        """Store a leader."""
        self.leaders.append(leader)

    def on_activate(self, quorum_epoch: int) -> None:
        """Store the start of a leadership."""
        assert self.active_epoch is None, f"active in {self.active_epoch} already"
        self.active_epoch = quorum_epoch
        self.activations.append((quorum_epoch, self.applied_offset))

    def on_deactivate(self) -> None:
        """Store the end of a leadership."""
        assert self.active_epoch is not None, "not active"
        self.active_epoch = None


class LoopbackNode:
    """One machine: a directory and an address that survive its processes."""

    def __init__(self, root: Path, number: int, timers: QuorumTimers) -> None:
        self.number = number
        self.path = root / f"node-{number}"
        self.directory_id = secrets.token_bytes(16)
        self.address = ""
        self.voters: dict[int, str] = {}
        self.bootstrap_addresses: tuple[str, ...] = ()
        self.listener = RecordingListener()
        self.node: QuorumNode | None = None
        self._timers = timers
        self._carrier: Carrier | None = None
        self._service: QuorumService | None = None
        self._directory: DataDirectory | None = None

    async def serve(self) -> None:
        """Open the port: a new one the first time, the same one later."""
        carrier = Carrier(cluster_id=CLUSTER_ID, node_id=self.number)
        self._service = QuorumService(carrier.table)
        port = carrier.bind("127.0.0.1", int(self.address.rpartition(":")[2] or 0))
        self.address = f"127.0.0.1:{port}"
        await carrier.start(self.address)
        self._carrier = carrier

    async def start(self) -> QuorumNode:
        """Start a process on the formatted directory."""
        carrier, service = await self._served()
        self.listener = RecordingListener()
        self._directory = DataDirectory.open(PosixDisk(), str(self.path), cluster_id=CLUSTER_ID, node_id=self.number)
        settings = QuorumSettings(
            node_id=self.number,
            cluster_id=CLUSTER_ID,
            voters=self.voters,
            bootstrap_addresses=self.bootstrap_addresses,
            advertised_address=self.address,
            timers=self._timers,
        )
        self.node = QuorumNode(settings, self._directory, carrier.peers, listener=self.listener)
        service.attach(self.node)
        await self.node.start()
        return self.node

    async def first_start(self) -> QuorumNode:
        """Format by asking the peers, then start."""
        carrier, service = await self._served()
        first = FirstStart(self.path, node_id=self.number, cluster_id=CLUSTER_ID, voters=self.voters)
        service.attach(first)
        await first.run(carrier.peers)
        return await self.start()

    async def _served(self) -> tuple[Carrier, QuorumService]:
        if self._carrier is None:
            await self.serve()
        assert self._carrier is not None, "just opened"
        assert self._service is not None, "just opened"
        return self._carrier, self._service

    async def stop(self) -> None:
        """End the process in an orderly way."""
        if self.node is not None:
            await self.node.stop()
        await self._end()

    async def kill(self) -> None:
        """End the process at once: close the port, break connections, hand nothing over."""
        if self.node is not None:
            await asyncio.gather(self._end(), self.node.abandon())
        await self._end()

    async def _end(self) -> None:
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            await carrier.close()
        if self._directory is not None:
            self._directory.close()
        self._directory = None
        self.node = None


class LoopbackQuorum:
    """Several machines that know each other's addresses."""

    def __init__(self, root: Path, voter_count: int, *, timers: QuorumTimers | None = None) -> None:
        self._root = root
        self._timers = timers or QuorumTimers()
        self.machines = [LoopbackNode(root, number, self._timers) for number in range(1, voter_count + 1)]

    async def serve(self) -> None:
        """Open all ports, and give every machine all addresses."""
        for machine in self.machines:
            await machine.serve()
        for machine in self.machines:
            machine.voters = {other.number: other.address for other in self.machines}

    async def start(self) -> None:
        """Format every machine as an initial voter and start it."""
        await self.serve()
        voters = [
            InitialVoter(node_id=machine.number, address=machine.address, directory_id=machine.directory_id)
            for machine in self.machines
        ]
        for machine in self.machines:
            format_with_voters(machine.path, node_id=machine.number, cluster_id=CLUSTER_ID, voters=voters)
        for machine in self.machines:
            await machine.start()

    async def add_observer(self, number: int) -> LoopbackNode:
        """Format and start an observer that knows only addresses."""
        machine = LoopbackNode(self._root, number, self._timers)
        machine.bootstrap_addresses = tuple(voter.address for voter in self.machines)
        format_observer(machine.path, node_id=number, cluster_id=CLUSTER_ID)
        self.machines.append(machine)
        await machine.start()
        return machine

    async def stop(self) -> None:
        """Stop all machines that run."""
        await asyncio.gather(*(machine.stop() for machine in self.machines))

    def leader(self) -> LoopbackNode | None:
        """Return the machine whose listener is active in the highest epoch, or None."""
        active = [machine for machine in self.machines if machine.node and machine.listener.active_epoch is not None]
        return max(active, key=lambda machine: machine.listener.active_epoch or 0, default=None)

    async def wait_for_leader(self, *, other_than: LoopbackNode | None = None) -> LoopbackNode:
        """Wait until a machine leads and its users are active."""
        await wait_for(lambda: self.leader() not in (None, other_than), "an active leader")
        leader = self.leader()
        assert leader is not None, "just waited for"
        return leader

    def append(self, records: list[bytes]) -> int:
        """Append at the leader; return the base offset."""
        leader = self.leader()
        assert leader is not None, "nobody leads"
        assert leader.node is not None, "leaders run"
        return leader.node.append(records, quorum_epoch=leader.listener.active_epoch or 0)
