# SPDX-License-Identifier: Apache-2.0
"""The metadata log on disk: a `storage.PartitionLog`, in the form that the Raft core needs.

Owns the opening (the core gets epochs and voter sets; the log is read only above the image's offset), the encoding of batches and
control batches, the joining of small proposals to one batch, trimming, the restart at a snapshot, and flushing in a thread. Decides
nothing; every offset comes from the core and is checked against the log.
One owner (the event loop thread) makes all calls; only the work of a flush runs in the disk thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lograft.wire.batch import RecordBatch, encode_batch, iter_batches, read_header
from lograft.wire.header import BatchHeader, stamped_prefix

from metaquorum.metadata.listener import CommittedBatch
from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, LeaderChange, VotersChange
from metaquorum.raft.log_view import LogView
from metaquorum.raft.snapshots import must_restart_log
from metaquorum.raft.types import LOG_BEGIN, Offset, QuorumEpoch, SnapshotId
from metaquorum.raft.voters import VoterSet
from metaquorum.raft_codec.control_codec import decode_control_batch, encode_control_record
from metaquorum.replica.gathered import GatheredProposals
from metaquorum.replica.recent_batches import RECENT_BYTES, RecentBatches
from metaquorum.replica.room import no_room, write_with_room
from storage.errors import DataLossError
from storage.files.disk import Disk
from storage.files.names import LOG_SUFFIX
from storage.log.flush import FlushWork
from storage.log.log_start import LogStartFile
from storage.log.partition_log import PartitionLog
from storage.types import LogSettings

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 * 1024 * 1024
"""Bytes of a segment of the metadata log: small, so that trimming frees space soon."""

SCAN_BYTES = 1024 * 1024
"""Bytes of one read while the log is being opened."""


_ADVICE = (
    "Wipe the data directory and start the node again: it then joins as a new replica and fetches the records from the"
    " others"
)


class DamagedLogError(Exception):
    """Flushed records of the metadata log are damaged. A voter that continued with a part of them might lose commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBase:
    """What image and snapshots say about the log, so that it need not be read completely.

    Attributes:
        image_offset: end of the image (exclusive): every record below it is in the image, so committed.
        voters: voter set in force there; None if no record below names voters.
        snapshots: ids of the snapshots on disk, ascending.
        damaged: ids of damaged snapshots; the log must contain everything in them.
    """

    image_offset: Offset = LOG_BEGIN
    voters: VoterSet | None = None
    snapshots: tuple[SnapshotId, ...] = ()
    damaged: tuple[SnapshotId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of the log; a simulation sets its own.

    Attributes:
        segment_bytes: size of a segment.
        clock: milliseconds since 1970; stamped into batches and files, never used for a decision.
        make_room: makes room on a full disk for an append (`metaquorum.replica.room`).
    """

    segment_bytes: int = SEGMENT_BYTES
    clock: Callable[[], int] = field(default_factory=lambda: wall_clock_ms)
    make_room: Callable[[], bool] = no_room


@dataclass(frozen=True, slots=True)
class _Decoded:
    """The last decoded batches, which every listener of the node needs. Committed batches are never truncated, so it stays valid."""

    offset: int
    commit_offset: int
    max_bytes: int
    batches: list[CommittedBatch]


class LogStore:
    """The open metadata log.

    Attributes:
        voters: voter sets by the offset of their records; the first one may stand for all below the image's offset.
        committed_offset: offset (exclusive) below which everything is known to be committed.
        read_bytes: bytes read from the log so far, for all purposes.
        cut_bytes: bytes of a torn tail that recovery removed at the opening.
    """

    def __init__(self, disk: Disk, directory: str, base: LogBase, options: LogOptions) -> None:
        self._disk = disk
        self._directory = directory
        self._options = options
        self._log, self.cut_bytes = self._open()
        self._snapshots = base.snapshots
        self._start: SnapshotId | None = None
        self._flush: FlushWork | None = None
        self._gathered = GatheredProposals()
        self._recent = RecentBatches(_decode_all)
        self._committed: _Decoded | None = None
        self.voters: tuple[tuple[Offset, VoterSet], ...] = ()
        self.committed_offset = base.image_offset
        self.read_bytes = 0

    @classmethod
    def open(
        cls, disk: Disk, directory: str, base: LogBase | None = None, *, options: LogOptions | None = None
    ) -> LogStore:
        """Open the log: recover it after a crash, finish an interrupted install, and read its voter sets.

        Args:
            disk: the disk.
            directory: directory of the log.
            base: what image and snapshots say; None: nothing, so the log is read from its beginning.
            options: options of the log.

        Raises:
            DamagedLogError: flushed records are damaged or missing; this node must not take part without them.
            storage.errors.StorageError: the log cannot be opened.
        """
        base = base or LogBase()
        store = cls(disk, directory, base, options or LogOptions())
        try:
            store._take_up(base)
        except DataLossError as error:
            store.close(is_clean=False)
            raise DamagedLogError(f"{error}. {_ADVICE}") from error
        except BaseException:
            store.close(is_clean=False)
            raise
        return store

    def _take_up(self, base: LogBase) -> None:
        newest = base.snapshots[-1] if base.snapshots else None
        self._start = self._find_start()
        self._check_damaged(base.damaged)
        if newest is not None and must_restart_log(newest, self.view()):
            logger.warning("event=log_restarted snapshot=%d log_end_offset=%d", newest.end_offset, self.end_offset)
            self.truncate_fully(newest)
        log = self._log
        if base.image_offset > log.log_end_offset:
            raise DamagedLogError(f"the log ends at {log.log_end_offset}, its image at {base.image_offset}. {_ADVICE}")
        self._refuse_damage()
        voters: list[tuple[Offset, VoterSet]] = []
        scan_from = log.log_start_offset
        if base.voters is not None and base.image_offset > 0:
            # The record is somewhere below. Its exact offset no longer matters, because nothing below is ever truncated.
            voters.append((Offset(base.image_offset - 1), base.voters))
            scan_from = base.image_offset
        self.voters = (*voters, *self._scan_voters(scan_from))
        # The scan also read headers below `scan_from` to find the first batch, and may have found damage there.
        self._refuse_damage()

    def _refuse_damage(self) -> None:
        if self._log.damaged:
            raise DamagedLogError(f"the log is damaged at {self._log.damaged}. {_ADVICE}")

    def _find_start(self) -> SnapshotId | None:
        """Return the snapshot that ends at the log start, or None for offset 0. An interrupted install also leaves a newer one."""
        offset = self._log.log_start_offset
        if offset == 0:
            return None
        for snapshot in self._snapshots:
            if snapshot.end_offset == offset:
                return snapshot
        raise DamagedLogError(f"the log begins at {offset} and no snapshot ends there. {_ADVICE}")

    def _check_damaged(self, damaged: tuple[SnapshotId, ...]) -> None:
        """Check that the log contains everything that a damaged snapshot held; that part of the log has been committed.

        If the log does not reach the snapshot's end, an install was under way and may have emptied the log. This voter may then have
        lost records that it had acknowledged.
        """
        view = self.view()
        for snapshot in damaged:
            if snapshot.end_offset < view.log_start_offset:
                continue
            if not view.contains(snapshot):
                raise DamagedLogError(f"{snapshot} is damaged, and the log does not have what it holds. {_ADVICE}")
            self.committed_offset = max(self.committed_offset, snapshot.end_offset)

    @property
    def kept_snapshots(self) -> tuple[SnapshotId, ...]:
        """Ids of the snapshots at or above the log start, ascending."""
        return tuple(one for one in self._snapshots if one.end_offset >= self._log.log_start_offset)

    def view(self) -> LogView:
        """Return the view of the log for the core."""
        log = self._log
        epochs: list[tuple[QuorumEpoch, Offset]] = []
        epoch, end_offset = log.last_epoch, log.log_end_offset
        while epoch is not None and end_offset > log.log_start_offset:
            before = log.end_offset_for_epoch(epoch - 1)
            start_offset = log.log_start_offset if before is None else before.end_offset
            epochs.append((QuorumEpoch(epoch), Offset(start_offset)))
            epoch, end_offset = (None if before is None else before.epoch), start_offset
        return LogView(
            epochs=list(reversed(epochs)),
            log_end_offset=Offset(log.log_end_offset),
            flushed_offset=Offset(log.flushed_offset),
            start=self._start,
        )

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        """Offset of the next record (exclusive end)."""
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        """Offset (exclusive) below which everything is on stable storage."""
        return self._log.flushed_offset

    def size_bytes(self) -> int:
        """Return the bytes of the log on disk."""
        names = self._disk.list_directory(self._directory)
        return sum(self._disk.size_bytes(f"{self._directory}/{name}") for name in names if name.endswith(LOG_SUFFIX))

    def truncate_prefix(self, to: SnapshotId) -> None:
        """Move the log start to a snapshot's end, durably, and remove whole segments below."""
        self._recent.clear()
        self._write_gathered()
        self._log.truncate_prefix(to.end_offset, self._options.clock())
        assert self._log.log_start_offset == to.end_offset, f"log starts at {self._log.log_start_offset}, not at {to}"
        self._start = to

    def truncate_fully(self, to: SnapshotId) -> None:
        """Empty the log and let it begin at a snapshot's end, durably.

        Order: remove all records, write the log start, open the log again there. A crash in between leaves a log that does not
        contain the end of the newest snapshot, so the next `open` repeats the steps. A flush under way must have ended in its thread;
        its result is taken here.
        """
        self._recent.clear()
        self._write_gathered()
        if self._flush is not None:
            self.end_flush(self._flush)
        self._log.truncate_suffix(self._log.log_start_offset)
        self._log.close(clean=False)
        start = LogStartFile.read(self._disk, self._directory)
        start.write_synced(to.end_offset)
        self._log, _ = self._open()
        log = self._log
        assert (log.log_start_offset, log.log_end_offset) == (to.end_offset, to.end_offset), (
            f"log from {log.log_start_offset} to {log.log_end_offset}, not at {to}"
        )
        self._start = to

    def gather(self, effect: AppendAsLeader, records: Sequence[bytes]) -> None:
        """Append a small proposal. It shares a batch with the next ones until the log is read, flushed or changed in another way."""
        if not self._gathered.has_room(effect, records):
            self._write_gathered()
        self._gathered.add(effect, records)

    def _write_gathered(self) -> None:
        if self._gathered:
            effect, records = self._gathered.take()
            self._append_as_leader(effect, encode_records(records), records)

    def append_as_leader(self, effect: AppendAsLeader, batch: bytes | bytearray) -> None:
        """Append an encoded batch at the offset that the core assigned."""
        self._write_gathered()
        self._append_as_leader(effect, batch, None)

    def _append_as_leader(self, effect: AppendAsLeader, batch: bytes | bytearray, records: list[bytes] | None) -> None:
        header = read_header(batch)
        appended = write_with_room(
            lambda: self._log.append_as_leader(
                memoryview(batch), header, leader_epoch=effect.quorum_epoch, now_ms=self._options.clock()
            ),
            self._options.make_room,
        )
        assert (appended.base_offset, appended.next_offset) == (effect.base_offset, effect.next_offset), (
            f"appended at {appended}, the core meant {effect}"
        )
        prefix = stamped_prefix(appended.base_offset, header.batch_length, effect.quorum_epoch)
        batches: list[CommittedBatch] | None = None
        if records is not None:
            batches = [
                CommittedBatch(
                    base_offset=appended.base_offset,
                    next_offset=appended.next_offset,
                    quorum_epoch=effect.quorum_epoch,
                    append_timestamp_ms=header.max_timestamp_ms,
                    records=records,
                    is_control=False,
                    size_bytes=header.size_bytes,
                )
            ]
        data = prefix + memoryview(batch)[len(prefix) :]
        self._recent.add(appended.base_offset, appended.next_offset, data, batches)

    def append_as_follower(self, effect: AppendAsFollower) -> None:
        """Append fetched batches unchanged."""
        self._write_gathered()
        # An append that meets a full disk may have stored the first batches.
        write_with_room(
            lambda: self._log.append_as_follower(
                _batches_from(effect.batches.data, self._log.log_end_offset), now_ms=self._options.clock()
            ),
            self._options.make_room,
        )
        spans = effect.batches.spans
        end_offset = spans[-1].next_offset
        self._recent.add(spans[0].base_offset, end_offset, effect.batches.data)
        assert self._log.log_end_offset == end_offset, f"log ends at {self._log.log_end_offset}, not at {end_offset}"

    def truncate_suffix(self, to_offset: Offset) -> None:
        """Remove everything from `to_offset` (inclusive) on, durably."""
        self._recent.clear()
        self._write_gathered()
        self._log.truncate_suffix(to_offset)
        assert self._log.log_end_offset == to_offset, f"log ends at {self._log.log_end_offset}, not at {to_offset}"

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Read whole batches from an offset on: at least one, otherwise at most `max_bytes`.

        Raises:
            DamagedLogError: the epoch of a batch differs from the log's epoch at its offset.
            storage.errors.DataLossError: the first batch is damaged.
        """
        self._write_gathered()
        recent = self._recent.bytes_from(offset, max_bytes)
        if recent is not None:
            return recent
        read = self._log.read(offset, max_bytes)
        for _ in self._walk(read.data):
            pass
        return read.data

    def read_committed(self, offset: int, max_bytes: int, *, commit_offset: int) -> Sequence[CommittedBatch]:
        """Read and decode whole batches below `commit_offset` (exclusive)."""
        recent = self._recent.batches_from(offset, max_bytes, end_offset=commit_offset)
        if recent is not None:
            return recent
        last = self._committed
        if last is not None and (last.offset, last.commit_offset, last.max_bytes) == (offset, commit_offset, max_bytes):
            return last.batches
        self._write_gathered()
        data = self._log.read(offset, max_bytes, end_offset=commit_offset).data
        batches = [_decode(batch) for header, batch in self._walk(data) if header.base_offset >= offset]
        small = len(data) <= RECENT_BYTES
        self._committed = _Decoded(offset, commit_offset, max_bytes, batches) if small else None
        return batches

    def _walk(self, data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield batches after a check of their epochs against the log's, because no CRC covers the epoch of a batch.

        Raises:
            DamagedLogError: the epoch of a batch differs from the log's epoch at its offset; a follower would append it unchanged.
        """
        self.read_bytes += len(data)
        view = memoryview(data)
        for position, header in iter_batches(view):
            known = self._log.epoch_at(header.base_offset)
            if header.leader_epoch != known and header.base_offset >= self._log.log_start_offset:
                raise DamagedLogError(
                    f"the batch at offset {header.base_offset} says epoch {header.leader_epoch}, the log {known}. {_ADVICE}"
                )
            yield header, view[position : position + header.size_bytes]

    def begin_flush(self) -> FlushWork | None:
        """Return work that puts everything appended so far on stable storage; None if everything is flushed."""
        self._write_gathered()
        self._flush = self._log.begin_flush()
        return self._flush

    def end_flush(self, work: FlushWork) -> None:
        """Take the result of flush work that has run. Work of a log that was reopened since was taken then."""
        if work is self._flush:
            self._flush = None
            self._log.end_flush(work)

    def _scan_voters(self, offset: int) -> Iterator[tuple[Offset, VoterSet]]:
        log = self._log
        while offset < log.log_end_offset:
            read = log.read(offset, SCAN_BYTES)
            for header, batch in self._walk(read.data):
                if header.is_control:
                    change = decode_control_batch(batch)
                    if isinstance(change, VotersChange) and header.base_offset >= offset:
                        yield Offset(header.base_offset), change.voters
            offset = read.next_offset

    def _open(self) -> tuple[PartitionLog, int]:
        """Open the log. Also return the bytes of a torn tail that were removed."""
        settings = LogSettings(segment_bytes=self._options.segment_bytes)
        opened = PartitionLog.open(self._disk, self._directory, settings=settings, now_ms=self._options.clock())
        return opened.log, opened.report.cut_bytes

    def close(self, *, is_clean: bool) -> None:
        """Close the log. After a failure (not clean) nothing more is written, and the next start recovers."""
        if is_clean:
            self._write_gathered()
        self._log.close(clean=is_clean)


def encode_records(records: Sequence[bytes]) -> bytearray:
    """Return one encoded batch of metadata records."""
    return encode_batch(records, timestamps_ms=wall_clock_ms())


def encode_control(content: LeaderChange | VotersChange) -> bytearray:
    """Return one encoded control batch."""
    return encode_batch([encode_control_record(content)], timestamps_ms=wall_clock_ms(), control=True)


def wall_clock_ms() -> int:
    """Return milliseconds since 1970; only stamped into batches, never used for a decision."""
    return time.time_ns() // 1_000_000


def _decode_all(data: bytes) -> list[CommittedBatch]:
    view = memoryview(data)
    return [_decode(view[position : position + header.size_bytes]) for position, header in iter_batches(view)]


def _decode(batch: memoryview) -> CommittedBatch:
    decoded = RecordBatch(batch, verify_crc=False)
    header = decoded.header
    return CommittedBatch(
        base_offset=header.base_offset,
        next_offset=header.next_offset,
        quorum_epoch=header.leader_epoch,
        append_timestamp_ms=header.max_timestamp_ms,
        records=[value or b"" for value in decoded.values()],
        is_control=header.is_control,
        size_bytes=header.size_bytes,
    )


def _batches_from(batches: bytes, offset: int) -> memoryview:
    """Return the batches without those that end at or below the offset."""
    rest = memoryview(batches)
    while rest and (header := read_header(rest)).next_offset <= offset:
        rest = rest[header.size_bytes :]
    return rest
