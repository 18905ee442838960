# SPDX-License-Identifier: Apache-2.0
"""Stores a batch in another codec than its producer chose, for a topic with a `compression.type`. Pure.

Laws: a batch that already has the codec stays as it is, byte for byte, whatever its compression level. Otherwise only
codec, length and CRC in the header change. The inflated payload stays the same; producer, sequences, timestamps,
headers and offsets are untouched.
Source: Kafka, LogValidator (`testDifferentCodecCausesRecompression`, `testDifferentLevelDoesNotCauseRecompression`).
"""

from __future__ import annotations

from lograft.wire.checksum import BytesLike
from lograft.wire.compression import Codec, compress, inflate
from lograft.wire.encoded import EncodedBatch
from lograft.wire.errors import BatchTooLargeError
from lograft.wire.header import CODEC_MASK, BatchHeader
from lograft.wire.limits import HEADER_BYTES, MAX_BATCH_BYTES


def recompress(
    batch: BytesLike, header: BatchHeader, codec: Codec, *, zstd_level: int, max_bytes: int = MAX_BATCH_BYTES
) -> BytesLike:
    """Return a batch with its payload in the wanted codec.

    Args:
        batch: its bytes, which `check_batch` has accepted.
        header: its header.
        codec: the wanted codec.
        zstd_level: compression level, used if the payload is compressed.
        max_bytes: most bytes of the result, including the header; never more than this is inflated.

    Returns:
        `batch` itself if it already has the codec.

    Raises:
        BatchTooLargeError: the batch is larger than `max_bytes` in this codec.
    """
    if header.codec is codec:
        return batch
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    if codec is Codec.ZSTD:
        stored = compress(payload, zstd_level)
    else:
        try:
            stored = inflate(payload, max_bytes - HEADER_BYTES)
        except BatchTooLargeError:
            raise _too_large(codec, max_bytes) from None
    if HEADER_BYTES + len(stored) > max_bytes:
        raise _too_large(codec, max_bytes)
    attributes = header.attributes & ~CODEC_MASK | codec
    return EncodedBatch(header._replace(attributes=attributes), [stored]).join()


def _too_large(codec: Codec, max_bytes: int) -> BatchTooLargeError:
    return BatchTooLargeError(
        f"the topic stores batches with compression.type={codec.name.lower()}, and so this one has more than the {max_bytes} "
        "bytes of its limit: send smaller batches"
    )
