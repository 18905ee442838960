# SPDX-License-Identifier: Apache-2.0
"""The 61-byte header: layout, stamping, walking."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.batch import (
    BatchHeader,
    Codec,
    encode_batch,
    iter_batches,
    read_batches,
    read_header,
    stamp,
    stamped_prefix,
)
from lograft.wire.checksum import crc32c
from lograft.wire.errors import CorruptBatchError, UnsupportedBatchError
from lograft.wire.header import header_of_producer, write_header
from lograft.wire.limits import HEADER_BYTES
from tests.wire.batches import examples, put

I8, I16, I32, I64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (7, 15, 31, 63))


@examples(100)
@given(st.tuples(I64, I32, I32, I8, st.integers(0, 2**32 - 1), I16, I32, I64, I64, I64, I16, I32, I32))
def test_header_round_trips(fields: tuple[int, ...]) -> None:
    """For any integers and any position, the header read is the header written."""
    header = BatchHeader._make(fields)
    buffer = bytearray(HEADER_BYTES)
    write_header(buffer, header)
    assert read_header(b"xyz" + buffer, 3) == header


def test_header_layout_is_that_of_kafka() -> None:
    """Every field is at its documented byte, big-endian."""
    batch = encode_batch(
        [b"a", b"b"],
        timestamps_ms=[7, 9],
        producer_id=3,
        producer_epoch=4,
        base_sequence=5,
        base_offset=11,
        leader_epoch=12,
        control=True,
        codec=Codec.ZSTD,
    )
    assert struct.unpack_from(">qii", batch, 0) == (11, len(batch) - 12, 12)
    assert batch[16] == 16
    assert struct.unpack_from(">I", batch, 17) == (crc32c(bytes(batch[21:])),)
    assert struct.unpack_from(">hi", batch, 21) == (0b100100, 1)
    assert struct.unpack_from(">qq", batch, 27) == (7, 9)
    assert struct.unpack_from(">qhii", batch, 43) == (3, 4, 5, 2)


def test_header_properties() -> None:
    """Sizes, offsets, flags and the last sequence follow from the raw integers."""
    header = read_header(
        encode_batch([b"a"] * 3, base_offset=10, producer_id=0, producer_epoch=0, base_sequence=2**31 - 2)
    )
    assert (header.last_offset, header.next_offset) == (12, 13)
    assert header.has_producer
    assert header.last_sequence == 0
    assert not header.is_control
    assert header.codec is Codec.NONE
    assert header.size_bytes == header.batch_length + 12


def test_header_without_producer() -> None:
    """A batch without a producer reports none."""
    assert not read_header(encode_batch([b"a"])).has_producer


def test_unknown_codec_is_unsupported() -> None:
    """An unknown codec number is a typed error, not a ValueError."""
    header = read_header(put(encode_batch([b"a"]), ">h", 21, 3))
    with pytest.raises(UnsupportedBatchError, match="codec 3"):
        _ = header.codec


def test_stamp_changes_offset_and_epoch_and_not_the_crc() -> None:
    """The leader stamps in place or writes a prefix. Both give the same bytes and keep the CRC valid."""
    batch = encode_batch([b"a", b"b"])
    before = read_header(batch)
    prefix = stamped_prefix(77, before.batch_length, 8) + batch[16:]
    stamp(batch, base_offset=77, leader_epoch=8)
    assert prefix == batch
    assert read_header(batch) == before._replace(base_offset=77, leader_epoch=8)
    assert crc32c(batch[21:]) == before.crc


def test_iter_batches_gives_every_batch_at_its_position() -> None:
    """A region of whole batches is walked to its end."""
    batches = [encode_batch([bytes([n])] * n, base_offset=n) for n in (1, 2, 3)]
    region = b"".join(batches)
    found = list(iter_batches(region))
    assert [header.record_count for _, header in found] == [1, 2, 3]
    assert [region[position : position + header.size_bytes] for position, header in found] == batches
    assert [batch.values() for batch in read_batches(memoryview(region))] == [[b"\1"], [b"\2"] * 2, [b"\3"] * 3]
    assert list(iter_batches(b"")) == []


@pytest.mark.parametrize("left", [1, 60, 61, 70])
def test_iter_batches_refuses_a_torn_batch(left: int) -> None:
    """A batch that is cut off anywhere is reported, after the whole ones before it."""
    whole = encode_batch([b"a" * 30])
    walk = iter_batches(whole + whole[:left])
    assert next(walk)[0] == 0
    with pytest.raises(CorruptBatchError, match="left"):
        next(walk)


def test_iter_batches_refuses_an_impossible_size() -> None:
    """With a size below the header, the walk would never end."""
    batch = encode_batch([b"a"])
    struct.pack_into(">i", batch, 8, 0)
    with pytest.raises(CorruptBatchError, match="claims 12 bytes"):
        list(iter_batches(batch))


def test_iter_batches_refuses_another_magic() -> None:
    """Bytes of another format are not walked."""
    with pytest.raises(UnsupportedBatchError, match="magic 2"):
        list(iter_batches(put(encode_batch([b"a"]), ">b", 16, 2)))


@examples(100)
@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=5),
    st.sampled_from(Codec),
    st.tuples(I64, I32, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
)
def test_other_producer_changes_nothing_else(
    values: list[bytes | None],
    codec: Codec,
    old: tuple[int, int, int, int],
    new: tuple[int, int],
) -> None:
    """Timestamps, codec, offsets and epoch stay, and the CRC fits. Back with the first producer, every byte is as before."""

    def with_producer(batch: bytes | bytearray, producer: tuple[int, int]) -> bytes:
        head = header_of_producer(
            memoryview(batch), read_header(batch), producer_id=producer[0], base_sequence=producer[1]
        )
        assert len(head) == HEADER_BYTES
        return head + batch[HEADER_BYTES:]

    base_offset, leader_epoch, producer_id, base_sequence = old
    batch = encode_batch(
        values,
        timestamps_ms=list(range(7, 7 + len(values))),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base_sequence,
    )
    stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    before, header = bytes(batch), read_header(batch)
    other = with_producer(batch, new)
    back = with_producer(other, (producer_id, base_sequence))
    assert batch == before
    assert crc32c(bytes(other[21:])) == read_header(other).crc
    expected = header._replace(producer_id=new[0], producer_epoch=0, base_sequence=new[1], crc=read_header(other).crc)
    assert read_header(other) == expected
    assert back == batch


@examples(100)
@given(st.data())
def test_other_producer_never_hides_damage(data: st.DataObject) -> None:
    """A batch with a flipped bit that its CRC covers is refused, as is one with a byte too many or too few."""
    batch = encode_batch([b"some value"], timestamps_ms=7, producer_id=1, producer_epoch=0, base_sequence=2)
    header = read_header(batch)
    flipped = bytearray(batch)
    flipped[data.draw(st.integers(21, len(batch) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (flipped, batch + b"x", batch[:-1]):
        with pytest.raises(CorruptBatchError):
            header_of_producer(damaged, header, producer_id=3, base_sequence=4)
