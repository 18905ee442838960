# SPDX-License-Identifier: Apache-2.0
"""Compares the files of the replicas of partitions, batch by batch, after all brokers have stopped.

Clients see only the leader. A follower that differs would show only when it leads, perhaps never. Replicas hold the same bytes, batch
for batch, although their segments may differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from lograft.wire.header import HEADER_BYTES, read_header

from storage.files.names import LOG_SUFFIX, PARTITIONS_DIRECTORY, parse_offset_file_name, parse_partition_directory_name

Batches = list[tuple[int, int, bytes]]
"""First and last offset and the digest of each batch of a log."""


def compare_replicas(directories: Sequence[Path], *, replicas: int, partitions: int) -> list[str]:
    """Return the differences between the replicas of each partition.

    Args:
        directories: data directories of all brokers. None of the brokers runs.
        replicas: minimum number of replicas of a partition.
        partitions: minimum number of partitions that have so many replicas.
    """
    found: dict[str, dict[str, Batches]] = {}
    for directory in directories:
        for path in sorted((directory / PARTITIONS_DIRECTORY).iterdir()):
            if parse_partition_directory_name(path.name) is not None:
                found.setdefault(path.name, {})[directory.name] = list(read_batches(path))
    problems = [problem for name, logs in sorted(found.items()) for problem in _compare(name, logs)]
    whole = sum(len(logs) >= replicas for logs in found.values())
    if whole < partitions:
        problems.append(f"{whole} partitions have {replicas} replicas on disk, not {partitions}")
    return problems


def read_batches(directory: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the batches of a partition directory, segment by segment."""
    paths = sorted(directory.glob(f"*{LOG_SUFFIX}"))
    for path in paths:
        assert parse_offset_file_name(path.name) is not None, f"{path} is no segment"
        data = path.read_bytes()
        position = 0
        while position + HEADER_BYTES <= len(data):
            header = read_header(data, position)
            end = position + header.size_bytes
            yield header.base_offset, header.last_offset, hashlib.sha256(data[position:end]).digest()
            position = end


def _compare(name: str, logs: dict[str, Batches]) -> list[str]:
    (first_name, first), *others = sorted(logs.items())
    problems: list[str] = []
    for other_name, other in others:
        if other == first:
            continue
        pairs = (one for one in zip(first, other, strict=False) if one[0] != one[1])
        different = next(pairs, None)
        where = (
            f"at offset {different[0][0]}"
            if different is not None
            else f"in their ends: {_end(first)} and {_end(other)}"
        )
        problems.append(f"replicas of {name} on {first_name} and {other_name} differ {where}")
    return problems


def _end(batches: Batches) -> int:
    return batches[-1][1] + 1 if batches else 0
