# SPDX-License-Identifier: Apache-2.0
"""What Spark itself allows a data source in Python: a sink that drops its Arrow batches, and a source that repeats one.

No client, no server and no log: what is left is Spark's pipe between the JVM and the Python workers. Options of the source:
`records`, `bytes` of each value, `partitions`, and `rows`: `value` for a batch of values alone, `all` for the columns that a
read of `format("lograft")` has.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

NAME = "lograft-ceiling"
BATCH_BYTES = 1024 * 1024
"""Size of the repeated batch: what `arrow_rows.TARGET_BYTES` is for a read of Lograft."""
ALL_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)


class DroppingWriter(DataSourceArrowWriter):
    """Takes the batches of a task, and does nothing with them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Take all batches."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class RepeatingReader(DataSourceReader):
    """Gives one batch again and again."""

    def __init__(self, options: dict[str, str]) -> None:
        self.records, self.value_bytes = int(options["records"]), int(options["bytes"])
        self.partition_count = int(options["partitions"])
        self.has_all_columns = options.get("rows") == "all"

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input partition for each partition of the topic that this stands for."""
        return [InputPartition(number) for number in range(self.partition_count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the records of one partition."""
        number: int = partition.value
        left = self.records // self.partition_count + (number < self.records % self.partition_count)
        batch = self._batch(number)
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows

    def _batch(self, partition: int) -> Any:
        pa: Any = importlib.import_module("pyarrow")
        count = max(1, BATCH_BYTES // self.value_bytes)
        columns = {"value": pa.array([b"x" * self.value_bytes] * count, pa.binary())}
        if self.has_all_columns:
            columns = {
                "key": pa.array([b"%07d" % index for index in range(count)], pa.binary()),
                **columns,
                "topic": pa.array(["topic"] * count, pa.string()),
                "partition": pa.array([partition] * count, pa.int32()),
                "offset": pa.array(range(count), pa.int64()),
                "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
                "timestampType": pa.array([0] * count, pa.int32()),
            }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class Ceiling(DataSource):
    """`format("lograft-ceiling")`."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return NAME

    def schema(self) -> str:
        """Columns of a read."""
        return ALL_COLUMNS if self.options.get("rows") == "all" else "value binary"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the sink that drops."""
        del schema, overwrite
        return DroppingWriter()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the source that repeats."""
        del schema
        return RepeatingReader(dict(self.options))
