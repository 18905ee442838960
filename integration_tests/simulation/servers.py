# SPDX-License-Identifier: Apache-2.0
"""The machines of the world with data: voters and brokers, the real servers on a simulated disk.

Owns how a server starts on the data of its disk, and what its end means. Does not decide when: `faults` does.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lograft.wire.errors import BatchError
from lograft.wire.header import iter_batches

from brokerd.limits import MIN_BUDGET_BYTES
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.two_disks import SECOND_PATH, TwoDisks
from integration_tests.simulation.virtual_groups import VirtualCleaner
from integration_tests.simulation.virtual_loop import RIGHT_CLOCK, Clock
from integration_tests.simulation.virtual_network import Network
from integration_tests.simulation.virtual_platform import DATA_PATH
from integration_tests.simulation.virtual_rocksdb import Databases
from metaquorum.process.server import QuorumServer
from metaquorum.process.settings import Address, QuorumServerSettings
from metaquorum.raft.types import NodeId, ReplicaKey
from metaquorum.raft.voters import VoterSet, voter_set
from metaquorum.replica.election_store import ElectionStore
from metaquorum.replica.first_start import write_initial_voters
from metaquorum.replica.quorum_settings import SnapshotSettings
from metaquorum.testing.scheduler import Scheduler
from storage.directory.data_directory import DataDirectory
from storage.files.names import (
    LOG_SUFFIX,
    METADATA_DIRECTORY,
    PARTITIONS_DIRECTORY,
    PartitionIdentity,
    partition_directory_name,
)
from storage.testing.sim_disk import Crash, SimDisk

CLUSTER_ID = "world"
VOTER_PORT = 9640
BROKER_PORT = 9092
REPLICATION_PORT = 9643
SERVING_MS_MAX = 10**9
"""Maximum virtual milliseconds to wait for a broker to serve: longer than any run."""
STEPS_TO_PAUSE_MAX = 60
"""Maximum callbacks that still run before a pause that begins in the middle of something."""
LEADER_EPOCH_BYTES = range(12, 16)
"""Position of the leader epoch in the header of a batch (docs/storage_format.md)."""
CLOCK_OFFSET_MS_MAX = 3_600_000
"""Maximum milliseconds by which a machine's wall clock is wrong, and with which its monotonic clock begins."""
MIN_FREE_BYTES = 1024 * 1024
"""Soft limit of brokers in bytes. A run writes less than that."""
STAGING_MAX_BYTES = 1024 * 1024 * 1024
"""Quota of staged records of a broker in bytes: more than a run stages."""
WAIT_MS_MAX = 100
"""Milliseconds between two checks of a broker that waits for another one."""


class Surroundings(Protocol):
    """What a machine needs from the world."""

    scheduler: Scheduler
    network: Network
    counts: Counter[str]
    databases: Databases
    snapshots: SnapshotSettings
    clock_drift: float
    work_ms_max: int
    flush_ms_max: int

    def on_fault(self, message: str) -> None:
        """Note that a server had an exception that no code caught, or ended with one."""
        ...

    def on_end(self, machine: Machine) -> None:
        """Note that a server ended by itself."""
        ...


class Machine(ABC):
    """One machine with one server.

    Args:
        world: the world around it.
        name: host name.
        key: key of its data directory.
        voters: the initial voters of the quorum; none for a broker.
    """

    def __init__(self, world: Surroundings, name: str, *, key: ReplicaKey, voters: VoterSet) -> None:
        self.world = world
        self.name = name
        self.key = key
        self._voters = voters
        self.rng: random.Random = world.scheduler.rng(f"machine/{name}")
        self._clock = draw_clock(world.scheduler.rng(f"clock/{name}"), world.clock_drift)
        self.disk = self._new_disk()
        self.process: SimProcess | None = None
        self.ended: list[SimProcess] = []
        self.server: Any = None
        self._starting: asyncio.Task[None] | None = None
        self.is_stopping = False
        self._disk_count = 1
        self.format()

    @property
    def is_up(self) -> bool:
        """True while its process exists, paused or not."""
        return self.process is not None

    @property
    def may_start(self) -> bool:
        """False while it has to wait for another machine."""
        return True

    @property
    def has_unflushed(self) -> bool:
        """True if its disk has data that is not on the device."""
        return self.disk.has_unsynced()

    @property
    def is_paused(self) -> bool:
        """True while its process is stopped by SIGSTOP."""
        return self.process is not None and self.process.loop.is_paused

    def _new_disk(self) -> SimDisk:
        return SimDisk()

    def format(self) -> None:
        """Create a new data directory."""
        disk = self.disk
        root, metadata = DATA_PATH, f"{DATA_PATH}/{METADATA_DIRECTORY}"
        disk.make_directory(root)
        disk.sync_directory("/")
        disk.make_directory(metadata)
        disk.sync_directory(root)
        write_initial_voters(disk, metadata, self._voters)
        ElectionStore(disk, metadata, self.key).create()
        DataDirectory.create(
            disk, root, cluster_id=CLUSTER_ID, node_id=self.key.node_id, directory_id=self.key.directory_id
        ).close()

    def start(self) -> None:
        """Start a process on the data of the disk. Does nothing while there is one."""
        if self.process is not None or not self.may_start:
            return
        world = self.world
        self.is_stopping = False
        process = SimProcess(
            world.scheduler,
            machine=self.name,
            number=len(self.ended),
            disk=self.disk,
            rng=world.scheduler.rng(f"process/{self.name}/{len(self.ended)}"),
            work_ms_max=world.work_ms_max,
            flush_ms_max=world.flush_ms_max,
            on_fault=world.on_fault,
            clock=self._clock,
        )
        self.process = process
        process.run(self._main(), lambda error: self._on_end(process, error))

    @abstractmethod
    async def _main(self) -> None:
        """Run the server until it ends."""

    def kill(self, how: Crash = Crash.KEEP_ALL) -> None:
        """End the process at once: kill -9 with KEEP_ALL, a power loss with any other crash."""
        process = self.process
        if process is None:
            return
        self._forget(process)
        self.disk.crash(how, self.rng)
        self.world.databases.end_process(self.name, has_power=how is Crash.KEEP_ALL)

    def lose_power(self, how: Crash) -> None:
        """Lose power, with or without a process."""
        self.kill(how)
        self.disk.crash(how, self.rng)

    def wipe(self) -> None:
        """Lose the disk, and get another one with a new data directory."""
        self.kill(Crash.LOSE_ALL)
        self.world.databases.wipe(self.name)
        self._take_empty_disk()

    def _take_empty_disk(self) -> None:
        self._disk_count += 1
        self.disk = self._new_disk()
        self.key = replica_key(self.key.node_id, disk_number=self._disk_count)
        # It joins the existing cluster as an observer.
        self._voters = voter_set([])
        self.format()

    def stop(self) -> None:
        """Ask the server to stop, as SIGTERM does."""
        process, server = self.process, self.server
        if process is not None and server is not None and not self.is_stopping:
            self.is_stopping = True
            process.loop.call_soon(lambda: process.loop.create_task(self._stop(process, server)))

    async def _start(self, server: Any) -> None:
        """Start the server in its own task, as the programs do. A stop first ends that task."""
        self._starting = asyncio.create_task(server.start())
        await self._starting

    async def _stop(self, process: SimProcess, server: Any) -> None:
        starting = self._starting
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await server.stop()
        self.world.counts[f"orderly stop of a {self.name.partition('-')[0]}"] += 1
        self._end(process)

    def pause(self, duration_ms: int) -> None:
        """Stop the process (SIGSTOP), at once or in the middle of its next work, and continue it (SIGCONT) after a while."""
        if self.process is not None:
            steps = self.rng.choice((0, self.rng.randint(1, STEPS_TO_PAUSE_MAX)))
            self.process.loop.pause(self.world.scheduler.now_ms + duration_ms, after_steps=steps)

    def _on_end(self, process: SimProcess, error: BaseException | None) -> None:
        if self.process is not process or self.is_stopping:
            return
        if error is not None and self._is_fault(error):
            self.world.on_fault(f"{process.name} ended: {error!r}")
        self._end(process)

    def _is_fault(self, error: BaseException) -> bool:
        """Return True if a server must not end with this error."""
        del error
        return True

    def _end(self, process: SimProcess) -> None:
        if self.process is process:
            self._forget(process)
            # The files of the process are closed. What it wrote is still in the page cache.
            self.disk.crash(Crash.KEEP_ALL, self.rng)
            self.world.databases.end_process(self.name, has_power=True)
            self.world.on_end(self)

    def throw_away(self) -> None:
        """Release every process that ever existed."""
        self.process = self.server = self._starting = None
        self.ended.clear()

    def _forget(self, process: SimProcess) -> None:
        self.process = None
        self.server = None
        self._starting = None
        process.loop.kill()
        self.world.network.end_process(process)
        # Kept, so that no part of it is finalized in the middle of the run.
        self.ended.append(process)


class VoterMachine(Machine):
    """A voter of the quorum, which is the active controller while it leads."""

    def __init__(self, world: Surroundings, name: str, *, key: ReplicaKey, voters: VoterSet) -> None:
        super().__init__(world, name, key=key, voters=voters)
        self._addresses: Mapping[int, str] = {voter.key.node_id: voter.address for voter in voters.voters}

    async def _main(self) -> None:
        disk: Any = self.disk
        directory = DataDirectory.open(disk, DATA_PATH, cluster_id=CLUSTER_ID, node_id=self.key.node_id)
        settings = QuorumServerSettings(
            node_id=self.key.node_id,
            cluster_id=CLUSTER_ID,
            listen=Address(host=self.name, port=VOTER_PORT),
            voters=self._addresses,
            insecure_plaintext=True,
            snapshots=self.world.snapshots,
        )
        self.server = QuorumServer(settings, directory)
        await self._start(self.server)
        await self.server.wait_stopped()


@dataclass(frozen=True, kw_only=True)
class DiskInHand:
    """A disk that is in no machine.

    Attributes:
        disk: the disk, together with the second one of the machine.
        key: key of its data directory.
        directory_ids: ids of its log directories, 16 bytes each.
        shelf: where the image of the metadata from this disk is kept.
    """

    disk: SimDisk
    key: ReplicaKey
    directory_ids: frozenset[bytes]
    shelf: str


class BrokerMachine(Machine):
    """A broker. With `has_two_disks` it has a second log directory on its own disk.

    Attributes:
        is_held: True while the broker must not start. The fault that holds it sets this.
    """

    def __init__(
        self,
        world: Surroundings,
        name: str,
        *,
        key: ReplicaKey,
        voters: VoterSet,
        quorum: tuple[str, ...],
        rack: str,
        has_two_disks: bool = False,
    ) -> None:
        self._has_two_disks = has_two_disks
        self._second_id: bytes | None = None
        self._second_count = 0
        super().__init__(world, name, key=key, voters=voters)
        self._quorum = quorum
        self._rack = rack
        self.is_serving = False
        self.is_held = False
        self._has_registered = False
        self._waits_for: BrokerMachine | None = None
        self._cleaner: VirtualCleaner | None = None

    def _new_disk(self) -> SimDisk:
        return TwoDisks() if self._has_two_disks else SimDisk()

    def format(self) -> None:
        """Create new data directories."""
        super().format()
        if isinstance(self.disk, TwoDisks):
            self._format_second(self.disk)

    def _format_second(self, disk: TwoDisks) -> None:
        """Create a new log directory with a unique id on the second disk."""
        self._second_count += 1
        self._second_id = b"more-%04d-%06d" % (self._second_count, self.key.node_id)
        disk.format_second(CLUSTER_ID, self.key.node_id, self._second_id)

    @property
    def directory_ids(self) -> frozenset[bytes]:
        """Ids of the log directories that it has, 16 bytes each."""
        return frozenset(
            (self.key.directory_id,) if self._second_id is None else (self.key.directory_id, self._second_id)
        )

    def has_log(self, topic_id: bytes, partition: int) -> bool:
        """True if one of its log directories has the log of a partition."""
        name = partition_directory_name(PartitionIdentity(topic_id, partition))
        disks = [(self.disk, DATA_PATH)]
        if isinstance(self.disk, TwoDisks):
            disks.append((self.disk.second, SECOND_PATH))
        return any(disk.exists(f"{root}/{PARTITIONS_DIRECTORY}/{name}") for disk, root in disks)

    def exchange_disk(self, other: DiskInHand | None) -> DiskInHand:
        """Take the disk out with its data, and put another one in; None: an empty one. Only without a process."""
        assert self.process is None, f"{self.name} runs"
        self.make_room()
        shelf = self.world.databases.shelve(self.name)
        taken = DiskInHand(disk=self.disk, key=self.key, directory_ids=self.directory_ids, shelf=shelf)
        if other is None:
            self._take_empty_disk()
        else:
            self.disk, self.key = other.disk, other.key
            self._second_id = next(iter(other.directory_ids - {other.key.directory_id}), None)
            self.world.databases.unshelve(self.name, other.shelf)
        return taken

    def fail_second(self) -> bool:
        """Make the second disk fail at its next write or sync. False if there is none, it already fails, or no process runs."""
        return self.is_up and isinstance(self.disk, TwoDisks) and self.disk.fail_second()

    def mend_second(self, how: Crash | None) -> bool:
        """Kill the process and mend the second disk, if that fails. Return whether it failed.

        Args:
            how: what happens to data that was not on the device; None: the disk is replaced by an empty one.
        """
        disk = self.disk
        if not isinstance(disk, TwoDisks) or not disk.is_second_failing:
            return False
        self.kill()
        if how is None:
            disk.replace_second()
            self._format_second(disk)
        else:
            disk.second.crash(how, self.rng)
        return True

    def _is_fault(self, error: BaseException) -> bool:
        # A directory that fails before it is listed may hold anything, so the broker ends and says why.
        is_failing = isinstance(self.disk, TwoDisks) and self.disk.is_second_failing
        if is_failing and str(error).startswith("start of the logs failed"):
            self.world.counts["start ended by a log directory that failed"] += 1
            return False
        return True

    def fill(self, free_bytes: int) -> bool:
        """Leave `free_bytes` on one of its disks. False if a disk is full already."""
        disks = [self.disk, self.disk.second] if isinstance(self.disk, TwoDisks) else [self.disk]
        if any(disk.capacity_bytes is not None for disk in disks):
            return False
        disk = self.rng.choice(disks)
        disk.capacity_bytes = disk.used_bytes() + free_bytes
        return True

    def make_room(self) -> None:
        """Give the disks their original size back."""
        self.world.databases.make_room(self.name)
        self.disk.capacity_bytes = None
        if isinstance(self.disk, TwoDisks):
            self.disk.second.capacity_bytes = None

    @property
    def is_coordinating(self) -> bool:
        """True if it coordinates groups or ingests."""
        server = self.server
        found = () if server is None else (server.groups, server.ingests)
        return any(True for each in found if each is not None for _ in each.cores())

    def compact(self, on_done: Callable[[int], None]) -> None:
        """Let the cleaner compact what is due, in a thread. `on_done` gets the number of passes."""
        process, server = self.process, self.server
        if process is None or server is None or server.replica_manager is None:
            return
        cleaner = self._cleaner
        if cleaner is None:
            cleaner = self._cleaner = VirtualCleaner(server.replica_manager.replicas)
        process.loop.call_soon(lambda: on_done(cleaner.run()))

    @property
    def may_start(self) -> bool:
        """False while it is held, or waits until another broker has registered."""
        first = self._waits_for
        return not self.is_held and (first is None or first._has_registered)

    def wait_for(self, first: BrokerMachine) -> None:
        """Do not start before the next process of another broker has registered."""
        first._has_registered = False
        self._waits_for = first
        self._start_soon()

    def _start_soon(self) -> None:
        if self.may_start:
            self._waits_for = None
            self.start()
        else:
            self.world.scheduler.after(self.rng.randint(1, WAIT_MS_MAX), self._start_soon)

    def damage(self) -> bool:
        """Flip a bit in the older half of a partition's data. False if there is none. Only without a process.

        Newer data may be the last flush group, in which damage looks like a torn tail. The leader epoch of a batch is never changed: no
        CRC covers it, and nothing is sealed here.
        """
        assert self.process is None, f"{self.name} runs"
        root = f"{DATA_PATH}/{PARTITIONS_DIRECTORY}"
        names = self.disk.list_directory(root) if PARTITIONS_DIRECTORY in self.disk.list_directory(DATA_PATH) else []
        batches = [
            (path, position, header.size_bytes)
            for name in names
            for path, content in self._older_half(f"{root}/{name}")
            for position, header in iter_batches(content)
        ]
        if not batches:
            return False
        path, position, size_bytes = self.rng.choice(batches)
        at = position + self.rng.choice([at for at in range(size_bytes) if at not in LEADER_EPOCH_BYTES])
        self.disk.corrupt(path, at, bytes([self.disk.read_file(path)[at] ^ 1 << self.rng.randrange(8)]))
        return True

    def _older_half(self, directory: str) -> list[tuple[str, bytes]]:
        """Return the whole batches in the older half of the bytes of one log."""
        paths = [f"{directory}/{name}" for name in self.disk.list_directory(directory) if name.endswith(LOG_SUFFIX)]
        contents = [(path, self.disk.read_file(path)) for path in sorted(paths)]
        left_bytes = sum(len(content) for _, content in contents) // 2
        found: list[tuple[str, bytes]] = []
        for path, content in contents:
            end = 0
            try:
                for position, header in iter_batches(content):
                    if position + header.size_bytes <= left_bytes:
                        end = position + header.size_bytes
            except BatchError:
                # Earlier damage that no reader has met, or a tail that is still being written.
                pass
            found.append((path, content[:end]))
            left_bytes -= len(content)
        return found

    async def _main(self) -> None:
        self._waits_for = None
        self.is_serving = False
        settings = BrokerSettings(
            data_directory=Path(DATA_PATH),
            node_id=self.key.node_id,
            cluster_id=CLUSTER_ID,
            listen=Address(host=self.name, port=BROKER_PORT),
            quorum_addresses=self._quorum,
            insecure_plaintext=True,
            min_free_bytes=MIN_FREE_BYTES,
            replication_port=REPLICATION_PORT,
            rack=self._rack,
            more_data_directories=(Path(SECOND_PATH),) if self._has_two_disks else (),
            # With defaults from the real machine, a seed would run differently on another machine.
            fetch_buffer_max_bytes=MIN_BUDGET_BYTES,
            inflate_max_bytes=MIN_BUDGET_BYTES,
            staging_max_bytes=STAGING_MAX_BYTES,
        )
        self.server = BrokerServer(settings)
        await self._start(self.server)
        watching = asyncio.create_task(self._note_serving(self.server))
        await self.server.wait_failed()
        watching.cancel()

    async def _note_serving(self, server: BrokerServer) -> None:
        """Note that the broker serves. Then it has left the ISR of partitions whose data it may lack."""
        lifecycle = server.lifecycle
        assert lifecycle is not None, "a broker that was started has a life"
        await lifecycle.registered()
        self._has_registered = True
        await server.wait_serving(timeout_ms=SERVING_MS_MAX)
        self.is_serving = True

    def _forget(self, process: SimProcess) -> None:
        super()._forget(process)
        self.is_serving = False
        self._cleaner = None


def draw_clock(rng: random.Random, drift: float) -> Clock:
    """Return clocks that go wrong by a share of at most `drift`; with 0 they are right."""
    if drift == 0:
        return RIGHT_CLOCK
    return Clock(
        rate=1 + rng.uniform(-drift, drift),
        offset_ms=rng.randint(0, CLOCK_OFFSET_MS_MAX),
        wall_offset_ms=rng.randint(-CLOCK_OFFSET_MS_MAX, CLOCK_OFFSET_MS_MAX),
    )


def replica_key(node_id: int, *, disk_number: int = 1) -> ReplicaKey:
    """Return the key of the n-th data directory of a node."""
    return ReplicaKey(node_id=NodeId(node_id), directory_id=b"disk-%04d-%06d" % (disk_number, node_id))
