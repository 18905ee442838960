# SPDX-License-Identifier: Apache-2.0
"""Record batches from and to Arrow, without a Python step for each record (record headers aside).

The columns of a payload are Arrow's buffers: blobs are wrapped, not copied, and numpy fills the columns of numbers. Most calls of
Arrow cost more than the numbers of a batch do, so there are few. Both are an extra of the distribution and are imported at the first
use.

    column        type                                        null
    key           binary                                      no key
    value         binary                                      a tombstone
    offset        int64                                       never
    timestamp_ms  int64, milliseconds since 1970-01-01 UTC    never; `.cast("timestamp[ms, UTC]")` is free
    headers       list<struct<key: string, value: binary>>    never; only with `include_headers`

Source: Arrow columnar format, variable-size binary layout; docs/storage_format.md section 2.1.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from lograft.wire.checker import check_timestamps
from lograft.wire.checksum import BytesLike
from lograft.wire.columns import BytesColumn, HeaderColumns, Payload
from lograft.wire.compression import Codec
from lograft.wire.encoded import EncodedBatch
from lograft.wire.encoder import (
    KEY_FIELDS,
    VALUE_FIELDS,
    ColumnFields,
    append_column,
    append_header_columns,
    append_timestamps,
    check_record_count,
    check_timestamp_range,
    compose,
    new_header,
)
from lograft.wire.errors import BatchTooLargeError, InvalidBatchError
from lograft.wire.header import BatchHeader
from lograft.wire.limits import MAX_INFLATED_BYTES

# pyarrow has no type stubs, and numpy is an extra, so this is the only module of the package that uses Any.
ArrowRecordBatch: TypeAlias = Any
ArrowSchema: TypeAlias = Any
_ArrowArray: TypeAlias = Any
_Module: TypeAlias = Any
_Numbers: TypeAlias = Any

_KEY: Final = "key"
_VALUE: Final = "value"
_OFFSET: Final = "offset"
_TIMESTAMP_MS: Final = "timestamp_ms"
_TIMESTAMP: Final = "timestamp"
_HEADERS: Final = "headers"
COLUMN_NAMES: Final = (_KEY, _VALUE, _OFFSET, _TIMESTAMP_MS, _TIMESTAMP, _HEADERS)
"""The columns that `encode_arrow` takes."""


def arrow_schema(*, include_headers: bool = False, columns: Collection[str] | None = None) -> ArrowSchema:
    """Return the schema of `RecordBatch.to_arrow`.

    Args:
        include_headers: the column `headers` is there.
        columns: names of the columns that are there; None stands for all.

    Raises:
        ImportError: pyarrow is not installed.
    """
    return _schema(include_headers, None if columns is None else frozenset(columns))


@cache
def _schema(include_headers: bool, columns: frozenset[str] | None) -> ArrowSchema:
    pa = _import_arrow("pyarrow")
    fields = [
        pa.field(_KEY, pa.binary()),
        pa.field(_VALUE, pa.binary()),
        pa.field(_OFFSET, pa.int64(), nullable=False),
        pa.field(_TIMESTAMP_MS, pa.int64(), nullable=False),
    ]
    if include_headers:
        fields.append(pa.field(_HEADERS, _headers_type(pa), nullable=False))
    return pa.schema([field for field in fields if columns is None or field.name in columns])


def columns_to_arrow(
    header: BatchHeader, payload: Payload, *, include_headers: bool, columns: Collection[str] | None = None
) -> ArrowRecordBatch:
    """Return the columns of a batch as a `pyarrow.RecordBatch`, nearly without a copy. `RecordBatch.to_arrow` calls this.

    Args:
        header: header of the batch.
        payload: columns of the batch. Their buffer stays alive as long as the result.
        include_headers: add the column `headers`, so that the schema does not depend on the batch.
        columns: names of the columns to build, at least one; None builds all. Their order is always that of the schema.

    Raises:
        ImportError: pyarrow or numpy is not installed.
        BatchError: the batch is damaged.
    """
    pa, np = _import_arrow("pyarrow"), _import_arrow("numpy")
    schema = arrow_schema(include_headers=include_headers, columns=columns)
    return pa.RecordBatch.from_arrays([_column(pa, np, name, header, payload) for name in schema.names], schema=schema)


def _column(pa: _Module, np: _Module, name: str, header: BatchHeader, payload: Payload) -> _ArrowArray:
    count = payload.record_count
    if name == _KEY:
        return pa.nulls(count, pa.binary()) if payload.keys is None else _binary_array(pa, np, payload.keys)
    if name == _VALUE:
        return _binary_array(pa, np, payload.values)
    if name == _OFFSET:
        return _int64_array(pa, _offsets(np, header, payload))
    if name == _TIMESTAMP_MS:
        return _int64_array(pa, _times_ms(np, header, payload))
    return _headers_array(pa, payload.headers, count)


def joined_to_arrow(
    batches: Sequence[tuple[BatchHeader, Payload]], *, columns: Collection[str] | None = None
) -> ArrowRecordBatch:
    """Return the columns of several batches, without record headers, as one `pyarrow.RecordBatch`.

    It takes about as many calls of Arrow as one batch does, however small the batches are, and copies each blob once. A single batch
    is not copied.

    Args:
        batches: header and columns of each batch, in order; at least one. None of them is a filler.
        columns: names of the columns to build, at least one; None builds all but `headers`.

    Raises:
        ImportError: pyarrow or numpy is not installed.
        BatchError: a batch is damaged.
    """
    pa, np = _import_arrow("pyarrow"), _import_arrow("numpy")
    if len(batches) == 1:
        return columns_to_arrow(*batches[0], include_headers=False, columns=columns)
    schema = arrow_schema(columns=columns)
    count = sum(payload.record_count for _, payload in batches)
    arrays: list[_ArrowArray] = []
    for name in schema.names:
        if name == _KEY:
            if any(payload.keys is not None for _, payload in batches):
                keys = [payload.keys or _absent_column(payload.record_count) for _, payload in batches]
                arrays.append(_binary_array(pa, np, _joined_column(keys)))
            else:
                arrays.append(pa.nulls(count, pa.binary()))
        elif name == _VALUE:
            arrays.append(_binary_array(pa, np, _joined_column([payload.values for _, payload in batches])))
        else:
            numbers = _offsets if name == _OFFSET else _times_ms
            arrays.append(_int64_array(pa, np.concatenate([numbers(np, *each) for each in batches])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _offsets(np: _Module, header: BatchHeader, payload: Payload) -> _Numbers:
    deltas = payload.offset_deltas
    if not deltas:
        return np.arange(header.base_offset, header.base_offset + payload.record_count, dtype=np.int64)
    return np.fromiter(deltas, np.int64, payload.record_count) + header.base_offset


def _times_ms(np: _Module, header: BatchHeader, payload: Payload) -> _Numbers:
    deltas_ms = payload.timestamp_deltas_ms
    if not deltas_ms:
        check_timestamps(header, ())
        return np.full(payload.record_count, header.base_timestamp_ms, np.int64)
    if isinstance(deltas_ms, bytes):
        deltas = np.frombuffer(deltas_ms, np.uint8)
    else:
        deltas = np.fromiter(deltas_ms, np.int64, payload.record_count)
    # The extremes say all that is checked.
    check_timestamps(header, (int(deltas.min()), int(deltas.max())))
    return np.add(deltas, header.base_timestamp_ms, dtype=np.int64)


def _joined_column(columns: Sequence[BytesColumn]) -> BytesColumn:
    nulls: list[int] = []
    count = 0
    for column in columns:
        nulls += [count + index for index in column.nulls]
        count += column.record_count
    lengths = {column.uniform_length for column in columns}
    packed: memoryview | None = None
    if len(lengths) > 1 or None in lengths:
        packed = memoryview(
            b"".join(
                (column.uniform_length or 0).to_bytes(4, "little") * column.record_count
                if column.lengths is None
                else column.lengths
                for column in columns
            )
        ).cast("I")
    return BytesColumn(
        blob=memoryview(b"".join([column.blob for column in columns])),
        record_count=count,
        lengths=packed,
        uniform_length=columns[0].uniform_length if packed is None else None,
        nulls=nulls,
    )


def _absent_column(count: int) -> BytesColumn:
    return BytesColumn(
        blob=memoryview(b""), record_count=count, lengths=None, uniform_length=0, nulls=list(range(count))
    )


def encode_arrow(
    batch: ArrowRecordBatch,
    *,
    timestamp_ms: int | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytearray:
    """Encode a `pyarrow.RecordBatch` into one batch. Arguments and errors are those of `compose_arrow`.

    Returns:
        Header and payload.
    """
    composed = compose_arrow(
        batch,
        timestamp_ms=timestamp_ms,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    return composed.join()


def compose_arrow(
    batch: ArrowRecordBatch,
    *,
    timestamp_ms: int | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> EncodedBatch:
    """Encode a `pyarrow.RecordBatch` into one batch that is still in pieces. They are views of the columns' memory.

    Args:
        batch: the rows, possibly a slice. Columns: `value` and optionally `key`, binary or string of any kind; `timestamp_ms`
            (integers) or `timestamp` (integers of milliseconds, or any Arrow timestamp, cut to milliseconds); `headers`:
            list<struct<key, value>>. A column `offset` is ignored.
        timestamp_ms: timestamp of all records if the rows have no timestamps; None stands for 0.
        codec: see `encode_batch`.
        producer_id: see `encode_batch`.
        producer_epoch: see `encode_batch`.
        base_sequence: see `encode_batch`.
        base_offset: see `encode_batch`.
        leader_epoch: see `encode_batch`.

    Raises:
        ImportError: pyarrow is not installed.
        InvalidBatchError: no or too many rows, a column that is unknown or of another type, a null timestamp.
        BatchTooLargeError: as `encode_batch`.
    """
    pa = _import_arrow("pyarrow")
    pc = _import_arrow("pyarrow.compute")
    count: int = batch.num_rows
    check_record_count(count)
    columns = _columns_by_name(batch)
    parts: list[BytesLike] = []
    _append_binary(parts, VALUE_FIELDS, pa, pc, _VALUE, columns[_VALUE])
    if _KEY in columns and columns[_KEY].null_count < count:
        _append_binary(parts, KEY_FIELDS, pa, pc, _KEY, columns[_KEY])
    base_ms, max_ms = _append_timestamps(parts, pa, pc, columns, timestamp_ms)
    if _HEADERS in columns:
        _append_headers(parts, pa, pc, columns[_HEADERS])
    return compose(
        parts,
        new_header(
            record_count=count,
            last_offset_delta=count - 1,
            base_timestamp_ms=base_ms,
            max_timestamp_ms=max_ms,
            codec=codec,
            control=False,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        ),
    )


def _import_arrow(name: str) -> _Module:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("Arrow columns need pyarrow and numpy: pip install 'lograft[arrow]'") from error


def _headers_type(pa: _Module) -> Any:
    return pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))


def _int64_array(pa: _Module, numbers: _Numbers) -> _ArrowArray:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _binary_array(pa: _Module, np: _Module, column: BytesColumn) -> _ArrowArray:
    count = column.record_count
    offsets = np.zeros(count + 1, np.int32)
    if column.lengths is not None:
        np.cumsum(np.frombuffer(column.lengths, np.uint32), dtype=np.int32, out=offsets[1:])
    elif column.uniform_length:
        offsets = np.arange(0, (count + 1) * column.uniform_length, column.uniform_length, dtype=np.int32)
    validity = None
    if column.nulls:
        is_valid = np.ones(count, np.bool_)
        is_valid[column.nulls] = False
        validity = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(column.blob)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=len(column.nulls))


def _headers_array(pa: _Module, headers: HeaderColumns | None, count: int) -> _ArrowArray:
    pc = _import_arrow("pyarrow.compute")
    if headers is None:
        headers = HeaderColumns(counts=[0] * count, keys=[], values=[], nulls=[])
    offsets = pc.cumulative_sum(pa.array([0, *headers.counts], pa.int32()))
    keys = pa.array(headers.keys, pa.string())
    values = pa.array(headers.values_with_nulls(), pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_headers_type(pa).value_type))
    return pa.ListArray.from_arrays(offsets, pairs).cast(_headers_type(pa))


def _columns_by_name(batch: ArrowRecordBatch) -> dict[str, _ArrowArray]:
    """Return the columns by name. Refuse two columns for one field, and unknown columns, because their data would be lost."""
    names: list[str] = list(batch.schema.names)
    unknown = sorted(set(names) - set(COLUMN_NAMES))
    if unknown:
        raise InvalidBatchError(f"unknown column {unknown[0]!r}: the columns are {', '.join(COLUMN_NAMES)}")
    if len(set(names)) != len(names) or {_TIMESTAMP, _TIMESTAMP_MS} <= set(names):
        raise InvalidBatchError(f"a column is there twice: {', '.join(names)}")
    if _VALUE not in names:
        raise InvalidBatchError("the column 'value' is missing")
    return {name: batch.column(index) for index, name in enumerate(names)}


def _append_binary(
    parts: list[BytesLike], fields: ColumnFields, pa: _Module, pc: _Module, name: str, column: _ArrowArray
) -> None:
    """Append a column of byte strings: its blob unchanged, and its lengths from its offsets."""
    column = _plain_binary(pa, name, column)
    count = len(column)
    nulls: list[int] = []
    if column.null_count:
        # In the Arrow layout a null slot may have bytes of its own. Filling the nulls rebuilds the blob without them.
        nulls = pc.indices_nonzero(column.is_null()).to_pylist()
        column = column.fill_null(
            "" if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else b""
        )
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    code, width = ("<q", 8) if large else ("<i", 4)
    _, offsets, blob = column.buffers()
    (start,) = struct.unpack_from(code, offsets, column.offset * width)
    (end,) = struct.unpack_from(code, offsets, (column.offset + count) * width)
    if end - start > MAX_INFLATED_BYTES:
        raise BatchTooLargeError(f"the column {name!r} has {end - start} bytes, the limit is {MAX_INFLATED_BYTES}")
    lengths = pc.binary_length(column).cast(pa.int32())
    packed_lengths = bytes(memoryview(lengths.buffers()[1])[4 * lengths.offset : 4 * (lengths.offset + count)])
    content = b"" if start == end else memoryview(blob)[start:end]
    append_column(parts, fields, content, packed_lengths, nulls)


def _plain_binary(pa: _Module, name: str, column: _ArrowArray) -> _ArrowArray:
    """Return a column as binary or string with 32-bit or 64-bit offsets."""
    types = pa.types
    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_binary(kind) or types.is_string(kind) or types.is_large_binary(kind) or types.is_large_string(kind):
        return column
    if types.is_fixed_size_binary(kind) or types.is_null(kind) or types.is_binary_view(kind):
        return column.cast(pa.binary())
    if types.is_string_view(kind):
        return column.cast(pa.string())
    raise InvalidBatchError(f"the column {name!r} has type {kind}: give binary or string")


def _append_timestamps(
    parts: list[BytesLike],
    pa: _Module,
    pc: _Module,
    columns: dict[str, _ArrowArray],
    timestamp_ms: int | None,
) -> tuple[int, int]:
    """Append the deltas of timestamps if the timestamps differ.

    Returns:
        (base timestamp, largest timestamp).
    """
    column = columns.get(_TIMESTAMP_MS, columns.get(_TIMESTAMP))
    if column is None:
        base_ms = timestamp_ms or 0
        check_timestamp_range(base_ms, base_ms)
        return base_ms, base_ms
    if timestamp_ms is not None:
        raise InvalidBatchError("give timestamps as a column or as `timestamp_ms`, not both")
    if column.null_count:
        raise InvalidBatchError(f"{column.null_count} timestamps are null: fill them first")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise InvalidBatchError(
            f"timestamps have type {column.type}: give integers of milliseconds or an Arrow timestamp"
        )
    column = column.cast(pa.int64(), safe=False)
    bounds = pc.min_max(column)
    smallest_ms, largest_ms, base_ms = bounds["min"].as_py(), bounds["max"].as_py(), column[0].as_py()
    check_timestamp_range(smallest_ms, largest_ms)
    if smallest_ms != largest_ms:
        deltas = pc.subtract(column, base_ms)
        append_timestamps(parts, memoryview(deltas.buffers()[1]).cast("B").cast("q")[: len(deltas)])
    return base_ms, largest_ms


def _append_headers(parts: list[BytesLike], pa: _Module, pc: _Module, column: _ArrowArray) -> None:
    """Append record headers. A null list counts as an empty one."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise InvalidBatchError(f"the column 'headers' has type {kind}: give list<struct<key: string, value: binary>>")
    if {field.name for field in kind.value_type} != {"key", "value"}:
        raise InvalidBatchError(f"the structs of the column 'headers' are {kind.value_type}: give struct<key, value>")
    pairs = column.flatten()
    counts = pc.list_value_length(column).fill_null(0).to_pylist()
    keys = pc.struct_field(pairs, "key").cast(pa.string())
    values = _plain_binary(pa, "headers.value", pc.struct_field(pairs, "value")).cast(pa.binary())
    if keys.null_count:
        raise InvalidBatchError("a header key is null")
    append_header_columns(parts, counts, keys.to_pylist(), values.to_pylist())
