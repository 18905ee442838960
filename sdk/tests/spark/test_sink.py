# SPDX-License-Identifier: Apache-2.0
"""The writer's counts. No Spark session is needed."""

from __future__ import annotations

import logging
import pickle

import pytest
from lograft.errors import LograftError
from lograft.spark.options import parse_write_options
from lograft.spark.sink import BatchWriter, TaskWritten, _Receipts, total_written
from lograft.types import BatchReceipt, Durability, TopicPartition
from pyspark.sql.types import StringType, StructField, StructType

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def receipt(partition: int, record_count: int, *, error: LograftError | None = None) -> BatchReceipt:
    return BatchReceipt(
        topic="t",
        partition=partition,
        base_offset=0,
        record_count=record_count,
        durability=Durability.FLUSHED,
        error=error,
    )


def test_message_counts_acknowledged_records() -> None:
    """Failed batches do not count. The message can be pickled to the driver."""
    receipts = _Receipts()
    receipts.add(receipt(0, 3))
    receipts.add(receipt(0, 2))
    receipts.add(receipt(1, 4))
    receipts.add(receipt(1, 9, error=LograftError("no")))
    message = receipts.message(9)
    assert message == TaskWritten(record_count=9, batch_count=3, records={ZERO: 5, ONE: 4})
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - our own bytes


def test_task_whose_counts_do_not_add_up_fails() -> None:
    """A lost acknowledgement is never a success."""
    receipts = _Receipts()
    receipts.add(receipt(0, 3))
    with pytest.raises(LograftError, match="4 rows were sent and 3 acknowledged"):
        receipts.message(4)


def test_totals_pass_over_failed_tasks() -> None:
    """Spark passes None for a failed task."""
    one = TaskWritten(record_count=5, batch_count=1, records={ZERO: 5})
    two = TaskWritten(record_count=3, batch_count=2, records={ZERO: 1, ONE: 2})
    assert total_written([one, None, two]) == TaskWritten(record_count=8, batch_count=3, records={ZERO: 6, ONE: 2})
    assert total_written([]) == TaskWritten()


def test_commit_and_abort_say_what_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """An abort does not pretend that nothing was written."""
    options = parse_write_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "kafka.client.id": "x"})
    schema = StructType([StructField("value", StringType()), StructField("extra", StringType())])
    with caplog.at_level(logging.INFO, logger="lograft.spark.sink"):
        writer = pickle.loads(pickle.dumps(BatchWriter(options, schema)))  # noqa: S301 - our own bytes
        writer.commit([TaskWritten(record_count=5, batch_count=1, records={ZERO: 5})])
        writer.abort([None, TaskWritten(record_count=5, batch_count=1, records={ZERO: 5})])
    text = caplog.text
    assert "options without effect in a batch write of Lograft: kafka.client.id" in text
    assert "columns that are not written: extra" in text
    assert "wrote 5 records in 1 batches to 1 partitions" in text
    assert "at least 5 records of its finished tasks stay in the log" in text


def test_unreachable_cluster_fails_the_task() -> None:
    """Rows that cannot be delivered are an error of the task."""
    import pyarrow as pa

    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "delivery.timeout.ms": "200", "linger.ms": "0"}
    writer = BatchWriter(parse_write_options(given), StructType([StructField("value", StringType())]))
    with pytest.raises(LograftError):
        writer.write(iter([pa.record_batch({"value": ["a"]})]))
