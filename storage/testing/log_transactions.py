# SPDX-License-Identifier: Apache-2.0
"""Transactions as operations of the model test: batches of a transactional producer, and the ends that a coordinator writes."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from functools import partial

from lograft.wire.batch import encode_batch, read_header
from lograft.wire.checksum import crc32c
from lograft.wire.header import ABORT_BIT, CONTROL_BIT, CRC_START, TRANSACTIONAL_BIT

from storage.testing.builders import ProducerStamp, make_batch
from storage.testing.log_appends import VALUE_BYTES, Append, SentBatch, draw_epoch, draw_keys
from storage.testing.log_world import Operation, World, attempt

PRODUCER_IDS = (11, 12, 13)
_CRC_POSITION = 17
_ATTRIBUTES_POSITION = 21


def in_transaction(batch: bytearray, bits: int = 0) -> SentBatch:
    """Return a batch with the transactional bit and other bits set."""
    (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES_POSITION)
    struct.pack_into(">h", batch, _ATTRIBUTES_POSITION, attributes | TRANSACTIONAL_BIT | bits)
    struct.pack_into(">I", batch, _CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return SentBatch(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendInTransaction(Append):
    """A leader appends a batch of a transaction, or its end; a broker has checked it."""

    weight = 8

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> AppendInTransaction:
        """See `Operation`; more batches than ends, sometimes an older producer epoch, or an end without a transaction."""
        model = world.model
        producer_id = rng.choice(PRODUCER_IDS)
        window = model.producers.get(producer_id)
        producer_epoch = window.producer_epoch if window is not None else rng.randrange(2)
        if rng.randrange(12) == 0:
            producer_epoch = max(0, producer_epoch + rng.choice((-1, 1)))
        leader_epoch = draw_epoch(model, rng)
        if rng.randrange(5) < 2:
            stamp = ProducerStamp(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=-1)
            end = make_batch(
                [b"end"], timestamp_ms=max(model.now_ms, 1_000 + 10 * model.end_offset), producer=stamp, control=True
            )
            bits = CONTROL_BIT | (ABORT_BIT if rng.randrange(2) else 0)
            return cls(batch=in_transaction(end, bits), leader_epoch=leader_epoch)
        count = rng.choice((1, 1, 2, 3))
        values: list[bytes | None] = [rng.randbytes(1) * rng.choice(VALUE_BYTES[:5]) for _ in range(count)]
        keys = draw_keys(values, rng)
        same_epoch = window is not None and window.producer_epoch == producer_epoch
        batch = encode_batch(
            values,
            keys=keys,
            timestamps_ms=max(model.now_ms, 1_000 + 10 * model.end_offset),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=window.next_sequence if window is not None and same_epoch else 0,
        )
        return cls(batch=in_transaction(batch), leader_epoch=leader_epoch)

    def apply_to_log(self, world: World) -> object:
        """See `Operation`; without the check of client batches, which refuses such batches."""
        header = read_header(self.batch)
        append = partial(world.log.append_as_leader, bytearray(self.batch), header, leader_epoch=self.leader_epoch)
        return attempt(partial(append, now_ms=world.now_ms))


TRANSACTION_OPERATIONS: tuple[type[Operation], ...] = (AppendInTransaction,)
"""The operations of transactions."""
