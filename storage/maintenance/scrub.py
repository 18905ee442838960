# SPDX-License-Identifier: Apache-2.0
"""Verifies sealed segments, beside the owner of their log and at a limited rate.

Design
    The owner describes a segment in a `ScrubWork` (`LogScrub.begin`). Any thread calls its `run`, which opens the file
    a second time. It reads in steps of at most 1 MiB, and each step waits for the `RateLimit`. Without a matching seal,
    it verifies every batch and proposes a seal. With one, it compares chunks. If a chunk differs, it verifies the
    batches and also their leader epochs, which no CRC covers: the seal proves that these bytes changed. The owner
    applies the result (`LogScrub.end`).

Laws
    `run` changes nothing. It proposes a seal only for a segment without new damage, and only from the bytes that it
    verified.
    The owner applies a result only if the segment and the judged bytes are unchanged. So it never quarantines bytes
    that were truncated, compacted or rewritten in the meantime.
    The owner records damage before it seals anything.
    Only memory knows when each segment was checked: after a start all are due.

State: the owner of the log calls `LogScrub`; only `ScrubWork.run` runs elsewhere.
Source: docs/storage.md, section 5; Bairavasundaram et al., "An Analysis of Latent Sector Errors" (SIGMETRICS 2007).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from lograft.wire.checksum import crc32c
from lograft.wire.limits import MAX_BATCH_BYTES

from storage.errors import DiskFullError, FileMissingError, StorageError
from storage.files.checkpoints import replace_file
from storage.files.descriptor_cache import disk_under
from storage.files.disk import Disk, File
from storage.files.names import SEAL_SUFFIX, offset_file_name
from storage.files.rate_limit import RateLimit, WorkStopped
from storage.files.read_only import ReadOnlyFile
from storage.log.epochs import EpochStart, LeaderEpochs, epoch_fits
from storage.log.partition_log import PartitionLog
from storage.segment.damage import DamagedRanges
from storage.segment.seal import (
    NO_TIMESTAMP_MS,
    SEAL_CHUNK_BYTES,
    MalformedSealError,
    Seal,
    chunk_count,
    decode_seal,
    differing_chunks,
    encode_seal,
)
from storage.segment.segment import Segment
from storage.segment.segment_check import BadBytes, CheckedBatch, check_segment
from storage.types import DamagedRange

CHUNKS_KEPT = MAX_BATCH_BYTES // SEAL_CHUNK_BYTES + 2
"""Chunks of 1 MiB that a scrub holds in memory, so that it reads each chunk once. The largest batch may touch one more chunk than
its size needs, and so may a read ahead."""

JUDGED_BYTES = 64 * 1024
"""The owner compares this many first bytes of a damaged range with what the scrub saw."""


class _ChunkReader(ReadOnlyFile):
    """Serves reads from whole chunks, and keeps the CRC of each chunk from its first read."""

    def __init__(self, file: File, size_bytes: int, rate: RateLimit) -> None:
        super().__init__(file.path, min(file.size, size_bytes))
        self._file = file
        self._rate = rate
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._crcs: dict[int, int] = {}
        self.read_bytes = 0

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`."""
        end = min(position + size_bytes, self.size)
        pieces: list[bytes] = []
        while position < end:
            number, at = divmod(position, SEAL_CHUNK_BYTES)
            piece = self._chunk(number)[at : at + end - position]
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)

    def crcs(self) -> tuple[int, ...]:
        """Return the CRCs of all chunks, ascending; read the chunks that were not read yet."""
        for number in range(chunk_count(self.size)):
            if number not in self._crcs:
                self._chunk(number)
        return tuple(self._crcs[number] for number in range(chunk_count(self.size)))

    def _chunk(self, number: int) -> bytes:
        data = self._chunks.get(number)
        if data is None:
            position = number * SEAL_CHUNK_BYTES
            size_bytes = min(SEAL_CHUNK_BYTES, self.size - position)
            self._rate.take(size_bytes)
            data = self._file.pread(size_bytes, position)
            self.read_bytes += len(data)
            self._crcs.setdefault(number, crc32c(data))
            self._chunks[number] = data
            if len(self._chunks) > CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubTask:
    """A sealed segment as it was when the scrub began; a value, so that the thread shares nothing with the owner.

    Attributes:
        path: path of its log file.
        seal_path: path of its seal.
        base_offset: its first offset, inclusive.
        end_offset: its end, exclusive.
        size_bytes: size of its log file.
        sealed_version: `PartitionLog.sealed_version`.
        known: its known damaged ranges, ascending.
        epochs: the leader epochs of the log.
    """

    path: str
    seal_path: str
    base_offset: int
    end_offset: int
    size_bytes: int
    sealed_version: int
    known: tuple[DamagedRange, ...]
    epochs: tuple[EpochStart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDamage:
    """A damaged range, and the CRC-32C of its first `JUDGED_BYTES` as the scrub read them."""

    damaged: DamagedRange
    head_crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubResult:
    """The result of one scrub of one segment.

    Attributes:
        compared: True if a matching seal was compared; False if every batch was verified because there was none.
        read_bytes: bytes read from the log file.
        found: new damage, ascending.
        seal: the seal to write; None if the present one is valid, or there is damage.
    """

    compared: bool
    read_bytes: int
    found: tuple[FoundDamage, ...]
    seal: Seal | None


def scrub_segment(disk: Disk, task: ScrubTask, rate: RateLimit) -> ScrubResult:
    """Check one segment without changing anything.

    Raises:
        WorkStopped: the work must end.
        FileMissingError: the segment was removed in the meantime.
        DiskReadError, DiskAccessError, TooManyOpenFilesError: it cannot be read.
    """
    # This descriptor stays open: the path could name another file later.
    file = disk_under(disk).open_file(task.path)
    try:
        seal = _read_seal(disk, task)
        differing: frozenset[int] = frozenset()
        read_bytes = 0
        if seal is not None:
            chunks = _ChunkReader(file, task.size_bytes, rate)
            differing = frozenset(differing_chunks(seal, chunks.crcs()))
            read_bytes = chunks.read_bytes
            if not differing:
                return ScrubResult(compared=True, read_bytes=read_bytes, found=(), seal=None)
        chunks = _ChunkReader(file, task.size_bytes, rate)
        found, max_timestamp_ms = _verify(chunks, task, differing)
        new_seal = None
        if not found and chunks.size == task.size_bytes:
            new_seal = Seal(
                log_bytes=task.size_bytes,
                end_offset=task.end_offset,
                max_timestamp_ms=max_timestamp_ms,
                chunk_crcs=chunks.crcs(),
            )
        return ScrubResult(
            compared=seal is not None, read_bytes=read_bytes + chunks.read_bytes, found=tuple(found), seal=new_seal
        )
    finally:
        file.close()


def _read_seal(disk: Disk, task: ScrubTask) -> Seal | None:
    """Return the matching seal, or None."""
    try:
        seal = decode_seal(disk.read_file(task.seal_path))
    except (FileMissingError, MalformedSealError):
        return None
    return seal if seal.fits(log_bytes=task.size_bytes, end_offset=task.end_offset) else None


def _verify(chunks: _ChunkReader, task: ScrubTask, differing: frozenset[int]) -> tuple[list[FoundDamage], int]:
    """Verify every batch; return new damage and the largest timestamp."""
    epochs = LeaderEpochs(task.epochs)
    found: list[FoundDamage] = []
    max_timestamp_ms = NO_TIMESTAMP_MS
    for piece in check_segment(
        chunks,
        base_offset=task.base_offset,
        end_offset=task.end_offset,
        required_end=task.end_offset,
        size_bytes=chunks.size,
        known=task.known,
        keeps_end=True,
    ):
        if isinstance(piece, BadBytes):
            found.append(_found(chunks, task, *piece.start, *piece.end))
        elif isinstance(piece, CheckedBatch):
            position, header = piece
            end_position = position + header.size_bytes
            max_timestamp_ms = max(max_timestamp_ms, header.max_timestamp_ms)
            changed = any(number in differing for number in _chunks_of(position, end_position))
            if changed and not epoch_fits(epochs, header):
                found.append(_found(chunks, task, header.base_offset, position, header.next_offset, end_position))
    return found, max_timestamp_ms


def _chunks_of(position: int, end_position: int) -> range:
    return range(position // SEAL_CHUNK_BYTES, (end_position - 1) // SEAL_CHUNK_BYTES + 1)


def _found(
    file: File, task: ScrubTask, base_offset: int, position: int, end_offset: int, end_position: int
) -> FoundDamage:
    damaged = DamagedRange(
        segment_base_offset=task.base_offset,
        base_offset=base_offset,
        end_offset=end_offset,
        position=position,
        end_position=end_position,
    )
    return FoundDamage(damaged=damaged, head_crc=head_crc_of(file, damaged))


def head_crc_of(file: File, damaged: DamagedRange) -> int:
    """Return the CRC of the first bytes of a damaged range; if its bytes are missing, of the bytes that follow."""
    size_bytes = min(damaged.end_position - damaged.position, JUDGED_BYTES) or JUDGED_BYTES
    return crc32c(file.pread(size_bytes, damaged.position))


class ScrubWork:
    """One scrub of one segment: the owner makes it, any thread runs it once, and the owner takes it back.

    Attributes:
        task: the segment.
        segment: the owner's object; the thread does not touch it.
        result: the result; None before `run`, after an error, and if the scrub was stopped.
        error: why the segment could not be read; None otherwise.
    """

    __slots__ = ("_disk", "error", "result", "segment", "task")

    def __init__(self, disk: Disk, task: ScrubTask, segment: Segment) -> None:
        self._disk = disk
        self.task = task
        self.segment = segment
        self.result: ScrubResult | None = None
        self.error: StorageError | None = None

    def run(self, rate: RateLimit) -> None:
        """Check the segment, or return early if `rate` says so. Errors of the disk go to `error`."""
        try:
            self.result = scrub_segment(self._disk, self.task, rate)
        except WorkStopped:
            return
        except StorageError as error:
            self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOutcome:
    """What the owner did with the result of a scrub.

    Attributes:
        damaged: ranges that were quarantined now.
        sealed: True if a seal was written.
        stale: True if nothing was done, because the segment changed or was removed, or the scrub did not end.
    """

    damaged: tuple[DamagedRange, ...] = ()
    sealed: bool = False
    stale: bool = False


class LogScrub:
    """The owner's side of the scrub of one log: chooses the next segment, and applies results.

    Args:
        log: the log, which quarantines damage.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._checked_ms: dict[int, int] = {}

    def begin(self, *, flushed_offset: int, now_ms: int, interval_ms: int) -> ScrubWork | None:
        """Make the work for the sealed segment with the oldest check; None if none is due.

        Args:
            flushed_offset: segments that end beyond it are skipped, because a crash may still change them.
            now_ms: the owner's clock in milliseconds.
            interval_ms: time from the last check until a segment is due; a segment that this process never checked is
                due now.
        """
        log = self._log
        sealed = log.segments.sealed()
        present = {segment.base_offset for segment in sealed}
        self._checked_ms = {base: ms for base, ms in self._checked_ms.items() if base in present}
        due = [
            (self._checked_ms.get(segment.base_offset, -1), segment.base_offset, segment)
            for segment in sealed
            if segment.end_offset <= flushed_offset
            and self._checked_ms.get(segment.base_offset, now_ms - interval_ms) <= now_ms - interval_ms
        ]
        if not due:
            return None
        segment = min(due)[2]
        task = ScrubTask(
            path=segment.path,
            seal_path=f"{log.directory}/{offset_file_name(segment.base_offset, SEAL_SUFFIX)}",
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            sealed_version=log.sealed_version,
            known=tuple(segment.damages()),
            epochs=tuple(log.epochs.entries()),
        )
        return ScrubWork(log.disk, task, segment)

    def end(self, work: ScrubWork, *, flushed_offset: int, now_ms: int) -> ScrubOutcome:
        """Apply the result of a scrub: quarantine damage, write the seal.

        A read error of the scrub counts as a check, so that one bad file does not delay the others; the caller must
        look at `work.error`.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        task, segment, result = work.task, work.segment, work.result
        if result is None or not self._is_same(segment, task):
            if work.error is not None:
                self._checked_ms[task.base_offset] = now_ms
            return ScrubOutcome(stale=True)
        self._checked_ms[task.base_offset] = now_ms
        found = tuple(
            each.damaged
            for each in result.found
            if not _overlaps(self._log.damage, each.damaged)
            and head_crc_of(segment.file, each.damaged) == each.head_crc
        )
        if found:
            self._log.quarantine(segment, found, flushed_offset=flushed_offset)
        sealed = result.seal is not None and self._write_seal(task.seal_path, result.seal)
        return ScrubOutcome(damaged=found, sealed=sealed)

    def _is_same(self, segment: Segment, task: ScrubTask) -> bool:
        """Tell whether the segment is still there, and sealed ever since.

        If a truncation made it active, appends may have given it the same size and end again.
        """
        return (
            segment is self._log.segments.holding(task.base_offset) and task.sealed_version == self._log.sealed_version
        )

    def _write_seal(self, path: str, seal: Seal) -> bool:
        """Write the seal without a sync; it has a CRC and can be made again. False if the disk is full."""
        try:
            replace_file(self._log.disk, path, encode_seal(seal), durable=False)
        except DiskFullError:
            return False
        return True


def _overlaps(damage: DamagedRanges, damaged: DamagedRange) -> bool:
    """Tell whether a range, or a part of it, is quarantined already."""
    return any(
        known.base_offset < damaged.end_offset and damaged.base_offset < known.end_offset
        for known in damage.of_segment(damaged.segment_base_offset)
    )
