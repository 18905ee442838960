# SPDX-License-Identifier: Apache-2.0
"""A metadata log and vote file on a simulated disk.

Owns what is written and what of it is durable. A crash keeps the durable part and a seeded prefix of the rest, as a
file system does with an append-only file; truncation is durable at once, as the storage engine promises.
Fault budget: what was reported as flushed is never lost; a whole disk is lost only by `wipe` of the world.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from metaquorum.raft.messages import BatchSpan, FetchedBatches
from metaquorum.raft.types import INITIAL_ELECTION_STATE, ElectionState, Offset, QuorumEpoch
from metaquorum.raft.voters import VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SimBatch:
    """One batch; `history` is a digest of it and of all before it."""

    base_offset: Offset
    next_offset: Offset
    epoch: QuorumEpoch
    payload: str
    voters: VoterSet | None
    history: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFetchedBatches(FetchedBatches):
    """Fetched batches that carry the simulated ones instead of bytes."""

    batches: tuple[SimBatch, ...]


class SimDisk:
    """Disk of one node."""

    def __init__(self) -> None:
        self.batches: list[SimBatch] = []
        self.durable_count = 0
        self.election: ElectionState = INITIAL_ELECTION_STATE
        self.electing: ElectionState | None = None

    @property
    def log_end_offset(self) -> Offset:
        """End of what is written (exclusive)."""
        return self.batches[-1].next_offset if self.batches else Offset(0)

    @property
    def durable_end_offset(self) -> Offset:
        """End of what is durable (exclusive)."""
        return self.batches[self.durable_count - 1].next_offset if self.durable_count else Offset(0)

    def history_at(self, end_offset: Offset) -> bytes | None:
        """Digest of the log below end_offset; None when no batch ends there."""
        if end_offset == 0:
            return b""
        index = self._find(end_offset)
        return self.batches[index].history if index is not None else None

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

    def append(self, *, next_offset: Offset, epoch: QuorumEpoch, payload: str, voters: VoterSet | None) -> SimBatch:
        """Write one batch at the end."""
        base_offset = self.log_end_offset
        before = self.batches[-1].history if self.batches else b""
        text = f"{base_offset} {next_offset} {epoch} {payload}".encode()
        batch = SimBatch(
            base_offset=base_offset,
            next_offset=next_offset,
            epoch=epoch,
            payload=payload,
            voters=voters,
            history=hashlib.blake2b(before + text, digest_size=8).digest(),
        )
        self.batches.append(batch)
        return batch

    def read(self, offset: Offset, limit: int) -> SimFetchedBatches:
        """Read up to `limit` whole batches from an offset at which one begins."""
        index = self._find(offset)
        first = 0 if offset == 0 else (index or 0) + 1
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
        if self.electing is not None and rng.random() < 0.5:
            self.election = self.electing
        self.electing = None
        return lost
