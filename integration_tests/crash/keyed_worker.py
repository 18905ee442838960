# SPDX-License-Identifier: Apache-2.0
"""Writes one compacted log while a cleaner thread runs: the keyed half of `worker`.

Lines before a call: `put <key> <key>-...` (`-`: a tombstone), `keyed-delete <offset>`. Lines after it: `keyed-end <offset>`,
`keyed-start <offset>`, `keyed-flushed <offset>`, `passes <n>`. A wrong answer: `problem <text>`. The cleaner works as in a broker: in
its own thread, and in short steps as the owner of the log. Here a lock makes a thread the owner.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from lograft.wire.batch import encode_batch, read_header

from integration_tests.crash.maintenance import scrub_once
from storage.compaction.cleaner import Cleaner, CleanerSettings
from storage.errors import DiskFailedError
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub
from storage.types import LogSettings

KEYED_SETTINGS = LogSettings(
    segment_bytes=8_000,
    index_interval_bytes=1_000,
    segment_ms=150,
    file_delete_delay_ms=30,
    compact=True,
    min_cleanable_dirty_ratio=0.1,
    delete_retention_ms=60,
)
KEYS = 40
BATCH_RECORDS_MAX = 8
TOMBSTONES_ONE_IN = 6
DELETE_RECORDS_MAX = 30
IDLE_MS = 2
SCRUB_INTERVAL_MS = 40
VALUE_BYTES = (10, 100, 400)

_ResultT = TypeVar("_ResultT")


def key_of(number: int) -> bytes:
    """Return the name of a key."""
    return b"key-%d" % number


class _Target:
    """The log for the cleaner. The holder of the lock is its owner."""

    name = "keyed"

    def __init__(self, log: PartitionLog, lock: threading.Lock) -> None:
        self._log = log
        self._lock = lock

    def call(self, step: Callable[[PartitionLog, int], _ResultT]) -> _ResultT:
        """Run a step as the owner of the log (see `CleanerTarget`)."""
        with self._lock:
            return step(self._log, self._log.flushed_offset)


class KeyedWorker:
    """Writes the keyed log. Its cleaner runs from the start on, and ends with the process."""

    def __init__(
        self, disk: PosixDisk, path: str, *, seed: int, generation: int, first_ms: int, say: Callable[[str], None]
    ) -> None:
        logging.disable(logging.CRITICAL)
        self._rng = random.Random(f"keyed {seed}")
        self._generation = generation
        self._say = say
        self._now_ms = first_ms
        self._log = PartitionLog.open(disk, path, settings=KEYED_SETTINGS, now_ms=first_ms).log
        self._scrub = LogScrub(self._log)
        self._passes = 0
        self._sequence = 0
        self._lock = threading.Lock()
        self._say(f"keyed-start {self._log.log_start_offset}")
        self._say(f"keyed-end {self._log.log_end_offset}")
        target = _Target(self._log, self._lock)
        self._cleaner = Cleaner(
            lambda: [target],
            settings=CleanerSettings(idle_ms=IDLE_MS),
            wall_ms=lambda: self._now_ms,
            monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
            wait_ms=_wait,
        )
        threading.Thread(target=self._cleaner.run, name="cleaner", daemon=True).start()

    def step(self) -> None:
        """Make one call.

        Raises:
            DiskFailedError: the disk failed for good.
        """
        self._now_ms += 1
        with self._lock:
            match self._rng.randrange(40):
                case 0:
                    self._delete()
                case 1:
                    problem = scrub_once(self._scrub, self._log, now_ms=self._now_ms, interval_ms=SCRUB_INTERVAL_MS)
                    if problem is not None:
                        self._say(f"problem keyed: {problem}")
                case 2:
                    self._log.roll_if_due(self._now_ms)
                    self._log.remove_deleted(self._now_ms)
                case n if n < 10:
                    self._say(f"keyed-flushed {self._log.flush()}")
                case _:
                    self._put()
        self._report_cleaner()

    def _put(self) -> None:
        log, rng = self._log, self._rng
        base_offset = log.log_end_offset
        keys = [rng.randrange(KEYS) for _ in range(rng.randint(1, BATCH_RECORDS_MAX))]
        is_deleted = [rng.randrange(TOMBSTONES_ONE_IN) == 0 for _ in keys]
        size_bytes = rng.choice(VALUE_BYTES)
        batch = encode_batch(
            [
                None if gone else b"%d/%d/" % (self._generation, base_offset + at) + b"v" * size_bytes
                for at, gone in enumerate(is_deleted)
            ],
            keys=[key_of(key) for key in keys],
            timestamps_ms=self._now_ms,
            producer_id=self._generation,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        self._say("put " + " ".join(f"{key}{'-' if gone else ''}" for key, gone in zip(keys, is_deleted, strict=True)))
        appended = log.append_as_leader(batch, read_header(batch), leader_epoch=self._generation, now_ms=self._now_ms)
        self._sequence += len(keys)
        self._say(f"keyed-end {appended.next_offset}")

    def _delete(self) -> None:
        log = self._log
        to_offset = min(log.flushed_offset, log.log_start_offset + self._rng.randrange(DELETE_RECORDS_MAX))
        self._say(f"keyed-delete {to_offset}")
        self._say(f"keyed-start {log.truncate_prefix(to_offset, self._now_ms)}")

    def _report_cleaner(self) -> None:
        report = self._cleaner.report().get(_Target.name)
        if report is None:
            return
        if report.error is not None and DiskFailedError.__name__ not in report.error:
            self._say(f"problem cleaner: {report.error}")
        if report.pass_count > self._passes:
            self._passes = report.pass_count
            self._say(f"passes {self._passes}")


def _wait(milliseconds: int) -> bool:
    """Wait for the pause. The cleaner ends with the process."""
    return threading.Event().wait(milliseconds / 1_000)
