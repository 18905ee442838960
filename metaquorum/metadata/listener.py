# SPDX-License-Identifier: Apache-2.0
"""What the quorum reports to its users: committed batches, leaders, and the start and end of its node's own leadership.

Owns the types that cross from the quorum to a controller or a broker. Does not know how batches are stored or sent. Law: a listener
sees every committed batch once, in offset order, from its `applied_offset` on; the image of a snapshot may replace some of them. It
sees nothing uncommitted, and nothing that is unflushed on this node.
Source: `docs/quorum.md` section "Delivery".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from metaquorum.metadata.image_format import LoadedImage
from metaquorum.raft.effects import VotersChange
from metaquorum.raft.voters import VoterSet
from metaquorum.raft_codec.control_codec import decode_control_record


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumLeader:
    """The quorum leader as far as this node knows.

    Attributes:
        leader_id: node id of the leader; None if unknown.
        quorum_epoch: epoch of this knowledge (Raft's term).
        address: `host:port` of the leader's quorum listener; None if unknown.
    """

    leader_id: int | None
    quorum_epoch: int
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """One committed batch, below the high watermark.

    Attributes:
        base_offset: offset of the first record (inclusive).
        next_offset: offset after the last record (exclusive end).
        quorum_epoch: epoch of the leader that appended it.
        append_timestamp_ms: wall-clock milliseconds at which that leader appended it.
        records: serialized `MetadataRecord` messages; serialized `QuorumControlRecord` messages if `is_control`.
        is_control: True for a batch of the quorum itself; listeners only move their offset over it.
        size_bytes: bytes of the batch in the log.
    """

    base_offset: int
    next_offset: int
    quorum_epoch: int
    append_timestamp_ms: int
    records: list[bytes]
    is_control: bool
    size_bytes: int = 0


def control_voters(batch: CommittedBatch) -> VoterSet | None:
    """Return the voters that a batch names; None if it names none."""
    if not batch.is_control:
        return None
    changes = [decode_control_record(record) for record in batch.records]
    return next((change.voters for change in changes if isinstance(change, VotersChange)), None)


def joined(batches: Sequence[CommittedBatch]) -> list[CommittedBatch]:
    """Join adjacent batches of one epoch, so that a listener writes once for all of them. Control batches stay alone."""
    made: list[CommittedBatch] = []
    for batch in batches:
        last = made[-1] if made else None
        if last is None or last.is_control or batch.is_control or last.quorum_epoch != batch.quorum_epoch:
            made.append(batch)
            continue
        made[-1] = CommittedBatch(
            base_offset=last.base_offset,
            next_offset=batch.next_offset,
            quorum_epoch=last.quorum_epoch,
            append_timestamp_ms=batch.append_timestamp_ms,
            records=[*last.records, *batch.records],
            is_control=False,
            size_bytes=last.size_bytes + batch.size_bytes,
        )
    return made


class MetadataListener(Protocol):
    """A user of the committed metadata log. The node calls every method on its event loop; none may block.

    An exception in a method stops the node, because an image that missed a batch is wrong from there on.
    """

    @property
    def applied_offset(self) -> int:
        """Offset (exclusive) up to which the listener has applied; the node reads it once, at its start."""
        ...

    @property
    def may_lag(self) -> bool:
        """True if no caller waits for commits here now. They may then come a little later, and joined."""
        ...

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply one committed batch. Batches come in offset order without gaps."""
        ...

    def settle(self) -> None:
        """Do the work that `on_commit` postponed. The node calls this shortly after commits, and once more when it stops."""
        ...

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Replace everything by the image of a snapshot; the listener now owns it. Never called while this node leads."""
        ...

    def on_leader(self, leader: QuorumLeader) -> None:
        """Note that the known leader or its epoch changed. Not ordered with `on_commit`."""
        ...

    def on_activate(self, quorum_epoch: int) -> None:
        """Start to lead: everything before this epoch is committed, and this listener has received it."""
        ...

    def on_deactivate(self) -> None:
        """Stop leading. Called once for each `on_activate`, after all batches that were committed when the leadership ended.

        So it may come a little after the end itself; nothing can be appended in between. An appended batch that was not delivered may
        still commit, or vanish.
        """
        ...
