# SPDX-License-Identifier: Apache-2.0
"""Compaction on a real disk, in a thread of its own, while the owner appends, reads, flushes and removes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from storage.compaction.cleaner import MIN_KEY_MAP_BYTES, Cleaner, CleanerSettings
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.testing.builders import open_log
from storage.tests.compaction.support import COMPACT, pairs, put

Result = TypeVar("Result")
ROUNDS = 400
DEADLINE_S = 30
SETTINGS = replace(COMPACT, segment_bytes=4_000, file_delete_delay_ms=0)


@dataclass
class OwnedLog:
    """A log whose owner runs steps of other threads between its own steps."""

    log: PartitionLog
    steps: queue.Queue[Callable[[], None]]
    name: str = "log"

    def call(self, step: Callable[[PartitionLog, int], Result]) -> Result:
        done: queue.Queue[tuple[Result | None, Exception | None]] = queue.Queue()

        def run() -> None:
            try:
                done.put((step(self.log, self.log.log_end_offset), None))
            except Exception as error:
                done.put((None, error))

        self.steps.put(run)
        result, error = done.get(timeout=DEADLINE_S)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def run_steps(self) -> None:
        while True:
            try:
                self.steps.get_nowait()()
            except queue.Empty:
                return


def test_a_log_works_while_it_is_compacted(tmp_path: Path) -> None:
    """No newest record is lost, no offset is uncovered, no descriptor or file is left behind, and the log opens again."""
    disk, directory = PosixDisk(), str(tmp_path / "log")
    log = open_log(disk, directory, SETTINGS).log
    owned = OwnedLog(log, queue.Queue())
    stopped = threading.Event()
    cleaner = Cleaner(
        lambda: [owned],
        settings=CleanerSettings(bytes_per_s=10**9, key_map_bytes=MIN_KEY_MAP_BYTES, idle_ms=1),
        wall_ms=lambda: 1_000,
        monotonic_ms=lambda: 0,
        wait_ms=lambda duration_ms: stopped.is_set(),
    )
    thread = threading.Thread(target=cleaner.run, daemon=True)
    thread.start()
    newest: dict[bytes, tuple[int, bytes]] = {}
    number = 0
    while number < ROUNDS or cleaner.report().get("log") is None or cleaner.report()["log"].pass_count < 5:
        assert number < 100 * ROUNDS
        key, value = b"k%d" % (number * 7 % 50), b"%d" % number * 5
        newest[key] = (put(log, [(key, value)]).base_offset, value)
        if number % 20 == 0:
            log.flush()
        if number % 50 == 0:
            log.read(max(log.log_start_offset, log.log_end_offset - 100), 10**6)
            log.find_timestamp(0, end_offset=log.log_end_offset)
        if number == ROUNDS // 2:
            log.truncate_prefix(number - 60, 0)
        log.remove_deleted(10**6)
        owned.run_steps()
        number += 1
    stopped.set()
    while thread.is_alive():
        owned.run_steps()
        thread.join(timeout=0.01)
    report = cleaner.report()["log"]
    assert report.error is None
    assert report.kept_count < report.read_count
    left = pairs(log)
    for key, (offset, value) in newest.items():
        assert left[offset] == (key, value)
    log.flush()
    log.remove_deleted(10**9)
    assert not [path.name for path in tmp_path.rglob("*") if path.suffix in (".cleaned", ".swap", ".deleted")]
    log.close()
    again = open_log(disk, directory, SETTINGS)
    assert again.report.clean
    assert pairs(again.log) == left
    again.log.close()
