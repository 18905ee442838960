# SPDX-License-Identifier: Apache-2.0
"""zstd frames: exactly one, complete, within the limit."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.compression import Codec, compress, inflate
from lograft.wire.errors import BatchError, BatchTooLargeError, InvalidBatchError
from tests.wire.batches import edits, examples, mutate

KNOWN = zstandard.ZstdCompressor(write_content_size=True).compress
UNKNOWN = zstandard.ZstdCompressor(write_content_size=False).compress
BOTH = pytest.mark.parametrize("encode", [KNOWN, UNKNOWN], ids=["size stated", "size not stated"])


@BOTH
def test_inflate_gives_the_content_up_to_the_cap(encode: Callable[[bytes], bytes]) -> None:
    """Content of exactly the limit passes. One byte more is too large."""
    data = bytes(range(256)) * 40
    assert inflate(encode(data), len(data)) == data
    assert inflate(memoryview(encode(data)), 1 << 30) == data
    with pytest.raises(BatchTooLargeError, match=f"more than {len(data) - 1} bytes"):
        inflate(encode(data), len(data) - 1)


@BOTH
def test_inflate_refuses_a_bomb(encode: Callable[[bytes], bytes]) -> None:
    """A small frame that would decompress to 64 MiB stops at the limit."""
    with pytest.raises(BatchTooLargeError):
        inflate(encode(bytes(64 << 20)), 1 << 20)


@BOTH
@pytest.mark.parametrize("tail", [b"x", b"x" * 1000, KNOWN(b"second"), UNKNOWN(b"second")])
def test_inflate_refuses_what_follows_the_frame(encode: Callable[[bytes], bytes], tail: bytes) -> None:
    """Garbage or a second frame after the first is refused, for every boundary of the slices."""
    for size in (1, 300, 100_000):
        data = bytes(range(250)) * (size // 250 + 1)
        with pytest.raises(InvalidBatchError, match=r"follow the zstd frame|unused data"):
            inflate(encode(data) + tail, 1 << 20)


def test_inflate_refuses_a_tail_that_starts_a_new_slice() -> None:
    """Bytes after a frame that ends exactly at the end of a slice are noticed."""
    frame = b""
    for size in range(200, 300):
        frame = UNKNOWN(bytes(n * 7919 % 251 for n in range(size)))
        if len(frame) == 256:
            break
    assert len(frame) == 256
    assert len(inflate(frame, 1000)) > 200
    with pytest.raises(InvalidBatchError, match="3 bytes follow"):
        inflate(frame + b"abc", 1000)


@BOTH
def test_inflate_refuses_a_cut_frame(encode: Callable[[bytes], bytes]) -> None:
    """A frame without its end is refused at every cut."""
    frame = encode(bytes(range(256)) * 3)
    for end in range(len(frame)):
        with pytest.raises(InvalidBatchError):
            inflate(frame[:end], 1 << 20)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"abcd",
        b"\x50\x2a\x4d\x18\x03\0\0\0abc",
        b"\x50\x2a\x4d\x18\x03\0\0\0abc" + KNOWN(b"after a skippable frame"),
        KNOWN(b""),
        KNOWN(b"") + b"tail",
    ],
    ids=["nothing", "garbage", "skippable", "skippable first", "empty", "empty with tail"],
)
def test_inflate_refuses_what_is_no_frame_with_content(frame: bytes) -> None:
    """Missing, skippable and empty frames are refused: a payload is never empty."""
    with pytest.raises(InvalidBatchError):
        inflate(frame, 1 << 20)


def test_inflate_refuses_a_false_content_size() -> None:
    """A frame that states a wrong content size is refused."""
    frame = bytearray(KNOWN(bytes(1000)))
    position = frame.index(struct.pack("<H", 1000 - 256))
    for claim in (900, 1100):
        frame[position : position + 2] = struct.pack("<H", claim - 256)
        with pytest.raises(InvalidBatchError):
            inflate(bytes(frame), 1 << 20)


def test_inflate_refuses_a_window_over_the_limit() -> None:
    """A frame that needs a window of 128 MiB is refused."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(bytes(300_000)) + stream.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 27
    with pytest.raises(InvalidBatchError, match="memory"):
        inflate(frame, 1 << 20)


def test_inflate_refuses_a_frame_with_a_dictionary() -> None:
    """A frame that needs a dictionary is refused, because other readers could not decode it."""
    samples = [b"sample %d of a text that repeats itself, line %d" % (n, n * 7) for n in range(500)]
    dictionary = zstandard.train_dictionary(2_000, samples)
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[0])
    assert zstandard.get_frame_parameters(frame).dict_id
    with pytest.raises(InvalidBatchError, match=r"[Dd]ictionary"):
        inflate(frame, 1 << 20)


@examples(300)
@given(st.binary(max_size=600), st.booleans(), edits)
def test_inflate_never_raises_anything_else(data: bytes, known: bool, changes: list[tuple[int, int, bytes]]) -> None:
    """For any bytes, the result is at most the limit or a BatchError."""
    frame = mutate((KNOWN if known else UNKNOWN)(data), changes)
    with suppress(BatchError):
        assert len(inflate(frame, 500)) <= 500


def test_compress_works_in_many_threads() -> None:
    """Each thread has its own compressor, and the results are complete."""
    data = [bytes([n]) * 50_000 for n in range(32)]
    with ThreadPoolExecutor(8) as pool:
        assert [inflate(frame, 50_000) for frame in pool.map(compress, data)] == data


def test_codec_names() -> None:
    """Codecs have the names that users write."""
    assert Codec.from_name("none") is Codec.NONE
    assert Codec.from_name("zstd") is Codec.ZSTD
    with pytest.raises(ValueError, match="use one of none, zstd"):
        Codec.from_name("gzip")
