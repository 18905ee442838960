# SPDX-License-Identifier: Apache-2.0
"""What the quorum tells its users: committed batches, leaders, and the start and end of their own leadership.

Owns the types that cross from the quorum to a controller or a broker. Must not know how batches are stored or sent.
Law: a listener sees every committed batch once, in offset order, from its `applied_offset` on, or the image of a
snapshot in the place of some of them; nothing uncommitted, nothing unflushed on this node.
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
    """Who leads, as far as this node knows.

    Attributes:
        leader_id: node id of the leader, or None while none is known.
        quorum_epoch: epoch that this knowledge belongs to (Raft's term).
        address: `host:port` of the leader's quorum listener, or None while it is not known.
    """

    leader_id: int | None
    quorum_epoch: int
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """One batch below the high watermark.

    Attributes:
        base_offset: offset of the first record (inclusive).
        next_offset: offset after the last record (exclusive end).
        quorum_epoch: epoch of the leader that appended it.
        append_timestamp_ms: wall-clock milliseconds at which that leader appended it.
        records: serialized `MetadataRecord` messages; serialized `QuorumControlRecord` messages when `is_control`.
        is_control: True for a batch of the quorum itself; listeners move their offset over it and nothing else.
        size_bytes: bytes that it takes in the log.
    """

    base_offset: int
    next_offset: int
    quorum_epoch: int
    append_timestamp_ms: int
    records: list[bytes]
    is_control: bool
    size_bytes: int = 0


def control_voters(batch: CommittedBatch) -> VoterSet | None:
    """The voters that a batch names; None when it names none."""
    if not batch.is_control:
        return None
    changes = [decode_control_record(record) for record in batch.records]
    return next((change.voters for change in changes if isinstance(change, VotersChange)), None)


def joined(batches: Sequence[CommittedBatch]) -> list[CommittedBatch]:
    """Make one of neighbouring batches of records of one epoch: a listener then writes and counts once for all of them."""
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
    """A user of the committed metadata log. Every method is called on the event loop of the node and must not block.

    An exception out of a method stops the node: an image that missed a batch is wrong from there on.
    """

    @property
    def applied_offset(self) -> int:
        """Offset (exclusive) up to which the listener has applied; read once, when the node starts."""
        ...

    @property
    def may_lag(self) -> bool:
        """Whether nobody waits for commits here just now: they may come a little later, neighbours joined to one batch."""
        ...

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply one committed batch. Batches come in offset order without gaps."""
        ...

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Replace everything by the image of a snapshot, which is the listener's own from here on; never while it leads."""
        ...

    def on_leader(self, leader: QuorumLeader) -> None:
        """Learn that the known leader or its epoch changed; not ordered with `on_commit`."""
        ...

    def on_activate(self, quorum_epoch: int) -> None:
        """Start to lead: everything before this epoch is committed and has been delivered to this listener."""
        ...

    def on_deactivate(self) -> None:
        """Stop to lead; called once for each `on_activate`, after everything that was committed when the leadership ended.

        So it may come a little later than the end itself; until then nothing can be appended any more. What was appended and not
        delivered may yet commit or vanish.
        """
        ...
