# SPDX-License-Identifier: Apache-2.0
"""Payload parsing: the walk and the generated parser agree, and the rules of the columns hold."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lograft.v1.records_pb2 import Records
from lograft.wire import columns
from lograft.wire.batch import encode_batch
from lograft.wire.columns import BytesColumn, Payload, parse_keys, parse_payload
from lograft.wire.errors import BatchError, BatchTooLargeError, InvalidBatchError, UnsupportedBatchError
from lograft.wire.limits import HEADER_BYTES, MAX_GENERIC_PAYLOAD_BYTES
from tests.wire.batches import Rows, edits, examples, mutate, rows


def plain(payload: Payload) -> tuple[Any, ...]:
    """Return everything that a reader can see of a payload."""

    def column(found: BytesColumn | None) -> list[bytes | None] | None:
        return None if found is None else found.to_list()

    headers = payload.headers
    return (
        column(payload.values),
        column(payload.keys),
        list(payload.timestamp_deltas_ms),
        list(payload.offset_deltas),
        None if headers is None else (headers.counts, headers.keys, headers.values_with_nulls()),
    )


def outcome(parse: Any, data: bytes, count: int) -> tuple[Any, ...]:
    """Return a parser's result for the bytes: the columns, or the refusal."""
    try:
        return plain(parse(memoryview(data), count))
    except BatchError:
        return ("refused",)


@examples(300)
@given(rows(max_records=4), edits, st.integers(1, 5))
def test_the_walk_agrees_with_the_generated_parser(
    given_rows: Rows, changes: list[tuple[int, int, bytes]], count: int
) -> None:
    """For mutated payloads, both parsers refuse, or return the same columns."""
    arguments = {**given_rows.arguments(), "codec": 0}
    data = mutate(bytes(encode_batch(given_rows.values, **arguments)[HEADER_BYTES:]), changes)
    assert outcome(parse_payload, data, count) == outcome(columns._parse_generic, data, count)


@examples(300)
@given(rows(max_records=4), edits, st.integers(1, 5))
def test_the_keys_alone_are_those_of_the_whole_payload(
    given_rows: Rows, changes: list[tuple[int, int, bytes]], count: int
) -> None:
    """Every payload that can be parsed completely has the same keys when only they are parsed."""
    arguments = {**given_rows.arguments(), "codec": 0}
    data = mutate(bytes(encode_batch(given_rows.values, **arguments)[HEADER_BYTES:]), changes)
    try:
        keys = parse_payload(data, count).keys
    except BatchError:
        return
    found = parse_keys(data, count)
    assert (None if found is None else found.to_list()) == (None if keys is None else keys.to_list())


@pytest.mark.parametrize("with_headers", [False, True])
def test_keys_alone_of_either_layout(with_headers: bool) -> None:
    """Keys with a null are found in the usual layout and in one for the generated parser."""
    headers = [[("h", b"1")], [], []] if with_headers else None
    data = encode_batch([b"a", b"bc", None], keys=[b"k", None, b"kk"], headers=headers)[HEADER_BYTES:]
    keys = parse_keys(data, 3)
    assert keys is not None
    assert keys.to_list() == [b"k", None, b"kk"]
    assert parse_keys(encode_batch([b"a"])[HEADER_BYTES:], 1) is None


FIELD = st.one_of(
    st.builds(
        lambda tag, length, data: bytes([tag]) + length(len(data)) + data,
        st.sampled_from(
            [0x0A, 0x12, 0x22, 0x2A, 0x32, 0x42, 0x4A, 0x52, 0x5A, 0x62, 0x6A, 0x72, 0x15, 0x08, 0x7A, 0x82]
        ),
        st.sampled_from(
            [
                lambda n: bytes([n]),
                lambda n: bytes([n | 0x80, 0]),
                lambda n: bytes([n | 0x80, 0x80, 0x80, 0x80, 0]),
                lambda n: bytes([n | 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0]),
                lambda n: bytes([n | 0x80, *[0x80] * 8, 0]),
                lambda n: bytes([n | 0x80, *[0x80] * 9, 0]),
                lambda n: bytes([n | 0x80, *[0x80] * 8, 2]),
                lambda n: bytes([n + 1]),
            ]
        ),
        st.sampled_from(
            [
                b"",
                b"a",
                b"ab",
                b"\0",
                b"\1",
                b"\0\1",
                b"\1\0\0\0",
                b"\0\0\0\0\1\0\0\0",
                b"\1\0\0\0\1\0\0\0",
                b"\xff" * 9 + b"\1",
            ]
        ),
    ),
    st.builds(
        lambda tag, data: bytes([tag]) + data,
        st.sampled_from([0x1D, 0x3D]),
        st.sampled_from([b"\0\0\0\0", b"\1\0\0\0", b"\2\0\0", b"\xff" * 4]),
    ),
)


@examples(600)
@given(st.lists(FIELD, max_size=6), st.integers(1, 2))
def test_the_walk_agrees_with_the_generated_parser_on_odd_layouts(fields: list[bytes], count: int) -> None:
    """Repeated, unordered, overlong, unpacked, empty and unknown fields mean the same to both parsers."""
    data = b"".join(fields)
    assert outcome(parse_payload, data, count) == outcome(columns._parse_generic, data, count)


@pytest.fixture(params=[1, 5, 100])
def sliced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the parser slice every payload in an unusual layout, at about this size."""
    monkeypatch.setattr(columns, "SLICED_FROM_BYTES", 0)
    monkeypatch.setattr(columns, "_SLICE_BYTES", request.param)


def whole(view: memoryview, count: int) -> Payload:
    """Parse in one piece, for any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "SLICED_FROM_BYTES", sys.maxsize)
        return columns._parse_generic(view, count)


@pytest.mark.usefixtures("sliced")
@examples(200)
@given(st.lists(FIELD, max_size=8), st.integers(1, 2))
@example([b"\n\x80\x80\x80\x80\x80\x80\x00", b"\x1d\x00\x00\x00\x00"], 1)
def test_slices_agree_with_the_whole_on_odd_layouts(fields: list[bytes], count: int) -> None:
    """For any fields between record headers, torn or unknown, slices give the result of the whole."""
    data = b"".join(fields)
    assert outcome(columns._parse_generic, data, count) == outcome(whole, data, count)


@pytest.mark.usefixtures("sliced")
@examples(200)
@given(rows(max_records=4), edits, st.integers(1, 5))
def test_slices_agree_with_the_whole(given_rows: Rows, changes: list[tuple[int, int, bytes]], count: int) -> None:
    """The same holds for the output of an encoder and for mutations of it."""
    arguments = {**given_rows.arguments(), "codec": 0}
    data = mutate(bytes(encode_batch(given_rows.values, **arguments)[HEADER_BYTES:]), changes)
    assert outcome(columns._parse_generic, data, count) == outcome(whole, data, count)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300])
def test_record_headers_of_a_large_payload_are_parsed_in_slices(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated parser holds the interpreter lock to its end, so it never gets many record headers at once."""
    pair_count = 2 * columns.SLICED_FROM_BYTES // (2 * length + 4)
    records = Records(
        values=b"v",
        value_length=1,
        header_counts=[pair_count],
        header_keys=["k" * length] * pair_count,
        header_values=[b"v" * length] * pair_count,
        null_header_values=range(pair_count) if length == 0 else [],
    )
    parse, sizes = columns._parse_small, list[int]()

    def noted(data: bytes) -> Records:
        message = parse(data)
        if message.header_keys or message.header_values:
            sizes.append(len(data))
        return message

    monkeypatch.setattr(columns, "_parse_small", noted)
    payload = parse_payload(records.SerializeToString(), 1)
    assert payload.headers is not None
    assert payload.headers.keys == list(records.header_keys)
    assert payload.headers.values == list(records.header_values)
    # One match of short fields may exceed a slice.
    assert max(sizes) <= columns.SLICED_FROM_BYTES


def test_more_fields_than_records_can_need_are_refused_early() -> None:
    """Millions of fields of a few bytes are not read to the end."""
    data = Records(value_length=0, header_counts=[0]).SerializeToString() + b"\x0a\x00" * columns.SLICED_FROM_BYTES
    with pytest.raises(InvalidBatchError, match="far more fields than 1 records need"):
        parse_payload(data, 1)


@examples(300)
@given(rows(max_records=6), st.integers(0, 6), st.integers(0, 6))
def test_a_piece_has_the_records_of_the_whole(given_rows: Rows, first: int, count: int) -> None:
    """Values, keys, headers and nulls of some records equal those of the whole batch at the same indexes."""
    data = bytes(encode_batch(given_rows.values, **{**given_rows.arguments(), "codec": 0})[HEADER_BYTES:])
    record_count = len(given_rows.values)
    payload = parse_payload(data, record_count)
    first = min(first, record_count)
    count = min(count, record_count - first)
    piece = payload.piece(first, count)
    window = slice(first, first + count)
    assert piece.values.to_list() == payload.values.to_list()[window]
    assert (piece.keys and piece.keys.to_list()) == (payload.keys and payload.keys.to_list()[window])
    assert list(payload.values.lengths_of(first, count)) == [len(value or b"") for value in piece.values.to_list()]


def test_usual_payloads_are_walked() -> None:
    """The encoder's output without record headers takes the fast path. Headers take the generated parser."""
    usual = bytes(
        encode_batch([b"a", None], keys=[None, b"kk"], timestamps_ms=[1, 2], offset_deltas=[0, 5])[HEADER_BYTES:]
    )
    assert columns._walk(memoryview(usual), 2) is not None
    with_headers = bytes(encode_batch([b"a"], headers=[[("k", b"v")]])[HEADER_BYTES:])
    assert columns._walk(memoryview(with_headers), 1) is None


GOOD: dict[str, Any] = {"values": b"aabbb", "value_lengths": [2, 3]}

BAD_PAYLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "no value column": ({}, "0 value lengths for 2 records"),
    "too few lengths": ({**GOOD, "value_lengths": [5]}, "1 value lengths for 2 records"),
    "too many lengths": ({**GOOD, "value_lengths": [2, 2, 1]}, "3 value lengths for 2 records"),
    "lengths below the blob": ({**GOOD, "value_lengths": [2, 2]}, "sum to 4, the blob has 5"),
    "lengths over the blob": ({**GOOD, "value_lengths": [2**32 - 1, 6]}, "sum to 4294967301, the blob has 5"),
    "both forms": ({**GOOD, "value_length": 2}, "both value_lengths and value_length"),
    "uniform length too small": ({"values": b"aaaaa", "value_length": 2}, "2 values of 2 bytes"),
    "uniform length overflows": ({"values": b"", "value_length": 2**31}, "2 values of 2147483648 bytes"),
    "null in a uniform column": ({"values": b"aabb", "value_length": 2, "null_values": [0]}, "a null takes no bytes"),
    "null with a length": ({**GOOD, "null_values": [1]}, "a null takes no bytes"),
    "null index negative": ({"value_length": 0, "null_values": [-1]}, "null value indexes"),
    "null index out of range": ({"value_length": 0, "null_values": [2]}, "null value indexes"),
    "null index twice": ({"value_length": 0, "null_values": [1, 1]}, "null value indexes"),
    "null indexes descend": ({"value_length": 0, "null_values": [1, 0]}, "null value indexes"),
    "too many null indexes": ({"value_length": 0, "null_values": [0, 1, 1]}, "3 null value indexes for 2 records"),
    "key lengths missing": ({**GOOD, "keys": b"k"}, "0 key lengths for 2 records"),
    "key lengths wrong": ({**GOOD, "keys": b"k", "key_lengths": [1, 1]}, "the key lengths sum to 2"),
    "null keys without keys": ({**GOOD, "null_keys": [0]}, "0 key lengths for 2 records"),
    "key null with a length": (
        {**GOOD, "keys": b"k", "key_lengths": [1, 0], "null_keys": [0]},
        "null key has a length",
    ),
    "timestamp count": ({**GOOD, "timestamp_deltas_ms": [1]}, "1 timestamp deltas for 2 records"),
    "offset count": ({**GOOD, "offset_deltas": [1]}, "1 offset deltas for 2 records"),
    "offset negative": ({**GOOD, "offset_deltas": [-1, 2]}, "offset deltas are not strictly ascending"),
    "offset repeats": ({**GOOD, "offset_deltas": [1, 1]}, "offset deltas are not strictly ascending"),
    "header counts missing": ({**GOOD, "header_keys": ["a"], "header_values": [b""]}, "0 record headers with 1 keys"),
    "header count wrong": ({**GOOD, "header_counts": [1]}, "1 header counts for 2 records"),
    "header count negative": ({**GOOD, "header_counts": [-1, 1]}, "a header count is -1"),
    "header keys wrong": ({**GOOD, "header_counts": [1, 0], "header_values": [b""]}, "1 record headers with 0 keys"),
    "header values wrong": ({**GOOD, "header_counts": [1, 0], "header_keys": ["a"]}, "1 keys and 0 values"),
    "null header out of range": (
        {**GOOD, "header_counts": [1, 0], "header_keys": ["a"], "header_values": [b""], "null_header_values": [1]},
        "null header value indexes",
    ),
    "null header without headers": ({**GOOD, "null_header_values": [0]}, "1 null header value indexes for 0"),
    "null header with bytes": (
        {**GOOD, "header_counts": [1, 0], "header_keys": ["a"], "header_values": [b"x"], "null_header_values": [0]},
        "a null takes none",
    ),
}


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_payloads_that_contradict_themselves_are_refused(name: str) -> None:
    """Each rule of the columns has its own message, in both parsers."""
    fields, message = BAD_PAYLOADS[name]
    data = Records(**fields).SerializeToString()
    for parse in (parse_payload, columns._parse_generic):
        with pytest.raises(InvalidBatchError, match=message):
            parse(memoryview(data), 2)


@pytest.mark.parametrize(
    ("fields", "values", "keys"),
    [
        ({"value_length": 0}, [b"", b""], None),
        ({"value_length": 0, "null_values": [0, 1]}, [None, None], None),
        ({"value_lengths": [0, 0], "null_values": [1]}, [b"", None], None),
        ({**GOOD, "key_length": 0}, [b"aa", b"bbb"], [b"", b""]),
        ({**GOOD, "key_length": 0, "null_keys": [0, 1]}, [b"aa", b"bbb"], [None, None]),
        ({**GOOD, "keys": b"k", "key_lengths": [0, 1], "null_keys": [0]}, [b"aa", b"bbb"], [None, b"k"]),
        ({**GOOD, "header_counts": [0, 0]}, [b"aa", b"bbb"], None),
    ],
)
def test_unusual_but_right_payloads_pass(fields: dict[str, Any], values: list[Any], keys: list[Any] | None) -> None:
    """Forms that the encoder does not write but the format allows have the meaning of the format."""
    payload = parse_payload(Records(**fields).SerializeToString(), 2)
    assert payload.values.to_list() == values
    assert (payload.keys and payload.keys.to_list()) == keys
    assert payload.headers is None


def test_unknown_fields_are_refused() -> None:
    """A column of a newer version is not silently dropped."""
    data = Records(**GOOD).SerializeToString()
    for unknown in (b"\x7a\x01x", b"\x80\x01\x07", b"\xfa\x01\x00"):
        with pytest.raises(UnsupportedBatchError, match="does not know"):
            parse_payload(data + unknown, 2)
    with pytest.raises(UnsupportedBatchError, match="does not know"):
        parse_payload(b"\x08\x01" + data, 2)


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05abc", b"\x1d\x00\x00", b"\xff", b"\x0b\x0c\x0c", b"\x4a\x01\x80", b"\x62\x01\xff"]
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    """Torn fields, groups, torn varints and header keys that are not UTF-8 are refused."""
    with pytest.raises(InvalidBatchError):
        parse_payload(data, 1)


def test_a_torn_varint_column_in_the_usual_layout_is_refused() -> None:
    """The fast path accepts the layout, but checks the varints inside."""
    with pytest.raises(InvalidBatchError, match=r"not a lograft\.v1\.Records"):
        parse_payload(Records(value_length=0).SerializeToString() + b"\x4a\x01\x80", 1)


def test_lists_of_too_many_varints_are_refused_before_they_are_expanded() -> None:
    """A column of a million deltas for one record is refused."""
    data = Records(value_length=0).SerializeToString() + b"\x4a\xc0\x84\x3d" + bytes(1_000_000)
    with pytest.raises(InvalidBatchError, match="1000000 timestamp deltas for 1 records"):
        parse_payload(data, 1)


def test_large_payloads_never_reach_the_generated_parser() -> None:
    """A bomb of empty record headers, many times larger once parsed, is refused by its size."""
    data = Records(value_length=0).SerializeToString() + b"\x62\x00" * (MAX_GENERIC_PAYLOAD_BYTES // 2)
    with pytest.raises(BatchTooLargeError, match="with record headers"):
        parse_payload(data, 1)
    with pytest.raises(InvalidBatchError, match="0 record headers with"):
        parse_payload(data[: MAX_GENERIC_PAYLOAD_BYTES // 4 + 5], 1)


@pytest.mark.parametrize("piece", ["b'\\x62\\x00'", "b'\\x78\\x01'", "b'\\x7b\\x7c'", "b'\\x48\\x00'"])
def test_hostile_payloads_take_bounded_memory(piece: str) -> None:
    """Millions of empty headers, unknown fields, groups or unpacked deltas take at most twenty times their size."""
    program = (
        "import resource\n"
        "from lograft.wire.columns import parse_payload\n"
        "from lograft.wire.errors import BatchError\n"
        "from lograft.wire.limits import MAX_GENERIC_PAYLOAD_BYTES as limit\n"
        f"data = b'\\x1d' + bytes(4) + {piece} * (limit // 2 - 3)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    parse_payload(data, 1)\n"
        "    raise SystemExit('accepted')\n"
        "except BatchError:\n"
        "    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024\n"
        "    assert grown < 20 * limit, grown\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "deltas_ms",
    [[0, 63], [63, 0, 7], [5], [0, 64], [-1, 0], [0, -64, 63], [2**40, 0], [*range(64)] * 5],
    ids=str,
)
def test_short_timestamp_deltas_are_read_as_bytes(deltas_ms: list[int]) -> None:
    """Deltas from 0 to 63 take the short way; one that is not brings all of them the long way, to the same numbers."""
    count = len(deltas_ms)
    message = Records(values=b"x" * count, value_length=1, timestamp_deltas_ms=deltas_ms)
    parsed = parse_payload(message.SerializeToString(), count)
    assert list(parsed.timestamp_deltas_ms) == deltas_ms
    assert isinstance(parsed.timestamp_deltas_ms, bytes) is (min(deltas_ms) >= 0 and max(deltas_ms) < 64)


def test_padded_length_of_timestamp_deltas_is_no_short_list() -> None:
    """A length that takes a byte too many shifts what looks like the deltas; the generated parser reads it as ever."""
    blob = Records(values=b"xy", value_length=1).SerializeToString()
    field = bytes((9 << 3 | 2, 0x81, 0x00, 8))
    with pytest.raises(InvalidBatchError, match="1 timestamp deltas for 2 records"):
        parse_payload(blob + field, 2)
