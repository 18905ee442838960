# SPDX-License-Identifier: Apache-2.0
"""Arrow columns give the same records both ways, for every kind of array."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.arrow import arrow_schema, encode_arrow, joined_to_arrow
from lograft.wire.batch import Codec, RecordBatch, check_batch, encode_batch
from lograft.wire.errors import BatchTooLargeError, InvalidBatchError
from lograft.wire.limits import MAX_BATCH_BYTES, MAX_TIMESTAMP_MS
from tests.wire.batches import Rows, examples, put, rows

BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())]


def encoded(**columns: Any) -> RecordBatch:
    """Encode columns and check the result as a broker would."""
    batch = encode_arrow(pa.RecordBatch.from_pydict(columns))
    check_batch(batch, max_bytes=MAX_BATCH_BYTES)
    return RecordBatch(batch)


@examples(150)
@given(rows(), st.integers(0, 3), st.integers(0, 3))
def test_arrow_and_lists_encode_to_the_same_bytes(given_rows: Rows, before: int, after: int) -> None:
    """A slice of an Arrow batch encodes to the same bytes as the lists, and decodes to the same records."""
    batch = encode_batch(given_rows.values, **given_rows.arguments())
    table = RecordBatch(batch).to_arrow(include_headers=True)
    assert table.schema == arrow_schema(include_headers=True)
    assert table.column("headers").to_pylist() == [
        [{"key": key, "value": value} for key, value in pairs] for pairs in given_rows.expected_headers()
    ]
    assert encode_arrow(table, codec=given_rows.codec) == batch
    rest = (
        pa.Table.from_batches([table.slice(0, before), table, table.slice(0, after)]).combine_chunks().to_batches()[0]
    )
    start = min(before, table.num_rows)
    assert encode_arrow(rest.slice(start, table.num_rows), codec=given_rows.codec) == batch


@examples(150)
@given(
    st.lists(rows(), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.sets(st.sampled_from(("key", "value", "offset", "timestamp_ms")), min_size=1),
)
def test_joined_batches_are_those_of_each_one_after_the_other(
    batches: list[Rows], gaps: list[int], columns: set[str]
) -> None:
    """Batches of any layout, compacted ones too, give the rows that they give alone, in order."""
    decoded: list[RecordBatch] = []
    offset = 5
    for given_rows, gap in zip(batches, gaps, strict=False):
        count = len(given_rows.values)
        deltas = None if gap == 0 else [index * gap for index in range(count)]
        arguments = {**given_rows.arguments(), "headers": None, "base_offset": offset, "offset_deltas": deltas}
        decoded.append(RecordBatch(encode_batch(given_rows.values, **arguments)))
        offset += count * max(1, gap) + gap
    joined = joined_to_arrow([(batch.header, batch.payload) for batch in decoded], columns=columns)
    joined.validate(full=True)
    each = pa.Table.from_batches([batch.to_arrow(columns=columns) for batch in decoded])
    assert joined.schema == each.schema
    assert joined.to_pylist() == each.to_pylist()


def test_to_arrow_without_headers_has_one_schema() -> None:
    """Columns and types are the same for batches with keys, with headers or with neither."""
    with_all = RecordBatch(encode_batch([b"a"], keys=[b"k"], headers=[[("h", b"v")]], timestamps_ms=3)).to_arrow()
    with_none = RecordBatch(encode_batch([None], base_offset=7)).to_arrow()
    assert with_all.schema == with_none.schema == arrow_schema()
    assert with_none.to_pylist() == [{"key": None, "value": None, "offset": 7, "timestamp_ms": 0}]
    assert pa.Table.from_batches([with_all, with_none]).num_rows == 2


def test_to_arrow_of_some_columns_builds_those_in_the_order_of_the_schema() -> None:
    """A reader that wants keys and offsets gets a batch without values."""
    batch = RecordBatch(encode_batch([b"a", b"b"], keys=[b"k", None], timestamps_ms=[1, 2], base_offset=7))
    rows = batch.to_arrow(columns=["offset", "key"])
    assert rows.to_pydict() == {"key": [b"k", None], "offset": [7, 8]}
    assert rows.schema == arrow_schema(columns=["key", "offset"])


def test_to_arrow_wraps_the_value_blob() -> None:
    """The blob of values is not copied: the Arrow buffer lies inside the batch."""
    batch = bytes(encode_batch([b"x" * 1000, b"y" * 999]))
    table = RecordBatch(batch).to_arrow()
    whole = pa.py_buffer(batch)
    data = table.column("value").buffers()[2]
    assert whole.address <= data.address < whole.address + whole.size


def test_to_arrow_of_compacted_and_timestamped_batches() -> None:
    """Gaps in the offsets and different timestamps give the right columns."""
    batch = encode_batch([b"a", b"b"], offset_deltas=[2, 5], base_offset=10, timestamps_ms=[50, 40])
    table = RecordBatch(batch).to_arrow()
    assert table.column("offset").to_pylist() == [12, 15]
    assert table.column("timestamp_ms").to_pylist() == [50, 40]
    when = table.column("timestamp_ms").cast(pa.timestamp("ms", "UTC"))
    assert when[0].as_py() == datetime.datetime(1970, 1, 1, 0, 0, 0, 50_000, tzinfo=datetime.UTC)


@pytest.mark.parametrize("kind", BYTES_TYPES + TEXT_TYPES, ids=str)
def test_every_kind_of_byte_string_column_is_taken(kind: Any) -> None:
    """Keys and values may be binary or text of any Arrow layout, with nulls and slices."""
    items: list[Any] = ["zero", "one", None, "", "four", "five"]
    if kind in BYTES_TYPES:
        items = [item if item is None else item.encode() for item in items]
    column = (
        pa.array(items, kind.value_type).dictionary_encode().cast(kind)
        if pa.types.is_dictionary(kind)
        else pa.array(items, kind)
    )
    batch = encoded(key=column.slice(1, 4), value=column.slice(2))
    assert batch.keys() == [b"one", None, b"", b"four"]
    assert batch.values() == [None, b"", b"four", b"five"]


def test_fixed_size_and_null_columns_are_taken() -> None:
    """Fixed-size binary becomes a uniform length. A column of type null is all null."""
    batch = encoded(value=pa.array([b"ab", b"cd", None], pa.binary(2)).slice(1), key=pa.nulls(2))
    assert batch.values() == [b"cd", None]
    assert batch.payload.keys is None
    assert encoded(value=pa.array([b"ab", b"cd"], pa.binary(2))).payload.values.uniform_length == 2


def test_bytes_under_null_slots_are_left_out() -> None:
    """Arrow allows bytes under a null. They become part of no record."""
    full = pa.array([b"aa", b"secret", b"cc"])
    _, offsets, data = full.buffers()
    hidden = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    assert encoded(value=hidden).values() == [b"aa", None, b"cc"]


def test_empty_columns_are_taken() -> None:
    """Empty values have no blob, alone or as a slice behind others."""
    for column in (pa.array([b"", b""]), pa.array([b"abc", b"", b""]).slice(1)):
        assert encoded(value=column).values() == [b"", b""]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5, 3], pa.int64()), [5, 3]),
        (pa.array([9, 5, 3], pa.int32()).slice(1), [5, 3]),
        (pa.array([5, 5], pa.uint16()), [5, 5]),
        (pa.array([5, 3], pa.timestamp("ms")), [5, 3]),
        (pa.array([5, 3], pa.timestamp("s", "UTC")), [5000, 3000]),
        (pa.array([5999, 3000], pa.timestamp("us", "Europe/Berlin")), [5, 3]),
        (pa.array([5999999, 3000000], pa.timestamp("ns")), [5, 3]),
        (pa.array([MAX_TIMESTAMP_MS, 0]), [MAX_TIMESTAMP_MS, 0]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["timestamp", "timestamp_ms"])
def test_every_kind_of_timestamp_is_taken(name: str, column: Any, expected: list[int]) -> None:
    """Integers are milliseconds. Arrow timestamps of any unit are cut to milliseconds."""
    assert encoded(value=[b"a", b"b"], **{name: column}).timestamps_ms() == expected


def test_one_timestamp_for_all() -> None:
    """Without a column, the caller gives one timestamp for the batch, or none."""
    table = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    assert RecordBatch(encode_arrow(table, timestamp_ms=77)).timestamps_ms() == [77, 77]
    assert RecordBatch(encode_arrow(table)).timestamps_ms() == [0, 0]


def test_identity_offset_and_codec_reach_the_header() -> None:
    """The arguments are those of encode_batch."""
    table = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "offset": [100, 200]})
    arguments: dict[str, Any] = {
        "producer_id": 1,
        "producer_epoch": 2,
        "base_sequence": 3,
        "base_offset": 4,
        "leader_epoch": 5,
    }
    assert encode_arrow(table, codec=Codec.ZSTD, **arguments) == encode_batch(
        [b"a", b"b"], codec=Codec.ZSTD, **arguments
    )


def test_headers_with_null_lists_and_text_values() -> None:
    """A null list of headers counts as empty, values may be text, and the order of the struct fields does not matter."""
    kind = pa.list_(pa.struct([("value", pa.string()), ("key", pa.large_string())]))
    rows_given = [
        [{"key": "skipped", "value": "x"}],
        None,
        [{"key": "a", "value": "1"}, {"key": "b", "value": None}],
        [],
    ]
    batch = encoded(value=[b""] * 3, headers=pa.array(rows_given, kind).slice(1))
    assert batch.headers() == [(), (("a", b"1"), ("b", None)), ()]
    large = pa.array(
        [[{"key": "k", "value": b"v"}]], pa.large_list(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    assert encoded(value=[b""], headers=large).headers() == [(("k", b"v"),)]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no rows": ({"value": pa.array([], pa.binary())}, "1 to 100000 records, not 0"),
    "too many rows": ({"value": pa.nulls(100_001)}, "1 to 100000 records, not 100001"),
    "no value": ({"key": [b"a"]}, "'value' is missing"),
    "unknown column": ({"value": [b"a"], "Key": [b"a"]}, "unknown column 'Key'"),
    "two timestamps": ({"value": [b"a"], "timestamp": [1], "timestamp_ms": [1]}, "there twice"),
    "value of numbers": ({"value": [1]}, "'value' has type int64"),
    "key of lists": ({"value": [b"a"], "key": [[b"a"]]}, "'key' has type list"),
    "dictionary of numbers": ({"value": pa.array([1, 2]).dictionary_encode()}, "'value' has type int64"),
    "null timestamp": ({"value": [b"a", b"b"], "timestamp": pa.array([1, None])}, "1 timestamps are null"),
    "timestamp of text": ({"value": [b"a"], "timestamp": ["now"]}, "timestamps have type string"),
    "timestamp negative": ({"value": [b"a"], "timestamp": [-1]}, "timestamps -1 to -1"),
    "timestamp over int64": (
        {"value": [b"a", b"b"], "timestamp": pa.array([0, 2**64 - 1], pa.uint64())},
        "are not within",
    ),
    "headers of text": ({"value": [b"a"], "headers": ["h"]}, "'headers' has type string"),
    "headers of lists of text": ({"value": [b"a"], "headers": [["h"]]}, "'headers' has type list"),
    "headers of other structs": ({"value": [b"a"], "headers": [[{"name": "h"}]]}, "give struct<key, value>"),
    "header key null": (
        {
            "value": [b"a"],
            "headers": pa.array(
                [[{"key": None, "value": b""}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
        },
        "a header key is null",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_batches_that_do_not_fit_are_refused(name: str) -> None:
    """Every mismatch is a typed error that names the column."""
    columns, message = BAD[name]
    with pytest.raises(InvalidBatchError, match=message):
        encode_arrow(pa.RecordBatch.from_pydict(columns))


def test_duplicate_columns_and_two_sources_of_timestamps_are_refused() -> None:
    """Each field may come from one column only."""
    array = pa.array([b"a"])
    with pytest.raises(InvalidBatchError, match="there twice"):
        encode_arrow(pa.RecordBatch.from_arrays([array, array], names=["value", "value"]))
    with pytest.raises(InvalidBatchError, match="not both"):
        encode_arrow(pa.RecordBatch.from_pydict({"value": [b"a"], "timestamp": [1]}), timestamp_ms=1)
    with pytest.raises(InvalidBatchError, match="timestamps -5"):
        encode_arrow(pa.RecordBatch.from_pydict({"value": [b"a"]}), timestamp_ms=-5)


def test_columns_over_the_limit_are_refused_before_a_copy() -> None:
    """A column of more than 64 MiB is too large, for any codec."""
    offsets = pa.py_buffer(memoryview(bytes(4)).cast("i").tobytes() + (65 << 20).to_bytes(4, "little"))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(bytes(65 << 20))])
    with pytest.raises(BatchTooLargeError, match="the limit is 67108864"):
        encode_arrow(pa.RecordBatch.from_arrays([column], names=["value"]), codec=Codec.ZSTD)


def test_damaged_batches_do_not_become_columns() -> None:
    """to_arrow checks timestamps before it computes with them."""
    batch = put(encode_batch([b"a", b"b"], timestamps_ms=[1, 2]), ">q", 27, 2**63 - 1)
    with pytest.raises(InvalidBatchError, match="are not within"):
        RecordBatch(batch).to_arrow()


def test_missing_pyarrow_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the error says what to install. Everything else works."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    batch = RecordBatch(encode_batch([b"a"]))
    assert batch.values() == [b"a"]
    with pytest.raises(ImportError, match=r"pip install 'lograft\[arrow\]'"):
        batch.to_arrow()
