# SPDX-License-Identifier: Apache-2.0
"""Cuts many records into pieces that fit into batches.

Owns the sizes of the pieces for `send_many` and `send_arrow`. Must not wait or send: the producers do, piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lograft._core.partitioner import group_by_partition, partition_by_keys

PIECES_PER_BATCH: Final = 8
"""Pieces are about this fraction of a batch, so that batches are well filled."""
KEYED_STEP_RECORDS: Final = 8_192
"""Records with keys whose partitions are computed at a time."""
FIRST_PIECE_RECORDS: Final = 64
"""Records of the first piece; the next ones adapt to their sizes."""
MAX_PIECE_RECORDS: Final = 32_768
"""Most records of a piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Records for one partition; `partition` None: the sticky one of the moment.

    `size_bytes` counts values and keys.
    """

    partition: int | None
    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    timestamps_ms: Sequence[int] | None
    size_bytes: int


def cut(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int] | None,
    *,
    partition: int | None,
    partition_count: int,
    batch_bytes: int,
) -> Iterator[Piece]:
    """Cut records into pieces in order (per partition, when keys decide).

    Args:
        values: values, all bytes.
        keys: keys; None: none has one.
        timestamps_ms: create times; None: none is given.
        partition: partition for all; None: by key.
        partition_count: number of partitions.
        batch_bytes: size of a batch.
    """
    target_bytes = max(1, batch_bytes // PIECES_PER_BATCH)
    if partition is not None or keys is None:
        yield from _cut_one(values, keys, timestamps_ms, partition, target_bytes)
        return
    for start in range(0, len(values), KEYED_STEP_RECORDS):
        end = start + KEYED_STEP_RECORDS
        some = values[start:end]
        some_keys = keys[start:end]
        times = None if timestamps_ms is None else timestamps_ms[start:end]
        # Records without a key among others with one: -1 stands for the sticky partition within this function.
        for number, indexes in group_by_partition(partition_by_keys(some_keys, partition_count, keyless=-1)).items():
            yield from _cut_one(
                [some[index] for index in indexes],
                None if number < 0 else [some_keys[index] for index in indexes],
                None if times is None else [times[index] for index in indexes],
                None if number < 0 else number,
                target_bytes,
            )


def _cut_one(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int] | None,
    partition: int | None,
    target_bytes: int,
) -> Iterator[Piece]:
    count = FIRST_PIECE_RECORDS
    start = 0
    while start < len(values):
        end = start + count
        some = values[start:end]
        some_keys = None if keys is None else keys[start:end]
        size = sum(map(len, some))
        if some_keys is not None:
            size += sum([len(key) for key in some_keys if key])
        if size > target_bytes and len(some) > 1:
            count = max(1, len(some) // 2)
            continue
        yield Piece(
            partition=partition,
            values=some,
            keys=some_keys,
            timestamps_ms=None if timestamps_ms is None else timestamps_ms[start:end],
            size_bytes=size,
        )
        start += len(some)
        if size * 2 <= target_bytes:
            count = min(count * 2, MAX_PIECE_RECORDS)
