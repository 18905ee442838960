# SPDX-License-Identifier: Apache-2.0
"""The offsets of one replica's own log, as its core knows them; the replica and its role share them.

Law: flushed_offset <= log_end_offset; high_watermark <= log_end_offset.
"""

from __future__ import annotations

from brokerd.partition.follower_events import LogTruncated
from metaquorum.metadata.topic_configs import FlushPolicy


class LogState:
    """Offsets of the log.

    Attributes:
        log_end_offset: offset of the next record.
        flushed_offset: end (exclusive) of what is on stable storage.
        last_epoch: leader epoch of the last record; None: no record.
        high_watermark: end (exclusive) of what this replica knows to be committed.
        acknowledged_end: end (exclusive) of what this replica, as a leader, acknowledged before it was committed
            (acks=1).
        flush_policy: the policy that decides which records count.
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
        """True if only flushed records count."""
        return self.flush_policy is FlushPolicy.ACK

    @property
    def counted_offset(self) -> int:
        """End (exclusive) of what this replica counts as held."""
        return self.flushed_offset if self.is_flush_counted else self.log_end_offset

    def note_truncation(self, event: LogTruncated) -> None:
        """Note a truncation of the tail or the whole log; the high watermark goes back only if its records were dropped."""
        assert 0 <= event.flushed_offset <= event.log_end_offset, f"flushed {event.flushed_offset}: {event}"
        assert event.log_start_offset <= event.log_end_offset, f"begins beyond its end: {event}"
        self.log_end_offset, self.flushed_offset = event.log_end_offset, event.flushed_offset
        self.last_epoch = event.last_epoch
        # A log that restarted at the leader's log start begins above the high watermark that this replica knew.
        self.high_watermark = max(min(self.high_watermark, event.log_end_offset), event.log_start_offset)
        self.acknowledged_end = min(self.acknowledged_end, event.log_end_offset)
