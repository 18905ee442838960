# SPDX-License-Identifier: Apache-2.0
"""Opens a log: from its caches after a clean stop, else by a walk over what may be torn.

Order of an opening (a crash between any two steps leaves a log that opens again):

1. Make the directory; remove `*.tmp` and `*.deleted`; check `partition.metadata`; finish `*.restart`, `*.cleaned` and
   `*.swap`.
2. Read and sync `log-start`; remove the segments wholly below it. A gap above it is damage, or a torn tail if nothing
   above it was flushed (`recovery_prefix`).
   Open `recovery-point`. A log without segments is new, or restarts at its log start. If something above the log start
   was flushed, its files were lost: refuse.
3. Clean (the last segment has exactly the recorded size): walk nothing.
4. Otherwise walk every segment from the one that holds the recovery point: headers below it (for the indexes), CRCs
   from it on. Judge each place where the next batch is missing:
     a. below the recovery point                            -> damage: quarantine it, keep its offsets, continue
     b. no whole batch follows                              -> torn tail: truncate
     c. a whole batch follows, bytes were never written     -> last flush group torn inside: truncate, counted apart
     d. a whole batch follows, every sector was written     -> damage: quarantine it
5. A log that ends below the recovery point keeps the lost offsets as damage, and continues in a new segment behind
   them.
   A log that ends below its log start restarts there, empty.
6. Truncate and sync the torn file, remove later segments and stale snapshots, save the damage, sync the directory.
7. Sync the walked files, then write and sync the recovery point: flushed offset = log end offset.
8. Leader epochs: the checkpoint below the first walked segment, headers above. Producers: the newest snapshot, then
   headers.

After the crash of a process the page cache survives. Step 7 makes the bytes that it read durable before anything builds on them.
Source: Kafka, LogLoader; Alagappan et al. (FAST 2018); docs/storage_format.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from lograft.wire.header import BatchHeader

from storage.errors import CorruptLogError, FileMissingError, WrongPartitionError
from storage.files.checkpoints import encode_lines, parent_of, read_lines, remove_if_exists, replace_file
from storage.files.disk import Disk
from storage.files.names import (
    DAMAGE_FILE,
    DELETED_SUFFIX,
    EPOCH_FILE,
    LOG_START_FILE,
    LOG_SUFFIX,
    PARTITION_FILE,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    PartitionIdentity,
    parse_offset_file_name,
)
from storage.segment.damage import DamagedRanges
from storage.segment.segment import Segment
from storage.segment.segment_set import SegmentSet
from storage.types import DamagedRange, LogSettings, RecoveryReport

from .epochs import LeaderEpochs
from .log_start import LogStartFile
from .producer_snapshots import ProducerSnapshots
from .producers import ProducerWindows
from .recovery_caches import note_epoch, read_epochs, restore_producers, walk_epochs
from .recovery_point import CleanEnd, RecoveryPoint, RecoveryPointFile
from .recovery_prefix import drop_below, drop_torn_tail, note_lost_front, restart_empty
from .recovery_walk import UncleanWalk, WalkFindings
from .restart import finish_restart
from .swap import finish_swaps

_LEFTOVERS = (TEMPORARY_SUFFIX, DELETED_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """The parts of an opened log and the report of the opening, for `PartitionLog`."""

    segments: SegmentSet
    epochs: LeaderEpochs
    epochs_saved: bool
    producers: ProducerWindows
    snapshots: ProducerSnapshots
    damage: DamagedRanges
    recovery_point: RecoveryPointFile
    log_start_offset: int
    report: RecoveryReport


def open_log(
    disk: Disk, directory: str, *, settings: LogSettings, now_ms: int, identity: PartitionIdentity | None
) -> RecoveredLog:
    """Open or create the log in a directory; the module docstring gives the order.

    Raises:
        CorruptLogError, WrongPartitionError, DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError.
    """
    try:
        names = disk.list_directory(directory)
    except FileMissingError:
        names = []
        disk.make_directory(directory)
        disk.sync_directory(parent_of(directory))
    opening = _Opening(disk, directory, settings, now_ms, identity)
    try:
        return opening.run(names)
    except BaseException:
        opening.close()
        raise


class _Opening:
    """One opening: the state that its steps share."""

    def __init__(
        self, disk: Disk, directory: str, settings: LogSettings, now_ms: int, identity: PartitionIdentity | None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._now_ms = now_ms
        self._identity = identity
        self._damage = DamagedRanges(disk, directory)
        self._log_start_offset = 0
        self._segments: list[Segment] = []
        self._recovery_point: RecoveryPointFile | None = None
        self._has_epoch_file = False
        self._is_restarted = False

    def run(self, found_names: list[str]) -> RecoveredLog:
        # A start opens many logs cleanly: do not ask the disk for files that the listing does not show.
        names = self._tidy(found_names)
        self._check_identity()
        restarted = finish_restart(self._disk, self._directory, names)
        self._is_restarted = restarted is not None
        names = finish_swaps(self._disk, self._directory, names if restarted is None else restarted)
        self._has_epoch_file = EPOCH_FILE in names
        if LOG_START_FILE in names:
            self._log_start_offset = self._read_log_start()
        files = drop_below(
            self._disk,
            self._directory,
            [file for file in map(parse_offset_file_name, names) if file is not None],
            log_start_offset=self._log_start_offset,
        )
        bases = [file.base_offset for file in files if file.suffix == LOG_SUFFIX]
        snapshot_offsets = [file.base_offset for file in files if file.suffix == SNAPSHOT_SUFFIX]
        snapshots = ProducerSnapshots(self._disk, self._directory, snapshot_offsets)
        recovery_point = RecoveryPointFile.open_or_create(self._disk, self._directory)
        self._recovery_point = recovery_point
        if not bases:
            return self._create(recovery_point, snapshots)
        if DAMAGE_FILE in names:
            self._damage = DamagedRanges.load(self._disk, self._directory)
        point = recovery_point.point
        if point is not None and point.flushed_offset <= self._log_start_offset < bases[0]:
            # Everything was removed. Then new segments lost the first of their names, and none of them was flushed.
            cut_bytes = drop_torn_tail(self._disk, self._directory, self._damage, files)
            return self._create(recovery_point, snapshots, cut_bytes=cut_bytes)
        self._list_segments(bases)
        if point is not None and self._is_clean(point):
            return self._open_clean(recovery_point, point, snapshots)
        return self._recover(recovery_point, point, snapshots)

    def close(self) -> None:
        """Close all open files, after a failure."""
        if self._recovery_point is not None:
            self._recovery_point.close()
        for segment in self._segments:
            segment.close()

    def _read_epochs(self, *, below: int) -> tuple[LeaderEpochs, bool] | None:
        return read_epochs(self._disk, self._path(EPOCH_FILE), below=below) if self._has_epoch_file else None

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _tidy(self, names: list[str]) -> list[str]:
        """Remove leftovers of interrupted replacements and removals; return the other names."""
        for name in names:
            if name.endswith(_LEFTOVERS):
                # A thread of this process may be removing it too.
                remove_if_exists(self._disk, self._path(name))
        return [name for name in names if not name.endswith(_LEFTOVERS)]

    def _read_log_start(self) -> int:
        """Return the log start, after a sync, because the opening removes segments because of it."""
        file = LogStartFile.read(self._disk, self._directory)
        file.sync()
        return file.offset

    def _check_identity(self) -> None:
        """Check `partition.metadata`, or write it; nothing in the directory of another partition may change."""
        identity = self._identity
        if identity is None:
            return
        lines = read_lines(self._disk, self._path(PARTITION_FILE))
        wanted = [f"topic_id {identity.topic_id.hex()}", f"partition {identity.partition}"]
        if lines is None:
            replace_file(self._disk, self._path(PARTITION_FILE), encode_lines(wanted))
        elif lines != wanted:
            raise WrongPartitionError(self._directory, expected=", ".join(wanted), found=", ".join(lines))

    def _create(
        self, recovery_point: RecoveryPointFile, snapshots: ProducerSnapshots, *, cut_bytes: int = 0
    ) -> RecoveredLog:
        """Make a new log, or restart at the log start. The recovery point is on disk before the first segment."""
        start_offset = self._log_start_offset
        is_new = start_offset == 0 and not self._is_restarted
        point = recovery_point.point
        flushed_offset = point.flushed_offset if point is not None else None
        # If nothing was flushed above the log start, a removal was interrupted before the new segment's name was
        # synced.
        if start_offset < flushed_offset if flushed_offset is not None else start_offset > 0:
            raise CorruptLogError(
                self._directory,
                f"all segment files are missing, the log was flushed up to {flushed_offset}: restore them, or "
                "remove the directory to let a replica send its records again",
            )
        if self._has_epoch_file:
            # It may describe batches that were truncated or lost, and below the recovery point it would count as complete.
            replace_file(self._disk, self._path(EPOCH_FILE), encode_lines(LeaderEpochs().encode_entries()))
        # A new log is as a clean stop leaves it: until an append, a close has nothing to write.
        clean_end = CleanEnd(segment_base_offset=start_offset, segment_bytes=0) if is_new else None
        recovery_point.write_synced(RecoveryPoint(flushed_offset=start_offset, clean_end=clean_end))
        self._segments.append(
            Segment.create(self._disk, self._directory, self._damage, base_offset=start_offset, created_ms=self._now_ms)
        )
        self._disk.sync_directory(self._directory)
        snapshots.remove_above(start_offset)
        snapshots.remove_below(start_offset)
        newest = snapshots.newest(start_offset)
        return self._result(
            recovery_point,
            snapshots,
            epochs=LeaderEpochs(),
            epochs_saved=is_new,
            producers=newest[1] if newest is not None else ProducerWindows(),
            report=RecoveryReport(
                created=is_new,
                recovery_point=flushed_offset,
                cut_offset=start_offset if cut_bytes > 0 else None,
                cut_bytes=cut_bytes,
                undecidable_bytes=cut_bytes,
                restarted_offset=None if is_new else start_offset,
            ),
        )

    def _list_segments(self, bases: list[int]) -> None:
        """List the segments; each ends where the next begins. The end of the last one is unknown so far."""
        if self._log_start_offset < bases[0]:
            lost = note_lost_front(
                self._disk,
                self._directory,
                self._damage,
                log_start_offset=self._log_start_offset,
                first_base_offset=bases[0],
                now_ms=self._now_ms,
            )
            self._segments.append(lost)
        self._damage.truncate_prefix(min(bases[0], self._log_start_offset))
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
        """Tell whether nothing changed since the log was closed; if so, set the end of the last segment."""
        end = point.clean_end
        last = self._segments[-1]
        if end is None or (last.base_offset, last.size_bytes) != (end.segment_base_offset, end.segment_bytes):
            return False
        if point.flushed_offset < self._log_start_offset:
            return False
        last.end_offset = point.flushed_offset
        last.load_index(self._settings.index_interval_bytes)
        # A damaged index leads to a walk, and the walk may find another size.
        return last.size_bytes == end.segment_bytes

    def _open_clean(
        self, recovery_point: RecoveryPointFile, point: RecoveryPoint, snapshots: ProducerSnapshots
    ) -> RecoveredLog:
        """Open after a clean stop; build missing caches from headers."""
        interval_bytes = self._settings.index_interval_bytes
        log_end_offset = point.flushed_offset
        if snapshots.remove_above(log_end_offset):
            # These snapshots describe lost batches. Remove them before an append, because later batches could make them
            # look valid.
            self._disk.sync_directory(self._directory)
        found = self._read_epochs(below=log_end_offset)
        if found is not None:
            epochs, epochs_saved = found
        else:
            epochs = walk_epochs(self._segments, interval_bytes=interval_bytes)
            epochs_saved = not self._has_epoch_file and epochs.last_epoch is None
        epochs_saved = not epochs.truncate_prefix(self._log_start_offset) and epochs_saved
        producers, _ = restore_producers(
            snapshots, self._segments, newest_at=log_end_offset, interval_bytes=interval_bytes
        )
        self._damage.save()
        return self._result(
            recovery_point,
            snapshots,
            epochs=epochs,
            epochs_saved=epochs_saved,
            producers=producers,
            report=RecoveryReport(clean=True, recovery_point=log_end_offset, damaged=self._readable_damage()),
        )

    def _recover(
        self, recovery_point: RecoveryPointFile, point: RecoveryPoint | None, snapshots: ProducerSnapshots
    ) -> RecoveredLog:
        """Open after an unclean stop: steps 4 to 8."""
        interval_bytes = self._settings.index_interval_bytes
        # A lost recovery point is damage, not a new log, because it was durable before the first batch. Check
        # everything then, and truncate nothing below the last segment.
        flushed_offset = point.flushed_offset if point is not None else self._segments[-1].base_offset
        verify_from = point.flushed_offset if point is not None else 0
        first = max(
            (slot for slot, segment in enumerate(self._segments) if segment.base_offset <= verify_from), default=0
        )
        # Below the recovery point the checkpoint is complete. It has a CRC; the epoch in a header has none.
        found = self._read_epochs(below=verify_from)
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
            # Below the log start no batch must exist: a crash may bring back a removed segment alone.
            flushed_offset=flushed_offset if flushed_offset > self._log_start_offset else 0,
            verify_from=verify_from,
            interval_bytes=interval_bytes,
            visit=visit,
        )
        walk.run(before_segment)
        walk.settle(now_ms=self._now_ms)
        start_offset = self._log_start_offset
        restarted = self._segments[-1].end_offset < start_offset
        if restarted:
            producers = self._restart(snapshots)
        epochs.truncate_prefix(start_offset)
        # Before the recovery point passes them, because below it the checkpoint is complete.
        if read_lines(self._disk, self._path(EPOCH_FILE)) != epochs.encode_entries():
            replace_file(self._disk, self._path(EPOCH_FILE), encode_lines(epochs.encode_entries()))
        log_end_offset = self._segments[-1].end_offset
        if snapshots.remove_above(log_end_offset):
            # Before any append: a snapshot of lost batches must not come back.
            self._disk.sync_directory(self._directory)
        snapshots.take(producers, log_end_offset)
        recovery_point.write_synced(RecoveryPoint(flushed_offset=log_end_offset))
        return self._result(
            recovery_point,
            snapshots,
            epochs=epochs,
            epochs_saved=True,
            producers=producers,
            report=self._report(walk.findings, point, verify_from, start_offset if restarted else None),
        )

    def _restart(self, snapshots: ProducerSnapshots) -> ProducerWindows:
        """Restart empty at the log start; return the producer state there, as far as it is known."""
        start_offset = self._log_start_offset
        restart_empty(
            self._disk,
            self._directory,
            self._damage,
            self._segments,
            log_start_offset=start_offset,
            now_ms=self._now_ms,
        )
        self._damage.save()
        self._disk.sync_directory(self._directory)
        snapshots.remove_below(start_offset)
        newest = snapshots.newest(start_offset)
        return newest[1] if newest is not None else ProducerWindows()

    def _readable_damage(self) -> tuple[DamagedRange, ...]:
        return tuple(damaged for damaged in self._damage.all() if damaged.end_offset > self._log_start_offset)

    def _report(
        self, findings: WalkFindings, point: RecoveryPoint | None, verify_from: int, restarted_offset: int | None
    ) -> RecoveryReport:
        return RecoveryReport(
            recovery_point=point.flushed_offset if point is not None else None,
            scanned_from_offset=verify_from,
            scanned_bytes=findings.scanned_bytes,
            cut_offset=findings.cut_offset,
            cut_bytes=findings.cut_bytes,
            undecidable_bytes=findings.undecidable_bytes,
            restarted_offset=restarted_offset,
            damaged=self._readable_damage(),
            rebuilt_segments=tuple(findings.rebuilt_segments),
        )

    def _result(
        self,
        recovery_point: RecoveryPointFile,
        snapshots: ProducerSnapshots,
        *,
        epochs: LeaderEpochs,
        epochs_saved: bool,
        producers: ProducerWindows,
        report: RecoveryReport,
    ) -> RecoveredLog:
        last = self._segments[-1]
        first_ms = last.load_index(self._settings.index_interval_bytes).first_timestamp_ms
        if first_ms is not None and 0 <= first_ms < last.created_ms:
            # An opening must not make the segment look younger than it is; its first timestamp is the best known age.
            last.created_ms = first_ms
        last.rest()
        return RecoveredLog(
            segments=SegmentSet(self._segments),
            epochs=epochs,
            epochs_saved=epochs_saved,
            producers=producers,
            snapshots=snapshots,
            damage=self._damage,
            recovery_point=recovery_point,
            log_start_offset=self._log_start_offset,
            report=report,
        )
