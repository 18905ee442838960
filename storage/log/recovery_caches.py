# SPDX-License-Identifier: Apache-2.0
"""Restores what a log keeps beside its batches: leader epochs and producer state.

Both are caches of batch headers. Their files hold the state up to an offset, and later headers give the rest. Without a
file, the headers of the whole log do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lograft.wire.header import BatchHeader

from storage.errors import CorruptLogError
from storage.files.checkpoints import MalformedTextError, read_lines
from storage.files.disk import Disk
from storage.segment.scan import BadBatch, Walk
from storage.segment.segment import Segment
from storage.types import Boundary

from .epochs import LeaderEpochs
from .producer_snapshots import ProducerSnapshots
from .producers import ProducerWindows

MAX_WALKS = 2
"""Most walks over one segment; the second walk knows the damage that stopped the first."""


def replay_headers(
    segments: Sequence[Segment], *, from_offset: int, visit: Callable[[BatchHeader], None], interval_bytes: int
) -> None:
    """Visit the headers of all batches from an offset on; skip damaged ranges.

    Args:
        segments: ascending; those before the offset are skipped.
        from_offset: first wanted offset (inclusive), at a batch boundary.
        visit: gets each header, ascending.
        interval_bytes: index interval, for a segment that must be indexed again.

    Raises:
        CorruptLogError: a segment cannot be walked.
    """
    for segment in segments:
        if segment.end_offset > from_offset:
            _replay_segment(segment, from_offset, visit, interval_bytes)


def _replay_segment(
    segment: Segment, from_offset: int, visit: Callable[[BatchHeader], None], interval_bytes: int
) -> None:
    """Visit the headers of one segment, each once."""
    next_offset = from_offset
    for _ in range(MAX_WALKS):
        try:
            for start, end_position in segment.spans(Boundary(segment.base_offset, 0)):
                for _, header in Walk(segment.file, start=start, end_position=end_position, look_ahead=True):
                    if header.base_offset >= next_offset:
                        visit(header)
                        next_offset = header.next_offset
            return
        except BadBatch:
            segment.reindex(interval_bytes)
    raise CorruptLogError(segment.path, "the segment cannot be walked although its damage is known")


def note_epoch(epochs: LeaderEpochs, header: BatchHeader) -> None:
    """Note the leader epoch of a batch in the log.

    Ignores an epoch below the one before: that is damage, because no CRC covers the epoch.
    """
    last_epoch = epochs.last_epoch
    if last_epoch is None or header.leader_epoch > last_epoch:
        epochs.assign(header.leader_epoch, header.base_offset)


def read_epochs(disk: Disk, path: str, *, below: int) -> tuple[LeaderEpochs, bool] | None:
    """Return the leader epochs that begin below an offset, and whether the checkpoint holds exactly those.

    None if the checkpoint is missing or damaged; then the headers of all batches tell (`note_epoch`).
    """
    lines = read_lines(disk, path)
    if lines is None:
        return None
    try:
        epochs = LeaderEpochs.decode_entries(lines)
    except MalformedTextError:
        return None
    return epochs, not epochs.truncate_suffix(below)


def walk_epochs(segments: Sequence[Segment], *, interval_bytes: int) -> LeaderEpochs:
    """Return the leader epochs of the segments, read from their headers."""
    epochs = LeaderEpochs()
    replay_headers(
        segments, from_offset=0, visit=lambda header: note_epoch(epochs, header), interval_bytes=interval_bytes
    )
    return epochs


def restore_producers(
    snapshots: ProducerSnapshots, segments: Sequence[Segment], *, newest_at: int, interval_bytes: int
) -> tuple[ProducerWindows, int]:
    """Return the producer state at the end of the segments.

    Args:
        snapshots: the snapshot files.
        segments: ascending from the log start; the headers after the snapshot are replayed.
        newest_at: largest offset of a usable snapshot; a later one may describe lost batches.
        interval_bytes: as in `replay_headers`.

    Returns:
        The state, and the offset that the snapshot reaches (0 without one). The caller replays the batches of other
        segments from there on.
    """
    newest = snapshots.newest(newest_at)
    offset, producers = newest if newest is not None else (0, ProducerWindows())

    def visit(header: BatchHeader) -> None:
        if header.has_producer:
            producers.update(header, header.base_offset)

    replay_headers(segments, from_offset=offset, visit=visit, interval_bytes=interval_bytes)
    return producers, offset
