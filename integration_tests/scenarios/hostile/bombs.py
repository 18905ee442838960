# SPDX-License-Identifier: Apache-2.0
"""Batches of a few kilobytes that inflate to the limit of the format or beyond."""

from __future__ import annotations

import zstandard
from lograft.v1 import records_pb2
from lograft.wire.batch import encode_batch
from lograft.wire.compression import Codec, compress
from lograft.wire.encoded import EncodedBatch
from lograft.wire.header import read_header
from lograft.wire.limits import HEADER_BYTES, MAX_GENERIC_PAYLOAD_BYTES, MAX_INFLATED_BYTES, MAX_RECORDS_PER_BATCH
from lograft.wire.varint import encode_varint

PIECE_BYTES = 1024 * 1024
OVER_BYTES = 4 * MAX_INFLATED_BYTES
VALUES_TAG = b"\x0a"
HEADER_PAIR_BYTES = 4
"""Bytes of an empty key and an empty value of a record header, each with tag and length."""
COLUMN_BYTES = 1_000_000
"""Bytes that are left for the columns of a payload beside its record headers."""


def _with_payload(stored: bytes, record_count: int = 1) -> bytes:
    header = read_header(bytes(encode_batch([b""] * record_count, timestamps_ms=1)))
    return bytes(EncodedBatch(header._replace(attributes=Codec.ZSTD), [stored]).join())


def zeros(value_bytes: int, *, states_size: bool) -> bytes:
    """Return a batch of one record of that many zeros. Its frame states the size or does not."""
    prefix = VALUES_TAG + encode_varint(value_bytes)
    suffix = b"\x1d" + value_bytes.to_bytes(4, "little")  # value_length
    size = len(prefix) + value_bytes + len(suffix)
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=states_size).compressobj(
        size=size if states_size else -1
    )
    stored = compressor.compress(prefix)
    piece = bytes(PIECE_BYTES)
    for start in range(0, value_bytes, PIECE_BYTES):
        stored += compressor.compress(piece[: value_bytes - start])
    return _with_payload(stored + compressor.compress(suffix) + compressor.flush())


def record_headers() -> bytes:
    """Return a batch whose inflated payload has as many empty record headers as fit: many small objects."""
    pairs = (MAX_GENERIC_PAYLOAD_BYTES - COLUMN_BYTES) // HEADER_PAIR_BYTES
    each = pairs // MAX_RECORDS_PER_BATCH
    counts = [each] * MAX_RECORDS_PER_BATCH
    records = records_pb2.Records(
        value_length=0,
        header_counts=counts,
        header_keys=[""] * sum(counts),
        header_values=[b""] * sum(counts),
    )
    return _with_payload(compress(records.SerializeToString()), MAX_RECORDS_PER_BATCH)


def many_records() -> bytes:
    """Return a batch with the maximum number of records, which fills the limit of inflated bytes."""
    value_bytes = (MAX_INFLATED_BYTES - COLUMN_BYTES) // MAX_RECORDS_PER_BATCH
    return bytes(encode_batch([bytes(value_bytes)] * MAX_RECORDS_PER_BATCH, timestamps_ms=1, codec=Codec.ZSTD))


def all_kinds() -> list[bytes]:
    """Return one batch of each kind: above the limit with and without a size, just below it, many records, many headers."""
    under = MAX_INFLATED_BYTES - HEADER_BYTES
    return [
        zeros(OVER_BYTES, states_size=True),
        zeros(OVER_BYTES, states_size=False),
        zeros(under, states_size=True),
        zeros(under, states_size=False),
        many_records(),
        record_headers(),
    ]
