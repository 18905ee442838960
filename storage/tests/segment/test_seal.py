# SPDX-License-Identifier: Apache-2.0
"""The format of seals: encoding, decoding, staleness, and invalid seals."""

from __future__ import annotations

import struct

import pytest
from lograft.wire.checksum import crc32c

from storage.segment.seal import (
    SEAL_CHUNK_BYTES,
    MalformedSealError,
    Seal,
    chunk_count,
    decode_seal,
    differing_chunks,
    encode_seal,
)

SEAL = Seal(log_bytes=2 * SEAL_CHUNK_BYTES + 1, end_offset=77, max_timestamp_ms=1_234, chunk_crcs=(1, 2**32 - 1, 3))


def with_crc(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("log_bytes", "count"),
    [(0, 0), (1, 1), (SEAL_CHUNK_BYTES, 1), (SEAL_CHUNK_BYTES + 1, 2), (2 * SEAL_CHUNK_BYTES, 2)],
)
def test_each_mebibyte_is_a_chunk(log_bytes: int, count: int) -> None:
    """A chunk is a MiB of the log file; the last one may be shorter."""
    assert chunk_count(log_bytes) == count


def test_seal_round_trip() -> None:
    """What was encoded is decoded, with no chunk and with several."""
    for seal in (SEAL, Seal(log_bytes=0, end_offset=5, max_timestamp_ms=-1, chunk_crcs=())):
        assert decode_seal(encode_seal(seal)) == seal


def test_bytes_are_those_of_the_page() -> None:
    """Every field is where docs/storage_format.md says."""
    expected = with_crc(
        b"LGSL" + struct.pack(">HHIQqq3I", 1, 0, 3, 2 * SEAL_CHUNK_BYTES + 1, 77, 1_234, 1, 2**32 - 1, 3)
    )
    assert encode_seal(SEAL) == expected


def test_seal_of_another_size_or_end_is_stale() -> None:
    """A seal fits only a segment with exactly its size and end."""
    assert SEAL.fits(log_bytes=SEAL.log_bytes, end_offset=77)
    assert not SEAL.fits(log_bytes=SEAL.log_bytes - 1, end_offset=77)
    assert not SEAL.fits(log_bytes=SEAL.log_bytes, end_offset=78)


def test_differing_chunks_are_named() -> None:
    """Chunks are compared one by one; a missing chunk differs."""
    assert differing_chunks(SEAL, (1, 2**32 - 1, 3)) == []
    assert differing_chunks(SEAL, (1, 7, 3)) == [1]
    assert differing_chunks(SEAL, (9,)) == [0, 1, 2]


def test_every_flipped_bit_is_noticed() -> None:
    """A seal with any changed byte is refused."""
    content = encode_seal(SEAL)
    for position in range(len(content)):
        for bit in range(8):
            hurt = bytearray(content)
            hurt[position] ^= 1 << bit
            with pytest.raises(MalformedSealError):
                decode_seal(bytes(hurt))


@pytest.mark.parametrize("size_bytes", [0, 3, 39, 40, 51])
def test_cut_seal_is_refused(size_bytes: int) -> None:
    """An incomplete seal is refused."""
    with pytest.raises(MalformedSealError):
        decode_seal(encode_seal(SEAL)[:size_bytes])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"LGXX" + struct.pack(">HHIQqq", 1, 0, 0, 0, 0, 0), "begins with"),
        (b"LGSL" + struct.pack(">HHIQqq", 2, 0, 0, 0, 0, 0), "version 2"),
        (b"LGSL" + struct.pack(">HHIQqq", 1, 0, 1, 1, 0, 0), "do not agree"),
        (b"LGSL" + struct.pack(">HHIQqqI", 1, 0, 1, 0, 0, 0, 0), "do not agree"),
    ],
)
def test_whole_file_that_is_no_seal_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    """Another magic, another version and contradicting counts have different reasons."""
    with pytest.raises(MalformedSealError, match=reason):
        decode_seal(with_crc(body))


def test_encoding_a_wrong_count_is_a_programmer_error() -> None:
    """A seal has one CRC for each chunk."""
    with pytest.raises(AssertionError):
        encode_seal(Seal(log_bytes=1, end_offset=1, max_timestamp_ms=0, chunk_crcs=()))
