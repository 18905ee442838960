# SPDX-License-Identifier: Apache-2.0
"""Makes the snapshots of one replica of an internal topic, leader or follower, without its core.

Theory of operation. The event loop reads the log in pieces, as for a consumer, up to the high watermark. A thread folds them. Then a
thread streams the last snapshot through the fold into a new file. If the log above the last snapshot has a gap, the fold begins again
at the log start, without a snapshot. Then gaps are harmless, also above an intermediate snapshot of the same run: what the run has
read is younger than the life of a tombstone.

Law: a snapshot gets its name only if the log still has the record before its end, committed, in the same leader epoch.
Source: `docs/coordinator.md` section "Snapshots".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from lograft.wire.errors import BatchError

from brokerd.coordinator.limits import LOAD_READ_BYTES, SNAPSHOT_FOLD_BYTES
from brokerd.coordinator.log_pieces import read_pieces
from brokerd.coordinator.prefix import PrefixFold, SnapshotId, is_snapshot_due, why_unusable
from brokerd.coordinator.snapshot_files import AbandonedError, SnapshotFile, SnapshotReader
from brokerd.coordinator.snapshot_format import DamagedSnapshotError
from brokerd.failure import RefusedError
from brokerd.replica.replica import Replica
from storage.errors import StorageError
from storage.files.names import PartitionIdentity
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Last:
    """The last snapshot."""

    snapshot: SnapshotId
    size_bytes: int


class _GapError(Exception):
    """The log above the last snapshot has a gap."""


class PartitionSnapshots:
    """The snapshots of one replica. Belongs to the event loop; only its own methods write its state.

    Args:
        replica: the replica.

    Attributes:
        taken_count: snapshots that got their name.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._read_path = ""
        self._last: _Last | None = None
        self.taken_count = 0

    def _file(self) -> SnapshotFile:
        replica = self._replica
        identity = PartitionIdentity(replica.topic_id, replica.partition)
        return SnapshotFile(replica.directory.disk, replica.log.directory, identity)

    # Reading.

    async def open_usable(self, log_end_offset: int) -> SnapshotReader | None:
        """Open the snapshot if it belongs to the log, to load it; otherwise say in the log why not, and return None.

        Args:
            log_end_offset: no snapshot may reach beyond it (exclusive).
        """
        reader = await self._open()
        if reader is None:
            return None
        why = self._why_unusable(reader.snapshot, log_end_offset)
        if why is None:
            return reader
        reader.close()
        self.ignore(why)
        return None

    def ignore(self, why: str) -> None:
        """Say in the log why the snapshot does not count, and let the next one be made from the log."""
        logger.warning("coordinator snapshot ignored: partition=%s: %s", self._replica, why)
        self._read_path = self._file().path
        self._last = None

    async def _open(self) -> SnapshotReader | None:
        opening = asyncio.ensure_future(asyncio.to_thread(self._file().open))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        except (DamagedSnapshotError, StorageError) as error:
            self.ignore(str(error))
            return None

    def _why_unusable(self, snapshot: SnapshotId, log_end_offset: int) -> str | None:
        log = self._replica.log
        return why_unusable(
            snapshot,
            log_start_offset=log.log_start_offset,
            log_end_offset=log_end_offset,
            epoch_before_end=log.epoch_at(snapshot.end_offset - 1),
        )

    # Making.

    async def take_if_due(self, is_wanted: Callable[[], bool]) -> bool:
        """Make a snapshot if one is due; return True if it got its name. Errors are logged, and the last snapshot stays.

        Args:
            is_wanted: asked now and then; False ends the work.
        """
        try:
            last = await self._find_last()
            replica = self._replica
            log = replica.log
            end_offset = log.log_start_offset if last is None else last.snapshot.end_offset
            is_due = is_snapshot_due(
                snapshot_end_offset=end_offset,
                snapshot_bytes=0 if last is None else last.size_bytes,
                high_watermark=replica.high_watermark,
                log_bytes_above=bytes_above(log, end_offset),
                active_base_offset=log.segments.active.base_offset,
            )
            return is_due and is_wanted() and await self.take(is_wanted)
        except AbandonedError:
            return False
        except (RefusedError, StorageError, BatchError) as error:
            logger.warning("coordinator snapshot not made: partition=%s: %s", self._replica, error)
            return False

    async def _find_last(self) -> _Last | None:
        """Return the last snapshot if it belongs to the log."""
        path = self._file().path
        if path != self._read_path:
            reader = await self._open()
            self._read_path = path
            self._last = None if reader is None else _Last(reader.snapshot, reader.size_bytes)
            if reader is not None:
                reader.close()
        last = self._last
        if last is not None and self._why_unusable(last.snapshot, self._replica.high_watermark) is not None:
            self._last = last = None
        return last

    async def take(self, is_wanted: Callable[[], bool]) -> bool:
        """Make a snapshot of everything below the high watermark; return True if it got its name.

        Raises:
            AbandonedError: it is no longer wanted.
            RefusedError, StorageError, BatchError: the log cannot be read, or the file cannot be written.
        """
        last = await self._find_last()
        if last is not None:
            try:
                return await self._run(last, is_wanted, may_have_gaps=False)
            except _GapError:
                why = "the log above the last snapshot has a gap"
            except DamagedSnapshotError as error:
                why = str(error)
            logger.info("coordinator snapshot from the whole log: partition=%s: %s", self._replica, why)
            self._last = None
        try:
            return await self._run(None, is_wanted, may_have_gaps=True)
        except DamagedSnapshotError as error:
            logger.warning("coordinator snapshot not made: partition=%s: %s", self._replica, error)
            return False

    async def _run(self, last: _Last | None, is_wanted: Callable[[], bool], *, may_have_gaps: bool) -> bool:
        replica = self._replica
        end_offset = replica.high_watermark
        start_offset = replica.log_start_offset if last is None else last.snapshot.end_offset
        fold = PrefixFold(start_offset, may_have_gaps=may_have_gaps)
        while fold.next_offset < end_offset:
            if not is_wanted():
                raise AbandonedError
            data = replica.read(fold.next_offset, LOAD_READ_BYTES, end_offset=end_offset).data
            if not data:
                # The high watermark lies inside a stretch that compaction has made one batch, as it may after a restart.
                break
            if not await asyncio.to_thread(_fold, fold, data):
                raise _GapError
            if fold.size_bytes >= SNAPSHOT_FOLD_BYTES and fold.next_offset < end_offset:
                last = await self._publish(fold, last, is_wanted)
                if last is None:
                    return False
                fold = PrefixFold(fold.next_offset, may_have_gaps=may_have_gaps)
        return fold.next_offset > start_offset and await self._publish(fold, last, is_wanted) is not None

    async def _publish(self, fold: PrefixFold, last: _Last | None, is_wanted: Callable[[], bool]) -> _Last | None:
        """Write what a fold and the snapshot below it give; None: the log no longer has the end."""
        replica, file = self._replica, self._file()
        last_epoch = replica.log.epoch_at(fold.next_offset - 1)
        if last_epoch is None:
            return None
        snapshot = SnapshotId(fold.next_offset, last_epoch)
        replica.check_room(fold.size_bytes + (0 if last is None else last.size_bytes))
        size_bytes = await asyncio.to_thread(_write, file, snapshot, fold, last, is_wanted)
        is_moved = file.path != self._file().path
        if is_moved or not replica.is_writable or self._why_unusable(snapshot, replica.high_watermark) is not None:
            await asyncio.to_thread(file.discard)
            return None
        await asyncio.to_thread(file.put_in_place)
        self._read_path = file.path
        self._last = _Last(snapshot, size_bytes)
        self.taken_count += 1
        logger.info(
            "coordinator snapshot: partition=%s end_offset=%d bytes=%d", replica, snapshot.end_offset, size_bytes
        )
        return self._last


def bytes_above(log: PartitionLog, offset: int) -> int:
    """Return about how many bytes of a log are at an offset and above; inside a segment it goes by the share of offsets."""
    segments = log.segments
    slot = segments.slot_of(offset)
    first = segments[slot]
    span = first.end_offset - first.base_offset
    inside = min(max(first.end_offset - offset, 0), span)
    return (first.size_bytes * inside // span if span else 0) + sum(
        segments[later].size_bytes for later in range(slot + 1, len(segments))
    )


def _fold(fold: PrefixFold, data: bytes) -> bool:
    """Add whole batches to a fold; False: there is a gap. Runs in a thread."""
    return all(fold.add(piece) for piece in read_pieces(data))


def _write(
    file: SnapshotFile, snapshot: SnapshotId, fold: PrefixFold, last: _Last | None, is_wanted: Callable[[], bool]
) -> int:
    """Write the temporary file; return its size. Runs in a thread."""
    reader = None if last is None else file.open()
    try:
        if (None if reader is None else reader.snapshot) != (None if last is None else last.snapshot):
            raise DamagedSnapshotError("the last snapshot is another one than it was")
        return file.write(snapshot, fold.over(() if reader is None else reader.records()), is_wanted=is_wanted)
    finally:
        if reader is not None:
            reader.close()


def _close_unused(opening: asyncio.Future[SnapshotReader | None]) -> None:
    """Close a reader that was opened for a cancelled caller."""
    if opening.cancelled() or opening.exception() is not None:
        return
    reader = opening.result()
    if reader is not None:
        reader.close()
