# SPDX-License-Identifier: Apache-2.0
"""The offsets of one replica's own log, as its core knows them; shared by the replica and the role that it has.

Law: flushed_offset <= log_end_offset; high_watermark <= log_end_offset.
"""

from __future__ import annotations

from brokerd.partition.follower_events import LogTruncated
from metaquorum.metadata.topic_configs import FlushPolicy


class LogState:
    """Offsets of the log.

    Attributes:
        log_end_offset: offset that the next record gets.
        flushed_offset: end (exclusive) of what is on stable storage.
        last_epoch: leader epoch of the last record; None without one.
        high_watermark: end (exclusive) of what is committed, as far as this replica knows.
        acknowledged_end: end (exclusive) of what this replica acknowledged as a leader before it was committed (acks=1).
        flush_policy: when records count.
    """

    __slots__ = (
        "acknowledged_end",
        "flush_policy",
        "flushed_offset",
        "high_watermark",
        "last_epoch",
        "log_end_offset",
    )

    def __init__(
        self, *, log_end_offset: int, flushed_offset: int, last_epoch: int | None, flush_policy: FlushPolicy
    ) -> None:
        assert 0 <= flushed_offset <= log_end_offset, f"flushed {flushed_offset}, log end {log_end_offset}"
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset
        self.last_epoch = last_epoch
        self.flush_policy = flush_policy
        self.high_watermark = self.counted_offset
        self.acknowledged_end = 0

    @property
    def is_flush_counted(self) -> bool:
        """True if only what is flushed counts."""
        return self.flush_policy is FlushPolicy.ACK

    @property
    def counted_offset(self) -> int:
        """End (exclusive) of what this replica may claim to hold."""
        return self.flushed_offset if self.is_flush_counted else self.log_end_offset

    def note_truncation(self, event: LogTruncated) -> None:
        """Learn that the tail, or all of the log, is gone; the high watermark goes back only where its records went."""
        assert 0 <= event.flushed_offset <= event.log_end_offset, f"flushed {event.flushed_offset}: {event}"
        assert event.log_start_offset <= event.log_end_offset, f"begins beyond its end: {event}"
        self.log_end_offset, self.flushed_offset = event.log_end_offset, event.flushed_offset
        self.last_epoch = event.last_epoch
        # A log that began again at the leader's log start begins above what this replica knew to be committed.
        self.high_watermark = max(min(self.high_watermark, event.log_end_offset), event.log_start_offset)
        self.acknowledged_end = min(self.acknowledged_end, event.log_end_offset)
