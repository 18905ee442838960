# SPDX-License-Identifier: Apache-2.0
"""Codecs of the payload of a record batch: none, or one zstd frame.

Law: whatever the bytes are, decompression never returns more than the caller's limit, and never holds more than the limit, 8
MiB and a window. It accepts exactly one whole frame, with nothing before or after it.
Source: RFC 8878. The codec numbers are those of Kafka's attributes.
"""

from __future__ import annotations

import enum
import threading

import zstandard

from lograft.wire.checksum import BytesLike
from lograft.wire.errors import BatchTooLargeError, InvalidBatchError
from lograft.wire.limits import MAX_ZSTD_WINDOW_BYTES

ZSTD_LEVEL = 1
"""Default zstd level. Level 3 gives no better ratio on log-like records and takes 1.3 times the time."""

_SLICE_BYTES = 256
"""Bytes that the stream decoder gets at once.

A block of 4 bytes decompresses to at most 128 KiB, so one slice to at most 8 MiB.
"""


class Codec(enum.IntEnum):
    """Compression of a payload. Bits 0-2 of the attributes hold the number."""

    NONE = 0
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Codec:
        """Return the codec for "none" or "zstd".

        Raises:
            ValueError: the name is another one.
        """
        for codec in cls:
            if codec.name.lower() == name:
                return codec
        raise ValueError(f"unknown codec {name!r}: use one of {', '.join(codec.name.lower() for codec in cls)}")


class _ThreadCompressor(threading.local):
    """One compressor for each thread. Its context is expensive to make, and threads must not share it."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False, write_content_size=True)


_thread = _ThreadCompressor()


def compress(data: BytesLike, level: int = ZSTD_LEVEL) -> bytes:
    """Compress bytes into one zstd frame that states its content size.

    Args:
        data: the bytes.
        level: 1 to `limits.MAX_ZSTD_LEVEL`, inclusive.
    """
    if level == ZSTD_LEVEL:
        return _thread.compressor.compress(data)
    # This compressor is not kept: the context of a high level takes tens of megabytes.
    return zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True).compress(data)


def inflate(frame: BytesLike, max_bytes: int) -> bytes:
    """Decompress exactly one zstd frame.

    Args:
        frame: the whole frame and nothing else.
        max_bytes: largest result in bytes, inclusive.

    Raises:
        BatchTooLargeError: the content is larger than `max_bytes`.
        InvalidBatchError: the bytes are not exactly one whole zstd frame; or the frame is empty, or needs a dictionary or a
            window over the limit.
    """
    try:
        content_bytes = zstandard.get_frame_parameters(frame).content_size
        if content_bytes == zstandard.CONTENTSIZE_UNKNOWN:
            return _inflate_unknown(frame, max_bytes)
        if content_bytes > max_bytes:
            raise _too_large(max_bytes)
        if content_bytes == 0:
            raise InvalidBatchError("the zstd frame is empty")
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
        return decompressor.decompress(frame, max_output_size=content_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidBatchError(f"the payload is not one whole zstd frame: {error}") from error


def _inflate_unknown(frame: BytesLike, max_bytes: int) -> bytes:
    """Decompress a frame that does not state its content size, in slices, so that the limit holds at every moment.

    The one-shot call has a limit too, but it does not report bytes after the frame.
    """
    view = memoryview(frame)
    stream = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompressobj()
    pieces: list[bytes] = []
    inflated_bytes = 0
    for position in range(0, len(view), _SLICE_BYTES):
        if stream.eof:
            raise InvalidBatchError(f"{len(view) - position} bytes follow the zstd frame")
        piece = stream.decompress(view[position : position + _SLICE_BYTES])
        inflated_bytes += len(piece)
        if inflated_bytes > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
    if stream.unused_data:
        raise InvalidBatchError(f"{len(stream.unused_data)} bytes follow the zstd frame")
    if not stream.eof:
        raise InvalidBatchError("the zstd frame is cut off")
    return b"".join(pieces)


def _too_large(max_bytes: int) -> BatchTooLargeError:
    return BatchTooLargeError(f"the payload inflates to more than {max_bytes} bytes")
