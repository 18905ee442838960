# SPDX-License-Identifier: Apache-2.0
"""Crashes and errors of the disk under a quorum node: votes survive, failed writes stop the node."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from metaquorum.net.carrier import Carrier
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.replica.election_store import ElectionStore
from metaquorum.replica.first_start import write_initial_voters
from metaquorum.replica.log_store import DamagedLogError
from metaquorum.replica.quorum_node import NotLeaderError, QuorumNode, QuorumSettings
from metaquorum.testing.loopback import RecordingListener, wait_for
from metaquorum.testing.scripted_node import election_state, key
from storage.directory.data_directory import DataDirectory
from storage.errors import DiskFailedError
from storage.testing.sim_disk import Crash, Refusal, SimDisk

DIRECTORY = "/metadata"


def test_crash_at_any_point_of_a_save_leaves_the_old_or_the_new_vote() -> None:
    """Every call of a save is cut off in every way; the next read finds the old or the new vote."""
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    store = ElectionStore(disk, DIRECTORY, key(1))
    store.create()
    old, new = election_state(3, voted=2), election_state(4, leader=1, voted=1)
    store.save(old)
    points: list[SimDisk] = []
    disk.on_call = lambda call: points.append(disk.fork())
    store.save(new)
    points.append(disk.fork())
    assert len(points) > 8
    seen: set[bool] = set()
    for point in points:
        for how in Crash:
            for seed in range(4):
                crashed = point.fork()
                crashed.crash(how, random.Random(seed))
                found = ElectionStore(crashed, DIRECTORY, key(1)).load()
                assert found in (old, new)
                seen.add(found == new)
    finished = points[-1]
    finished.crash(Crash.LOSE_ALL, random.Random(0))
    assert ElectionStore(finished, DIRECTORY, key(1)).load() == new
    assert seen == {True, False}


def test_failed_save_is_not_reported_as_done() -> None:
    """A write that may not be on disk raises; the caller must stop."""
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    store = ElectionStore(disk, DIRECTORY, key(1))
    store.create()
    disk.refuse("sync", "quorum-state-copy", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        store.save(election_state(9))


class SimulatedServer:
    """One single-voter node on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        own = key(1)
        self.disk.make_directory("/data")
        self.disk.make_directory("/data/metadata")
        voters = voter_set([Voter(key=own, address="127.0.0.1:1")])
        write_initial_voters(self.disk, "/data/metadata", voters)
        ElectionStore(self.disk, "/data/metadata", own).create()
        DataDirectory.create(self.disk, "/data", cluster_id="c1", node_id=1, directory_id=own.directory_id).close()
        self.listener = RecordingListener()
        self.node: QuorumNode | None = None
        self.carrier = Carrier(cluster_id="c1", node_id=1)

    async def start(self) -> QuorumNode:
        """Start a process on the disk."""
        self.listener = RecordingListener()
        directory = DataDirectory.open(self.disk, "/data")
        self.carrier = Carrier(cluster_id="c1", node_id=1)
        await self.carrier.start(None)
        settings = QuorumSettings(node_id=1, cluster_id="c1")
        self.node = QuorumNode(settings, directory, self.carrier.peers, listener=self.listener)
        await self.node.start()
        return self.node

    async def lead(self) -> QuorumNode:
        """Start and wait for leadership."""
        node = await self.start()
        await wait_for(lambda: self.listener.active_epoch is not None, "leadership")
        return node

    def append(self, record: bytes) -> int:
        """Append one record."""
        assert self.node is not None, "started"
        return self.node.append([record], quorum_epoch=self.listener.active_epoch or 0)


@pytest.fixture
async def server() -> AsyncIterator[SimulatedServer]:
    """A server whose node is ended at the end."""
    made = SimulatedServer()
    yield made
    if made.node is not None:
        await made.node.abandon()
    await made.carrier.close()


async def test_failed_flush_stops_the_node(server: SimulatedServer) -> None:
    """After a failed fsync the state of the disk is unknown: the node commits, appends and sends nothing more."""
    node = await server.lead()
    server.append(b"kept")
    await wait_for(lambda: server.listener.records == [b"kept"], "the first record")
    server.disk.refuse("sync", ".log", Refusal.IO_ERROR)
    server.append(b"lost")
    with pytest.raises(DiskFailedError):
        await node.wait_stopped()
    assert server.listener.records == [b"kept"]
    assert server.listener.active_epoch is None
    with pytest.raises(NotLeaderError):
        node.append([b"more"], quorum_epoch=1)
    await node.stop()


async def test_failed_append_stops_the_node(server: SimulatedServer) -> None:
    """The log and its shadow in the core must not diverge: a failed write ends the process."""
    node = await server.lead()
    server.disk.refuse("append", ".log", Refusal.IO_ERROR)
    with pytest.raises(NotLeaderError):
        server.append(b"lost")
    with pytest.raises(DiskFailedError):
        await node.wait_stopped()


async def test_failed_vote_write_stops_the_node(server: SimulatedServer) -> None:
    """A vote that may not be on disk is never sent: the only voter does not even lead."""
    server.disk.refuse("sync", "quorum-state", Refusal.IO_ERROR)
    node = await server.start()
    with pytest.raises(DiskFailedError):
        await node.wait_stopped()
    assert server.listener.activations == []


@pytest.mark.parametrize("how", list(Crash))
async def test_power_failure_loses_nothing_that_was_delivered(server: SimulatedServer, how: Crash) -> None:
    """Delivered records are on disk; the node returns with them in a later epoch."""
    await server.lead()
    expected = [b"record-%d" % number for number in range(20)]
    for record in expected:
        server.append(record)
    await wait_for(lambda: server.listener.records == expected, "all records")
    assert server.node is not None
    await server.node.abandon()
    server.disk.crash(how, random.Random(1))
    await server.lead()
    assert server.listener.active_epoch == 3
    await wait_for(lambda: server.listener.records == expected, "all records again")


async def test_damaged_log_refuses_to_start(server: SimulatedServer) -> None:
    """Damaged records that were flushed may be committed ones: the node must not use the rest."""
    node = await server.lead()
    for number in range(5):
        server.append(b"record-%d" % number)
    await wait_for(lambda: len(server.listener.records) == 5, "all records")
    await node.abandon()
    server.disk.crash(Crash.KEEP_ALL, random.Random(1))
    server.disk.corrupt("/data/metadata/log/" + "0" * 20 + ".log", 250, b"\xff\xff\xff")
    with pytest.raises(DamagedLogError, match="Wipe"):
        await server.start()
    server.node = None
