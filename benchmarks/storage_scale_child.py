# SPDX-License-Identifier: Apache-2.0
"""A fresh process that opens every partition of a data directory with one engine, and says what that took, as one line of JSON.

The way is a broker's: lock the data directory, scan it, ask for the place of each partition, open its log with its identity and a
shared file budget. Memory is counted before anything is used. Then more partitions than the budget has descriptors are read and
written, and `/proc/self/fd` is counted all the while. At last the same files are read once by bare system calls.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from dataclasses import asdict, dataclass

from lograft.wire.batch import encode_batch, read_header
from lograft.wire.malloc import tune_allocator

from storage.directory.data_directory import DataDirectory
from storage.directory.directories import LogDirectories, LogDirectory
from storage.files.descriptor_cache import FileBudget
from storage.files.names import parse_partition_directory_name
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.types import LogSettings

CLUSTER_ID = "bench"
"""Cluster of the data directory."""

NODE_ID = 1
"""Node of the data directory."""

SAMPLE_INTERVAL = 50
"""Number of partitions after which descriptors are counted."""

READ_PARTITIONS = 4_000
"""Partitions that are read while descriptors are counted."""

WRITTEN_PARTITIONS = 1_500
"""Partitions that are appended to and flushed while descriptors are counted."""

READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    """The cost of the opening.

    Attributes:
        partitions: opened logs, each after a clean shutdown.
        record_count: records of all logs together.
        idle_bytes: growth of the resident memory for each log, once all are open.
        open_s: seconds of the scan and all openings.
        open_cpu_s: processor time of the scan and all openings.
        bare_s: seconds that bare system calls need to list the same directories and to read the same files.
        idle_descriptors: descriptors once all logs are open, above those at the start.
        most_descriptors: maximum descriptors at any time, above those at the start.
    """

    partitions: int
    record_count: int
    idle_bytes: float
    open_s: float
    open_cpu_s: float
    bare_s: float
    idle_descriptors: int
    most_descriptors: int


def measure(path: str, budget: int) -> ScaleReport:
    """Open everything below a data directory.

    Args:
        path: the data directory, formatted and not locked.
        budget: descriptors of the file budget.
    """
    disk = PosixDisk()
    data = DataDirectory.open(disk, path, cluster_id=CLUSTER_ID, node_id=NODE_ID, has_metadata=False)
    files, settings = FileBudget(budget), LogSettings()
    gc.collect()
    before_bytes, before_descriptors = resident_bytes(), descriptor_count()
    most_descriptors = before_descriptors
    started, cpu_started = time.perf_counter(), time.process_time()
    directory = LogDirectory(disk, data.path, directory_id=data.directory_id)
    directories = LogDirectories([directory])
    directories.scan()
    logs: list[PartitionLog] = []
    for name in directory.partition_names():
        place = directories.place(name, now_ms=0)
        opened = PartitionLog.open(
            place.disk,
            f"{place.partitions_path}/{name}",
            settings=settings,
            now_ms=time.time_ns() // 1_000_000,
            identity=parse_partition_directory_name(name),
            files=files,
        )
        assert opened.report.clean, f"{name}: {opened.report}"
        logs.append(opened.log)
        if len(logs) % SAMPLE_INTERVAL == 0:
            most_descriptors = max(most_descriptors, descriptor_count())
    open_s, open_cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    gc.collect()
    idle_bytes = (resident_bytes() - before_bytes) / len(logs)
    idle_descriptors = descriptor_count()
    most_descriptors = max(most_descriptors, use(logs))
    record_count = sum(log.log_end_offset for log in logs)
    for log in logs:
        log.close(clean=False)
    bare_s = read_bare(directory.partitions_path)
    data.close()
    return ScaleReport(
        partitions=len(logs),
        record_count=record_count,
        idle_bytes=idle_bytes,
        open_s=open_s,
        open_cpu_s=open_cpu_s,
        bare_s=bare_s,
        idle_descriptors=idle_descriptors - before_descriptors,
        most_descriptors=most_descriptors - before_descriptors,
    )


def use(logs: list[PartitionLog]) -> int:
    """Read and write partitions all over the list, and return the maximum of descriptors."""
    most = 0
    batch = bytes(encode_batch([b"x" * 100], timestamps_ms=1))
    header = read_header(batch)
    for number, log in enumerate(logs[:: max(1, len(logs) // READ_PARTITIONS)]):
        assert log.read(0, READ_BYTES).next_offset == log.log_end_offset, log.directory
        if number % SAMPLE_INTERVAL == 0:
            most = max(most, descriptor_count())
    for number, log in enumerate(logs[:: max(1, len(logs) // WRITTEN_PARTITIONS)]):
        log.append_as_leader(batch, header, leader_epoch=1, now_ms=0)
        log.flush()
        if number % SAMPLE_INTERVAL == 0:
            most = max(most, descriptor_count())
    # The next process must find a clean shutdown again.
    for log in logs[:: max(1, len(logs) // WRITTEN_PARTITIONS)]:
        log.close()
    return max(most, descriptor_count())


def read_bare(partitions_path: str) -> float:
    """Return the seconds that bare system calls need to list every partition and to read its small files."""
    started = time.perf_counter()
    for name in os.listdir(partitions_path):
        path = f"{partitions_path}/{name}"
        for file_name in os.listdir(path):
            if file_name.endswith(".log"):
                os.stat(f"{path}/{file_name}")
                continue
            descriptor = os.open(f"{path}/{file_name}", os.O_RDONLY)
            os.read(descriptor, READ_BYTES)
            os.close(descriptor)
    return time.perf_counter() - started


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptor_count() -> int:
    """Return the number of open descriptors of this process, including the one that lists them."""
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True, help="data directory, formatted for this benchmark")
    parser.add_argument("--budget", type=int, required=True, help="descriptors of the file budget")
    arguments = parser.parse_args()
    tune_allocator()
    print(json.dumps(asdict(measure(arguments.path, arguments.budget))))


if __name__ == "__main__":
    main()
