# SPDX-License-Identifier: Apache-2.0
"""Opens a log: after a clean stop by reading its caches, after any other by walking what may have been torn.

Order of an open (a crash between any two steps leaves a log that opens again):

1. make the directory; remove `*.tmp`; check `partition.metadata`
2. open `recovery-point`; a log without segments is new (or, with a flushed offset above 0, has lost its files: refuse)
3. clean (the last segment has exactly the recorded size): nothing is walked
4. else walk every segment from the one that holds the recovery point: headers below it (for the indexes), CRCs from it
   on, and judge each place where the next batch does not stand:
     a. below the recovery point                            -> damage: quarantine, keep its offsets, go on
     b. nothing whole follows                               -> torn tail: cut
     c. something whole follows, bytes were never written   -> last flush group torn inside: cut, counted apart
     d. something whole follows, every sector was written   -> damage: quarantine
5. a log that ends below the recovery point keeps the lost offsets as damage and goes on in a new segment there
6. cut files are truncated and synced, later segments and stale snapshots removed, damage saved, directory synced
7. what was walked is synced, then the recovery point is written and synced: flushed offset = log end offset
8. leader epochs: checkpoint below the first walked segment, headers above; producers: newest snapshot, then headers

A process crash keeps the page cache, so step 7 is what makes read bytes durable before anything is built on them.
Source: Kafka, LogLoader; Alagappan et al. (FAST 2018); architecture section 6; docs/storage_format.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from lograft.wire.header import BatchHeader

from .checkpoints import encode_lines, parent_of, read_lines, replace_file
from .damage import DamagedRanges
from .env import Disk
from .epochs import LeaderEpochs
from .errors import CorruptLogError, WrongPartitionError
from .names import (
    EPOCH_FILE,
    LOG_SUFFIX,
    PARTITION_FILE,
    RECOVERY_POINT_FILE,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    PartitionIdentity,
    parse_offset_file_name,
)
from .producer_snapshots import ProducerSnapshots
from .producers import ProducerWindows
from .recovery_caches import note_epoch, read_epochs, restore_producers, walk_epochs
from .recovery_point import RecoveryPoint, RecoveryPointFile
from .recovery_walk import UncleanWalk, WalkFindings
from .segment import Segment
from .segment_set import SegmentSet
from .types import LogSettings, RecoveryReport


@dataclass(slots=True, kw_only=True)
class LogParts:
    """Everything that an open log consists of; `PartitionLog` takes it over."""

    segments: SegmentSet
    epochs: LeaderEpochs
    epochs_saved: bool
    producers: ProducerWindows
    snapshots: ProducerSnapshots
    damage: DamagedRanges
    recovery_point: RecoveryPointFile
    report: RecoveryReport


def open_log(
    disk: Disk, directory: str, *, settings: LogSettings, now_ms: int, identity: PartitionIdentity | None
) -> LogParts:
    """Open or create the log in a directory; see the module for the order.

    Raises:
        CorruptLogError, WrongPartitionError, DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError.
    """
    if not disk.exists(directory):
        disk.make_directory(directory)
        disk.sync_directory(parent_of(directory))
    opening = _Opening(disk, directory, settings, now_ms, identity)
    try:
        return opening.run()
    except BaseException:
        opening.close()
        raise


class _Opening:
    """One open; the steps share the directory and what is open so far."""

    def __init__(
        self, disk: Disk, directory: str, settings: LogSettings, now_ms: int, identity: PartitionIdentity | None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._now_ms = now_ms
        self._identity = identity
        self._damage = DamagedRanges(disk, directory)
        self._segments: list[Segment] = []
        self._recovery_point: RecoveryPointFile | None = None

    def run(self) -> LogParts:
        names = self._tidy()
        self._check_identity()
        files = [file for file in map(parse_offset_file_name, names) if file is not None]
        bases = [file.base_offset for file in files if file.suffix == LOG_SUFFIX]
        snapshot_offsets = [file.base_offset for file in files if file.suffix == SNAPSHOT_SUFFIX]
        snapshots = ProducerSnapshots(self._disk, self._directory, snapshot_offsets)
        recovery_point = RecoveryPointFile.open_or_create(self._disk, self._path(RECOVERY_POINT_FILE))
        self._recovery_point = recovery_point
        if not bases:
            return self._create(recovery_point, snapshots)
        self._damage = DamagedRanges.load(self._disk, self._directory)
        self._list_segments(bases)
        point = recovery_point.point
        if point is not None and self._is_clean(point):
            return self._open_clean(recovery_point, point, snapshots)
        return self._recover(recovery_point, point, snapshots)

    def close(self) -> None:
        """Close what is open, after a failure."""
        if self._recovery_point is not None:
            self._recovery_point.close()
        for segment in self._segments:
            segment.close()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _tidy(self) -> list[str]:
        """Remove what an interrupted replacement left; return the other names."""
        names = self._disk.list_directory(self._directory)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self._disk.remove(self._path(name))
        return [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]

    def _check_identity(self) -> None:
        """Check `partition.metadata`, or write it; a directory of another partition is never touched."""
        identity = self._identity
        if identity is None:
            return
        lines = read_lines(self._disk, self._path(PARTITION_FILE))
        wanted = [f"topic_id {identity.topic_id.hex()}", f"partition {identity.partition}"]
        if lines is None:
            replace_file(self._disk, self._path(PARTITION_FILE), encode_lines(wanted))
        elif lines != wanted:
            raise WrongPartitionError(self._directory, expected=", ".join(wanted), found=", ".join(lines))

    def _create(self, recovery_point: RecoveryPointFile, snapshots: ProducerSnapshots) -> LogParts:
        """Make a new log. The recovery point is on disk before the first segment exists."""
        point = recovery_point.point
        if point is not None and point.flushed_offset > 0:
            raise CorruptLogError(
                self._directory,
                f"all segment files are missing, the log was flushed up to {point.flushed_offset}: restore them, or "
                "remove the directory to let a replica send its records again",
            )
        recovery_point.write_synced(RecoveryPoint(flushed_offset=0))
        self._segments.append(
            Segment.create(self._disk, self._directory, self._damage, base_offset=0, created_ms=self._now_ms)
        )
        self._disk.sync_directory(self._directory)
        return self._parts(
            recovery_point,
            snapshots,
            epochs=LeaderEpochs(),
            epochs_saved=True,
            producers=ProducerWindows(),
            report=RecoveryReport(created=True),
        )

    def _list_segments(self, bases: list[int]) -> None:
        """Make the segments; each but the last ends where the next begins, the last one's end is not known yet."""
        for base_offset, end_offset in zip(bases, [*bases[1:], bases[-1]], strict=True):
            segment = Segment(
                self._disk,
                self._directory,
                self._damage,
                base_offset=base_offset,
                end_offset=end_offset,
                size_bytes=0,
                created_ms=self._now_ms,
            )
            segment.size_bytes = segment.unverified_bytes = self._disk.size_bytes(segment.path)
            self._segments.append(segment)

    def _is_clean(self, point: RecoveryPoint) -> bool:
        """Tell whether nothing happened to the log since it was closed; sets the end of the last segment if so."""
        end = point.clean_end
        last = self._segments[-1]
        if end is None or (last.base_offset, last.size_bytes) != (end.segment_base_offset, end.segment_bytes):
            return False
        last.end_offset = point.flushed_offset
        last.load_index(self._settings.index_interval_bytes)
        # A damaged index leads to a walk, and that may find the file to be other than it was.
        return last.size_bytes == end.segment_bytes

    def _open_clean(
        self, recovery_point: RecoveryPointFile, point: RecoveryPoint, snapshots: ProducerSnapshots
    ) -> LogParts:
        """Open after a clean stop; caches that are missing are built by walking headers."""
        interval_bytes = self._settings.index_interval_bytes
        log_end_offset = point.flushed_offset
        found = read_epochs(self._disk, self._path(EPOCH_FILE), below=log_end_offset)
        epochs, epochs_saved = found if found else (walk_epochs(self._segments, interval_bytes=interval_bytes), False)
        producers, _ = restore_producers(
            snapshots, self._segments, newest_at=log_end_offset, interval_bytes=interval_bytes
        )
        self._damage.save()
        return self._parts(
            recovery_point,
            snapshots,
            epochs=epochs,
            epochs_saved=epochs_saved,
            producers=producers,
            report=RecoveryReport(clean=True, recovery_point=log_end_offset, damaged=self._damage.all()),
        )

    def _recover(
        self, recovery_point: RecoveryPointFile, point: RecoveryPoint | None, snapshots: ProducerSnapshots
    ) -> LogParts:
        """Open after an unclean stop: steps 4 to 8."""
        interval_bytes = self._settings.index_interval_bytes
        # A lost recovery point is damage, not a fresh log: it was durable before the first batch. Then everything
        # is checked, and nothing below the last segment is cut.
        flushed_offset = point.flushed_offset if point is not None else self._segments[-1].base_offset
        verify_from = point.flushed_offset if point is not None else 0
        first = max(
            (slot for slot, segment in enumerate(self._segments) if segment.base_offset <= verify_from), default=0
        )
        # Below the recovery point the checkpoint is complete and has a CRC, which the epoch in a header has not.
        found = read_epochs(self._disk, self._path(EPOCH_FILE), below=verify_from)
        epochs = found[0] if found else walk_epochs(self._segments[:first], interval_bytes=interval_bytes)
        epochs_from = verify_from if found else 0
        producers, replay_from = restore_producers(
            snapshots, self._segments[:first], newest_at=flushed_offset, interval_bytes=interval_bytes
        )

        def visit(header: BatchHeader) -> None:
            if header.base_offset >= epochs_from:
                note_epoch(epochs, header)
            if header.has_producer and header.base_offset >= replay_from:
                producers.update(header, header.base_offset)

        def before_segment(segment: Segment) -> None:
            if segment.base_offset >= replay_from:
                snapshots.take(producers, segment.base_offset)

        walk = UncleanWalk(
            self._disk,
            self._directory,
            self._damage,
            self._segments,
            first=first,
            flushed_offset=flushed_offset,
            verify_from=verify_from,
            interval_bytes=interval_bytes,
            visit=visit,
        )
        walk.run(before_segment)
        walk.settle(now_ms=self._now_ms)
        # Before the recovery point passes them: below it the checkpoint is complete.
        if read_lines(self._disk, self._path(EPOCH_FILE)) != epochs.encode_entries():
            replace_file(self._disk, self._path(EPOCH_FILE), encode_lines(epochs.encode_entries()))
        log_end_offset = self._segments[-1].end_offset
        if snapshots.remove_above(log_end_offset):
            # Before anything is appended: a snapshot of lost batches must not come back.
            self._disk.sync_directory(self._directory)
        snapshots.take(producers, log_end_offset)
        recovery_point.write_synced(RecoveryPoint(flushed_offset=log_end_offset))
        return self._parts(
            recovery_point,
            snapshots,
            epochs=epochs,
            epochs_saved=True,
            producers=producers,
            report=self._report(walk.findings, point, verify_from),
        )

    def _report(self, findings: WalkFindings, point: RecoveryPoint | None, verify_from: int) -> RecoveryReport:
        return RecoveryReport(
            recovery_point=point.flushed_offset if point is not None else None,
            scanned_from_offset=verify_from,
            scanned_bytes=findings.scanned_bytes,
            cut_offset=findings.cut_offset,
            cut_bytes=findings.cut_bytes,
            undecidable_bytes=findings.undecidable_bytes,
            damaged=self._damage.all(),
            rebuilt_segments=tuple(findings.rebuilt_segments),
        )

    def _parts(
        self,
        recovery_point: RecoveryPointFile,
        snapshots: ProducerSnapshots,
        *,
        epochs: LeaderEpochs,
        epochs_saved: bool,
        producers: ProducerWindows,
        report: RecoveryReport,
    ) -> LogParts:
        return LogParts(
            segments=SegmentSet(self._segments),
            epochs=epochs,
            epochs_saved=epochs_saved,
            producers=producers,
            snapshots=snapshots,
            damage=self._damage,
            recovery_point=recovery_point,
            report=report,
        )
