# SPDX-License-Identifier: Apache-2.0
"""Writes source records to a Parquet file that Spark reads, and notes their facts.

Owns the staged file. Records are written in bounded groups. The facts are computed from the source record itself, before any other code
has touched it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from integration_tests.scenarios.demo.facts import SourceFacts, SourceRecord

GROUP_ROWS = 20_000
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        # The partition of the record: one task sends the rows of one partition, in time order.
        pa.field("place", pa.int32()),
    ]
)


def stage(
    records: Iterable[SourceRecord], path: Path, *, partition_count: int, on_progress: Callable[[int], None]
) -> SourceFacts:
    """Write the records to `path` and return their facts.

    Args:
        records: the source.
        path: Parquet file to write.
        partition_count: partitions of the topic.
        on_progress: called with the number of records so far, after each group.
    """
    facts = SourceFacts(partition_count)
    with parquet.ParquetWriter(path, SCHEMA, compression="none") as writer:
        group: list[tuple[SourceRecord, int]] = []
        for record in records:
            group.append((record, facts.add(record)))
            if len(group) == GROUP_ROWS:
                _write(writer, group)
                group.clear()
                on_progress(len(facts))
        if group:
            _write(writer, group)
    on_progress(len(facts))
    return facts


def _write(writer: parquet.ParquetWriter, group: list[tuple[SourceRecord, int]]) -> None:
    columns = [
        pa.array([record.key for record, _ in group], pa.binary()),
        pa.array([record.value for record, _ in group], pa.binary()),
        pa.array([record.timestamp_ms * 1000 for record, _ in group], SCHEMA.field("timestamp").type),
        pa.array([place for _, place in group], pa.int32()),
    ]
    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
