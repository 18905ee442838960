# SPDX-License-Identifier: Apache-2.0
"""Columns of a write, and the errors for wrong ones. No Spark session is needed."""

from __future__ import annotations

import pytest
from lograft.spark.options import parse_read_options, parse_write_options
from lograft.spark.schema import HEADERS, SinkColumns, check_row_schema, check_sink_columns, row_schema
from lograft.spark.values import OptionError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

HERE = {"kafka.bootstrap.servers": "127.0.0.1:9640"}
READ = parse_read_options({**HERE, "subscribe": "t"})
TO_TOPIC = parse_write_options({**HERE, "topic": "t"})
BY_COLUMN = parse_write_options({**HERE, "ingest.topics": "t, u"})


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_value_alone_is_enough() -> None:
    """With the option topic, everything but the value is optional."""
    assert check_sink_columns(schema(value=StringType()), TO_TOPIC) == SinkColumns(
        has_key=False, has_topic=False, has_partition=False, has_headers=False, has_timestamp=False, unused=()
    )


def test_all_columns_are_found_without_regard_to_case() -> None:
    """Spark's names are case-insensitive. Columns that are not written are listed."""
    given = schema(
        KEY=BinaryType(),
        Value=BinaryType(),
        topic=StringType(),
        partition=IntegerType(),
        headers=HEADERS,
        timestamp=TimestampType(),
        timestampType=IntegerType(),
        offset=LongType(),
    )
    assert check_sink_columns(given, BY_COLUMN) == SinkColumns(
        has_key=True,
        has_topic=True,
        has_partition=True,
        has_headers=True,
        has_timestamp=True,
        unused=("offset", "timestamptype"),
    )


def test_rows_of_a_read_can_be_written() -> None:
    """Copying a topic needs no select()."""
    options = parse_read_options({**HERE, "subscribe": "t", "includeHeaders": "true"})
    assert check_sink_columns(row_schema(options), TO_TOPIC).unused == ("offset", "timestamptype")


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({}, "there is no column value"),
        ({"key": StringType()}, "there is no column value; there are key"),
        ({"value": IntegerType()}, "column value must be string or binary, not int"),
        ({"value": StringType(), "key": LongType()}, "column key must be"),
        ({"value": StringType(), "topic": BinaryType()}, "column topic must be string"),
        ({"value": StringType(), "partition": LongType()}, "column partition must be int, not bigint"),
        ({"value": StringType(), "timestamp": TimestampNTZType()}, "column timestamp must be timestamp"),
        ({"value": StringType(), "headers": ArrayType(StringType())}, "column headers must be"),
        ({"value": StringType(), "headers": StringType()}, "column headers must be"),
        (
            {"value": StringType(), "headers": ArrayType(schema(key=StringType(), value=StringType()))},
            "column headers must be",
        ),
        ({"value": StringType(), "VALUE": StringType()}, "two columns named VALUE"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, DataType], problem: str) -> None:
    """Every column that cannot be written is an error on the driver."""
    with pytest.raises(OptionError, match=problem):
        check_sink_columns(schema(**columns), TO_TOPIC)


def test_topic_is_needed_somewhere() -> None:
    """Without the option and the column, an error is raised before any task runs."""
    with pytest.raises(OptionError, match="option topic: is required when there is no column topic"):
        check_sink_columns(schema(value=StringType()), BY_COLUMN)


def test_exactly_once_by_a_column_needs_the_topics() -> None:
    """The driver opens the ingest before any row is seen. An append needs no list."""
    by_column = schema(value=StringType(), topic=StringType())
    with pytest.raises(OptionError, match=r"option ingest\.topics: is required when a column names the topics"):
        check_sink_columns(by_column, parse_write_options(HERE))
    assert check_sink_columns(by_column, parse_write_options({**HERE, "delivery.guarantee": "at-least-once"})).has_topic
    assert check_sink_columns(by_column, TO_TOPIC).has_topic


def test_schema_of_a_read_is_fixed() -> None:
    """A schema of the user must equal the source's own."""
    check_row_schema(row_schema(READ), READ)
    with pytest.raises(OptionError, match="the columns are fixed"):
        check_row_schema(schema(value=StringType()), READ)
