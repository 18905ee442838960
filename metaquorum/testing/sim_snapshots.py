# SPDX-License-Identifier: Apache-2.0
"""Snapshots of one simulated machine: made every few records, kept, used to trim, installed; with power losses in between.

Owns the snapshot work of a node's shell, on the simulated disk. Leaves every decision of the core to the core.
Fault budget: a snapshot that was reported as made is never lost; one that is incomplete is lost in a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from metaquorum.raft.effects import DiscardSnapshot, DownloadSnapshot, InstallSnapshot, TrimLog
from metaquorum.raft.events import SnapshotCreated
from metaquorum.raft.types import Offset
from metaquorum.testing.sim_log import PowerLostError, SimBatch, SimDisk, SimSnapshot

if TYPE_CHECKING:
    from metaquorum.testing.sim_node import SimNode


def whole_log(disk: SimDisk) -> Iterator[SimBatch]:
    """Yield all batches of a log, newest first, including those in the snapshot before it."""
    batch = disk.last
    while batch is not None:
        yield batch
        batch = batch.before


class SimSnapshots:
    """Snapshot work of one process; a new process starts with none under way."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._is_making = False
        self._downloaded: dict[int, SimSnapshot] = {}

    def on_commit(self, commit_offset: Offset) -> None:
        """Make a snapshot when enough was delivered since the last one."""
        node = self._node
        every = node.world.options.snapshot_every
        newest = node.disk.snapshots[-1].id.end_offset if node.disk.snapshots else Offset(0)
        if every is None or self._is_making or commit_offset - newest < every:
            return
        self._is_making = True
        last = node.disk.batch_before(commit_offset)
        assert last is not None, f"commits end batches: {commit_offset}"
        node.later(lambda: self._made(SimSnapshot(last=last)))

    def _made(self, snapshot: SimSnapshot) -> None:
        self._is_making = False
        node = self._node
        node.world.counts["snapshot made"] += 1
        node.world.checker.on_snapshot(snapshot)
        if not node.disk.snapshots or node.disk.snapshots[-1].id.end_offset < snapshot.id.end_offset:
            node.disk.snapshots.append(snapshot)
        node.handle(SnapshotCreated(snapshot=snapshot.id))

    def downloaded(self, download_id: int, snapshot: SimSnapshot) -> None:
        """Note that a download is complete and on disk, under a name that the next start removes."""
        self._downloaded[download_id] = snapshot

    def execute(self, effect: DownloadSnapshot | DiscardSnapshot | InstallSnapshot | TrimLog) -> None:
        """Carry out an effect.

        Raises:
            PowerLostError: the power was lost half-way.
        """
        disk, world = self._node.disk, self._node.world
        match effect:
            case DownloadSnapshot():
                world.counts["snapshot download"] += 1
                world.carry_download(self._node, effect)
            case DiscardSnapshot(download_id=download_id):
                self._downloaded.pop(download_id, None)
            case InstallSnapshot(download_id=download_id):
                snapshot = self._downloaded.pop(download_id)
                world.counts["snapshot installed"] += 1
                disk.snapshots.append(snapshot)
                self._may_lose_power("power lost in an install")
                disk.truncate_fully(snapshot)
                disk.remove_old_snapshots()
                self._may_lose_power("power lost in an install")
                disk.applied_offset = snapshot.id.end_offset
            case TrimLog(snapshot=oldest):
                world.counts["log trimmed"] += 1
                disk.truncate_prefix(oldest)
                self._may_lose_power("power lost in a trim")
                disk.remove_old_snapshots()

    def _may_lose_power(self, name: str) -> None:
        if not self._node.world.is_healed and self._node.rng.random() < self._node.world.options.power_loss:
            self._node.world.counts[name] += 1
            raise PowerLostError
