# SPDX-License-Identifier: Apache-2.0
"""A log on a recorded simulated disk, with its history. The operations of the crash enumeration run on it.

Owns how each call of the log is announced to the history before it is made, and settled after it has returned. While `is_recording`,
every disk call becomes a crash point: a copy of the disk and of the history just before the call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lograft.wire.batch import encode_batch, read_header
from lograft.wire.header import PREFIX_BYTES, stamped_prefix

from integration_tests.crash.history import FIRST_TIMESTAMP_MS, History, Record, Sent
from integration_tests.crash.maintenance import begin_pass, compact_once, scrub_once
from storage.compaction.pass_ import CompactionPass
from storage.errors import DataLossError
from storage.files.names import PartitionIdentity, partition_directory_name
from storage.log.flush import FlushWork
from storage.log.partition_log import OpenedLog, PartitionLog
from storage.maintenance.repair import LogRepair, SegmentRepair
from storage.maintenance.scrub import LogScrub
from storage.testing.sim_disk import SimCall, SimDisk
from storage.testing.sim_tree import Crash
from storage.types import LogSettings

IDENTITY = PartitionIdentity(topic_id=bytes(range(16)), partition=0)
PARTITIONS = "/data/partitions"
PARTITION_NAME = partition_directory_name(IDENTITY)
LOG_DIRECTORY = f"{PARTITIONS}/{PARTITION_NAME}"
PRODUCER_ID = 1
END = SimCall(operation="the end of the operation", path="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The disk and the history just before a disk call."""

    call: SimCall
    disk: SimDisk
    history: History


class Stage:
    """A log on a simulated disk that records each disk call as a crash point.

    Args:
        settings: settings of the log.

    Attributes:
        disk: the simulated disk. `/data/partitions` exists from the start, the log from `open` on.
        history: what the log was told.
        is_recording: True while disk calls become points.
        points: the crash points so far.
        now_ms: the clock of the log, which operations move.
    """

    log: PartitionLog

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self.disk = SimDisk()
        self.disk.make_directory("/data")
        self.disk.make_directory(PARTITIONS)
        self.disk.sync_filesystem("/")
        self.disk.on_call = self._on_call
        self.history = History(compacts=settings.compact)
        self.points: list[Point] = []
        self.is_recording = False
        self.now_ms = FIRST_TIMESTAMP_MS

    def _on_call(self, call: SimCall) -> None:
        if self.is_recording:
            self.points.append(Point(call=call, disk=self.disk.fork(), history=self.history.copy()))

    def record_end(self) -> None:
        """Record the last point, after everything."""
        self._on_call(END)

    def open(self) -> OpenedLog:
        """Open the log and adopt its content."""
        opened = open_on(self.disk, self.settings, now_ms=self.now_ms)
        self.log = opened.log
        self.history.settle(self.log)
        return opened

    def append(self, count: int = 2, *, epoch: int = 0, size_bytes: int = 10, producer: bool = True) -> None:
        """Append one batch of records without keys, of producer 1 or without a producer."""
        base_offset = self.log.log_end_offset
        values = [f"{base_offset + at}-{epoch}-{len(self.points)}".encode() for at in range(count)]
        self.put([(None, value.ljust(size_bytes, b"v")) for value in values], epoch=epoch, producer=producer)

    def put(self, pairs: Sequence[tuple[bytes | None, bytes | None]], *, epoch: int = 0, producer: bool = True) -> None:
        """Append one batch of records with these keys and values."""
        history, base_offset = self.history, self.log.log_end_offset
        sequence = history.next_sequence() if producer else -1
        data = bytes(
            encode_batch(
                [value for _, value in pairs],
                keys=[key for key, _ in pairs],
                timestamps_ms=[FIRST_TIMESTAMP_MS + base_offset + at for at in range(len(pairs))],
                producer_id=PRODUCER_ID if producer else -1,
                producer_epoch=0 if producer else -1,
                base_sequence=sequence,
            )
        )
        # Announced: from here on a crash may leave the records.
        history.records |= {base_offset + at: Record(*pair, epoch) for at, pair in enumerate(pairs)}
        if producer:
            history.sent.append(Sent(data, base_offset, base_offset + len(pairs)))
        self.log.append_as_leader(bytearray(data), read_header(data), leader_epoch=epoch, now_ms=self.now_ms)
        history.written_offset = self.log.log_end_offset

    def fill(self, batches: int, *, epoch: int = 0, producer: bool = True) -> None:
        """Append some batches of two records."""
        for _ in range(batches):
            self.append(epoch=epoch, producer=producer)

    def flush(self) -> None:
        """Flush everything."""
        self.history.flushed_offset = self.log.flush()

    def begin_flush(self) -> FlushWork:
        """Begin a flush group."""
        work = self.log.begin_flush()
        assert work is not None, "there is nothing to flush"
        return work

    def end_flush(self, work: FlushWork) -> None:
        """End a flush group that has run."""
        self.history.flushed_offset = self.log.end_flush(work)

    def truncate(self, to_offset: int) -> None:
        """Drop the tail, at a batch boundary or at the log start."""
        history = self.history
        history.truncating_to = to_offset
        history.flushed_offset = min(history.flushed_offset, to_offset)
        assert self.log.truncate_suffix(to_offset) == to_offset, "cut at no boundary"
        history.truncating_to = None
        history.cut(to_offset)

    def remove(self, to_offset: int) -> None:
        """Move the log start to an offset. During the call a crash may show it; after the call it must."""
        self.history.starting_offset = to_offset
        self.log.truncate_prefix(to_offset, self.now_ms)
        self._settle_start()

    def restart(self, offset: int) -> None:
        """Restart the log empty at an offset. During the call a crash may show it; after the call it must."""
        self.history.restarting_to = offset
        self.log.restart_at(offset)
        self.history.restart(offset)

    def retain(self) -> int:
        """Apply retention to the flushed part and return the number of removed segments."""
        first_point = len(self.points)
        self.history.starting_offset = self.log.flushed_offset
        removed = self.log.apply_retention(self.log.flushed_offset, self.now_ms)
        self._settle_start()
        for point in self.points[first_point:]:
            # A crash during retention may show exactly its result, because it removes nothing else on the way.
            point.history.starting_offset = self.history.start_offset
        return removed

    def _settle_start(self) -> None:
        history = self.history
        history.start_offset = history.starting_offset = self.log.log_start_offset

    def seal(self) -> None:
        """Roll the active segment and flush, so that a pass, a scrub or retention covers everything written."""
        self.now_ms += 2 * self.settings.segment_ms
        assert self.log.roll_if_due(self.now_ms), "there is nothing to roll"
        self.flush()

    def begin_pass(self) -> CompactionPass:
        """Begin a compaction pass. The log must be due."""
        return begin_pass(self.log, now_ms=self.now_ms)

    def compact(self) -> None:
        """Run one whole pass with its swaps."""
        compact_once(self.log, now_ms=self.now_ms)

    def scrub(self) -> None:
        """Check and seal every sealed segment."""
        scrub = LogScrub(self.log)
        for _ in range(self.log.segment_count - 1):
            scrub_once(scrub, self.log, now_ms=self.now_ms, interval_ms=1)

    def damage(self, sent: Sent) -> None:
        """Change a byte of a flushed batch behind the log's back, not yet detected."""
        for name in self.disk.list_directory(LOG_DIRECTORY):
            path = f"{LOG_DIRECTORY}/{name}"
            at = self.disk.read_file(path).find(sent.data[21:]) if name.endswith(".log") else -1
            if at >= 0:
                last = at + len(sent.data) - 22
                self.disk.corrupt(path, last, bytes([self.disk.read_file(path)[last] ^ 0x10]))
                self.history.lost = (sent.base_offset, sent.next_offset)
                return
        raise AssertionError("the batch stands nowhere")

    def notice(self) -> None:
        """Detect the damage by a read of the batch."""
        try:
            self.log.read(self.history.lost[0], 1)
        except DataLossError:
            return
        raise AssertionError("the damage was not seen")

    def repair(self) -> None:
        """Repair the damage with the batches that were written there. After the call they can be read again."""
        owner = LogRepair(self.log)
        task = owner.begin(high_watermark=self.log.flushed_offset, now_ms=self.now_ms)
        assert task is not None, "there is nothing to repair"
        work = SegmentRepair(self.disk, task, lambda _: None)
        work.start()
        while (wanted := work.wanted) is not None:
            sent = next(each for each in self.history.sent if each.base_offset == wanted.start)
            epoch = self.history.records[wanted.start].epoch
            prefix = stamped_prefix(wanted.start, read_header(sent.data).batch_length, epoch)
            work.put(prefix + sent.data[PREFIX_BYTES:])
        assert owner.end(work.finish(), now_ms=self.now_ms), "the segment changed meanwhile"
        self.history.lost = (0, 0)

    def close(self, *, clean: bool) -> None:
        """Close the log."""
        self.log.close(clean=clean)
        if clean:
            self.history.flushed_offset = self.log.log_end_offset

    def crash(self, how: Crash, seed: int = 0) -> None:
        """Lose power, or the process. `open` must come next."""
        self.disk.crash(how, random.Random(seed))
        if how is not Crash.KEEP_ALL:
            self.history.written_offset = self.history.flushed_offset


def open_on(disk: SimDisk, settings: LogSettings, *, now_ms: int) -> OpenedLog:
    """Open the log of a stage's disk."""
    return PartitionLog.open(disk, LOG_DIRECTORY, settings=settings, now_ms=now_ms, identity=IDENTITY)
