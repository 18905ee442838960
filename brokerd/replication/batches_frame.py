# SPDX-License-Identifier: Apache-2.0
"""Fast encoder and decoder of the one bulk message between brokers: `ReplicateResponse(batches=ReplicaBatches(...))`.

Same bytes as the generated code, but the batches are written with one copy and sliced off unparsed, as a memoryview. A
batches message always comes as a frame, whatever its layout: the decoder takes the usual one by hand and leaves every
other to the generated parser, so that the two agree on every byte string.
Source: proto/lograft/internal/v1/replication.proto; `lograft.wire.frames` is the same for clients.
"""

from __future__ import annotations

from typing import NamedTuple

from lograft.internal.v1 import replication_pb2
from lograft.wire.checksum import BytesLike
from lograft.wire.frame_layout import encode_frame, slice_frame

_BATCHES_TAG = b"\x7a"  # ReplicateResponse.batches = 15, length-delimited
_NUMBER_FIELDS = 6
_INT32_FIELDS = (3, 6)  # leader_epoch, traffic
_IN_SYNC = int(replication_pb2.REPLICA_TRAFFIC_IN_SYNC)
_CATCH_UP = int(replication_pb2.REPLICA_TRAFFIC_CATCH_UP)


class BatchesFrame(NamedTuple):
    """Whole batches of one route (`ReplicateResponse.batches`).

    Attributes:
        route: number of the route.
        base_offset: offset of the first batch (inclusive).
        leader_epoch: of all the batches.
        high_watermark: of the leader (exclusive).
        log_start_offset: of the leader (inclusive).
        is_in_sync: True if the message spends the credit of in-sync routes; any other class counts as catching up.
        body: the batches, byte for byte as they lie in the log.
    """

    route: int
    base_offset: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    is_in_sync: bool
    body: BytesLike


def encode_batches_frame(
    route: int,
    base_offset: int,
    leader_epoch: int,
    high_watermark: int,
    log_start_offset: int,
    is_in_sync: bool,
    body: BytesLike,
) -> bytes:
    """Encode one message of batches; numbers are 0 or more."""
    traffic = _IN_SYNC if is_in_sync else _CATCH_UP
    numbers = (route, base_offset, leader_epoch, high_watermark, log_start_offset, traffic)
    return encode_frame(_BATCHES_TAG, numbers, (body,))


def decode_replicate_response(data: bytes) -> BatchesFrame | replication_pb2.ReplicateResponse:
    """Decode one message from a leader.

    Returns:
        A frame for batches, the generated message for anything else.

    Raises:
        google.protobuf.message.DecodeError: not a ReplicateResponse.
    """
    sliced = slice_frame(data, _BATCHES_TAG[0], _NUMBER_FIELDS, _INT32_FIELDS)
    if sliced is not None:
        (_, route, base_offset, leader_epoch, high_watermark, log_start_offset, traffic), body = sliced
        return BatchesFrame(
            route, base_offset, leader_epoch, high_watermark, log_start_offset, traffic == _IN_SYNC, body
        )
    message = replication_pb2.ReplicateResponse.FromString(data)
    if message.WhichOneof("part") != "batches":
        return message
    batches = message.batches
    return BatchesFrame(
        batches.route,
        batches.base_offset,
        batches.leader_epoch,
        batches.high_watermark,
        batches.log_start_offset,
        batches.traffic == _IN_SYNC,
        memoryview(batches.batches),
    )
