# SPDX-License-Identifier: Apache-2.0
"""A process that writes one log until somebody ends it, and says on its output what it is about to do and what was answered.

    python -m integration_tests.storage_faults.worker <directory> <seed> <generation>

Lines: `append <records>`, `truncate <offset>`, `flush`, each before the call; `end <offset>` or `flushed <offset>` after it. A value
tells its generation and its offset, so that the ledger alone says what must stand where. After a failed disk: `failed`, one try to
write that must be refused (`refused`), one read that must succeed (`readable`), and exit code 3.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from lograft.wire.batch import encode_batch, read_header

from storage.env_posix import PosixDisk
from storage.errors import DiskFailedError
from storage.log import LogSettings, PartitionLog

SETTINGS = LogSettings(segment_bytes=40_000, index_interval_bytes=2_000)
PRODUCER_ID = 7
EXIT_AFTER_FAILURE = 3
RECORDS_MAX = 20
VALUE_BYTES = (10, 100, 600)
CUT_RECORDS_MAX = 40


def value_of(generation: int, offset: int, size_bytes: int) -> bytes:
    """Return the value that a generation puts at an offset."""
    return b"%d/%d/" % (generation, offset) + b"v" * size_bytes


class Worker:
    """Writes one log."""

    def __init__(self, directory: str, seed: int, generation: int, say: Callable[[str], None]) -> None:
        self._rng = random.Random(seed)
        self._generation = generation
        self._say = say
        self._log = PartitionLog.open(PosixDisk(), directory, settings=SETTINGS, now_ms=0).log

    def run(self) -> int:
        """Work until the disk fails; return the exit code."""
        self._say(f"end {self._log.log_end_offset}")
        try:
            while True:
                match self._rng.randrange(40):
                    case 0:
                        self._truncate()
                    case n if n < 8:
                        self._flush()
                    case _:
                        self._append()
        except DiskFailedError:
            return self._live_on_a_failed_disk()

    def _append(self) -> None:
        log, rng = self._log, self._rng
        count, base_offset = rng.randint(1, RECORDS_MAX), log.log_end_offset
        size_bytes = rng.choice(VALUE_BYTES)
        batch = encode_batch(
            [value_of(self._generation, base_offset + number, size_bytes) for number in range(count)],
            timestamps_ms=base_offset,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=base_offset,
        )
        self._say(f"append {count}")
        appended = log.append_as_leader(batch, read_header(batch), leader_epoch=self._generation, now_ms=0)
        self._say(f"end {appended.next_offset}")

    def _flush(self) -> None:
        self._say("flush")
        self._say(f"flushed {self._log.flush()}")

    def _truncate(self) -> None:
        to_offset = max(self._log.log_start_offset, self._log.log_end_offset - self._rng.randrange(CUT_RECORDS_MAX))
        self._say(f"truncate {to_offset}")
        self._say(f"end {self._log.truncate_suffix(to_offset)}")

    def _live_on_a_failed_disk(self) -> int:
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
    """Write the log in the directory that the command line names."""
    directory, seed, generation = sys.argv[1:]

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    return Worker(directory, int(seed), int(generation), say).run()


if __name__ == "__main__":
    raise SystemExit(main())
