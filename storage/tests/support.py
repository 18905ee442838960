# SPDX-License-Identifier: Apache-2.0
"""Logs of known batches, killed and damaged, and a reader that accepts losses, for the tests of recovery and damage."""

from __future__ import annotations

import random
from dataclasses import replace

from lograft.wire.batch import RecordBatch

from storage.errors import DataLossError
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, ProducerStamp, append, open_log, read_all
from storage.testing.sim_disk import Crash, SimDisk

LOG = "/data/log"
FIRST = f"{LOG}/{0:020d}.log"
LARGE = replace(SMALL, segment_bytes=10**6)


def kill(disk: SimDisk) -> None:
    """End the process; the page cache survives."""
    disk.crash(Crash.KEEP_ALL, random.Random(0))


def write_log(disk: SimDisk, count: int = 12, *, flush: bool = True) -> list[RecordBatch]:
    """Write a log of single-record batches in one segment, and kill it; return its batches."""
    log = open_log(disk, LOG, LARGE).log
    for number in range(count):
        append(log, [b"value-%02d" % number * 3], producer=ProducerStamp(producer_id=1, base_sequence=number))
    if flush:
        log.flush()
    batches = read_all(log)
    kill(disk)
    return batches


def position_of(batches: list[RecordBatch], number: int) -> int:
    return sum(batch.header.size_bytes for batch in batches[:number])


def flip(disk: SimDisk, path: str, position: int) -> None:
    disk.corrupt(path, position, bytes([disk.read_file(path)[position] ^ 0x40]))


def readable(log: PartitionLog) -> tuple[list[int], list[tuple[int, int]]]:
    """Walk the log like a reader that accepts losses; return the offsets served intact, and the ranges reported as lost."""
    served: list[int] = []
    lost: list[tuple[int, int]] = []
    offset = 0
    while offset < log.log_end_offset:
        try:
            chunk = log.read(offset, 250)
        except DataLossError as loss:
            lost.append((loss.base_offset, loss.end_offset))
            offset = loss.end_offset
            continue
        position = 0
        while position < len(chunk.data):
            batch = RecordBatch(chunk.data, position)
            assert batch.values() == [b"value-%02d" % batch.base_offset * 3]
            served.append(batch.base_offset)
            position += batch.header.size_bytes
        offset = chunk.next_offset
    assert sorted([*served, *(n for start, end in lost for n in range(start, end))]) == list(range(log.log_end_offset))
    return served, lost
