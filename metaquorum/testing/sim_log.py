# SPDX-License-Identifier: Apache-2.0
"""A metadata log, its snapshots and a vote file on a simulated disk, as lists.

Owns what is written, and what of it is durable. A crash keeps the durable part and a random prefix of the rest, like a file system
does with an append-only file. A truncation is durable at once, as the storage engine promises. `sim_store.StoredDisk` adds the real
files below the same lists: there the lists say what must be on disk, and recovery shows what is.
Fault budget: flushed data is never lost; a whole disk is lost only by `wipe` of the world.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from metaquorum.raft import snapshots
from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, Proposal, VotersChange
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import BatchSpan, FetchedBatches
from metaquorum.raft.types import INITIAL_ELECTION_STATE, ElectionState, Offset, QuorumEpoch, SnapshotId
from metaquorum.raft.voters import VoterSet


class PowerLostError(Exception):
    """The machine stops in the middle of an operation."""


class DamagedDiskError(Exception):
    """The node must not start, or continue, with the content of its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimBatch:
    """One batch.

    Attributes:
        history: digest of it and of all batches before it.
        voters_after: voter set in force at its end.
        data: its bytes, on a disk with real files.
    """

    base_offset: Offset
    next_offset: Offset
    epoch: QuorumEpoch
    payload: str
    voters: VoterSet | None
    history: bytes
    voters_after: VoterSet | None
    before: SimBatch | None = field(compare=False, repr=False)
    data: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSnapshot:
    """A snapshot. It is the last batch in it, with all earlier ones through `before`."""

    last: SimBatch

    @property
    def id(self) -> SnapshotId:
        """Id of the snapshot."""
        return SnapshotId(end_offset=self.last.next_offset, epoch=self.last.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFetchedBatches(FetchedBatches):
    """Fetched batches that carry the simulated ones instead of bytes."""

    batches: tuple[SimBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a start finds on the disk.

    Attributes:
        log: the log for the core.
        voters: voter sets by the offset of their records.
        snapshots: ids of the snapshots, ascending.
        committed_offset: everything below it (exclusive) is known to be committed.
        lost_count: batches that the crash before lost.
        cut_bytes: bytes of a torn batch that were removed.
        is_restarted: True if an interrupted install was finished.
    """

    log: LogView
    voters: Sequence[tuple[Offset, VoterSet]]
    snapshots: tuple[SnapshotId, ...]
    committed_offset: Offset
    lost_count: int = 0
    cut_bytes: int = 0
    is_restarted: bool = False


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
        self._lost_count = 0

    @property
    def log_start_offset(self) -> Offset:
        """Beginning of the log (inclusive)."""
        return Offset(0) if self.base is None else self.base.next_offset

    @property
    def last(self) -> SimBatch | None:
        """The last batch, in the log or in the snapshot before it; None without one."""
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
        """Return the digest of the log below `end_offset`; None if no batch ends there."""
        if end_offset == 0:
            return b""
        batch = self.batch_before(end_offset)
        return None if batch is None else batch.history

    def batch_before(self, end_offset: Offset) -> SimBatch | None:
        """Return the batch that ends at an offset, including the last one before the log start; None without one."""
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

    def begin_flush(self) -> None:
        """Start a flush of everything written; `flushed` ends it."""

    def save_vote(self) -> None:
        """Complete the write of the election state."""
        assert self.electing is not None, "nothing was being written"
        self.election = self.electing
        self.electing = None

    def flushed(self, batch: SimBatch) -> None:
        """Note that everything up to a batch is durable; a batch that was truncated since proves nothing."""
        index = self._find(batch.next_offset)
        if index is not None and self.batches[index] is batch:
            self.durable_count = max(self.durable_count, index + 1)

    def append_as_leader(self, effect: AppendAsLeader, proposed: str) -> SimBatch:
        """Write what the core appends: a proposal or a control record."""
        content = effect.content
        voters = content.voters if isinstance(content, VotersChange) else None
        payload = proposed if isinstance(content, Proposal) else type(content).__name__
        if voters is not None:
            payload += " " + " ".join(str(voter) for voter in voters.voters)
        return self.append(
            next_offset=effect.next_offset,
            epoch=effect.quorum_epoch,
            payload=payload,
            voters=voters,
            data=self.encode(effect, payload),
        )

    def encode(self, effect: AppendAsLeader, payload: str) -> bytes:
        """Return the bytes of a batch; lists need none."""
        return b""

    def append_as_follower(self, effect: AppendAsFollower) -> list[SimBatch]:
        """Write fetched batches."""
        assert isinstance(effect.batches, SimFetchedBatches), "simulated logs only"
        return [
            self.append(
                next_offset=batch.next_offset,
                epoch=batch.epoch,
                payload=batch.payload,
                voters=batch.voters,
                data=batch.data,
            )
            for batch in effect.batches.batches
        ]

    def append(
        self, *, next_offset: Offset, epoch: QuorumEpoch, payload: str, voters: VoterSet | None, data: bytes = b""
    ) -> SimBatch:
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
            data=data,
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
        """Remove everything from `to_offset` (inclusive) on, durably. Return the number of removed batches."""
        before = len(self.batches)
        while self.batches and self.batches[-1].next_offset > to_offset:
            self.batches.pop()
        assert self.log_end_offset == to_offset, f"cut at {to_offset} is inside a batch"
        self.durable_count = min(self.durable_count, len(self.batches))
        return before - len(self.batches)

    def truncate_prefix(self, to: SnapshotId) -> None:
        """Move the log start to a snapshot's end, durably."""
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
        """Remove snapshots that end before the log start."""
        self.snapshots = [one for one in self.snapshots if one.id.end_offset >= self.log_start_offset]

    def find_snapshot(self, wanted: SnapshotId) -> SimSnapshot | None:
        """Return the snapshot with this id, or None."""
        return next((one for one in self.snapshots if one.id == wanted), None)

    def heal(self) -> bool:
        """Finish an interrupted install or trim, as a start does. Return whether the log was restarted."""
        newest = max(self.snapshots, key=lambda one: one.id.end_offset, default=None)
        restarts = newest is not None and snapshots.must_restart_log(newest.id, self.view())
        if newest is not None and restarts:
            self.truncate_fully(newest)
        self.remove_old_snapshots()
        return restarts

    def recover(self) -> Recovered:
        """Return what a start finds, after its repairs."""
        restarts = self.heal()
        changes = [(batch.base_offset, batch.voters) for batch in self.batches if batch.voters is not None]
        if self.base is not None and self.base.voters_after is not None:
            changes.insert(0, (Offset(self.log_start_offset - 1), self.base.voters_after))
        lost_count, self._lost_count = self._lost_count, 0
        return Recovered(
            log=self.view(),
            voters=changes,
            snapshots=tuple(snapshot.id for snapshot in self.snapshots),
            committed_offset=self.applied_offset,
            lost_count=lost_count,
            is_restarted=restarts,
        )

    def view(self) -> LogView:
        """Return the view of the log for the core after a crash: everything that was read back is on disk."""
        epochs: list[tuple[QuorumEpoch, Offset]] = []
        for batch in self.batches:
            if not epochs or batch.epoch != epochs[-1][0]:
                epochs.append((batch.epoch, batch.base_offset))
        start = None if self.base is None else SimSnapshot(last=self.base).id
        return LogView(
            epochs=epochs, log_end_offset=self.log_end_offset, flushed_offset=self.log_end_offset, start=start
        )

    def crash(self, rng: random.Random) -> None:
        """Lose power: a random prefix of the unflushed data survives, and a vote under way may or may not."""
        survivors = rng.randint(self.durable_count, len(self.batches))
        self._lost_count = len(self.batches) - survivors
        del self.batches[survivors:]
        # What is read back after the crash is on disk.
        self.durable_count = survivors
        if rng.random() < 0.5:
            # The image on disk is older than what was applied. A snapshot is never lost.
            self.applied_offset = Offset(0)
        if self.electing is not None and rng.random() < 0.5:
            self.election = self.electing
        self.electing = None
