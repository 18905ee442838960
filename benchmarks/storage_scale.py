# SPDX-License-Identifier: Apache-2.0
"""The log engine at its limits: 100,000 partitions in one process, and recovery of a long log.

Partitions: a data directory has 100,000 small logs that were stopped cleanly. A fresh process (`storage_scale_child`) opens them as a
broker does, with a budget of 1,000 descriptors. The figures are the resident memory for each idle partition (measured, not counted by
allocations), the time of the opening beside bare system calls that read the same files, and the maximum of descriptors at any time,
also while thousands of partitions are read and written. The engine writes one log. The others have copies of its files, each under
its own identity. Page state: the files were just written and are in the page cache.

Recovery: a log of 64 segments that was not closed. The figure is the number of bytes that its opening reads, at the `Disk` interface.
The ceiling is what recovery must read: the unflushed bytes, and the flushed part of the segment with the recovery point, whose index
is rebuilt.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lograft.wire.batch import encode_batch, read_header

from benchmarks.results_table import Result, absolute, compare
from benchmarks.storage_scale_child import CLUSTER_ID, NODE_ID, READ_PARTITIONS, WRITTEN_PARTITIONS, ScaleReport
from benchmarks.storage_scale_disk import ReadCountingDisk
from storage.directory.data_directory import DataDirectory
from storage.files.checkpoints import encode_lines
from storage.files.names import (
    LOG_SUFFIX,
    PARTITION_FILE,
    PARTITIONS_DIRECTORY,
    RECOVERY_POINT_FILE,
    PartitionIdentity,
    partition_directory_name,
)
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.types import LogSettings

PARTITIONS = 100_000
"""Partitions of the data directory."""

PARTITIONS_PER_TOPIC = 100

MAX_LINKS = 50_000
"""Maximum directories that share files: a file of ext4 may have 65,000 names."""

FILE_BUDGET = 1_000
"""Descriptors that the engine may hold for the files of all logs."""

OTHER_DESCRIPTORS = 4
"""Descriptors in addition to the budget, which one call needs for a moment: a directory that is listed or synced, a small file that is
read, a file that replaces one that is about to close, a file with unsynced bytes."""

IDLE_BYTES = 4 * 1024
"""Maximum bytes of resident memory for an idle partition."""

OPENINGS = 3
"""Number of fresh processes that open everything. Medians are stated."""

OPENING_TIMEOUT_S = 600.0

SMALL_LOG_BATCHES = 3
SMALL_LOG_VALUES = [b"x" * 100] * 10

RECOVERY_SEGMENTS = 64
"""Segments of the log that recovers."""

RECOVERY_SEGMENT_BYTES = 1024 * 1024
RECOVERY_BATCH_BYTES = 4_000
UNFLUSHED_BATCHES = (100, 700)
"""Batches after the last flush: within the last segment, and over three segments."""

READ_OVERHEAD = 1.05
"""Allowed ratio of bytes read to bytes that must be read: batches at the edge of a chunk are read twice, and small files are read
too."""

MB = 1e6

Rounds = Callable[..., list[list[float]]]
"""Runs measures in turns and returns the counted values of each."""


class ScaleBench:
    """Benchmarks of many partitions and of long logs on a real disk, below one directory."""

    def __init__(self, directory: Path, rounds_of: Rounds) -> None:
        self._directory = directory
        self._rounds_of = rounds_of

    def many_partitions(self, partitions: int = PARTITIONS) -> list[Result]:
        """Open that many partitions with one engine."""
        data_path = self._directory / "scale"
        prepare_partitions(str(data_path), partitions)
        reports = [open_in_child(str(data_path), FILE_BUDGET) for _ in range(OPENINGS)]
        shutil.rmtree(data_path)
        assert all(report.partitions == partitions for report in reports), reports
        open_us, cpu_us = (
            statistics.median(seconds) / partitions * 1e6
            for seconds in zip(*((report.open_s, report.open_cpu_s) for report in reports), strict=True)
        )
        name = f"storage {partitions:,} partitions"
        return [
            absolute(
                f"{name}, idle memory",
                "bytes each",
                [report.idle_bytes for report in reports],
                at_most=IDLE_BYTES,
                note=f"growth of RSS over {reports[0].record_count:,} records; {reports[0].idle_descriptors} descriptors",
            ),
            compare(
                f"{name}, opening",
                "s",
                [report.open_s for report in reports],
                [report.bare_s for report in reports],
                note=f"{open_us:.0f} us each ({cpu_us:.0f} of CPU); clean stop, page cache; ceiling reads the same files",
            ),
            absolute(
                f"{name}, descriptors",
                "most",
                [float(report.most_descriptors) for report in reports],
                at_most=FILE_BUDGET + OTHER_DESCRIPTORS,
                note=f"budget {FILE_BUDGET:,}; {READ_PARTITIONS:,} partitions read, {WRITTEN_PARTITIONS:,} written",
            ),
        ]

    def recovery(self) -> list[Result]:
        """Open a log of many segments after an unclean shutdown, and count what is read."""
        return [self._recover(count) for count in UNFLUSHED_BATCHES]

    def _recover(self, unflushed_batches: int) -> Result:
        seconds: list[float] = []

        def lograft() -> float:
            path = str(self._directory / "recovering")
            must_read_bytes.append(write_unclean(path, RECOVERY_SEGMENTS, unflushed_batches))
            disk = ReadCountingDisk(PosixDisk())
            started = time.perf_counter()
            log = open_unclean(disk, path)
            seconds.append(time.perf_counter() - started)
            log_bytes.append(sum(file.stat().st_size for file in Path(path).glob(f"*{LOG_SUFFIX}")))
            log.close(clean=False)
            shutil.rmtree(path)
            return disk.read_bytes / MB

        must_read_bytes: list[int] = []
        log_bytes: list[int] = []
        (read,) = self._rounds_of(lograft)
        note = (
            f"of {log_bytes[-1] / MB:.0f} MB in {RECOVERY_SEGMENTS} segments; ceiling: unflushed, and flushed part of one segment; "
            f"{statistics.median(seconds) * 1e3:.0f} ms"
        )
        ceilings = [must_read_bytes[-1] / MB] * len(read)
        unflushed = f"{unflushed_batches * RECOVERY_BATCH_BYTES / MB:.1f} MB unflushed"
        return compare(f"storage recovery reads, {unflushed}", "MB", read, ceilings, at_most=READ_OVERHEAD, note=note)


def prepare_partitions(data_path: str, partitions: int) -> None:
    """Format a data directory with that many small logs, each stopped cleanly.

    The engine writes the first one. The others get copies of its log and recovery point, and their own identity. The caches are further
    hard links to the same files, because removing copies of all would take minutes. That is safe: the engine only replaces caches and
    never writes into them.
    """
    disk = PosixDisk()
    data = DataDirectory.create(
        disk, data_path, cluster_id=CLUSTER_ID, node_id=NODE_ID, directory_id=bytes(range(16)), has_metadata=False
    )
    data.close()
    first = f"{data_path}/{PARTITIONS_DIRECTORY}/{partition_directory_name(identity_of(0))}"
    log = PartitionLog.open(disk, first, settings=LogSettings(), now_ms=1, identity=identity_of(0)).log
    for number in range(SMALL_LOG_BATCHES):
        batch = encode_batch(
            SMALL_LOG_VALUES,
            timestamps_ms=time.time_ns() // 1_000_000,
            producer_id=1_000_000,
            producer_epoch=0,
            base_sequence=number * len(SMALL_LOG_VALUES),
        )
        log.append_as_leader(batch, read_header(batch), leader_epoch=1, now_ms=1)
    log.close()
    contents = {file.name: file.read_bytes() for file in Path(first).iterdir()}
    links_to = first
    for number in range(1, partitions):
        identity = identity_of(number)
        path = f"{data_path}/{PARTITIONS_DIRECTORY}/{partition_directory_name(identity)}"
        os.mkdir(path)
        if number % MAX_LINKS == 0:
            links_to = path
        # If a line is wrong, the engine refuses to open the log.
        whose = [f"topic_id {identity.topic_id.hex()}", f"partition {identity.partition}"]
        contents[PARTITION_FILE] = encode_lines(whose)
        for name, content in contents.items():
            if path != links_to and not name.endswith((LOG_SUFFIX, RECOVERY_POINT_FILE, PARTITION_FILE)):
                os.link(f"{links_to}/{name}", f"{path}/{name}")
                continue
            descriptor = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            os.write(descriptor, content)
            os.close(descriptor)


def identity_of(number: int) -> PartitionIdentity:
    """Return the identity of a partition. Partitions are spread over topics."""
    topic, partition = divmod(number, PARTITIONS_PER_TOPIC)
    return PartitionIdentity((topic + 1).to_bytes(16, "big"), partition)


def open_in_child(data_path: str, budget: int) -> ScaleReport:
    """Open everything in a fresh process."""
    module = "benchmarks.storage_scale_child"
    done = subprocess.run(
        [sys.executable, "-m", module, "--path", data_path, "--budget", str(budget)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=OPENING_TIMEOUT_S,
    )
    return ScaleReport(**json.loads(done.stdout))


def write_unclean(path: str, segments: int, unflushed_batches: int) -> int:
    """Write a log of that many segments without flushing the last batches, and leave it as a crash would.

    Returns:
        Bytes that recovery must read: the unflushed ones, and those before them in the segment of the recovery point.
    """
    settings = LogSettings(segment_bytes=RECOVERY_SEGMENT_BYTES)
    log = PartitionLog.open(PosixDisk(), path, settings=settings, now_ms=1).log
    batch = encode_batch([bytes(RECOVERY_BATCH_BYTES - 100)], timestamps_ms=1, producer_id=-1)
    header = read_header(batch)
    per_segment = RECOVERY_SEGMENT_BYTES // len(batch)
    # At the end the last segment is half full.
    flushed = (segments - 1) * per_segment + per_segment // 2 - unflushed_batches
    for number in range(flushed + unflushed_batches):
        if number == flushed:
            log.flush()
        log.append_as_leader(batch, header, leader_epoch=1, now_ms=1)
    assert log.segment_count == segments, f"{log.segment_count} segments"
    log.close(clean=False)
    return (flushed % per_segment + unflushed_batches) * len(batch)


def open_unclean(disk: ReadCountingDisk, path: str) -> PartitionLog:
    """Open a log after an unclean shutdown."""
    opened = PartitionLog.open(disk, path, settings=LogSettings(segment_bytes=RECOVERY_SEGMENT_BYTES), now_ms=1)
    assert not opened.report.clean
    assert opened.report.cut_offset is None
    return opened.log
