# SPDX-License-Identifier: Apache-2.0
"""The log engine alone, in this process, beside bare system calls that move the same bytes.

Append: batches of 256 KB whose CRC is checked first, as on a broker. The ceiling writes the same bytes with `writev` (and `fdatasync`
after each, for `ack`) to a growing file, in turns, on recycled pages. Read: chunks of whole batches of about 1 MiB from the page cache.
The ceiling is `pread` of 1 MiB. Look-ups: random offsets and timestamps over 10 and over 1,000 segments; growth is the ratio of their
costs. Many partitions: small batches to 1,000 logs at a fixed rate, flushed by the engine's own flusher, beside one partition alone at
the same rate.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from lograft.wire.batch import check_batch, check_crc, encode_batch, read_header
from lograft.wire.limits import MAX_BATCH_BYTES

from benchmarks.pages import recycle_pages
from benchmarks.results_table import Result, absolute, compare
from storage.files.descriptor_cache import FileBudget
from storage.files.posix import PosixDisk
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import GroupFlusher
from storage.types import LogSettings

BATCH_BYTES = 256 * 1024
CHUNK_BYTES = 1024 * 1024
APPEND_BYTES = 192 * 1024 * 1024
RECYCLED_BYTES = 2 * APPEND_BYTES
LOOKUPS = 1_000_000
LOOKUP_SEGMENTS = (10, 1_000)
LOOKUP_BATCHES_PER_SEGMENT = 50
LOOKUP_BATCH_BYTES = 1_000
PARTITIONS = 1_000
PARTITION_RATE = 10
PARTITION_SECONDS = 5
LONE_PARTITION_SECONDS = 20
"""Seconds of a round with one partition: 200 batches, so that the p99 is more than the worst of a few."""
FLUSH_TIMEOUT_S = 10.0
MB = 1e6

Rounds = Callable[..., list[list[float]]]
"""Runs measures in turns and returns the counted values of each."""


class StorageBench:
    """Benchmarks of `PartitionLog` on a real disk, below one directory."""

    def __init__(self, directory: Path, rounds_of: Rounds) -> None:
        self._directory = directory
        self._rounds_of = rounds_of
        self._count = 0
        self._disk = PosixDisk()

    def _fresh(self) -> str:
        self._count += 1
        path = self._directory / f"log-{self._count}"
        path.mkdir()
        return str(path)

    def _open(
        self, directory: str, settings: LogSettings | None = None, files: FileBudget | None = None
    ) -> PartitionLog:
        opened = PartitionLog.open(
            self._disk, f"{directory}/log", settings=settings or LogSettings(), now_ms=wall_ms(), files=files
        )
        return opened.log

    def append(self, flush_policy: str, *, at_least: float) -> Result:
        """Append 256 KB batches of 100 B records. For `ack`, flush after each."""
        batch = usual_batch()
        count = APPEND_BYTES // len(batch)

        def lograft() -> float:
            directory = self._fresh()
            recycle_pages(self._directory, RECYCLED_BYTES)
            log = self._open(directory)
            started = time.perf_counter()
            for _ in range(count):
                header = read_header(batch)
                check_crc(batch, header)
                log.append_as_leader(batch, header, leader_epoch=1, now_ms=0)
                if flush_policy == "ack":
                    log.flush()
            seconds = time.perf_counter() - started
            log.close(clean=False)
            shutil.rmtree(directory)
            return count * len(batch) / MB / seconds

        def ceiling() -> float:
            directory = self._fresh()
            recycle_pages(self._directory, RECYCLED_BYTES)
            descriptor = os.open(f"{directory}/file", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            started = time.perf_counter()
            for _ in range(count):
                os.writev(descriptor, [batch])
                if flush_policy == "ack":
                    os.fdatasync(descriptor)
            seconds = time.perf_counter() - started
            os.close(descriptor)
            shutil.rmtree(directory)
            return count * len(batch) / MB / seconds

        measured, ceilings = self._rounds_of(lograft, ceiling)
        note = "CRC check included; growing file, recycled pages"
        return compare(f"storage append {flush_policy}", "MB/s", measured, ceilings, at_least=at_least, note=note)

    def payload_check(self) -> Result:
        """Run a broker's whole check of a batch, without any disk."""
        batch = usual_batch()
        count = APPEND_BYTES // len(batch)

        def measure() -> float:
            started = time.perf_counter()
            for _ in range(count):
                check_batch(batch, max_bytes=MAX_BATCH_BYTES)
            return count * len(batch) / MB / (time.perf_counter() - started)

        (rates,) = self._rounds_of(measure)
        return absolute("storage batch check", "MB/s", rates, note="header, CRC and payload of 256 KB batches of 100 B")

    def read(self) -> Result:
        """Read a log from the start in chunks of whole batches of at most 1 MiB."""
        batch = usual_batch()
        directory = self._fresh()
        log = self._open(directory, LogSettings(verify_first_read=False))
        for _ in range(APPEND_BYTES // len(batch)):
            log.append_as_leader(batch, read_header(batch), leader_epoch=1, now_ms=0)
        log.flush()
        descriptor = os.open(f"{directory}/log/{0:020d}.log", os.O_RDONLY)

        def lograft() -> float:
            started = time.perf_counter()
            offset = size_bytes = 0
            while True:
                chunk = log.read(offset, CHUNK_BYTES)
                if not chunk.data:
                    break
                size_bytes += len(chunk.data)
                offset = chunk.next_offset
            return size_bytes / MB / (time.perf_counter() - started)

        def ceiling() -> float:
            started = time.perf_counter()
            position = 0
            while data := os.pread(descriptor, CHUNK_BYTES, position):
                position += len(data)
            return position / MB / (time.perf_counter() - started)

        measured, ceilings = self._rounds_of(lograft, ceiling)
        os.close(descriptor)
        log.close(clean=False)
        shutil.rmtree(directory)
        return compare("storage read 1 MiB", "MB/s", measured, ceilings, at_least=0.6, note="page cache")

    def lookups(self) -> list[Result]:
        """Look up random offsets and timestamps, and compare the cost over 1,000 segments with the cost over 10."""
        costs: dict[str, list[float]] = {"offset": [], "timestamp": []}
        for segments in LOOKUP_SEGMENTS:
            directory = self._fresh()
            log, end_offset = self._many_segments(directory, segments)
            randoms = random.Random(7)
            targets = [
                randoms.randrange(end_offset) for _ in range(LOOKUPS if segments == LOOKUP_SEGMENTS[-1] else 100_000)
            ]
            for kind, look_up in (
                ("offset", lambda target, log=log: log.read(target, 1)),
                ("timestamp", lambda target, log=log, end=end_offset: log.find_timestamp(target, end_offset=end)),
            ):
                started = time.perf_counter()
                for target in targets:
                    look_up(target)
                costs[kind].append((time.perf_counter() - started) / len(targets) * 1e6)
            log.close(clean=False)
            shutil.rmtree(directory)
        # log2(1000 * 50) / log2(10 * 50): the growth of a bisection over all batches.
        bound = 1.74
        return [
            compare(
                f"storage look-up by {kind}",
                "us",
                [few_many[1]],
                [few_many[0]],
                at_most=bound,
                note=f"{LOOKUPS:,} over {LOOKUP_SEGMENTS[1]:,} segments against {LOOKUP_SEGMENTS[0]}",
            )
            for kind, few_many in costs.items()
        ]

    def _many_segments(self, directory: str, segments: int) -> tuple[PartitionLog, int]:
        settings = LogSettings(segment_bytes=LOOKUP_BATCHES_PER_SEGMENT * LOOKUP_BATCH_BYTES, verify_first_read=False)
        log = self._open(directory, settings, FileBudget(2 * segments))
        offset = 0
        while log.segment_count < segments:
            batch = encode_batch([b"x" * 100] * 9, timestamps_ms=offset)
            offset = log.append_as_leader(batch, read_header(batch), leader_epoch=1, now_ms=0).next_offset
        log.flush()
        return log, offset

    def many_partitions(self) -> Result:
        """Run 1,000 partitions with ten 1 KB batches per second each and `ack`: p99 from append to flushed, beside one partition."""
        medians_ms: dict[int, list[float]] = {1: [], PARTITIONS: []}
        shares: list[float] = []

        def p99_ms(partitions: int) -> float:
            latencies_ms, share = self._flush_latencies_ms(partitions)
            medians_ms[partitions].append(statistics.median(latencies_ms))
            if partitions > 1:
                shares.append(share)
            return sorted(latencies_ms)[len(latencies_ms) * 99 // 100]

        many, one = self._rounds_of(lambda: p99_ms(PARTITIONS), lambda: p99_ms(1))
        note = (
            f"append to flushed, p50 {statistics.median(medians_ms[PARTITIONS]):.2f} ms against "
            f"{statistics.median(medians_ms[1]):.2f} ms; CPU {statistics.median(shares) * 100:.0f} % of a core; p99 of each round "
            + ", ".join(f"{each:.1f}/{other:.1f}" for each, other in zip(many, one, strict=True))
        )
        return compare(f"storage ack {PARTITIONS:,} partitions p99", "ms", many, one, at_most=5.0, note=note)

    def _flush_latencies_ms(self, partitions: int) -> tuple[list[float], float]:
        directory = self._fresh()
        small = bytes(encode_batch([bytes(1024)], timestamps_ms=1))
        logs: list[PartitionLog] = []
        files = FileBudget(4 * partitions)
        for number in range(partitions):
            Path(f"{directory}/{number}").mkdir()
            logs.append(self._open(f"{directory}/{number}", files=files))
        for log in logs:
            # The first flush of a leader epoch also saves a checkpoint, but this measures the steady state.
            log.append_as_leader(small, read_header(small), leader_epoch=1, now_ms=0)
            log.flush()
        run = _PacedRun(logs, small)
        cpu_before = time.process_time()
        started = time.perf_counter()
        latencies_ms = run.run()
        share = (time.process_time() - cpu_before) / (time.perf_counter() - started)
        for log in logs:
            log.close(clean=False)
        shutil.rmtree(directory)
        return latencies_ms, share


class _PacedRun:
    """One owner thread that appends to each log in turn at its rate, and the threads of the flusher."""

    def __init__(self, logs: list[PartitionLog], batch: bytes) -> None:
        self._logs = logs
        self._batch = batch
        self._flusher = GroupFlusher()
        # Not a SimpleQueue: in Python 3.11 its `get` may wait forever if a timeout of microseconds ends at the wrong moment.
        self._done: deque[tuple[int, FlushWork, BaseException | None]] = deque()
        self._signal = threading.Event()
        self._is_waiting = False
        self._waiting: dict[int, list[float]] = {number: [] for number in range(len(logs))}
        self._covered: dict[int, int] = {}
        self._latencies_ms: list[float] = []

    def run(self) -> list[float]:
        """Append at the rate, and return the milliseconds from each append to the end of its flush."""
        header = read_header(self._batch)
        seconds = PARTITION_SECONDS if len(self._logs) > 1 else LONE_PARTITION_SECONDS
        total = len(self._logs) * PARTITION_RATE * seconds
        interval_s = seconds / total
        started = time.perf_counter()
        for step in range(total):
            due_s = started + step * interval_s
            # Flushed groups are handled first, so that no next group waits for an append.
            while self._take_done(max(0.0, due_s - time.perf_counter())) or time.perf_counter() < due_s:
                pass
            number = step % len(self._logs)
            self._waiting[number].append(time.perf_counter())
            self._logs[number].append_as_leader(self._batch, header, leader_epoch=1, now_ms=0)
            self._submit(number)
        while len(self._latencies_ms) < total:
            self._take_done(FLUSH_TIMEOUT_S)
        self._flusher.close()
        return self._latencies_ms

    def _submit(self, number: int) -> None:
        covered = len(self._waiting[number])
        work = self._flusher.submit(self._logs[number], lambda work, error: self._note_done(number, work, error))
        if work is not None:
            self._covered[number] = covered

    def _note_done(self, number: int, work: FlushWork, error: BaseException | None) -> None:
        self._done.append((number, work, error))
        if self._is_waiting:
            self._signal.set()

    def _take_done(self, timeout_s: float) -> bool:
        """Handle one flushed group, after a wait of at most `timeout_s`. Return False if there was none."""
        if not self._done and timeout_s > 0:
            self._is_waiting = True
            if not self._done:
                self._signal.wait(timeout_s)
            self._is_waiting = False
            self._signal.clear()
        if not self._done:
            return False
        number, work, error = self._done.popleft()
        if error is not None:
            raise error
        self._logs[number].end_flush(work)
        covered = self._covered.pop(number)
        now = time.perf_counter()
        self._latencies_ms += [(now - since) * 1e3 for since in self._waiting[number][:covered]]
        del self._waiting[number][:covered]
        if self._waiting[number]:
            self._submit(number)
        return True


def usual_batch() -> bytes:
    """Return a batch of 256 KB of 100 B records."""
    return bytes(encode_batch([os.urandom(100) for _ in range(BATCH_BYTES // 101)], timestamps_ms=1))


def wall_ms() -> int:
    """Return the milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
