# SPDX-License-Identifier: Apache-2.0
"""The broker's check: one typed error and one clear message for every kind of bad batch."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from lograft.v1.records_pb2 import Records
from lograft.wire.batch import Codec, check_batch, check_crc, encode_batch, read_header
from lograft.wire.checker import open_keys
from lograft.wire.compression import compress
from lograft.wire.errors import (
    BatchError,
    BatchTooLargeError,
    CorruptBatchError,
    InvalidBatchError,
    UnsupportedBatchError,
)
from lograft.wire.limits import MAX_BATCH_BYTES, MAX_OFFSET, MAX_TIMESTAMP_MS
from tests.wire.batches import put, read_everything, repair, with_payload

BATCH = bytes(encode_batch([b"one", b"three"], keys=[b"k", None], timestamps_ms=[1000, 2000]))
ZSTD = bytes(encode_batch([b"one" * 50, b"three"], codec=Codec.ZSTD))
PAIR = Records(value_length=0)


def length(batch: bytes, claim: int) -> bytes:
    """Change only the length field."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, claim)
    return bytes(changed)


def payload(**fields: Any) -> bytearray:
    """Put the payload of two empty values, with additional fields, behind a matching header."""
    return with_payload(encode_batch([b"", b""]), Records(value_length=0, **fields).SerializeToString())


BAD: dict[str, tuple[Callable[[], bytes | bytearray], type[BatchError], str]] = {
    "nothing": (lambda: b"", InvalidBatchError, "at least 61 bytes, this one 0"),
    "half a header": (lambda: BATCH[:60], InvalidBatchError, "at least 61 bytes, this one 60"),
    "cut off": (lambda: BATCH[:-1], InvalidBatchError, "claims a batch of"),
    "a byte too many": (lambda: BATCH + b"x", InvalidBatchError, "claims a batch of"),
    "two batches": (lambda: BATCH + BATCH, InvalidBatchError, "claims a batch of"),
    "negative length": (lambda: length(BATCH, -1), InvalidBatchError, "claims a batch of 11 bytes"),
    "length of 2 GiB": (lambda: length(BATCH, 2**31 - 1), InvalidBatchError, "claims a batch of 2147483659 bytes"),
    "over the limit": (lambda: bytes(100_001), BatchTooLargeError, "has 100001 bytes, the limit is 100000"),
    "magic of Kafka": (lambda: put(BATCH, ">b", 16, 2), UnsupportedBatchError, "Kafka's row payload"),
    "magic unknown": (lambda: put(BATCH, ">b", 16, 17), UnsupportedBatchError, "magic 17 is not supported"),
    "CRC wrong": (lambda: BATCH[:17] + bytes(4) + BATCH[21:], CorruptBatchError, "CRC-32C"),
    "last byte flipped": (lambda: BATCH[:-1] + bytes([BATCH[-1] ^ 1]), CorruptBatchError, "CRC-32C"),
    "codec unknown": (lambda: put(BATCH, ">h", 21, 1), UnsupportedBatchError, "codec 1"),
    "timestamp type": (lambda: put(BATCH, ">h", 21, 8), UnsupportedBatchError, "bits 0x0008"),
    "transactional": (lambda: put(BATCH, ">h", 21, 16), UnsupportedBatchError, "bits 0x0010"),
    "delete horizon": (lambda: put(BATCH, ">h", 21, 64), UnsupportedBatchError, "bits 0x0040"),
    "reserved bits": (lambda: put(BATCH, ">h", 21, -128), UnsupportedBatchError, "bits 0xff80"),
    "control": (lambda: put(BATCH, ">h", 21, 32), InvalidBatchError, "control"),
    "no records": (lambda: put(put(BATCH, ">i", 57, 0), ">i", 23, -1), InvalidBatchError, "this one claims 0"),
    "negative count": (lambda: put(BATCH, ">i", 57, -1), InvalidBatchError, "this one claims -1"),
    "record-count bomb": (lambda: put(BATCH, ">i", 57, 2**31 - 1), InvalidBatchError, "claims 2147483647"),
    "count over the limit": (lambda: put(BATCH, ">i", 57, 100_001), InvalidBatchError, "this one claims 100001"),
    "count of another batch": (lambda: put(put(BATCH, ">i", 57, 3), ">i", 23, 2), InvalidBatchError, "value lengths"),
    "last offset delta": (lambda: put(BATCH, ">i", 23, 5), InvalidBatchError, "last offset delta 5 does not fit 2"),
    "last offset delta negative": (lambda: put(BATCH, ">i", 23, -5), InvalidBatchError, "last offset delta -5"),
    "base offset negative": (lambda: put(BATCH, ">q", 0, -1), InvalidBatchError, "offsets from -1 on"),
    "base offset overflows": (lambda: put(BATCH, ">q", 0, MAX_OFFSET), InvalidBatchError, "offsets from 92233720"),
    "offset deltas": (lambda: payload(offset_deltas=[0, 1]), InvalidBatchError, "clients may not send offset deltas"),
    "producer without epoch": (lambda: put(BATCH, ">q", 43, 5), InvalidBatchError, r"\(5, -1, -1\)"),
    "producer without sequence": (lambda: put(BATCH, ">qh", 43, 5, 0), InvalidBatchError, r"\(5, 0, -1\)"),
    "epoch without producer": (lambda: put(BATCH, ">h", 51, 0), InvalidBatchError, r"\(-1, 0, -1\)"),
    "sequence without producer": (lambda: put(BATCH, ">i", 53, 0), InvalidBatchError, r"\(-1, -1, 0\)"),
    "producer below -1": (lambda: put(BATCH, ">qhi", 43, -2, -1, -1), InvalidBatchError, r"\(-2, -1, -1\)"),
    "base timestamp negative": (lambda: put(BATCH, ">q", 27, -1), InvalidBatchError, "not within 0 to"),
    "base timestamp too large": (lambda: put(BATCH, ">q", 27, 2**63 - 1), InvalidBatchError, "not within 0 to"),
    "timestamp overflows": (
        lambda: put(payload(timestamp_deltas_ms=[2**63 - 1, 0]), ">qq", 27, 5, 5),
        InvalidBatchError,
        "not within 0 to",
    ),
    "timestamp underflows": (lambda: payload(timestamp_deltas_ms=[-1, 0]), InvalidBatchError, "timestamps -1 to 0"),
    "base alone out of range": (
        lambda: put(payload(timestamp_deltas_ms=[5, 5]), ">qq", 27, -5, 0),
        InvalidBatchError,
        r"base -5\) are not within",
    ),
    "max timestamp wrong": (lambda: put(BATCH, ">q", 35, 1999), InvalidBatchError, "2000, the header says 1999"),
    "max timestamp wrong without deltas": (
        lambda: put(encode_batch([b""], timestamps_ms=5), ">q", 35, 6),
        InvalidBatchError,
        "5, the header says 6",
    ),
    "payload missing": (lambda: with_payload(BATCH, b""), InvalidBatchError, "0 value lengths for 2"),
    "payload garbage": (lambda: with_payload(BATCH, b"\xff\xff\xff"), InvalidBatchError, "not a lograft.v1.Records"),
    "payload with an unknown field": (
        lambda: with_payload(BATCH, BATCH[61:] + b"\x7a\x00"),
        UnsupportedBatchError,
        "a field that this version does not know",
    ),
    "zstd said, plain sent": (lambda: put(BATCH, ">h", 21, 4), InvalidBatchError, "not one whole zstd frame"),
    "plain said, zstd sent": (lambda: put(ZSTD, ">h", 21, 0), InvalidBatchError, "not a lograft.v1.Records"),
    "zstd without a frame": (lambda: with_payload(ZSTD, b""), InvalidBatchError, "zstd"),
    "zstd frame cut": (lambda: repair(ZSTD[:-1]), InvalidBatchError, "zstd"),
    "zstd frame twice": (lambda: with_payload(ZSTD, ZSTD[61:] * 2), InvalidBatchError, "zstd"),
    "zstd bomb": (lambda: with_payload(ZSTD, compress(bytes(2_000_000))), BatchTooLargeError, "more than 1000000"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_is_refused_with_its_reason(name: str) -> None:
    """Every rule has its own typed error and a message with the numbers."""
    make, error_type, message = BAD[name]
    with pytest.raises(error_type, match=message):
        check_batch(make(), max_bytes=100_000, max_inflated_bytes=1_000_000)


def test_header_keys_that_are_not_utf8_are_refused() -> None:
    """A header key that readers in other languages would refuse is not stored."""
    message = Records(value_length=0, header_counts=[1, 0], header_values=[b""]).SerializeToString()
    with pytest.raises(InvalidBatchError, match=r"not a lograft\.v1\.Records"):
        check_batch(with_payload(encode_batch([b"", b""]), message + b"\x62\x01\xff"), max_bytes=1000)


@pytest.mark.parametrize("batch", [BATCH, ZSTD], ids=["plain", "zstd"])
def test_every_single_flipped_bit_is_refused(batch: bytes) -> None:
    """Every flipped bit is noticed, except in base offset and leader epoch, which the CRC leaves out on purpose."""
    for position in [*range(8, 12), *range(16, len(batch))]:
        for bit in range(8):
            changed = bytearray(batch)
            changed[position] ^= 1 << bit
            with pytest.raises(BatchError):
                check_batch(changed, max_bytes=MAX_BATCH_BYTES)


def test_limits_are_inclusive() -> None:
    """A batch of exactly the limit passes, and so does a payload of exactly the decompressed limit."""
    assert check_batch(BATCH, max_bytes=len(BATCH)) == read_header(BATCH)
    with pytest.raises(BatchTooLargeError):
        check_batch(BATCH, max_bytes=len(BATCH) - 1)
    inflated = 3 + 155 + 10 + 5
    for limit in range(inflated - 10, inflated + 1):
        try:
            check_batch(ZSTD, max_bytes=1000, max_inflated_bytes=limit)
        except BatchTooLargeError:
            continue
        assert len(encode_batch([b"one" * 50, b"three"])) - 61 == limit
        break


def test_control_and_compacted_batches_pass_when_allowed() -> None:
    """Servers check their own control and compacted batches with the same function."""
    control = encode_batch([b"x"], control=True)
    assert check_batch(control, max_bytes=1000, allow_control=True).is_control
    compacted = encode_batch([b"x", b"y"], offset_deltas=[1, 3])
    assert check_batch(compacted, max_bytes=1000, allow_compacted=True).last_offset_delta == 3
    longer = put(compacted, ">i", 23, 9)
    assert check_batch(longer, max_bytes=1000, allow_compacted=True).next_offset == 10
    read_everything(longer)
    with pytest.raises(InvalidBatchError, match="offset delta 3 is beyond the last offset delta 2"):
        check_batch(put(compacted, ">i", 23, 2), max_bytes=1000, allow_compacted=True)


def test_producer_fields_at_their_bounds_pass() -> None:
    """The three producer fields are all at least 0, or all -1."""
    for identity in ((0, 0, 0), (2**63 - 1, 2**15 - 1, 2**31 - 1), (-1, -1, -1)):
        check_batch(put(BATCH, ">qhi", 43, *identity), max_bytes=1000)


def test_timestamps_and_offsets_at_their_bounds_pass() -> None:
    """The last millisecond of 9999 and the last offset can be stored and read."""
    batch = encode_batch([b"", b""], timestamps_ms=[0, MAX_TIMESTAMP_MS], base_offset=MAX_OFFSET - 1)
    assert check_batch(batch, max_bytes=1000).next_offset == MAX_OFFSET + 1
    read_everything(batch)


def test_check_accepts_every_kind_of_buffer() -> None:
    """bytes, bytearray and memoryview give the same result."""
    for kind in (bytes, bytearray, memoryview):
        assert check_batch(kind(BATCH), max_bytes=1000).record_count == 2


def test_check_crc_judges_the_batch_at_the_start_of_a_longer_buffer() -> None:
    """The CRC covers the batch that the header describes, not what follows it."""
    check_crc(BATCH + b"next", read_header(BATCH))


@pytest.mark.parametrize("batch", [BATCH, bytes(encode_batch([b"a" * 99, b"b"], keys=[b"k", None], codec=Codec.ZSTD))])
def test_the_keys_of_a_batch_are_opened_alone(batch: bytes) -> None:
    """The keys alone equal those of the batch, compressed or not. Invalid payloads are refused."""
    keys = open_keys(batch, read_header(batch))
    assert keys is not None
    assert keys.to_list() == [b"k", None]
    broken = batch[:61] + b"\xff" * (len(batch) - 61)
    with pytest.raises(BatchError):
        open_keys(broken, read_header(broken))
