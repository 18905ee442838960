# SPDX-License-Identifier: Apache-2.0
"""Cuts many records into pieces that the accumulator takes at once.

This module owns the sizes of the pieces for `send_many`, and checks batches that callers encoded. It must not wait or send; the
producers do that piece by piece.

When the records for one partition make at least half a batch, they become batches of their own. The caller's thread encodes
them here without a lock and without a step for each record (50 ns a record instead of 200). Fewer records go to the open batch
as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lograft._producer.partitioner import CRC32C, KeyRule, group_by_partition, partition_by_keys
from lograft.errors import UsageError
from lograft.wire.batch import Codec, EncodedBatch, compose_batch, read_header
from lograft.wire.errors import BatchError, BatchTooLargeError, InvalidBatchError
from lograft.wire.limits import HEADER_BYTES, MAGIC, MAX_RECORDS_PER_BATCH

LOOSE_PIECES_PER_BATCH: Final = 8
"""A loose piece is about 1/8 of a batch, so that batches are well filled."""
KEYED_STEP_RECORDS: Final = 32_768
"""Records with keys whose partitions are computed in one step."""
BATCH_OVERHEAD_BYTES: Final = HEADER_BYTES + 64
"""Bytes counted for a batch besides its columns: header, tags and lengths."""
LENGTH_BYTES: Final = 4
"""Bytes counted for a value or key besides its bytes, when lengths differ."""
TIMESTAMP_BYTES: Final = 4
"""Bytes counted for a timestamp. Usual deltas are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoosePiece:
    """Records for the open batch of one partition; with `partition` None, of the sticky partition at that moment.

    The types of values and keys are not checked yet.
    """

    partition: int | None
    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    timestamps_ms: Sequence[int] | None

    def records(self) -> Iterator[tuple[bytes, bytes | None, int | None, int | None, None]]:
        """Yield each record as (value, key, partition, create time, no headers)."""
        for index, value in enumerate(self.values):
            key = None if self.keys is None else self.keys[index]
            time_ms = None if self.timestamps_ms is None else self.timestamps_ms[index]
            yield value, key, self.partition, time_ms, None

    def choose(self, indexes: Sequence[int], partition: int | None) -> LoosePiece:
        """Return some of the records for a partition; without keys if it is the sticky one."""
        return LoosePiece(
            partition=partition,
            values=[self.values[index] for index in indexes],
            keys=None if self.keys is None or partition is None else [self.keys[index] for index in indexes],
            timestamps_ms=None if self.timestamps_ms is None else [self.timestamps_ms[index] for index in indexes],
        )

    def part(self, start: int, end: int) -> LoosePiece:
        """Return the records from `start` to `end`, exclusive."""
        return LoosePiece(
            partition=self.partition,
            values=self.values[start:end],
            keys=None if self.keys is None else self.keys[start:end],
            timestamps_ms=None if self.timestamps_ms is None else self.timestamps_ms[start:end],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPiece:
    """A whole batch for one partition; with `partition` None, for the sticky partition at that moment.

    `may_split`: the sender may split the batch if the topic accepts only smaller ones.
    """

    partition: int | None
    body: EncodedBatch
    record_count: int
    may_split: bool = True


def cut(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int] | None,
    *,
    partition: int | None,
    partition_count: int,
    batch_bytes: int,
    codec: Codec,
    wall_clock_ms: Callable[[], int],
    rule: KeyRule = CRC32C,
    topic: str = "",
) -> Iterator[LoosePiece | EncodedPiece]:
    """Cut records into pieces. With keys and several partitions, the records of each partition stay in order; otherwise all do.

    Args:
        values: values. Values that are not bytes end up in loose pieces.
        keys: one key for each value; None for records without keys.
        timestamps_ms: one create time for each value, within the range of the format; None for none.
        partition: partition of all records. With None, the keys decide.
        partition_count: number of partitions.
        batch_bytes: size that a batch should not exceed.
        codec: compression of the batches.
        wall_clock_ms: returns the create time for encoded records without timestamps.
        rule: how keys decide.
        topic: topic name, for the rule.

    Raises:
        UsageError: the program's partitioner failed. The pieces so far hold the records before those of the same step.
    """
    cutter = _Cutter(batch_bytes, codec, wall_clock_ms)
    whole = LoosePiece(partition=partition, values=values, keys=keys, timestamps_ms=timestamps_ms)
    if partition is not None or keys is None or rule.decides_nothing(partition_count):
        yield from cutter.run(whole)
        return
    for start in range(0, len(values), KEYED_STEP_RECORDS):
        step = whole.part(start, start + KEYED_STEP_RECORDS)
        assert step.keys is not None
        try:
            # A record without a key among records with keys: within this function -1 stands for the sticky partition.
            numbers = partition_by_keys(step.keys, partition_count, keyless=-1, rule=rule, topic=topic)
        except TypeError:
            # A key is not bytes. The path for single records reports which one.
            yield step
            continue
        for number, indexes in group_by_partition(numbers).items():
            yield from cutter.run(step.choose(indexes, None if number < 0 else number))


class _Cutter:
    """Cuts the records of one partition."""

    def __init__(self, batch_bytes: int, codec: Codec, wall_clock_ms: Callable[[], int]) -> None:
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._wall_clock_ms = wall_clock_ms

    def run(self, piece: LoosePiece) -> Iterator[LoosePiece | EncodedPiece]:
        """Cut records that all go to one partition."""
        count = len(piece.values)
        if not count:
            return
        keys = piece.keys
        try:
            lengths = list(map(len, piece.values))
            is_uniform = lengths.count(lengths[0]) == count
            size = count * lengths[0] if is_uniform else sum(lengths)
            if keys is not None:
                size += sum([len(key) for key in keys if key is not None])
        except TypeError:
            yield piece
            return
        if keys is not None or not is_uniform:
            size += count * LENGTH_BYTES * (1 if keys is None else 2)
        if piece.timestamps_ms is not None:
            size += count * TIMESTAMP_BYTES
        room = max(1, self._batch_bytes - BATCH_OVERHEAD_BYTES)
        is_loose = size * 2 < room
        piece_count = max(1, -(-(size * LOOSE_PIECES_PER_BATCH if is_loose else size) // room))
        step = min(MAX_RECORDS_PER_BATCH, -(-count // piece_count))
        for start in range(0, count, step):
            part = piece.part(start, start + step)
            if is_loose:
                yield part
            else:
                yield from self._encode(part, lengths[start : start + step])

    def _encode(self, piece: LoosePiece, lengths: list[int]) -> Iterator[LoosePiece | EncodedPiece]:
        count = len(lengths)
        try:
            body = compose_batch(
                piece.values,
                keys=piece.keys,
                timestamps_ms=self._wall_clock_ms() if piece.timestamps_ms is None else piece.timestamps_ms,
                codec=self._codec,
                value_lengths=lengths,
            )
        except BatchTooLargeError:
            body = None
        except (TypeError, InvalidBatchError):
            # The path for single records reports which record is wrong.
            yield piece
            return
        if body is not None and (len(body) <= self._batch_bytes or count == 1):
            yield EncodedPiece(partition=piece.partition, body=body, record_count=count)
        elif count == 1:
            yield piece
        else:
            # The records differ in size, so this batch is too large. Encode each half.
            middle = count // 2
            yield from self._encode(piece.part(0, middle), lengths[:middle])
            yield from self._encode(piece.part(middle, count), lengths[middle:])


def check_encoded(encoded: bytearray, record_count: int) -> EncodedBatch:
    """Check the frame of a batch that the caller encoded. The broker checks the rest.

    Raises:
        UsageError: the bytes are not one whole batch of `record_count` records.
    """
    if type(encoded) is not bytearray:
        raise UsageError(f"an encoded batch is a bytearray, not {type(encoded).__name__}")
    try:
        header = read_header(encoded)
    except BatchError as error:
        raise UsageError(f"not a batch: {error}", code=error.code) from error
    if header.magic != MAGIC or header.size_bytes != len(encoded) or header.record_count != record_count:
        raise UsageError(
            f"not one batch of {record_count} records: {len(encoded)} bytes with a header that says "
            f"format {header.magic}, {header.size_bytes} bytes and {header.record_count} records"
        )
    return EncodedBatch.wrap(encoded)
