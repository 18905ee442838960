# SPDX-License-Identifier: Apache-2.0
"""The payload of a record batch: the protobuf message `lograft.v1.Records` as columns.

The parser walks over the wire format of the one usual layout: each field at most once, ascending, packed, no record headers. So
blobs and packed lengths stay where they are. Any other layout goes through the generated parser. Both give the same columns for
the same bytes.

Law: parse, do not validate. Each column of a `Payload` has n records. Its lengths sum to the size of its blob. Its indexes are
ascending, unique and in range. `checker.py` checks what concerns the header of the batch (timestamps, offsets). This module
must not know headers, codecs or CRCs.

Decisions:
* A field number that this version does not know is refused (UNSUPPORTED_FORMAT): silently ignoring a column would lose data.
* A uniform length together with nulls is allowed only if the length is 0 (every value is empty or null).
* A key column in which every key is null is allowed; the encoder leaves it out.
* Little-endian machines only: packed fixed32 is used without conversion.

Source: proto/lograft/v1/records.proto.
"""

from __future__ import annotations

import io
import re
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from operator import lt

from google.protobuf.message import DecodeError

from lograft.v1.records_pb2 import Records
from lograft.wire.checksum import BytesLike
from lograft.wire.errors import BatchTooLargeError, InvalidBatchError, UnsupportedBatchError
from lograft.wire.limits import MAX_GENERIC_PAYLOAD_BYTES
from lograft.wire.varint import MAX_LENGTH_BYTES, encode_varint, read_varint

assert sys.byteorder == "little", "packed lengths are used in place: a big-endian machine is not supported"

VALUES = 1
VALUE_LENGTHS = 2
VALUE_LENGTH = 3
NULL_VALUES = 4
KEYS = 5
KEY_LENGTHS = 6
KEY_LENGTH = 7
NULL_KEYS = 8
TIMESTAMP_DELTAS = 9
OFFSET_DELTAS = 10

_WIRE_FIXED32 = 5
_WIRE_BYTES = 2
_FIXED32_FIELDS = (VALUE_LENGTH, KEY_LENGTH)
_VARINT_FIELDS = (NULL_VALUES, NULL_KEYS, TIMESTAMP_DELTAS, OFFSET_DELTAS)
_LAST_WALKED_FIELD = OFFSET_DELTAS

_FIELDS_BY_TAG = [
    tag >> 3
    if 1 <= tag >> 3 <= _LAST_WALKED_FIELD
    and tag & 7 == (_WIRE_FIXED32 if tag >> 3 in _FIXED32_FIELDS else _WIRE_BYTES)
    else 0
    for tag in range(256)
]
"""Field number for each tag byte; 0 for a byte that is no tag of the usual layout."""

HEADER_KEYS = 12
HEADER_VALUES = 13
_HEADER_KEYS_TAG = HEADER_KEYS << 3 | _WIRE_BYTES
_HEADER_VALUES_TAG = HEADER_VALUES << 3 | _WIRE_BYTES
_WIRE_VARINT = 0

_WIRE_TYPES_BY_FIELD = {
    VALUES: (_WIRE_BYTES,),
    VALUE_LENGTHS: (_WIRE_BYTES, _WIRE_FIXED32),
    VALUE_LENGTH: (_WIRE_FIXED32,),
    NULL_VALUES: (_WIRE_BYTES, _WIRE_VARINT),
    KEYS: (_WIRE_BYTES,),
    KEY_LENGTHS: (_WIRE_BYTES, _WIRE_FIXED32),
    KEY_LENGTH: (_WIRE_FIXED32,),
    NULL_KEYS: (_WIRE_BYTES, _WIRE_VARINT),
    TIMESTAMP_DELTAS: (_WIRE_BYTES, _WIRE_VARINT),
    OFFSET_DELTAS: (_WIRE_BYTES, _WIRE_VARINT),
    11: (_WIRE_BYTES, _WIRE_VARINT),  # header_counts
    HEADER_KEYS: (_WIRE_BYTES,),
    HEADER_VALUES: (_WIRE_BYTES,),
    14: (_WIRE_BYTES, _WIRE_VARINT),  # null_header_values
}
"""The wire types that each field may have: lists of numbers are packed or unpacked. Anything else is an unknown field."""

_MAX_TAG_BYTES = 5
"""Longest tag that the generated parser accepts. Lengths may take `_MAX_VARINT_BYTES`."""

_SHORT_HEADER_BYTES = 127
"""Longest key or value of a record header whose length takes one byte."""

_SHORT_HEADERS = re.compile(
    b"(?s:[%c%c](?:%b)){1,1024}+"
    % (
        _HEADER_KEYS_TAG,
        _HEADER_VALUES_TAG,
        b"|".join(re.escape(bytes((length,))) + b".{%d}" % length for length in range(_SHORT_HEADER_BYTES + 1)),
    )
)
"""Matches whole keys and values of record headers that follow one another. A loop in Python takes eight times as long."""

_FIELDS_PER_RECORD = 8
"""Number of lists with one number for each record, which a payload may write without packing."""

_MAX_VARINT_BYTES = 10

_VARINT_MASK = 2**64 - 1
"""The generated parser drops the bits of a varint above these."""

SLICED_FROM_BYTES = 256 * 1024
"""Size from which the record headers of a payload in an unusual layout are parsed in slices.

The generated parser holds the interpreter lock to its end: 250 ms for 8 MiB of empty record headers, during which the process
serves no other client. Finding the ends of the fields takes another 40 to 80 ns for each, so small payloads are not sliced.
"""

_SLICE_BYTES = 32 * 1024
"""Bytes of record headers that one call parses, in at most a millisecond."""

_SLICE_ITEMS = 32 * 1024
"""Items of a list that one call into C processes, for the same reason."""

_STRUCT_RECORDS = 256
"""Records that one cached struct splits in a call. One struct for a whole batch would cost 100 KB for every (length, count)."""

_MAX_STRUCT_LENGTH_BYTES = 65_536
"""Longest equal length that is split by a struct. Above it, copying dominates, and the cache would only fill up."""


@dataclass(slots=True, kw_only=True, eq=False)
class BytesColumn:
    """A column of byte strings: one blob, and the length of each string.

    Attributes:
        blob: all items, one after the other.
        record_count: number of items.
        lengths: length of each item in bytes; None when `uniform_length` is set.
        uniform_length: length of every item in bytes; None when `lengths` is set.
        nulls: indexes of the null items, ascending.
    """

    blob: memoryview
    record_count: int
    lengths: memoryview | None
    uniform_length: int | None
    nulls: list[int]

    def to_list(self) -> list[bytes | None]:
        """Return the items; None is a null."""
        items: list[bytes | None]
        if self.uniform_length is None:
            assert self.lengths is not None
            items = list(map(io.BytesIO(self.blob).read, self.lengths))
        else:
            items = _split_equal(self.blob, self.uniform_length, self.record_count)
        for index in self.nulls:
            items[index] = None
        return items

    def piece(self, first: int, count: int) -> BytesColumn:
        """Return items `first` to `first + count` (exclusive), which must exist, as a column over the same bytes."""
        lengths = None if self.lengths is None else self.lengths[first : first + count]
        if lengths is None:
            assert self.uniform_length is not None
            begin = first * self.uniform_length
            end = begin + count * self.uniform_length
        else:
            assert self.lengths is not None
            begin = sum(self.lengths[:first])
            end = begin + sum(lengths)
        nulls = self.nulls[bisect_left(self.nulls, first) : bisect_left(self.nulls, first + count)]
        return BytesColumn(
            blob=self.blob[begin:end],
            record_count=count,
            lengths=lengths,
            uniform_length=self.uniform_length,
            nulls=[index - first for index in nulls],
        )

    def lengths_of(self, first: int, count: int) -> Sequence[int]:
        """Return the lengths in bytes of items `first` to `first + count` (exclusive), which must exist; 0 for a null."""
        if self.lengths is not None:
            return self.lengths[first : first + count]
        assert self.uniform_length is not None
        return [self.uniform_length] * count


@dataclass(slots=True, kw_only=True, eq=False)
class HeaderColumns:
    """Record headers as parallel lists.

    Attributes:
        counts: number of headers of each record; n entries.
        keys: keys of the headers of all records, in order.
        values: values, parallel to `keys`; b"" for a null.
        nulls: indexes of the null values, ascending.
    """

    counts: list[int]
    keys: list[str]
    values: list[bytes]
    nulls: list[int]

    def piece(self, first: int, count: int) -> HeaderColumns:
        """Return the headers of records `first` to `first + count` (exclusive), which must exist."""
        begin = sum(self.counts[:first])
        counts = self.counts[first : first + count]
        end = begin + sum(counts)
        nulls = self.nulls[bisect_left(self.nulls, begin) : bisect_left(self.nulls, end)]
        return HeaderColumns(
            counts=counts,
            keys=self.keys[begin:end],
            values=self.values[begin:end],
            nulls=[index - begin for index in nulls],
        )

    def values_with_nulls(self) -> list[bytes | None]:
        """Return the values; None is a null."""
        values: list[bytes | None] = [*self.values]
        for index in self.nulls:
            values[index] = None
        return values


@dataclass(slots=True, kw_only=True, eq=False)
class Payload:
    """A parsed payload.

    Attributes:
        record_count: n.
        values: the values.
        keys: the keys; None when no record has a key.
        timestamp_deltas_ms: n deltas to the base timestamp, as bytes if each is from 0 to 63 in the usual layout; empty when all
            records have the base timestamp.
        offset_deltas: n strictly ascending deltas to the base offset, each at least 0; empty for 0, 1, 2, ...
        headers: record headers; None when no record has a header.
    """

    record_count: int
    values: BytesColumn
    keys: BytesColumn | None
    timestamp_deltas_ms: Sequence[int]
    offset_deltas: Sequence[int]
    headers: HeaderColumns | None

    def piece(self, first: int, count: int) -> Payload:
        """Return records `first` to `first + count` (exclusive), which must exist, as columns over the same bytes."""
        return Payload(
            record_count=count,
            values=self.values.piece(first, count),
            keys=self.keys and self.keys.piece(first, count),
            timestamp_deltas_ms=self.timestamp_deltas_ms[first : first + count],
            offset_deltas=self.offset_deltas[first : first + count] or range(first, first + count),
            headers=self.headers and self.headers.piece(first, count),
        )


def empty_payload() -> Payload:
    """Return the columns of a batch without records (a filler)."""
    values = BytesColumn(blob=memoryview(b""), record_count=0, lengths=None, uniform_length=0, nulls=[])
    return Payload(record_count=0, values=values, keys=None, timestamp_deltas_ms=(), offset_deltas=(), headers=None)


def parse_payload(payload: BytesLike, record_count: int) -> Payload:
    """Parse a decompressed payload.

    Args:
        payload: a serialized `lograft.v1.Records`. The result refers to it, so it must not change.
        record_count: n, from the header; at least 1.

    Raises:
        InvalidBatchError: the bytes are not such a message, or the columns contradict each other or `record_count`.
        BatchTooLargeError: the payload exceeds the limit for record headers or an unusual layout.
        UnsupportedBatchError: the payload has a field that this version does not know.
    """
    view = memoryview(payload)
    fields = _walk(view, record_count)
    if fields is None:
        return _parse_generic(view, record_count)
    deltas_ms = _short_deltas(fields[TIMESTAMP_DELTAS], record_count)
    if deltas_ms is not None:
        fields[TIMESTAMP_DELTAS] = view[:0]
    lists = b"".join([fields[field] for field in _VARINT_FIELDS])
    small = _parse_small(lists) if lists else _NO_LISTS
    return Payload(
        record_count=record_count,
        values=_bytes_column(
            "value",
            record_count,
            fields[VALUES],
            fields[VALUE_LENGTHS],
            _fixed32(fields[VALUE_LENGTH]),
            small.null_values,
        ),
        keys=_optional_column(
            "key", record_count, fields[KEYS], fields[KEY_LENGTHS], _fixed32(fields[KEY_LENGTH]), small.null_keys
        ),
        timestamp_deltas_ms=deltas_ms or _per_record("timestamp delta", small.timestamp_deltas_ms, record_count)[:],
        offset_deltas=_offset_deltas(small.offset_deltas, record_count),
        headers=None,
    )


def parse_keys(payload: BytesLike, record_count: int) -> BytesColumn | None:
    """Parse only the keys of a decompressed payload. In the usual layout, the other columns are skipped and not judged.

    Arguments and errors are those of `parse_payload`.
    """
    view = memoryview(payload)
    fields = _walk(view, record_count)
    if fields is None:
        return _parse_generic(view, record_count).keys
    nulls = _parse_small(bytes(fields[NULL_KEYS])).null_keys if fields[NULL_KEYS] else ()
    return _optional_column("key", record_count, fields[KEYS], fields[KEY_LENGTHS], _fixed32(fields[KEY_LENGTH]), nulls)


_HALVES = bytes(byte // 2 for byte in range(256))
"""The number that each even byte stands for, as a varint of one byte in zigzag form."""

_EVEN_BYTES = bytes(range(0, 0x80, 2))


def _short_deltas(field: memoryview, record_count: int) -> bytes | None:
    """Return the timestamp deltas as one byte for each record; None if one of them is not within 0 to 63 ms.

    The records of most batches are made within that time. Then the varints are single bytes, and two calls decode all.

    Args:
        field: the whole field, or nothing.
        record_count: n.
    """
    if len(field) <= record_count:
        return None
    content = bytes(field[len(field) - record_count :])
    if encode_varint(TIMESTAMP_DELTAS << 3 | _WIRE_BYTES) + encode_varint(record_count) != bytes(field[:-record_count]):
        return None
    return None if content.translate(None, _EVEN_BYTES) else content.translate(_HALVES)


_NO_LISTS = Records()
"""The lists of varints of most payloads: all empty. It is only read."""


def _walk(view: memoryview, record_count: int) -> list[memoryview] | None:
    """Find fields 1 to 10 of the usual layout. Return None for any other layout or a broken one.

    Returns:
        The bytes of each field by number, empty when absent: the content of fixed32 and bytes fields, and the whole field with
            tag and
        length for lists of varints. A list that is longer than n varints can be also gives None; the generated parser refuses
        it.
    """
    fields = [view[:0]] * (_LAST_WALKED_FIELD + 1)
    previous = 0
    position = 0
    end = len(view)
    try:
        while position < end:
            start = position
            tag = view[start]
            field = _FIELDS_BY_TAG[tag]
            if field <= previous:
                return None
            previous = field
            if tag & 7 == _WIRE_FIXED32:
                content = start + 1
                position = start + 5
            else:
                length, content = read_varint(view, start + 1, MAX_LENGTH_BYTES)
                position = content + length
            if position > end:
                return None
            if field not in _VARINT_FIELDS:
                fields[field] = view[content:position]
            elif position - content <= _MAX_VARINT_BYTES * record_count:
                fields[field] = view[start:position]
            else:
                return None
    except (IndexError, ValueError):
        return None
    if len(fields[VALUE_LENGTHS]) % 4 or len(fields[KEY_LENGTHS]) % 4:
        return None
    return fields


def _parse_small(data: bytes) -> Records:
    try:
        return Records.FromString(data)
    except DecodeError as error:
        raise InvalidBatchError(f"the payload is not a lograft.v1.Records message: {error}") from None


def _fixed32(content: memoryview) -> int | None:
    return int.from_bytes(content, "little") if content else None


def _parse_generic(view: memoryview, record_count: int) -> Payload:
    """Parse any layout with the generated code."""
    if len(view) > MAX_GENERIC_PAYLOAD_BYTES:
        raise BatchTooLargeError(
            f"a payload with record headers inflates to at most {MAX_GENERIC_PAYLOAD_BYTES} bytes, "
            f"this one to {len(view)}"
        )
    data = bytes(view)
    if len(data) < SLICED_FROM_BYTES:
        message = _parse_small(data)
        header_keys, header_values = message.header_keys[:], message.header_values[:]
    else:
        columns, header_keys, header_values = _parse_sliced(data, record_count)
        message = _parse_small(columns)
    if _has_unknown_fields(message):
        raise UnsupportedBatchError("the payload has a field that this version does not know")
    return Payload(
        record_count=record_count,
        values=_bytes_column(
            "value",
            record_count,
            memoryview(message.values),
            _packed("value length", message.value_lengths, record_count),
            message.value_length if message.HasField("value_length") else None,
            message.null_values,
        ),
        keys=_optional_column(
            "key",
            record_count,
            memoryview(message.keys),
            _packed("key length", message.key_lengths, record_count),
            message.key_length if message.HasField("key_length") else None,
            message.null_keys,
        ),
        timestamp_deltas_ms=_per_record("timestamp delta", message.timestamp_deltas_ms, record_count)[:],
        offset_deltas=_offset_deltas(message.offset_deltas, record_count),
        headers=_header_columns(message, header_keys, header_values, record_count),
    )


def _parse_sliced(data: bytes, record_count: int) -> tuple[bytes, list[str], list[bytes]]:
    """Parse the keys and values of record headers in slices of whole fields, so that other threads can run in between.

    Returns:
        All other fields unchanged, one after the other; the keys and the values of the record headers.

    Raises:
        InvalidBatchError: the bytes are not a message, or have far more fields than the records need.
        UnsupportedBatchError: the payload has a field that this version does not know.
    """
    others: list[bytes] = []
    header_keys: list[str] = []
    header_values: list[bytes] = []
    # Start of the bytes not taken yet. They are either fields of record headers or other fields, never both.
    start = position = 0
    is_headers = False
    # A record with a header takes at least four bytes, and an index of a null value two.
    field_limit = _FIELDS_PER_RECORD * record_count + len(data) // 6

    def take(until: int) -> None:
        if not is_headers:
            others.append(data[start:until])
        else:
            message = _parse_small(data[start:until])
            header_keys.extend(message.header_keys[:])
            header_values.extend(message.header_values[:])

    try:
        while position < len(data):
            if is_headers and position - start >= _SLICE_BYTES:
                take(position)
                start = position
            if is_headers and (found := _SHORT_HEADERS.match(data, position)):
                position = found.end()
                continue
            tag, content = read_varint(data, position, _MAX_TAG_BYTES)
            field, wire_type = tag >> 3, tag & 7
            if wire_type not in _WIRE_TYPES_BY_FIELD.get(field, ()):
                raise UnsupportedBatchError("the payload has a field that this version does not know")
            if (field in (HEADER_KEYS, HEADER_VALUES)) is not is_headers:
                take(position)
                start, is_headers = position, not is_headers
            if not is_headers:
                field_limit -= 1
                if field_limit < 0:
                    raise InvalidBatchError(f"the payload has far more fields than {record_count} records need")
            if wire_type == _WIRE_BYTES:
                length, content = read_varint(data, content, _MAX_VARINT_BYTES)
                position = content + (length & _VARINT_MASK)
            elif wire_type == _WIRE_FIXED32:
                position = content + 4
            else:
                position = _varint_end(data, content)
    except (IndexError, ValueError):
        raise InvalidBatchError("the payload is not a lograft.v1.Records message: a field of it is cut off") from None
    # If the last field claims more bytes than exist, the generated parser refuses it.
    take(len(data))
    return b"".join(others), header_keys, header_values


def _varint_end(data: bytes, position: int) -> int:
    """Return the position after a varint of any number, negative ones included.

    Raises:
        IndexError: the bytes end inside the varint.
        ValueError: the varint is too long.
    """
    for at in range(position, position + _MAX_VARINT_BYTES):
        if data[at] < 0x80:
            return at + 1
    raise ValueError(f"a varint takes more than {_MAX_VARINT_BYTES} bytes")


def _has_unknown_fields(message: Records) -> bool:
    """Return whether the parser met unknown fields, and drop them.

    It compares sizes: a list of the fields would take a Python object for each, gigabytes for a hostile payload.
    """
    size_bytes = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() != size_bytes


def _packed(name: str, lengths: Sequence[int], record_count: int) -> memoryview:
    """Return lengths as packed bytes. The count is checked before the copy, so a bomb is not copied."""
    _per_record(name, lengths, record_count)
    return memoryview(struct.pack(f"<{len(lengths)}I", *lengths))


def _per_record(name: str, column: Sequence[int], record_count: int) -> Sequence[int]:
    """Check that a column is empty or has n entries."""
    if column and len(column) != record_count:
        raise InvalidBatchError(f"{len(column)} {name}s for {record_count} records")
    return column


def _indexes(name: str, indexes: Sequence[int], record_count: int) -> list[int]:
    """Check a list of indexes: not too many, ascending, without repeats, in range."""
    if not indexes:
        return []
    if len(indexes) > record_count:
        raise InvalidBatchError(f"{len(indexes)} {name} indexes for {record_count} records")
    ascending: list[int] = []
    previous = -1
    for piece in _pieces(indexes):
        if piece[0] <= previous or not all(map(lt, piece, piece[1:])):
            break
        ascending += piece
        previous = piece[-1]
    if len(ascending) != len(indexes) or previous >= record_count:
        raise InvalidBatchError(f"{name} indexes are not ascending from 0 to at most {record_count - 1}")
    return ascending


def _pieces(items: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut a list for calls into C, so that none of them holds the interpreter lock for long."""
    for start in range(0, len(items), _SLICE_ITEMS):
        yield items[start : start + _SLICE_ITEMS]


def _optional_column(
    name: str,
    record_count: int,
    blob: memoryview,
    packed_lengths: memoryview,
    uniform_length: int | None,
    nulls: Sequence[int],
) -> BytesColumn | None:
    """Build a column that may be absent. If it is, all its fields must be absent."""
    if not (blob or packed_lengths or nulls) and uniform_length is None:
        return None
    return _bytes_column(name, record_count, blob, packed_lengths, uniform_length, nulls)


def _bytes_column(
    name: str,
    record_count: int,
    blob: memoryview,
    packed_lengths: memoryview,
    uniform_length: int | None,
    indexes: Sequence[int],
) -> BytesColumn:
    """Build a column, and check that lengths, blob and null indexes fit together."""
    nulls = _indexes(f"null {name}", indexes, record_count)
    if uniform_length is not None:
        if packed_lengths:
            raise InvalidBatchError(f"both {name}_lengths and {name}_length are present")
        if uniform_length * record_count != len(blob):
            raise InvalidBatchError(
                f"{record_count} {name}s of {uniform_length} bytes do not make a blob of {len(blob)}"
            )
        if nulls and uniform_length:
            raise InvalidBatchError(
                f"null {name}s together with a {name}_length of {uniform_length}: a null takes no bytes"
            )
        return BytesColumn(
            blob=blob, record_count=record_count, lengths=None, uniform_length=uniform_length, nulls=nulls
        )
    if len(packed_lengths) != 4 * record_count:
        raise InvalidBatchError(f"{len(packed_lengths) // 4} {name} lengths for {record_count} records")
    lengths = packed_lengths.cast("I")
    if sum(lengths) != len(blob):
        raise InvalidBatchError(f"the {name} lengths sum to {sum(lengths)}, the blob has {len(blob)} bytes")
    if any(map(lengths.__getitem__, nulls)):
        raise InvalidBatchError(f"a null {name} has a length: a null takes no bytes")
    return BytesColumn(blob=blob, record_count=record_count, lengths=lengths, uniform_length=None, nulls=nulls)


def _offset_deltas(deltas: Sequence[int], record_count: int) -> Sequence[int]:
    """Check that offset deltas are absent, or are n strictly ascending numbers of at least 0."""
    deltas = _per_record("offset delta", deltas, record_count)[:]
    if deltas and (deltas[0] < 0 or not all(map(lt, deltas, deltas[1:]))):
        raise InvalidBatchError("offset deltas are not strictly ascending from 0 or more")
    return deltas


def _header_columns(message: Records, keys: list[str], values: list[bytes], record_count: int) -> HeaderColumns | None:
    """Check that the four header columns fit together. No counts means no headers."""
    counts = _per_record("header count", message.header_counts, record_count)[:]
    if counts and min(counts) < 0:
        raise InvalidBatchError(f"a header count is {min(counts)}")
    header_count = sum(counts)
    if len(keys) != header_count or len(values) != header_count:
        raise InvalidBatchError(f"{header_count} record headers with {len(keys)} keys and {len(values)} values")
    nulls = _indexes("null header value", message.null_header_values, header_count)
    for piece in _pieces(nulls):
        if any(map(values.__getitem__, piece)):
            raise InvalidBatchError("a null header value has bytes: a null takes none")
    if not header_count:
        return None
    return HeaderColumns(counts=list(counts), keys=keys, values=values, nulls=nulls)


def _split_equal(blob: memoryview, length: int, record_count: int) -> list[bytes | None]:
    """Split a blob into items of one length."""
    items: list[bytes | None] = []
    position = 0
    rest = record_count
    if rest >= _STRUCT_RECORDS and length <= _MAX_STRUCT_LENGTH_BYTES:
        splitter = _splitter(length)
        while rest >= _STRUCT_RECORDS:
            items += splitter.unpack_from(blob, position)
            position += splitter.size
            rest -= _STRUCT_RECORDS
    items += map(io.BytesIO(blob[position:]).read, repeat(length, rest))
    return items


@lru_cache(maxsize=64)
def _splitter(length: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * _STRUCT_RECORDS)
