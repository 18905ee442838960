# SPDX-License-Identifier: Apache-2.0
"""What one log was told, and the laws that it must keep after any crash: the oracle of the crash enumeration. Does no I/O of its own.

Laws after an opening
    1. Only damaged data is called damaged, and nothing is left of an interrupted step.
    2. The log start is one that was answered, or that a removal under way may cause. It never goes back.
    3. Every offset from log start to log end is covered by exactly one batch. What was acknowledged as flushed (after the end of a
       process: what was written) exists, unless an operation removed it.
    4. The content of an offset was written there. What a truncation dropped does not come back after it has returned.
       A restart under way may instead leave an empty log at its offset.
    5. In a compacted log the newest record of each key exists or was deleted. Nothing deleted comes back.
    6. Leader epochs, look-ups by time and producer state match what was written. A scrub finds nothing.
Source: docs/storage.md sections 2, 3, 6 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from lograft.wire.batch import iter_batches, read_batches, read_header
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from integration_tests.crash.maintenance import scrub_once
from storage.errors import DataLossError
from storage.log.partition_log import OpenedLog, PartitionLog
from storage.maintenance.scrub import LogScrub
from storage.types import Appended

LEFTOVERS = (".swap", ".cleaned", ".deleted", ".restart", ".tmp")
"""Suffixes of names that must not exist after an opening."""
FIRST_TIMESTAMP_MS = 1_000
"""The record at offset n has the timestamp FIRST_TIMESTAMP_MS + n."""
SECOND_LIFE_EPOCH = 99
READ_BYTES = 300
SCRUB_INTERVAL_MS = 1_000_000
READS_KEPT = 4_096
"""Number of answers to reads whose records are remembered."""


class Record(NamedTuple):
    """One record as it was written: key, value (None: a tombstone), leader epoch."""

    key: bytes | None
    value: bytes | None
    epoch: int


class Sent(NamedTuple):
    """One batch of the idempotent producer: its bytes as sent, and its offsets (end exclusive)."""

    data: bytes
    base_offset: int
    next_offset: int


@dataclass(slots=True, kw_only=True)
class History:
    """Everything that one log was told; `copy` it at each crash point.

    Attributes:
        records: the present content by offset, including records that were compacted or removed below the log start.
        sent: batches of producer 1, ascending.
        flushed_offset: end of what was acknowledged as flushed, exclusive.
        written_offset: minimum log end after the end of a process, exclusive.
        start_offset: the last answered log start, inclusive.
        starting_offset: the highest log start that a removal under way may cause; else `start_offset`.
        truncating_to: target of a truncation under way; None: none is.
        restarting_to: offset of a restart under way; None: none is.
        compacts: True if newer records of a key may replace older ones.
        lost: offsets that were damaged behind the log's back (first, end); empty if none.
        is_set_aside: True after the irreversible step of a directory operation has returned.
    """

    records: dict[int, Record] = field(default_factory=dict[int, Record])
    sent: list[Sent] = field(default_factory=list[Sent])
    flushed_offset: int = 0
    written_offset: int = 0
    start_offset: int = 0
    starting_offset: int = 0
    truncating_to: int | None = None
    restarting_to: int | None = None
    compacts: bool = False
    lost: tuple[int, int] = (0, 0)
    is_set_aside: bool = False

    def copy(self) -> History:
        """Return a copy that shares no mutable state."""
        return replace(self, records=dict(self.records), sent=list(self.sent))

    @property
    def end_offset(self) -> int:
        """End of everything written or under way, exclusive."""
        return max(self.records, default=self.start_offset - 1) + 1

    def least_end(self, *, everything_kept: bool) -> int:
        """Return the minimum log end after a crash."""
        least = self.written_offset if everything_kept else self.flushed_offset
        return least if self.truncating_to is None else min(least, self.truncating_to)

    def cut(self, to_offset: int) -> None:
        """Forget everything from an offset on."""
        self.records = {offset: record for offset, record in self.records.items() if offset < to_offset}
        self.sent = [sent for sent in self.sent if sent.next_offset <= to_offset]
        self.flushed_offset = min(self.flushed_offset, to_offset)
        self.written_offset = min(self.written_offset, to_offset)

    def restart(self, offset: int) -> None:
        """Forget everything: the log restarts empty at an offset."""
        self.records, self.sent, self.lost = {}, [], (0, 0)
        self.flushed_offset = self.written_offset = self.start_offset = self.starting_offset = offset
        self.truncating_to = self.restarting_to = None

    def settle_restart(self, log: PartitionLog, *, everything_kept: bool) -> None:
        """Apply a restart under way if the opening found its result."""
        to_offset, self.restarting_to = self.restarting_to, None
        start, end = log.log_start_offset, log.log_end_offset
        is_old = start == self.start_offset and end >= self.least_end(everything_kept=everything_kept)
        if to_offset is not None and start == end == to_offset and not is_old:
            self.restart(to_offset)

    def settle(self, log: PartitionLog) -> None:
        """Adopt what an opening found: all of it is on stable storage."""
        self.cut(log.log_end_offset)
        self.truncating_to = None
        self.flushed_offset = self.written_offset = log.log_end_offset
        self.start_offset = self.starting_offset = log.log_start_offset

    def next_sequence(self) -> int:
        """Return the next sequence of producer 1."""
        return read_header(self.sent[-1].data).last_sequence + 1 if self.sent else 0

    def knows_producer(self) -> bool:
        """Return True if the newest batch of producer 1 is in the log. Then the log must have its producer state."""
        return not self.sent or self.sent[-1].base_offset >= self.start_offset


def check_opened(opened: OpenedLog, names: list[str], history: History, *, everything_kept: bool) -> None:
    """Check the log after an opening.

    Args:
        opened: the log and its report.
        names: the present names in its directory.
        history: what the log was told.
        everything_kept: True if only the process ended, so that nothing written may be missing.

    Raises:
        AssertionError: a law is broken.
        StorageError: the log does not answer.
    """
    log = opened.log
    history.settle_restart(log, everything_kept=everything_kept)
    left = [name for name in names if name.endswith(LEFTOVERS)]
    assert not left, f"after an opening {left} is there"
    least = history.least_end(everything_kept=everything_kept)
    assert log.log_end_offset >= least, f"the log ends at {log.log_end_offset}, {least} was promised"
    assert log.flushed_offset == log.log_end_offset, f"opened, but flushed only to {log.flushed_offset}"
    check_log(log, history)


def check_log(log: PartitionLog, history: History) -> None:
    """Check laws 1 to 6 of an open log."""
    start, end = log.log_start_offset, log.log_end_offset
    assert history.start_offset <= start <= history.starting_offset, (
        f"the log starts at {start}, not in {history.start_offset} to {history.starting_offset}"
    )
    assert start <= log.flushed_offset <= end, f"{start}, {log.flushed_offset}, {end}"
    assert end <= max(history.end_offset, start), f"the log ends at {end}, {history.end_offset} was written"
    found = read_found(log, history)
    for offset, record in found.items():
        assert history.records.get(offset) == record, f"offset {offset} holds {record}"
    written = {offset: record for offset, record in history.records.items() if start <= offset < end}
    readable = {offset: each for offset, each in written.items() if not history.lost[0] <= offset < history.lost[1]}
    _check_kept(found, readable, compacts=history.compacts)
    for offset, record in readable.items():
        assert log.epoch_at(offset) == record.epoch, f"offset {offset}: epoch {log.epoch_at(offset)}"
    if history.lost == (0, 0):
        _check_times(log, found)
    _check_windows(log, history)
    spans = {(each.base_offset, each.end_offset) for each in log.damaged}
    assert spans <= {history.lost}, f"damage was invented: {log.damaged}"


def check_seals(log: PartitionLog, history: History) -> None:
    """Scrub every sealed segment: an outdated seal must not report damage that does not exist."""
    scrub = LogScrub(log)
    for number in range(log.segment_count - 1):
        problem = scrub_once(scrub, log, now_ms=number, interval_ms=SCRUB_INTERVAL_MS)
        assert problem is None or history.lost != (0, 0), problem
    spans = {(each.base_offset, each.end_offset) for each in log.damaged}
    assert spans <= {history.lost}, f"damage was invented: {log.damaged}"


def read_found(log: PartitionLog, history: History) -> dict[int, Record]:
    """Read all records from the log start on, by offset.

    Raises:
        AssertionError: an offset is not covered, or undamaged data is reported as lost.
    """
    found: dict[int, Record] = {}
    position = log.log_start_offset
    while position < log.log_end_offset:
        try:
            data = log.read(position, READ_BYTES).data
        except DataLossError as loss:
            if loss.base_offset < history.lost[0] or loss.end_offset > history.lost[1]:
                raise AssertionError(f"[{loss.base_offset}, {loss.end_offset}) is called lost") from loss
            position = loss.end_offset
            continue
        assert data, f"nothing is read at {position}"
        for _, batch in iter_batches(data):
            assert batch.base_offset <= position < batch.next_offset, f"{batch} follows {position}"
            position = batch.next_offset
        found |= {offset: each for offset, each in _records_of(data) if offset >= log.log_start_offset}
    return found


@lru_cache(maxsize=READS_KEPT)
def _records_of(data: bytes) -> list[tuple[int, Record]]:
    """Return all records of some batches. The results are cached, because most crashes leave the same batches."""
    return [
        (record.offset, Record(record.key, record.value, batch.header.leader_epoch))
        for batch in read_batches(data)
        for record in batch.records()
    ]


def _check_kept(found: dict[int, Record], written: dict[int, Record], *, compacts: bool) -> None:
    if not compacts:
        missing = sorted(set(written) - set(found))
        assert not missing, f"offsets {missing} are gone"
        return
    newest = {record.key: offset for offset, record in sorted(written.items())}
    for offset, record in written.items():
        is_replaced = record.key is not None and newest[record.key] != offset
        is_deleted = record.key is not None and record.value is None
        assert offset in found or is_replaced or is_deleted, f"the newest record of {record.key!r} at {offset} is gone"
    assert _values(found) == _values(written), "a reader of all ends with other values"


def _values(records: dict[int, Record]) -> dict[bytes | None, bytes]:
    newest = {record.key: record.value for _, record in sorted(records.items())}
    return {key: value for key, value in newest.items() if value is not None}


def _check_times(log: PartitionLog, found: dict[int, Record]) -> None:
    offsets = sorted(found)
    for offset in {*offsets[:1], *offsets[len(offsets) // 2 : len(offsets) // 2 + 1], *offsets[-1:]}:
        hit = log.find_timestamp(FIRST_TIMESTAMP_MS + offset, end_offset=log.log_end_offset)
        assert hit is not None, f"time of {offset}: nothing"
        assert hit.offset == offset, f"time of {offset}: {hit}"


def _check_windows(log: PartitionLog, history: History) -> None:
    """Send the batches again that producer 1's state must have: they are recognised, and nothing is appended."""
    start, end = log.log_start_offset, log.log_end_offset
    for sent in [each for each in history.sent if each.next_offset <= end][-DEDUP_WINDOW_BATCHES:]:
        is_lost = history.lost[0] < sent.next_offset and sent.base_offset < history.lost[1]
        if sent.base_offset < start or is_lost:
            continue
        answer = log.append_as_leader(
            sent.data, read_header(sent.data), leader_epoch=SECOND_LIFE_EPOCH, now_ms=FIRST_TIMESTAMP_MS
        )
        assert answer == Appended(sent.base_offset, sent.next_offset, True), f"{sent.base_offset} again: {answer}"
