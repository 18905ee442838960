# SPDX-License-Identifier: Apache-2.0
"""No stored batch can break a reader: every accessor works on a batch that passes the check.

Set LOGRAFT_FUZZ_FACTOR for a long run with new examples.
"""

from __future__ import annotations

from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st
from lograft.v1.records_pb2 import Records
from lograft.wire.batch import Codec, RecordBatch, check_batch, encode_batch
from lograft.wire.compression import compress
from lograft.wire.errors import BatchError
from lograft.wire.limits import HEADER_BYTES
from tests.wire.batches import Rows, edits, examples, mutate, put, read_everything, repair, rows, with_payload

MAX_BYTES = 100_000
MAX_INFLATED_BYTES = 1_000_000


def judge(batch: bytes | bytearray) -> None:
    """Assert the law for some bytes: they are refused with a BatchError, or readable."""
    try:
        check_batch(
            batch, max_bytes=MAX_BYTES, max_inflated_bytes=MAX_INFLATED_BYTES, allow_control=True, allow_compacted=True
        )
    except BatchError as error:
        event(f"refused: {error.code.name}")
        read_or_refuse(batch)
        return
    event("passed")
    read_everything(batch)


def read_or_refuse(batch: bytes | bytearray) -> None:
    """Assert that a reader of a bad batch gets entries or a BatchError, and nothing else."""
    for accessor in (
        RecordBatch.values,
        RecordBatch.keys,
        RecordBatch.timestamps_ms,
        RecordBatch.offsets,
        RecordBatch.headers,
        RecordBatch.records,
        RecordBatch.to_arrow,
    ):
        try:
            reader = RecordBatch(batch, verify_crc=False)
            assert len(accessor(reader)) == reader.record_count
        except BatchError:
            pass


@examples(300)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    """Random bytes."""
    judge(data)
    judge(mutate(encode_batch([b"x"]), [(61, 1000, data)]))


@examples(500)
@given(rows(), edits)
def test_mutated_batches(given_rows: Rows, changes: list[tuple[int, int, bytes]]) -> None:
    """A damaged batch."""
    judge(mutate(encode_batch(given_rows.values, **given_rows.arguments()), changes))


@examples(200)
@given(rows(), edits)
def test_mutated_batches_with_a_right_crc(given_rows: Rows, changes: list[tuple[int, int, bytes]]) -> None:
    """A batch that was damaged, or forged, before its CRC was computed."""
    batch = mutate(encode_batch(given_rows.values, **given_rows.arguments()), changes)
    judge(repair(batch) if len(batch) >= HEADER_BYTES else batch)


@examples(200)
@given(rows(), edits, st.booleans())
def test_mutated_payloads(given_rows: Rows, changes: list[tuple[int, int, bytes]], zstd: bool) -> None:
    """A forged payload behind a valid header, plain or in a valid zstd frame."""
    batch = encode_batch(given_rows.values, **{**given_rows.arguments(), "codec": Codec.NONE})
    forged = mutate(bytes(batch[HEADER_BYTES:]), changes)
    judge(with_payload(put(batch, ">h", 21, 4), compress(forged)) if zstd else with_payload(batch, forged))


small = st.one_of(st.integers(-2, 5), st.sampled_from([2**31 - 1, -(2**31)]))
large = st.one_of(st.integers(-2, 5), st.sampled_from([2**63 - 1, -(2**63), 2**48]))
lengths = st.one_of(st.integers(0, 4), st.sampled_from([2**32 - 1, 2**31]))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "values": st.binary(max_size=8),
    "value_lengths": st.lists(lengths, max_size=4),
    "value_length": lengths,
    "null_values": st.lists(small, max_size=4),
    "keys": st.binary(max_size=8),
    "key_lengths": st.lists(lengths, max_size=4),
    "key_length": lengths,
    "null_keys": st.lists(small, max_size=4),
    "timestamp_deltas_ms": st.lists(large, max_size=4),
    "offset_deltas": st.lists(small, max_size=4),
    "header_counts": st.lists(small, max_size=4),
    "header_keys": st.lists(st.sampled_from(["", "k"]), max_size=4),
    "header_values": st.lists(st.sampled_from([b"", b"v"]), max_size=4),
    "null_header_values": st.lists(small, max_size=4),
}


@examples(400)
@given(
    st.integers(0, 4),
    st.fixed_dictionaries({}, optional=FIELDS),
    st.tuples(small, large, large),
    st.booleans(),
)
def test_forged_columns(count: int, fields: dict[str, Any], numbers: tuple[int, int, int], plausible: bool) -> None:
    """A payload from the generated encoder, with columns that may contradict each other and the header."""
    if plausible:
        fields = {"value_length": 0, **fields} if "value_lengths" not in fields else fields
    batch = with_payload(encode_batch([b""] * max(count, 1)), Records(**fields).SerializeToString())
    batch = put(batch, ">i", 57, count)
    if not plausible:
        last_offset_delta, base_ms, max_ms = numbers
        batch = put(put(batch, ">i", 23, last_offset_delta), ">qq", 27, base_ms, max_ms)
    judge(batch)


HEADER_FIELDS = [
    (">q", 0),
    (">i", 12),
    (">b", 16),
    (">h", 21),
    (">i", 23),
    (">q", 27),
    (">q", 35),
    (">q", 43),
    (">h", 51),
]
HEADER_FIELDS += [(">i", 53), (">i", 57)]
BITS = {"q": 63, "i": 31, "h": 15, "b": 7}


@examples(200)
@given(
    rows(max_records=3), st.sampled_from(HEADER_FIELDS), st.integers(0, 63), st.sampled_from([-1, 0, 1]), st.booleans()
)
def test_forged_headers(given_rows: Rows, where: tuple[str, int], power: int, off: int, negative: bool) -> None:
    """A header field with any number around a power of two, with a valid CRC."""
    layout, position = where
    bits = BITS[layout[1]]
    number = min(2 ** min(power, bits) + off, 2**bits - 1)
    batch = encode_batch(given_rows.values, **given_rows.arguments())
    judge(put(batch, layout, position, -number if negative else number))
