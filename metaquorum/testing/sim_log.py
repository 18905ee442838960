# SPDX-License-Identifier: Apache-2.0
"""A metadata log, its snapshots and a vote file on a simulated disk.

Owns what is written and what of it is durable. A crash keeps the durable part and a seeded prefix of the rest, as a
file system does with an append-only file; truncation is durable at once, as the storage engine promises.
Fault budget: what was reported as flushed is never lost; a whole disk is lost only by `wipe` of the world.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from metaquorum.raft import snapshots
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import BatchSpan, FetchedBatches
from metaquorum.raft.types import INITIAL_ELECTION_STATE, ElectionState, Offset, QuorumEpoch, SnapshotId
from metaquorum.raft.voters import VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SimBatch:
    """One batch; `history` is a digest of it and of all before it, `voters_after` who votes at its end."""

    base_offset: Offset
    next_offset: Offset
    epoch: QuorumEpoch
    payload: str
    voters: VoterSet | None
    history: bytes
    voters_after: VoterSet | None
    before: SimBatch | None = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSnapshot:
    """A snapshot: its content is the last batch in it and, by that one's `before`, all the others."""

    last: SimBatch

    @property
    def id(self) -> SnapshotId:
        """Its id."""
        return SnapshotId(end_offset=self.last.next_offset, epoch=self.last.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFetchedBatches(FetchedBatches):
    """Fetched batches that carry the simulated ones instead of bytes."""

    batches: tuple[SimBatch, ...]


class SimDisk:
    """Disk of one node."""

    def __init__(self) -> None:
        self.batches: list[SimBatch] = []
        self.base: SimBatch | None = None
        self.snapshots: list[SimSnapshot] = []
        self.applied_offset = Offset(0)
        self.durable_count = 0
        self.election: ElectionState = INITIAL_ELECTION_STATE
        self.electing: ElectionState | None = None

    @property
    def log_start_offset(self) -> Offset:
        """Beginning of the log (inclusive)."""
        return Offset(0) if self.base is None else self.base.next_offset

    @property
    def last(self) -> SimBatch | None:
        """The batch before the end, be it in the log or in the snapshot before it."""
        return self.batches[-1] if self.batches else self.base

    @property
    def log_end_offset(self) -> Offset:
        """End of what is written (exclusive)."""
        return Offset(0) if self.last is None else self.last.next_offset

    @property
    def durable_end_offset(self) -> Offset:
        """End of what is durable (exclusive)."""
        return self.batches[self.durable_count - 1].next_offset if self.durable_count else self.log_start_offset

    def history_at(self, end_offset: Offset) -> bytes | None:
        """Digest of the log below end_offset; None when no batch ends there."""
        if end_offset == 0:
            return b""
        batch = self.batch_before(end_offset)
        return None if batch is None else batch.history

    def batch_before(self, end_offset: Offset) -> SimBatch | None:
        """The batch that ends at an offset, the last one before the log start included; None when none does."""
        if self.base is not None and self.base.next_offset == end_offset:
            return self.base
        index = self._find(end_offset)
        return self.batches[index] if index is not None else None

    def _find(self, end_offset: Offset) -> int | None:
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].next_offset < end_offset:
                low = middle + 1
            else:
                high = middle
        found = low < len(self.batches) and self.batches[low].next_offset == end_offset
        return low if found else None

    def flushed(self, batch: SimBatch) -> None:
        """Everything up to a batch reached the disk; one that was cut meanwhile proves nothing."""
        index = self._find(batch.next_offset)
        if index is not None and self.batches[index] is batch:
            self.durable_count = max(self.durable_count, index + 1)

    def append(self, *, next_offset: Offset, epoch: QuorumEpoch, payload: str, voters: VoterSet | None) -> SimBatch:
        """Write one batch at the end."""
        base_offset = self.log_end_offset
        last = self.last
        before = last.history if last is not None else b""
        text = f"{base_offset} {next_offset} {epoch} {payload}".encode()
        batch = SimBatch(
            base_offset=base_offset,
            next_offset=next_offset,
            epoch=epoch,
            payload=payload,
            voters=voters,
            history=hashlib.blake2b(before + text, digest_size=8).digest(),
            voters_after=voters if voters is not None or last is None else last.voters_after,
            before=last,
        )
        self.batches.append(batch)
        return batch

    def read(self, offset: Offset, limit: int) -> SimFetchedBatches:
        """Read up to `limit` whole batches from an offset at which one begins."""
        index = self._find(offset)
        first = 0 if index is None else index + 1
        batches = tuple(self.batches[first : first + limit])
        assert batches, f"nothing to read at {offset}"
        assert batches[0].base_offset == offset, f"no batch begins at {offset}"
        return SimFetchedBatches(
            data=b"",
            spans=tuple(
                BatchSpan(base_offset=b.base_offset, next_offset=b.next_offset, epoch=b.epoch) for b in batches
            ),
            voters=tuple((b.base_offset, b.voters) for b in batches if b.voters is not None),
            batches=batches,
        )

    def truncate_suffix(self, to_offset: Offset) -> int:
        """Drop everything from to_offset on, durably; returns how many batches went."""
        before = len(self.batches)
        while self.batches and self.batches[-1].next_offset > to_offset:
            self.batches.pop()
        assert self.log_end_offset == to_offset, f"cut at {to_offset} is inside a batch"
        self.durable_count = min(self.durable_count, len(self.batches))
        return before - len(self.batches)

    def truncate_prefix(self, to: SnapshotId) -> None:
        """Let the log begin at a snapshot's end, durably."""
        self.base = self.batch_before(to.end_offset)
        kept = [batch for batch in self.batches if batch.base_offset >= to.end_offset]
        self.durable_count = max(0, self.durable_count - (len(self.batches) - len(kept)))
        self.batches = kept

    def truncate_fully(self, snapshot: SimSnapshot) -> None:
        """Empty the log and let it begin at a snapshot's end, durably."""
        self.batches.clear()
        self.durable_count = 0
        self.base = snapshot.last

    def remove_old_snapshots(self) -> None:
        """Remove snapshots that end before the log begins."""
        self.snapshots = [one for one in self.snapshots if one.id.end_offset >= self.log_start_offset]

    def find_snapshot(self, wanted: SnapshotId) -> SimSnapshot | None:
        """The snapshot with this id, or None."""
        return next((one for one in self.snapshots if one.id == wanted), None)

    def heal(self) -> bool:
        """What a start does about an interrupted install or trim; whether the log began again."""
        newest = max(self.snapshots, key=lambda one: one.id.end_offset, default=None)
        restarts = newest is not None and snapshots.must_restart_log(newest.id, self.view())
        if newest is not None and restarts:
            self.truncate_fully(newest)
        self.remove_old_snapshots()
        return restarts

    def view(self) -> LogView:
        """The shadow of the log for the core, after a crash: what is read back is on the disk."""
        epochs: list[tuple[QuorumEpoch, Offset]] = []
        for batch in self.batches:
            if not epochs or batch.epoch != epochs[-1][0]:
                epochs.append((batch.epoch, batch.base_offset))
        start = None if self.base is None else SimSnapshot(last=self.base).id
        return LogView(
            epochs=epochs, log_end_offset=self.log_end_offset, flushed_offset=self.log_end_offset, start=start
        )

    def crash(self, rng: random.Random) -> int:
        """Lose power: a prefix of what was not durable survives, and the vote under way may or may not.

        Returns:
            Number of lost batches.
        """
        survivors = rng.randint(self.durable_count, len(self.batches))
        lost = len(self.batches) - survivors
        del self.batches[survivors:]
        # What is read back after the crash is on the disk.
        self.durable_count = survivors
        if rng.random() < 0.5:
            # The image on the disk is older than what was applied; a snapshot is never lost.
            self.applied_offset = Offset(0)
        if self.electing is not None and rng.random() < 0.5:
            self.election = self.electing
        self.electing = None
        return lost
