# SPDX-License-Identifier: Apache-2.0
"""A batch in another codec than its producer chose: what a topic with a `compression.type` stores. Pure.

Laws: a batch that has the codec already stays byte for byte, whatever level it was compressed at. Otherwise only codec, length
and CRC of the header change, and the payload once inflated is the same: producer, sequences, timestamps, headers and
offsets are untouched.
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
    """Return the bytes of a batch whose payload has the codec.

    Args:
        batch: its bytes, which `check_batch` has accepted.
        header: its header.
        codec: the codec wanted.
        zstd_level: level of compression, if there is anything to compress.
        max_bytes: most bytes of the result, header included; no more than that is ever inflated.

    Returns:
        `batch` itself if it has the codec already.

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
