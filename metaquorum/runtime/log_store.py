# SPDX-License-Identifier: Apache-2.0
"""The metadata log on disk: a `storage.PartitionLog`, as the Raft core wants it.

Owns opening (epochs and voter sets are read back for the core), the encoding of batches and control batches, and
flushing in a thread. Decides nothing; every offset comes from the core and is checked against the log.
One owner (the event loop thread) calls everything; only the work of a flush runs in the disk thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from lograft.wire.batch import RecordBatch, encode_batch, iter_batches, read_header

from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, LeaderChange, VotersChange
from metaquorum.raft.log_view import LogView
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.raft.voters import VoterSet
from metaquorum.runtime.listener import CommittedBatch
from metaquorum.runtime.quorum_codec import decode_control_batch, encode_control_record
from storage.env import Disk
from storage.errors import DataLossError
from storage.log import FlushWork, LogSettings, PartitionLog

SEGMENT_BYTES = 64 * 1024 * 1024
"""Segment size of the metadata log: small, so that a trimmed log gives its space back soon."""

SCAN_BYTES = 1024 * 1024
"""Bytes of one read while the log is opened."""


class DamagedLogError(Exception):
    """Flushed records of the metadata log are damaged: a voter that goes on with a part of them may lose commits."""


class LogStore:
    """The open metadata log."""

    def __init__(self, log: PartitionLog, voters: Sequence[tuple[Offset, VoterSet]]) -> None:
        self._log = log
        self.voters = tuple(voters)

    @classmethod
    def open(cls, disk: Disk, directory: str) -> LogStore:
        """Open the log, recover it after a crash, and read its voter sets.

        Raises:
            DamagedLogError: records that were flushed are damaged; this node must not take part with them.
            storage.errors.StorageError: the log cannot be opened.
        """
        settings = LogSettings(segment_bytes=SEGMENT_BYTES)
        log = PartitionLog.open(disk, directory, settings=settings, now_ms=wall_clock_ms()).log
        try:
            # Reads the whole log, so that damage shows now and not when a follower asks for it.
            voters = list(_scan_voters(log))
        except DataLossError as error:
            log.close(clean=False)
            raise DamagedLogError(
                f"{error}. Wipe the data directory and start the node again: it then joins as a new replica and"
                " fetches the records from the others"
            ) from error
        return cls(log, voters)

    def view(self) -> LogView:
        """The shadow of the log for the core."""
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
        )

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self._log.log_start_offset

    def append_as_leader(self, effect: AppendAsLeader, batch: bytes | bytearray) -> None:
        """Append an encoded batch at the offset that the core gave it."""
        header = read_header(batch)
        appended = self._log.append_as_leader(
            memoryview(batch), header, leader_epoch=effect.quorum_epoch, now_ms=wall_clock_ms()
        )
        assert (appended.base_offset, appended.next_offset) == (effect.base_offset, effect.next_offset), (
            f"appended at {appended}, the core meant {effect}"
        )

    def append_as_follower(self, effect: AppendAsFollower) -> None:
        """Append fetched batches as they are."""
        self._log.append_as_follower(effect.batches.data, now_ms=wall_clock_ms())
        end_offset = effect.batches.spans[-1].next_offset
        assert self._log.log_end_offset == end_offset, f"log ends at {self._log.log_end_offset}, not at {end_offset}"

    def truncate_suffix(self, to_offset: Offset) -> None:
        """Drop everything from to_offset (inclusive) on, durably."""
        self._log.truncate_suffix(to_offset)
        assert self._log.log_end_offset == to_offset, f"log ends at {self._log.log_end_offset}, not at {to_offset}"

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Read whole batches from an offset on: at least one, else at most max_bytes."""
        return self._log.read(offset, max_bytes).data

    def read_committed(self, offset: int, max_bytes: int, *, commit_offset: int) -> list[CommittedBatch]:
        """Read whole batches below commit_offset (exclusive) and decode them."""
        data = self._log.read(offset, max_bytes, end_offset=commit_offset).data
        view = memoryview(data)
        return [
            _decode(view[position : position + header.size_bytes])
            for position, header in iter_batches(view)
            if header.base_offset >= offset
        ]

    def begin_flush(self) -> FlushWork | None:
        """Work that puts everything appended so far on stable storage; None when there is none left."""
        return self._log.begin_flush()

    def end_flush(self, work: FlushWork) -> None:
        """The work was run."""
        self._log.end_flush(work)

    def close(self, *, is_clean: bool) -> None:
        """Close the log; after a failure nothing more is written, and the next start recovers."""
        self._log.close(clean=is_clean)


def encode_records(records: Sequence[bytes]) -> bytearray:
    """Encode one batch of metadata records."""
    return encode_batch(records, timestamps_ms=wall_clock_ms())


def encode_control(content: LeaderChange | VotersChange) -> bytearray:
    """Encode one control batch."""
    return encode_batch([encode_control_record(content)], timestamps_ms=wall_clock_ms(), control=True)


def wall_clock_ms() -> int:
    """Milliseconds since 1970; only stamped into batches, never used for a decision."""
    return time.time_ns() // 1_000_000


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
    )


def _scan_voters(log: PartitionLog) -> Iterator[tuple[Offset, VoterSet]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, SCAN_BYTES)
        view = memoryview(read.data)
        for position, header in iter_batches(view):
            if header.is_control:
                change = decode_control_batch(view[position : position + header.size_bytes])
                if isinstance(change, VotersChange):
                    yield Offset(header.base_offset), change.voters
        offset = read.next_offset
