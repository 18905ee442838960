# SPDX-License-Identifier: Apache-2.0
"""The data source that Spark finds under the name `lograft`.

This module has the entry points that Spark calls. Spark imports it in every session that uses any Python data source. So it
must stay light, and its methods import pyarrow and the clients themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


BATCH_ONLY = "lograft is batch only for now, without Structured Streaming: use {instead}"
"""Error text for a streaming query."""


class LograftDataSource(DataSource):
    """Topics of a Lograft cluster, with the option names and the schema of Spark's Kafka connector.

    Source: Spark, "Structured Streaming + Kafka Integration Guide".
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "lograft"

    def schema(self) -> StructType:
        """Return the columns of a read. They depend only on `includeHeaders`.

        Raises:
            OptionError: an option is wrong. This is raised at `load()`, before Spark plans the query.
        """
        from lograft.spark.options import parse_read_options
        from lograft.spark.schema import row_schema

        return row_schema(parse_read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for one query.

        Raises:
            OptionError: an option is wrong, or the caller gave a schema that differs from the source's own.
        """
        from lograft.spark.options import parse_read_options
        from lograft.spark.schema import check_row_schema
        from lograft.spark.source import BatchReader

        options = parse_read_options(self.options)
        check_row_schema(schema, options)
        return BatchReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for one job. An exactly-once write opens its ingest here.

        Raises:
            OptionError: an option or a column is wrong, or the mode is overwrite.
            UnknownTopicError: a topic that an option names does not exist.
            LograftError: the cluster could not be reached, or it refused the ingest.
        """
        from lograft.spark.options import parse_write_options
        from lograft.spark.sink import batch_writer
        from lograft.spark.values import OptionError

        if overwrite:
            raise OptionError("mode", 'a log is only appended to; use mode("append")')
        return batch_writer(parse_write_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Refuse a streaming read.

        Raises:
            OptionError: always; Lograft supports only batch queries for now.
        """
        from lograft.spark.values import OptionError

        del schema
        raise OptionError("format", BATCH_ONLY.format(instead='spark.read.format("lograft")'))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer: one for the tasks of each micro-batch, and one for its commit.

        Raises:
            OptionError: an option or a column is wrong, the output mode is complete, or Spark is older than 4.1.
        """
        from pyspark.sql import datasource

        from lograft.spark.options import parse_stream_write_options
        from lograft.spark.schema import check_sink_columns
        from lograft.spark.values import OptionError

        if overwrite:
            raise OptionError("outputMode", "a log is only appended to; use append or update")
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise OptionError("format", "a streaming write needs Spark 4.1; use df.write inside foreachBatch")
        from lograft.spark.stream_sink import StreamWriter

        options = parse_stream_write_options(self.options)
        return StreamWriter(options, check_sink_columns(schema, options))
