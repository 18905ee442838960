# SPDX-License-Identifier: Apache-2.0
"""A process that writes logs until it is killed, and writes to its output what it is about to do and what was answered.

    python -m integration_tests.crash.worker <directory> <seed> <generation> list|all

It writes one log, the list, in `<directory>/list`: appends, rolls, flushes, truncations, DeleteRecords, retention by size or by age,
deletion of renamed files, scrubs. With `all` it also writes a compacted log (`keyed_worker`), between these calls.

Lines before a call: `append <records>`, `truncate <offset>`, `delete <offset>`, `retain <high watermark>`, `flush`. Lines after it:
`end <offset>`, `start <offset>` or `flushed <offset>`. A wrong answer: `problem <text>`. A value has its generation and its offset, so
the ledger alone knows what must be where. After a failed disk: `failed`, one write that must be refused (`refused`), one read that must
succeed (`readable`), and exit code 3.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace

from lograft.wire.batch import encode_batch, read_batches, read_header

from integration_tests.crash.keyed_worker import KeyedWorker
from integration_tests.crash.maintenance import scrub_once
from storage.errors import DiskFailedError
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub
from storage.types import LogSettings

LIST_DIRECTORY = "list"
KEYED_DIRECTORY = "keyed"
EXIT_AFTER_FAILURE = 3
RECORDS_MAX = 20
VALUE_BYTES = (10, 100, 600)
CUT_RECORDS_MAX = 40
DELETE_RECORDS_MAX = 150
"""Maximum number of records by which DeleteRecords moves the log start."""
GENERATION_MS = 5_000
"""Milliseconds by which a worker's clock begins later than that of the previous one. The clock counts calls."""
SCRUB_INTERVAL_MS = 50

_SETTINGS = LogSettings(segment_bytes=40_000, index_interval_bytes=2_000, segment_ms=150, file_delete_delay_ms=30)


def settings_of(generation: int) -> LogSettings:
    """Return the settings of the list. Every other generation has retention by size, the others by age."""
    if generation % 2:
        return replace(_SETTINGS, retention_ms=GENERATION_MS)
    return replace(_SETTINGS, retention_bytes=150_000)


def now_ms_of(generation: int) -> int:
    """Return the clock at the beginning of a generation, in milliseconds."""
    return (generation + 1) * GENERATION_MS


def value_of(generation: int, offset: int, size_bytes: int) -> bytes:
    """Return the value that a generation writes at an offset."""
    return b"%d/%d/" % (generation, offset) + b"v" * size_bytes


class Worker:
    """Writes the list."""

    def __init__(self, disk: PosixDisk, path: str, *, seed: int, generation: int, say: Callable[[str], None]) -> None:
        self._rng = random.Random(seed)
        self._generation = generation
        self._say = say
        self.now_ms = now_ms_of(generation)
        opened = PartitionLog.open(disk, path, settings=settings_of(generation), now_ms=self.now_ms)
        self._log = opened.log
        self._scrub: LogScrub = LogScrub(self._log)
        self._producers = 0
        self._producer_start = 0
        self._say(f"start {self._log.log_start_offset}")
        self._say(f"end {self._log.log_end_offset}")
        self._send_last_again()
        self._begin_producer()

    def _send_last_again(self) -> None:
        """Send the batch again whose answer the producer of the previous generation did not get: the log recognises it."""
        log = self._log
        if log.log_end_offset == log.log_start_offset:
            return
        data = log.read(log.log_end_offset - 1, 1).data
        batch = next(iter(read_batches(data)))
        appended = log.append_as_leader(data, batch.header, leader_epoch=batch.header.leader_epoch, now_ms=self.now_ms)
        if not appended.duplicate or appended.base_offset != batch.base_offset:
            self._say(f"problem the last batch, sent again, is {appended}")

    def _begin_producer(self) -> None:
        self._producers += 1
        self._producer_start = self._log.log_end_offset

    def step(self) -> None:
        """Make one call.

        Raises:
            DiskFailedError: the disk failed for good.
        """
        self.now_ms += 1
        match self._rng.randrange(60):
            case 0:
                self._truncate()
            case 1:
                self._delete()
            case 2 | 3:
                self._retain()
            case 4:
                problem = scrub_once(self._scrub, self._log, now_ms=self.now_ms, interval_ms=SCRUB_INTERVAL_MS)
                if problem is not None:
                    self._say(f"problem {problem}")
            case n if n < 14:
                self._flush()
            case _:
                self._append()

    def _append(self) -> None:
        log, rng = self._log, self._rng
        count, base_offset = rng.randint(1, RECORDS_MAX), log.log_end_offset
        size_bytes = rng.choice(VALUE_BYTES)
        batch = encode_batch(
            [value_of(self._generation, base_offset + number, size_bytes) for number in range(count)],
            timestamps_ms=self.now_ms,
            producer_id=1_000 * self._generation + self._producers,
            producer_epoch=0,
            base_sequence=base_offset - self._producer_start,
        )
        self._say(f"append {count}")
        appended = log.append_as_leader(batch, read_header(batch), leader_epoch=self._generation, now_ms=self.now_ms)
        self._say(f"end {appended.next_offset}")

    def _flush(self) -> None:
        self._say("flush")
        self._say(f"flushed {self._log.flush()}")

    def _truncate(self) -> None:
        to_offset = max(self._log.log_start_offset, self._log.log_end_offset - self._rng.randrange(CUT_RECORDS_MAX))
        self._say(f"truncate {to_offset}")
        end_offset = self._log.truncate_suffix(to_offset)
        self._say(f"end {end_offset}")
        if end_offset <= max(self._producer_start, self._log.log_start_offset):
            # The truncation removed the batches of its producer state, as on a follower. No producer continues from there.
            self._begin_producer()

    def _delete(self) -> None:
        log = self._log
        to_offset = min(log.log_end_offset, log.log_start_offset + self._rng.randrange(DELETE_RECORDS_MAX))
        self._say(f"delete {to_offset}")
        self._say(f"start {log.truncate_prefix(to_offset, self.now_ms)}")

    def _retain(self) -> None:
        log = self._log
        log.roll_if_due(self.now_ms)
        self._say(f"retain {log.flushed_offset}")
        log.apply_retention(log.flushed_offset, self.now_ms)
        self._say(f"start {log.log_start_offset}")
        log.remove_deleted(self.now_ms)

    def live_on_a_failed_disk(self) -> int:
        """Try a write that must be refused and a read that must succeed. Return the exit code."""
        self._say("failed")
        batch = encode_batch([b"after"], timestamps_ms=0)
        for write in (
            lambda: self._log.append_as_leader(batch, read_header(batch), leader_epoch=self._generation, now_ms=0),
            self._log.flush,
        ):
            try:
                write()
            except DiskFailedError:
                self._say("refused")
        if self._log.read(self._log.log_start_offset, 1_000).data:
            self._say("readable")
        self._log.close()
        return EXIT_AFTER_FAILURE


def main() -> int:
    """Write the logs in the directory from the command line."""
    directory, seed_text, generation_text, mode = sys.argv[1:]
    seed, generation = int(seed_text), int(generation_text)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    disk = PosixDisk()
    disk.make_directory(directory)
    listed = Worker(disk, f"{directory}/{LIST_DIRECTORY}", seed=seed, generation=generation, say=say)
    keyed = None
    if mode == "all":
        keyed = KeyedWorker(
            disk,
            f"{directory}/{KEYED_DIRECTORY}",
            seed=seed,
            generation=generation,
            first_ms=now_ms_of(generation),
            say=say,
        )
    try:
        while True:
            listed.step()
            if keyed is not None:
                keyed.step()
    except DiskFailedError:
        return listed.live_on_a_failed_disk()


if __name__ == "__main__":
    raise SystemExit(main())
