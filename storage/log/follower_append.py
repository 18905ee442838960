# SPDX-License-Identifier: Apache-2.0
"""Checks the batches that a leader sent, before a follower writes any of them. Pure.

Law: offsets continue the log without a gap, leader epochs never go back, and every CRC matches. The bytes stay as they
are.
Source: Kafka, UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from lograft.wire.batch import check_crc
from lograft.wire.errors import InvalidBatchError
from lograft.wire.header import iter_batches

from storage.errors import OutOfOrderOffsetError
from storage.files.disk import Buffer
from storage.types import PlacedBatch


def check_follower_batches(region: Buffer, *, log_end_offset: int, last_epoch: int | None) -> list[PlacedBatch]:
    """Return the batches of a region, which must continue the log.

    Args:
        region: one or more whole batches.
        log_end_offset: where the first one must start.
        last_epoch: leader epoch of the log's last record; None: the log has none.

    Raises:
        BatchError: torn, damaged or impossible bytes.
        OutOfOrderOffsetError: offsets or leader epochs do not continue.
    """
    placed: list[PlacedBatch] = []
    view = memoryview(region)
    expected_offset = log_end_offset
    epoch = last_epoch if last_epoch is not None else 0
    for position, header in iter_batches(view):
        if header.base_offset != expected_offset:
            raise OutOfOrderOffsetError(
                "the batches do not continue the log", expected_offset=expected_offset, base_offset=header.base_offset
            )
        if header.leader_epoch < epoch:
            raise OutOfOrderOffsetError(
                f"leader epoch {header.leader_epoch} after {epoch}",
                expected_offset=expected_offset,
                base_offset=header.base_offset,
            )
        if header.last_offset_delta < 0:
            raise InvalidBatchError(f"last offset delta {header.last_offset_delta}")
        check_crc(view[position:], header)
        placed.append(PlacedBatch(position, header))
        epoch = header.leader_epoch
        expected_offset = header.next_offset
    return placed
