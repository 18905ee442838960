# SPDX-License-Identifier: Apache-2.0
"""Downloads of snapshots over the simulated network: late, lost and repeated pieces, and leaders that change.

Owns the course of one download. The core decides who may serve; it is asked before each piece.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from metaquorum.raft.effects import DownloadSnapshot
from metaquorum.raft.events import (
    Event,
    Failure,
    SnapshotDownloaded,
    SnapshotFailed,
    SnapshotProgressed,
    SnapshotServed,
)
from metaquorum.raft.snapshots import check_download
from metaquorum.raft.voters import voter_set
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.sim_log import SimSnapshot
from metaquorum.testing.sim_network import SimNetwork
from metaquorum.testing.sim_node import CLUSTER_ID, SimNode

MAX_PIECES = 4
"""Largest number of pieces of one snapshot."""

TIMEOUT_MS = 2_000
"""Milliseconds after which an unfinished download fails. Only this timeout notices lost pieces."""


class DownloadWorld(Protocol):
    """The part of the world that a download needs."""

    scheduler: Scheduler
    counts: Counter[str]

    def hand_over(self, node: SimNode, event: Event) -> None:
        """Step a node with an event when it is awake."""
        ...


class SimDownloads:
    """All downloads of one run."""

    def __init__(self, world: DownloadWorld, network: SimNetwork) -> None:
        self._world = world
        self._network = network
        self._rng: random.Random = world.scheduler.rng("downloads")

    def begin(self, node: SimNode, target: SimNode, effect: DownloadSnapshot) -> None:
        """Download a snapshot of `target` to `node`."""
        incarnation, pieces = node.incarnation, self._rng.randint(1, MAX_PIECES)

        def tell(event: Event) -> None:
            if node.is_up and node.incarnation == incarnation:
                self._world.hand_over(node, event)

        def fail(failure: Failure) -> None:
            tell(SnapshotFailed(download_id=effect.download_id, failure=failure))

        def back(action: Callable[[], None]) -> None:
            self._network.send(target.name, node.name, action)

        def ask(piece: int) -> None:
            self._network.send(node.name, target.name, lambda: target.when_awake(lambda: serve(piece)))

        def serve(piece: int) -> None:
            if target.raft is None:
                back(lambda: fail(Failure.REFUSED))
                return
            state = target.raft.state
            refusal = check_download(
                state,
                cluster_id=CLUSTER_ID,
                quorum_epoch=effect.quorum_epoch,
                replica=node.key,
                snapshot=effect.snapshot,
            )
            if refusal is not None:
                self._world.counts[f"download refused: {refusal.value}"] += 1
                back(lambda: fail(Failure.TIMED_OUT))
                return
            snapshot = target.disk.find_snapshot(effect.snapshot)
            assert snapshot is not None, f"{target.name} has {effect.snapshot} in mind and not on its disk"
            target.handle(SnapshotServed(replica=node.key))
            back(lambda: receive(piece, snapshot))

        def receive(piece: int, snapshot: SimSnapshot) -> None:
            tell(SnapshotProgressed(download_id=effect.download_id))
            if piece < pieces:
                ask(piece + 1)
            elif node.is_up and node.incarnation == incarnation:
                node.later(lambda: finish(snapshot))

        def finish(snapshot: SimSnapshot) -> None:
            node.snapshots.downloaded(effect.download_id, snapshot)
            voters = snapshot.last.voters_after or voter_set([])
            tell(SnapshotDownloaded(download_id=effect.download_id, voters=voters))

        self._world.scheduler.after(TIMEOUT_MS, lambda: fail(Failure.TIMED_OUT))
        ask(1)
