# SPDX-License-Identifier: Apache-2.0
"""Objects for the tests of the cores, in one line each."""

from __future__ import annotations

from collections.abc import Sequence

from lograft._producer.accumulator import Accumulator
from lograft._producer.batches import SealedBatch
from lograft._producer.buffers import PartitionBuffer
from lograft._producer.record_columns import RECORD_OVERHEAD_BYTES
from lograft.types import Headers
from lograft.wire.batch import EncodedBatch


class Encoder:
    """Replaces the encoder: records what was sealed, and returns a body of a fixed size."""

    def __init__(self, body_bytes: int = 100) -> None:
        self.body_bytes = body_bytes
        self.lengths: list[tuple[int, int | None] | None] = []
        self.calls: list[
            tuple[list[bytes | None], list[bytes | None] | None, int | list[int], list[Headers] | None]
        ] = []

    def __call__(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamps_ms: int | Sequence[int],
        headers: Sequence[Headers] | None,
        lengths: tuple[int, int | None] | None,
    ) -> EncodedBatch:
        if lengths is not None:
            assert [len(value or b"") for value in values] == [lengths[0]] * len(values)
            assert [None if key is None else len(key) for key in keys or [None] * len(values)] == [lengths[1]] * len(
                values
            )
        self.lengths.append(lengths)
        self.calls.append(
            (
                list(values),
                None if keys is None else list(keys),
                timestamps_ms if isinstance(timestamps_ms, int) else list(timestamps_ms),
                None if headers is None else list(headers),
            )
        )
        return EncodedBatch.wrap(bytearray(self.body_bytes))


def append_fast(accumulator: Accumulator, part: PartitionBuffer, value: bytes, key: bytes | None) -> bool:
    """Add a record as the fast paths of the producers do. Return False if it does not fit."""
    batch = part.open
    if len(value) != batch.value_length or (None if key is None else len(key)) != batch.key_length:
        room = batch.room - len(value) - len(key or b"") - RECORD_OVERHEAD_BYTES
        if room < 0:
            return False
        batch.room = room
    batch += (value, key)
    if len(batch) >= batch.limit:
        accumulator.refill(part)
    return True


def make_accumulator(
    encoder: Encoder | None = None,
    *,
    batch_bytes: int = 10_000,
    buffer_bytes: int = 1_000_000,
    linger_ms: int = 5,
    max_in_flight: int = 2,
    delivery_timeout_ms: int = 1_000,
    max_record_bytes: int = 50_000,
) -> Accumulator:
    """Return an accumulator with small bounds."""
    return Accumulator(
        batch_bytes=batch_bytes,
        buffer_bytes=buffer_bytes,
        linger_ms=linger_ms,
        max_in_flight=max_in_flight,
        delivery_timeout_ms=delivery_timeout_ms,
        max_record_bytes=max_record_bytes,
        encode=encoder or Encoder(),
    )


def sealed(ordinal: int, *, record_count: int = 1, size_bytes: int = 100, deadline_ms: int = 1_000) -> SealedBatch:
    """Return a sealed batch of partition 0 of topic "t"."""
    return SealedBatch(
        topic="t",
        partition=0,
        body=EncodedBatch.wrap(bytearray(size_bytes)),
        record_count=record_count,
        reserved_bytes=size_bytes,
        deadline_ms=deadline_ms,
        ordinal=ordinal,
    )
