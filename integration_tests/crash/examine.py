# SPDX-License-Identifier: Apache-2.0
"""Opens a damaged log, reads everything by offset and by time, and compares it with what was written.

Laws
    1. The engine answers or raises a `StorageError`, and no other error.
    2. What it serves is what was written at these offsets, byte for byte.
    3. Every offset below the flushed offset is served or reported as lost. There is no gap, and nothing comes after the end.
    4. A batch is reported as lost only if its bytes changed. Two exceptions: a batch whose next batch changed too may be lost with it,
       because a batch counts as whole only if the next one, or the end, comes right after it. So may a batch behind one that moved.
    5. Damage to a cache loses nothing and makes no look-up wrong: neither times, nor epochs, nor producer state.
    6. The log continues: appends, flushes and later openings report the old content as before.

Some cases are counted separately, because no CRC can detect them: the four bytes of a leader epoch; the eight of a base offset if the
previous batch is damaged too; a whole older batch at its own offset (a lost write; only laws 1 and 2 hold for such logs); data above
the recovery point at the end of the process; and a log start that went back with its file.
Source: docs/storage.md sections 2 and 9; docs/storage_format.md section 6.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lograft.wire.batch import encode_batch, read_header

from integration_tests.crash.maintenance import scrub_all
from integration_tests.crash.templates import NOW_MS, Placed, Template, open_log
from storage.errors import CorruptLogError, DataLossError, StorageError
from storage.files.checkpoints import read_lines
from storage.files.names import EPOCH_FILE, LOG_START_FILE, LOG_SUFFIX, RECOVERY_POINT_FILE, SWAP_SUFFIX
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.log.recovery_point import decode_slots
from storage.types import Appended, TimestampAndOffset

EPOCH_START, EPOCH_END = 12, 16
"""First byte and end (exclusive) of the leader epoch in a batch header."""
OLDER = "an older whole batch in its place"
OFFSET_BYTES = 8
"""Size of the base offset, which is at the start of a batch."""
EPOCH_LOST = "leader epoch not as written"
OFFSET_LOST = "base offset not as written, beside damage"
START_LOST = "log start went back: its file is damaged, or an older one"
SEGMENTS_OVERLAP = "the next one starts at"
"""Text with which the log refuses segments that overlap."""
LOOK_UPS = 5
READ_BYTES = (1, 500, 5_000, 1_000_000)


@dataclass(slots=True, kw_only=True)
class Examined:
    """The result for one damaged directory: broken laws, and counts."""

    problems: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True, kw_only=True)
class _Seen:
    """One reading of everything: served batches by base offset, and ranges reported as lost."""

    served: dict[int, bytes] = field(default_factory=dict[int, bytes])
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


class Examination:
    """The examination of one damaged copy of a template.

    Args:
        template: what was written.
        path: the damaged copy.
        damaged_files: names of the files whose bytes changed.
        rng: draws the order and the look-ups.
    """

    def __init__(self, template: Template, path: Path, damaged_files: set[str], rng: random.Random) -> None:
        self._template = template
        self._path = path
        self._damaged_files = damaged_files
        self._rng = rng
        self._by_offset = {placed.batch.header.base_offset: placed for placed in template.placed}
        self._contents = {file.name: file.read_bytes() for file in path.glob(f"*{LOG_SUFFIX}")}
        # A finished swap renames these files to the names of their originals.
        for file in path.glob(f"*{SWAP_SUFFIX}"):
            self._contents[file.name.partition("-")[0] + LOG_SUFFIX] = file.read_bytes()
        self._touched = {offset for offset, placed in self._by_offset.items() if self._is_touched(placed)}
        self._promised_end = self._promise()
        epochs = read_lines(PosixDisk(), str(path / EPOCH_FILE))
        self._has_stale_epochs = EPOCH_FILE in damaged_files and epochs is not None
        self._added: dict[int, bytes] = {}
        self.result = Examined()

    def _is_touched(self, placed: Placed) -> bool:
        content = self._contents.get(placed.file_name, b"")
        return content[placed.position : placed.end_position] != placed.batch.data

    def _promise(self) -> int:
        """Return the offset (exclusive) below which nothing may be missing without a report.

        A damaged log that has also lost its recovery point promises only the data below its last segment.
        """
        flushed_offset = self._template.flushed_offset
        if RECOVERY_POINT_FILE not in self._damaged_files or not self._touched:
            return flushed_offset
        path = self._path / RECOVERY_POINT_FILE
        point = decode_slots(path.read_bytes())[1] if path.exists() else None
        last_segment = max(map(_base_of, self._contents), default=0)
        return min(flushed_offset, point.flushed_offset if point is not None else last_segment)

    def run(self) -> Examined:
        """Examine the copy. Never raises, whatever the log does."""
        try:
            self._examine()
        except CorruptLogError as error:
            if SEGMENTS_OVERLAP in str(error):
                # An older, longer state of a segment. No crash leaves that behind, and the log refuses it.
                self.result.counts["refused: segments overlap"] += 1
            else:
                self._broken(f"the log is refused as a whole: {type(error).__name__}: {error}")
        except StorageError as error:
            self._broken(f"the log is refused as a whole: {type(error).__name__}: {error}")
        except Exception as error:
            self._broken(f"the engine crashed: {type(error).__name__}: {error}")
        return self.result

    def _broken(self, problem: str) -> None:
        self.result.problems.append(problem)

    def _examine(self) -> None:
        log = open_log(self._path)
        if self._rng.randrange(2):
            self._try_look_ups(log)
        if self._rng.randrange(2):
            scrub_all(log, now_ms=NOW_MS)
        seen = self._read_all(log)
        self._compare(log, seen)
        if self.result.counts[OLDER] or self.result.counts[OFFSET_LOST]:
            return
        self._check_look_ups(log, seen)
        if not seen.lost and log.log_end_offset >= self._template.end_offset:
            self._check_epochs(log, seen)
            self._check_windows(log)
        self._live_on(log, seen)

    def _read_all(self, log: PartitionLog) -> _Seen:
        """Read like a client that accepts losses."""
        seen = _Seen()
        position = log.log_start_offset
        max_bytes = self._rng.choice(READ_BYTES)
        while position < log.log_end_offset:
            try:
                chunk = log.read(position, max_bytes)
            except DataLossError as loss:
                if not loss.base_offset <= position < loss.end_offset:
                    self._broken(f"a read at {position} reports [{loss.base_offset}, {loss.end_offset}) as lost")
                    return seen
                seen.lost.append((position, loss.end_offset))
                position = loss.end_offset
                continue
            at = 0
            while at < len(chunk.data):
                header = read_header(chunk.data, at)
                is_first = position == log.log_start_offset and header.base_offset <= position
                if (header.base_offset != position and not is_first) or header.next_offset <= position:
                    self._broken(f"a read at {position} returns {header}")
                    return seen
                seen.served[header.base_offset] = chunk.data[at : at + header.size_bytes]
                at += header.size_bytes
                position = header.next_offset
            if at != len(chunk.data) or chunk.next_offset != position or not chunk.data:
                self._broken(f"a read that reaches {position} ends with {len(chunk.data)} bytes at {chunk.next_offset}")
                return seen
        return seen

    def _compare(self, log: PartitionLog, seen: _Seen) -> None:
        """Compare the served and the lost batches with what was written."""
        template, counts = self._template, self.result.counts
        if log.log_start_offset != template.start_offset:
            if LOG_START_FILE in self._damaged_files and log.log_start_offset < template.start_offset:
                counts[START_LOST] += 1
            else:
                self._broken(f"the log starts at {log.log_start_offset}, not at {template.start_offset}")
        if log.log_end_offset < self._promised_end:
            self._broken(f"[{log.log_end_offset}, {self._promised_end}) was flushed and is gone, unreported")
        for offset, data in seen.served.items():
            self._compare_batch(offset, data)
        end_offset = max([template.end_offset, *(offset + 1 for offset in self._added)])
        if log.log_end_offset > end_offset and not counts[OFFSET_LOST]:
            self._broken(f"the log ends at {log.log_end_offset}, only {end_offset} was written")
        if counts[OLDER] or counts[OFFSET_LOST]:
            # The log continues where it ends, so later content does not fit. No CRC can detect the loss there.
            return
        for offset, placed in self._by_offset.items():
            if offset in seen.served or placed.batch.header.next_offset <= log.log_start_offset:
                continue
            if offset >= log.log_end_offset:
                counts["cut above the recovery point"] += 1
            elif not any(start <= max(offset, log.log_start_offset) < end for start, end in seen.lost):
                self._broken(f"offset {offset} is neither served nor reported as lost")
            else:
                self._judge_loss(placed, seen)

    def _compare_batch(self, offset: int, data: bytes) -> None:
        counts = self.result.counts
        placed = self._by_offset.get(offset)
        written = self._added.get(offset) if placed is None else placed.batch.data
        if data == written:
            counts["intact batches"] += 1
        elif written is not None and _without_epoch(data) == _without_epoch(written):
            counts[EPOCH_LOST] += 1
        elif data in self._template.older_batches:
            counts[OLDER] += 1
        elif self._has_moved_beside_damage(data):
            counts[OFFSET_LOST] += 1
        else:
            self._broken(f"wrong bytes are served at {offset}: {read_header(data)}")

    def _has_moved_beside_damage(self, data: bytes) -> bool:
        """Return True if a batch is served at another offset because its own offset and the previous batch changed."""
        body = _without_epoch(data)[OFFSET_BYTES:]
        for offset in self._touched:
            if _without_epoch(self._by_offset[offset].batch.data)[OFFSET_BYTES:] == body:
                before = max((each for each in self._by_offset if each < offset), default=None)
                return before is None or before in self._touched or self._is_known_loss(before)
        return False

    def _judge_loss(self, placed: Placed, seen: _Seen) -> None:
        header = placed.batch.header
        behind = self._by_offset.get(header.next_offset)
        if header.base_offset in self._touched or self._is_known_loss(header.base_offset):
            self.result.counts["lost batches"] += 1
        elif header.base_offset >= self._promised_end:
            self.result.counts["lost above the recovery point"] += 1
        elif (
            behind is None
            or header.next_offset in self._touched
            or self._is_known_loss(header.next_offset)
            or self._has_garbage_behind(placed)
        ):
            self.result.counts["intact batches lost with the one behind"] += 1
        elif self._is_beside_misplaced(placed, seen):
            self.result.counts["intact batches lost beside a misplaced one"] += 1
        else:
            self._broken(f"[{header.base_offset}, {header.next_offset}) is whole and reported as lost")

    def _has_garbage_behind(self, placed: Placed) -> bool:
        """Return True if a batch is the last one of its file, and other bytes follow it."""
        is_last = all(
            other.position <= placed.position
            for other in self._by_offset.values()
            if other.file_name == placed.file_name
        )
        return is_last and len(self._contents.get(placed.file_name, b"")) > placed.end_position

    def _is_beside_misplaced(self, placed: Placed, seen: _Seen) -> bool:
        """Return True if a batch of the same file is served although its place was damaged, because a moved sector has it."""
        return any(
            offset in seen.served and self._by_offset[offset].file_name == placed.file_name for offset in self._touched
        )

    def _is_known_loss(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._template.known_lost)

    def _draw_look_ups(self, log: PartitionLog) -> list[tuple[int, int]]:
        newest_ms = max(max(placed.batch.timestamps_ms, default=0) for placed in self._template.placed)
        return [
            (self._rng.randint(900, newest_ms + 5), self._rng.choice((log.log_end_offset, log.log_end_offset // 2)))
            for _ in range(LOOK_UPS)
        ]

    def _try_look_ups(self, log: PartitionLog) -> None:
        """Look up times before anything is read. The results are compared later, when the damage is known."""
        for timestamp_ms, end_offset in self._draw_look_ups(log):
            log.find_timestamp(timestamp_ms, end_offset=end_offset)

    def _check_look_ups(self, log: PartitionLog, seen: _Seen) -> None:
        for timestamp_ms, end_offset in self._draw_look_ups(log):
            found = log.find_timestamp(timestamp_ms, end_offset=end_offset)
            expected = self._first_served(log, seen, timestamp_ms, end_offset)
            if found != expected:
                self._broken(f"look-up of {timestamp_ms} below {end_offset} finds {found}, not {expected}")

    def _first_served(
        self, log: PartitionLog, seen: _Seen, timestamp_ms: int, end_offset: int
    ) -> TimestampAndOffset | None:
        """Return the first record at or after a time among all served batches."""
        for offset in sorted(seen.served):
            placed = self._by_offset.get(offset)
            if placed is None or placed.batch.header.is_control:
                continue
            for record in placed.batch.records:
                if record.timestamp_ms >= timestamp_ms and log.log_start_offset <= record.offset < end_offset:
                    return TimestampAndOffset(record.timestamp_ms, record.offset)
        return None

    def _check_epochs(self, log: PartitionLog, seen: _Seen) -> None:
        is_stale = (
            EPOCH_FILE in self._damaged_files and read_lines(PosixDisk(), str(self._path / EPOCH_FILE)) is not None
        )
        if is_stale:
            self.result.counts["leader epochs not asked: their checkpoint is an older one"] += 1
        if (
            self._has_stale_epochs
            or self.result.counts[EPOCH_LOST]
            or (EPOCH_FILE in self._damaged_files and self._touched)
        ):
            return
        for offset, placed in self._by_offset.items():
            epoch = placed.batch.header.leader_epoch
            asked = max(offset, self._template.start_offset)
            if asked < placed.batch.header.next_offset and log.epoch_at(asked) != epoch:
                self._broken(f"offset {asked} has epoch {log.epoch_at(asked)}, not {epoch}")
                return

    def _check_windows(self, log: PartitionLog) -> None:
        """Check that no producer state was lost: every batch of it is recognised when it is sent again."""
        epoch = log.last_epoch or 0
        for batch in self._template.windows:
            header = batch.header
            appended = log.append_as_leader(batch.data, header, leader_epoch=epoch, now_ms=NOW_MS)
            if appended != Appended(header.base_offset, header.next_offset, True):
                self._broken(f"producer {header.producer_id} sends {header.base_sequence} again: {appended}")
                return

    def _live_on(self, log: PartitionLog, seen: _Seen) -> None:
        """Append, flush, stop cleanly or not, and open: the same batches are served, the same are lost."""
        if self.result.problems:
            log.close(clean=False)
            return
        batch = encode_batch([b"afterwards"], timestamps_ms=1)
        try:
            appended = log.append_as_leader(batch, read_header(batch), leader_epoch=log.last_epoch or 0, now_ms=NOW_MS)
        except StorageError as error:
            self._broken(f"what is not damaged is served, but an append is refused: {type(error).__name__}: {error}")
            log.close(clean=False)
            return
        log.flush()
        log.close(clean=self._rng.randrange(2) == 0)
        again = open_log(self._path)
        seen_again = self._read_all(again)
        again.close(clean=False)
        added = seen_again.served.pop(appended.base_offset, b"")
        if b"afterwards" not in added:
            self._broken(f"what was appended at {appended.base_offset} afterwards is not there")
        if seen_again.served != seen.served:
            self._broken("after another open something else is served")
        if _merged(seen_again.lost) != _merged(seen.lost):
            self._broken(f"after another open {seen_again.lost} is lost, not {seen.lost}")


def _base_of(file_name: str) -> int:
    return int(file_name.partition(".")[0])


def _without_epoch(data: bytes) -> bytes:
    return data[:EPOCH_START] + data[EPOCH_END:]


def _merged(ranges: list[tuple[int, int]]) -> set[int]:
    """Return all offsets of the ranges. Two ranges that touch are the same loss as one."""
    return {offset for start, end in ranges for offset in range(start, end)}
