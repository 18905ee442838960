# SPDX-License-Identifier: Apache-2.0
"""Every limit of the coordinator runtime, with its name and unit. Numbers only; `docs/coordinator.md` says what happens at each."""

from __future__ import annotations

from typing import Final

MAX_QUEUED_COMMANDS: Final = 4_096
"""Commands of one partition that wait for a decision; more are refused with OVERLOADED."""

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of these commands, as their submitters state them."""

MAX_WAITING_ANSWERS: Final = 8_192
"""Answers of one partition that wait for the high watermark; at this number no turn begins."""

MAX_UNCOMMITTED_BYTES: Final = 32 * 1024 * 1024
"""Bytes of records of one partition that wait for the high watermark; from this number on no turn begins."""

MAX_TURN_COMMANDS: Final = 64
"""Commands that one turn decides, so that a turn takes milliseconds."""

MAX_TURN_BYTES: Final = 256 * 1024
"""Bytes of records of several decisions that go into one append; a single larger decision has a turn of its own."""

MAX_TURN_RECORDS: Final = 4_096
"""Records that go into one append, and records of one decision."""

MAX_DECISION_BYTES: Final = 960 * 1024
"""Bytes of the records of one decision: with its header the batch stays below the default of `max.message.bytes`."""

RECORD_OVERHEAD_BYTES: Final = 48
"""Bytes that a record counts for beyond key and value."""

COMMAND_WAIT_MS: Final = 30_000
"""Longest wait of a command for its answer, in milliseconds."""

TICK_FLOOR_MS: Final = 20
"""Shortest time between two ticks, in milliseconds."""

TICK_RETRY_MS: Final = 250
"""Time between a tick whose append was refused and the next tick, in milliseconds."""

HELD_UP_MS: Final = 1_000
"""Lateness of a timer, in milliseconds, from which on the process counts as paused."""

HELD_UP_GRACE_MS: Final = 2_000
"""Time in milliseconds that a paused process takes to hear what waits in its sockets, before the next tick."""

LOAD_SLICE_MS: Final = 5
"""Milliseconds of replay after which the event loop serves others. `benchmarks/coordinator_load.py` measures the steps."""

LOAD_SLICE_RECORDS: Final = 64
"""Records between two looks at the clock while loading."""

LOAD_KEEP_RECORDS: Final = 10_000
"""Records after which what was loaded is exempted from garbage collection, if the process is the broker's own."""

LOAD_READ_BYTES: Final = 256 * 1024
"""Bytes of log that one read takes, for loading and for snapshots."""

LOAD_RETRY_MS: Final = 1_000
"""Time until a failed partition is loaded again, in milliseconds; it doubles with each failure in a row."""

LOAD_RETRY_MAX_MS: Final = 30_000
"""Longest time until a failed partition is loaded again, in milliseconds."""

LOADING_RETRY_AFTER_MS: Final = 100
"""Retry advice, in milliseconds, while a partition is loading."""

OVERLOADED_RETRY_AFTER_MS: Final = 100
"""Retry advice, in milliseconds, while a queue is full."""

SNAPSHOT_LOG_BYTES: Final = 8 * 1024 * 1024
"""Bytes of log above the last snapshot from which on the next one is due."""

SNAPSHOT_CHECK_MS: Final = 10_000
"""Milliseconds between two looks for due snapshots."""

SNAPSHOT_FOLD_BYTES: Final = 64 * 1024 * 1024
"""Bytes of keys and values that the making of a snapshot holds in memory; from this number on it writes an intermediate snapshot."""

SNAPSHOT_CHUNK_BYTES: Final = 256 * 1024
"""Bytes of keys and values in one chunk of a snapshot; a single larger record has a chunk of its own."""

SNAPSHOT_CHUNK_RECORDS: Final = 4_096
"""Most records in one chunk of a snapshot."""
