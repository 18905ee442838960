# SPDX-License-Identifier: Apache-2.0
"""Columns of `format("lograft")` as Spark types: those that a read returns and those that a write accepts.

This module owns names and types, which are those of Spark's Kafka connector. It runs on the driver while Spark plans a query,
so it must not import pyarrow or a client.

    read            type                                     null
    key             binary                                   no key
    value           binary                                   a tombstone
    topic           string                                   never
    partition       int                                      never
    offset          long                                     never
    timestamp       timestamp                                never
    timestampType   int                                      never; 0 create time, 1 log append time
    headers         array<struct<key string, value binary>>  no header; only with includeHeaders=true

    write           type                                     absent or null
    value           string or binary                         required; null: a tombstone
    key             string or binary                         no key
    topic           string                                   then the option `topic` is required
    partition       int                                      by the key
    headers         array<struct<key string, value binary>>  none
    timestamp       timestamp                                the time of sending

Kafka's connector drops the column `timestamp` on the write side, so a copied topic loses its create times. Lograft writes it.

Source: Spark, "Structured Streaming + Kafka Integration Guide", schema of source and sink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lograft.spark.settings import Guarantee, ReadOptions, WriteOptions
from lograft.spark.values import OptionError

HEADERS: Final[ArrayType] = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)


def row_schema(options: ReadOptions) -> StructType:
    """Return the columns of a read."""
    return StructType([*_COLUMNS, *([StructField("headers", HEADERS)] if options.include_headers else [])])


def check_row_schema(schema: StructType, options: ReadOptions) -> None:
    """Refuse a schema of the user that differs from the source's own.

    Raises:
        OptionError: the schemas differ.
    """
    if schema != row_schema(options):
        raise OptionError("schema", f"the columns are fixed: {row_schema(options).simpleString()}; leave schema() out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkColumns:
    """The optional columns that the rows of a write have, and the columns that the write ignores."""

    has_key: bool
    has_topic: bool
    has_partition: bool
    has_headers: bool
    has_timestamp: bool
    unused: tuple[str, ...]


def check_sink_columns(schema: StructType, options: WriteOptions) -> SinkColumns:
    """Return the columns that a write uses. Names are case-insensitive, as in Spark.

    Raises:
        OptionError: a column is missing, occurs twice, or has another type.
    """
    given: dict[str, DataType] = {}
    for field in schema.fields:
        if field.name.lower() in given:
            raise OptionError("columns", f"there are two columns named {field.name}")
        given[field.name.lower()] = field.dataType
    for name, (wanted, takes) in _SINK.items():
        kind = given.get(name)
        if kind is not None and not takes(kind):
            raise OptionError("columns", f"column {name} must be {wanted}, not {kind.simpleString()}")
    if "value" not in given:
        raise OptionError("columns", f"there is no column value; there are {', '.join(given) or 'none'}")
    if "topic" not in given and options.topic is None:
        raise OptionError("topic", "is required when there is no column topic")
    if options.topic is None and options.guarantee is Guarantee.EXACTLY_ONCE and not options.ingest_topics:
        raise OptionError(
            "ingest.topics",
            "is required when a column names the topics of an exactly-once write: the topics that it may name, separated by commas",
        )
    return SinkColumns(
        has_key="key" in given,
        has_topic="topic" in given,
        has_partition="partition" in given,
        has_headers="headers" in given,
        has_timestamp="timestamp" in given,
        unused=tuple(sorted(set(given) - set(_SINK))),
    )


def _is_text_or_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    # Nullability does not matter here: the producer refuses a null header name when it meets one.
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    return [(field.name, type(field.dataType)) for field in kind.elementType.fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


def _is(kind: type[DataType]) -> Callable[[DataType], bool]:
    return lambda given: isinstance(given, kind)


_SINK: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "key": ("string or binary", _is_text_or_bytes),
    "value": ("string or binary", _is_text_or_bytes),
    "topic": ("string", _is(StringType)),
    "partition": ("int", _is(IntegerType)),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
    "timestamp": ("timestamp", _is(TimestampType)),
}
