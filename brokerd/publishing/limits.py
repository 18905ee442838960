# SPDX-License-Identifier: Apache-2.0
"""Limits of publications, checks and sweeps, with their units. Numbers only."""

from __future__ import annotations

from typing import Final

SEQUENCE_COUNT: Final = 2**31
"""Sequences count modulo this."""

PART_RECORDS_MAX: Final = 2**30 - 1
"""Most records of one part. The next sequence of a producer must show whether the producer is before a part or behind it."""

LOST_RECORDS_MAX: Final = 2**30
"""Most published records that a log can be seen to have lost before a part: where more are lost, the part looks published."""

PART_SLICES_MAX: Final = 20_000
"""Most slices of one part: as many as a manifest has attempts."""

PART_BATCHES_MAX: Final = 500_000
"""Most staged batches of one plan, which takes 24 bytes for each. A part with more takes several plans, one after another."""

READ_BYTES: Final = 1024 * 1024
"""Bytes of one read of staged batches. A single larger batch is read whole."""

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of staged batches that a publication reads at once. While it appends them, a large part reads as many ahead. A single larger
batch is a piece of its own."""

RUN_BATCHES_MAX: Final = 256
"""Batches that a publication appends with one write."""

LOOK_BYTES: Final = 16 * 1024 * 1024
"""Bytes of staged batches that one look at their headers covers. A single larger batch is looked at alone."""

KEEP_BYTES: Final = 1024 * 1024
"""Bytes of staged batches up to which a publication keeps what it read for its plan. Beyond, it reads a batch again to publish it."""

IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""Bytes that a publication may have appended beyond the high watermark. A single larger batch is appended alone."""

FLUSH_BYTES: Final = 8 * 1024 * 1024
"""Bytes that a large part appends before the log is flushed: the disk takes a few large flushes faster than many small ones."""

FLUSH_HOLD_MS: Final = 20
"""Milliseconds after which the log is flushed all the same: other producers of the partition wait for no more than this."""

PUBLICATIONS_MAX: Final = 1_024
"""Parts that one broker publishes or that wait for their turn; more are refused with OVERLOADED."""

ACTIVE_PUBLICATIONS_MAX: Final = 64
"""Parts that one broker publishes at once. Further ones wait."""

LARGE_PUBLICATIONS_MAX: Final = 1
"""Of these, parts of more than `KEEP_BYTES` that append at once. Further ones wait for a turn, which ends with the part. One after
another, the memory of what one was staged in serves the next."""

TURN_WAIT_MS: Final = 500
"""Milliseconds that a large part may wait for the high watermark until others get its turn."""

COMMIT_WAIT_MS: Final = 30_000
"""Milliseconds that a publication waits for the high watermark; then it fails with TIMED_OUT, and its coordinator asks again."""

RETRY_MS: Final = 250
"""Retry advice, in milliseconds, of publications and checks."""

PUBLISH_CALL_MS: Final = 40_000
"""Milliseconds that a coordinator waits for the answer to one request. The publication goes on without it."""

CHECK_CALL_MS: Final = 40_000
"""Milliseconds that a coordinator waits for the answer to a check."""

MISSING_MAX: Final = 100
"""Most missing slices that the answer to a check names."""

SWEEP_READ_BYTES: Final = 256 * 1024 * 1024
"""Bytes that one sweep of one partition reads. The next sweep goes on."""

SWEEP_IDS_MAX: Final = 10_000
"""Producer ids that one question for live attempts names."""

STAGING_SWEEP_MS: Final = 5_000
"""Milliseconds between two sweeps of everything."""

SWEEP_SOON_MS: Final = 50
"""Milliseconds after a publication in which its staging partition is swept: its coordinator knows of it by then, as a rule."""

SWEEP_LARGE_MS: Final = 3
"""Milliseconds after the publication of a part of more than `KEEP_BYTES` in which its staging partition is swept for the first time."""

STAGING_QUOTA_SHARE: Final = 4
"""The default of the staging quota is the size of the log directory's disk divided by this."""

QUOTA_RETRY_MS: Final = 5_000
"""Retry advice, in milliseconds, for a client that exceeds the staging quota."""
