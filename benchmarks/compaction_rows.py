# SPDX-License-Identifier: Apache-2.0
"""Compaction of one log alone, in this process: a whole pass, from the plan to the checkpoint, with its syncs, without a rate limit.

Two workloads, both in batches of 256 KB. *Half dirty* is what the default settings lead to (`min.cleanable.dirty.ratio` 0.5): each key
once, compacted already, then as many records with random keys. Half of the records stays, and only the dirty half needs the key map.
*First pass*: random keys from a set a tenth as large as the records, nothing compacted yet; a tenth stays. Page state: the log was just
written and flushed, so its bytes are in the page cache, and free pages are recycled (`benchmarks.pages`).

The ceiling reads the same segment files once with `pread` of 1 MiB, and writes as many bytes as the pass left, 1 MiB at a time, to a
new file, which it syncs as the pass does. Pass and ceiling run in turns. The pass itself must read the dirty part twice: to learn the
newest record of each key, and to copy.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lograft.wire.batch import encode_batch, read_header
from lograft.wire.malloc import tune_allocator

from benchmarks.pages import recycle_pages
from benchmarks.results_table import Result, absolute, compare
from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass, PassOutcome
from storage.compaction.plan import find_range
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.types import LogSettings

BATCH_BYTES = 256 * 1024
"""Approximate bytes of the values of one batch."""

CHUNK_BYTES = 1024 * 1024
"""Bytes that the ceiling reads or writes at a time."""

MAX_KEYS = 671_088
"""Keys of the key map: the number that a cleaner has with its usual memory."""

RECORDS_PER_KEY = 10
"""Records per key in a first pass, on average."""

SMALL_RECORDS = 1_000_000
"""Records of 100 B in one log."""

LARGE_RECORDS = 200_000
"""Records of 1 KB in one log."""

RECYCLED_BYTES = 512 * 1024 * 1024
"""Bytes of free pages that are recycled before each measurement."""

SETTINGS = LogSettings(compact=True, min_cleanable_dirty_ratio=0.0, verify_first_read=False)
MB = 1e6

Rounds = Callable[..., list[list[float]]]
"""Runs measures in turns and returns the counted values of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """The cost of one pass over a fresh log.

    Attributes:
        seconds: wall clock time.
        cpu_seconds: processor time of this process.
        read_count: records of the log.
        kept_count: records that stayed.
        kept_bytes: bytes of the segments after the pass.
    """

    seconds: float
    cpu_seconds: float
    read_count: int
    kept_count: int
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The content of a log at the start of the measured pass.

    Attributes:
        name: name in the row.
        settled: batches that an earlier pass compacted.
        dirty: batches behind them.
    """

    name: str
    settled: list[bytes]
    dirty: list[bytes]

    @property
    def size_bytes(self) -> int:
        """Bytes of the log before the pass."""
        return sum(map(len, self.settled)) + sum(map(len, self.dirty))


class CompactionBench:
    """Benchmarks of compaction on a real disk, below one directory."""

    def __init__(self, directory: Path, rounds_of: Rounds) -> None:
        self._directory = directory
        self._rounds_of = rounds_of
        self._count = 0
        self._disk = PosixDisk()
        # As in every broker. The ceiling then reads with the same allocator.
        tune_allocator()

    def results(self) -> list[Result]:
        """Measure every row."""
        return [
            self.small_records(half_dirty(SMALL_RECORDS, 100)),
            self.small_records(first_pass(SMALL_RECORDS, 100)),
            self.large_records(half_dirty(LARGE_RECORDS, 1024)),
            self.large_records(first_pass(LARGE_RECORDS, 1024)),
        ]

    def small_records(self, workload: Workload) -> Result:
        """Compact 100 B records. The rate counts the records that the pass read."""
        costs: list[PassCost] = []

        def measure() -> float:
            costs.append(self._compact(workload))
            return costs[-1].read_count / 1e6 / costs[-1].seconds

        (rates,) = self._rounds_of(measure)
        cpu_rate = statistics.median(each.read_count / 1e6 / each.cpu_seconds for each in costs)
        note = f"{_workload(costs[-1])}; page cache; {cpu_rate:.2f} M records per CPU second"
        return absolute(f"compaction 100 B, {workload.name}", "M records/s", rates, at_least=1.0, note=note)

    def large_records(self, workload: Workload) -> Result:
        """Compact 1 KB records. The rate counts the bytes of the log before the pass."""
        size_bytes = workload.size_bytes
        costs: list[PassCost] = []

        def lograft() -> float:
            costs.append(self._compact(workload))
            return size_bytes / MB / costs[-1].seconds

        def ceiling() -> float:
            return size_bytes / MB / self._read_and_write(workload, costs[-1].kept_bytes)

        measured, ceilings = self._rounds_of(lograft, ceiling)
        note = f"{_workload(costs[-1])}; page cache; ceiling reads once, writes what stays, syncs"
        return compare(f"compaction 1 KB, {workload.name}", "MB/s", measured, ceilings, at_least=0.3, note=note)

    def _log_of(self, workload: Workload) -> tuple[str, PartitionLog]:
        """Create a log whose segments are sealed and flushed."""
        self._count += 1
        directory = f"{self._directory}/compacted-{self._count}"
        os.mkdir(directory)
        log = PartitionLog.open(self._disk, f"{directory}/log", settings=SETTINGS, now_ms=0).log
        if workload.settled:
            _append_all(log, workload.settled, seal_ms=10**17)
            run_pass(log)
        _append_all(log, workload.dirty, seal_ms=3 * 10**17)
        recycle_pages(self._directory, RECYCLED_BYTES)
        return directory, log

    def _compact(self, workload: Workload) -> PassCost:
        directory, log = self._log_of(workload)
        cpu_started, started = time.process_time(), time.perf_counter()
        outcome = run_pass(log)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        kept_bytes = sum(each.stat().st_size for each in Path(f"{directory}/log").glob("*.log"))
        log.close(clean=False)
        shutil.rmtree(directory)
        return PassCost(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            read_count=outcome.read_count,
            kept_count=outcome.kept_count,
            kept_bytes=kept_bytes,
        )

    def _read_and_write(self, workload: Workload, kept_bytes: int) -> float:
        """Return the seconds that bare system calls need to read such a log and to write what stays of it."""
        directory, log = self._log_of(workload)
        log.close(clean=False)
        paths = sorted(Path(f"{directory}/log").glob("*.log"))
        started = time.perf_counter()
        copy = os.open(f"{directory}/copy", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        left_bytes = kept_bytes
        for path in paths:
            descriptor, position = os.open(path, os.O_RDONLY), 0
            while data := os.pread(descriptor, CHUNK_BYTES, position):
                position += len(data)
                left_bytes -= os.write(copy, memoryview(data)[:left_bytes]) if left_bytes else 0
            os.close(descriptor)
        os.fdatasync(copy)
        seconds = time.perf_counter() - started
        os.close(copy)
        shutil.rmtree(directory)
        return seconds


def run_pass(log: PartitionLog) -> PassOutcome:
    """Run one pass as the cleaner does, but without its rate limit."""
    rules = LogCompaction(log).rules
    assert rules is not None, "the log is not compacted"
    chosen = find_range(LogCompaction(log).facts(log.log_end_offset), rules, 1)
    assert chosen is not None, "nothing is dirty"
    found = CompactionPass(log.disk, LogCompaction(log).begin(chosen, now_ms=1, max_keys=MAX_KEYS), _no_pace)
    found.build()
    for group in found.groups():
        cleaned = found.clean(group)
        assert cleaned is None or log.swap(cleaned, now_ms=1)
    outcome = found.outcome()
    LogCompaction(log).end(outcome)
    return outcome


def half_dirty(record_count: int, value_bytes: int) -> Workload:
    """Return each key once in random order, compacted, and as many records with random keys. Every call returns the same."""
    randoms = random.Random(7)
    keys = _keys(record_count // 2)
    settled = randoms.sample(keys, len(keys))
    return Workload(
        name="half dirty",
        settled=_batches(settled, value_bytes, randoms),
        dirty=_batches(randoms.choices(keys, k=len(keys)), value_bytes, randoms),
    )


def first_pass(record_count: int, value_bytes: int) -> Workload:
    """Return records with random keys, a tenth as many keys as records. Every call returns the same."""
    randoms = random.Random(7)
    keys = randoms.choices(_keys(record_count // RECORDS_PER_KEY), k=record_count)
    return Workload(name="first pass", settled=[], dirty=_batches(keys, value_bytes, randoms))


def _keys(count: int) -> list[bytes]:
    return [b"user-%011d" % number for number in range(count)]


def _batches(keys: list[bytes], value_bytes: int, randoms: random.Random) -> list[bytes]:
    values = [randoms.randbytes(value_bytes) for _ in range(BATCH_BYTES // value_bytes)]
    parts = [keys[start : start + len(values)] for start in range(0, len(keys), len(values))]
    return [bytes(encode_batch(values[: len(part)], keys=part, timestamps_ms=1)) for part in parts]


def _append_all(log: PartitionLog, batches: list[bytes], *, seal_ms: int) -> None:
    for batch in batches:
        log.append_as_leader(batch, read_header(batch), leader_epoch=1, now_ms=0)
    log.roll_if_due(seal_ms)
    log.flush()


def _workload(cost: PassCost) -> str:
    return f"{cost.read_count:,} records, {100 * cost.kept_count / cost.read_count:.0f} % stay"


def _no_pace(size_bytes: int) -> None:
    """Do nothing: there is no rate limit."""
