# SPDX-License-Identifier: Apache-2.0
"""Batch writes: rows of a DataFrame to topics, at least once.

This module carries a task's rows to the producer, and its counts back to the driver. `arrow_routes` decides how rows are split.

Guarantee: at least once. A task reports success only after all in-sync replicas have acknowledged every record of it. A task
that runs again (failure, speculation, a lost executor) writes all its rows again. Records of a failed attempt stay in the log.
The producer's own resends do not duplicate, because it is idempotent within one task attempt.

Life of a write: Spark makes one `BatchWriter` on the driver and pickles it. `write` runs in each task and returns a message.
`commit` runs once on the driver, in another process, with all messages.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lograft.admin import Admin
from lograft.errors import LograftError
from lograft.producer import Producer
from lograft.spark.schema import SinkColumns, check_sink_columns
from lograft.spark.settings import WriteOptions
from lograft.types import BatchReceipt, TopicPartition

if TYPE_CHECKING:
    from lograft.spark.arrow_routes import ArrowBatch

logger: Final = logging.getLogger(__name__)


@dataclass
class TaskWritten(WriterCommitMessage):
    """What one task attempt has written.

    Attributes:
        record_count: number of rows from Spark, all acknowledged.
        batch_count: number of acknowledged record batches.
        records: number of acknowledged records by partition.
    """

    record_count: int = 0
    batch_count: int = 0
    records: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])


class BatchWriter(DataSourceArrowWriter):
    """Writes rows to topics. Spark pickles it to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns: SinkColumns = check_sink_columns(schema, options)
        if options.ignored:
            logger.warning("options without effect in a batch write of Lograft: %s", ", ".join(options.ignored))
        if self.columns.unused:
            logger.warning("columns that are not written: %s", ", ".join(self.columns.unused))

    def write(self, iterator: Iterator[ArrowBatch]) -> TaskWritten:
        """Write the rows of one task, and wait until all of them are acknowledged.

        Raises:
            DeliveryError: records were not acknowledged within `kafka.delivery.timeout.ms`, or were refused.
            LograftError: the number of acknowledged records differs from the number of rows.
        """
        from lograft.spark.arrow_routes import gathered, pieces_of

        options = self.options
        receipts = _Receipts()
        record_count = 0
        with Producer(
            options.connection.bootstrap,
            cluster_id=options.connection.cluster_id,
            acks="all",
            idempotent=options.idempotent,
            linger_ms=options.linger_ms,
            batch_bytes=options.batch_bytes,
            max_in_flight=options.max_in_flight,
            buffer_bytes=options.buffer_bytes,
            codec=options.codec,
            delivery_timeout_ms=options.delivery_timeout_ms,
            on_batch=receipts.add,
        ) as producer:
            for batch in gathered(iterator):
                record_count += batch.num_rows
                now_ms = time.time_ns() // 1_000_000
                for piece in pieces_of(batch, self.columns, topic=options.topic, now_ms=now_ms):
                    producer.send_arrow(piece.topic, piece.rows, partition=piece.partition)
            producer.flush()
        return receipts.message(record_count)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the totals. The records have been in the log since their tasks ended."""
        total = total_written(messages)
        logger.info(
            "wrote %d records in %d batches to %d partitions", total.record_count, total.batch_count, len(total.records)
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what a failed job leaves in the log."""
        total = total_written(messages)
        logger.warning(
            "the job failed; at least %d records of its finished tasks stay in the log, and a rerun writes them again",
            total.record_count,
        )


def total_written(messages: Sequence[WriterCommitMessage | None]) -> TaskWritten:
    """Add up the messages of the tasks. None stands for a failed task."""
    counts: Counter[TopicPartition] = Counter()
    total = TaskWritten()
    for message in messages:
        if message is None:
            continue
        written = cast("TaskWritten", message)
        total.record_count += written.record_count
        total.batch_count += written.batch_count
        counts.update(written.records)
    total.records = dict(counts)
    return total


def check_topic_exists(options: WriteOptions) -> None:
    """Refuse a write to a missing topic once on the driver, not in every attempt of every task.

    If the topic comes from a column, only the tasks can find out.

    Raises:
        UnknownTopicError: the topic does not exist.
    """
    if options.topic is not None:
        with Admin(options.connection.bootstrap, cluster_id=options.connection.cluster_id) as admin:
            admin.describe_topic(options.topic)


class _Receipts:
    """Counts acknowledged records.

    The producer calls `add` from its own thread, one call at a time. `message` runs after flush() has returned.
    """

    def __init__(self) -> None:
        self._batch_count = 0
        self._records: Counter[TopicPartition] = Counter()

    def add(self, receipt: BatchReceipt) -> None:
        if receipt.error is None:
            self._batch_count += 1
            self._records[TopicPartition(receipt.topic, receipt.partition)] += receipt.record_count

    def message(self, record_count: int) -> TaskWritten:
        acknowledged = self._records.total()
        if acknowledged != record_count:
            raise LograftError(
                f"{record_count} rows were sent and {acknowledged} acknowledged; the task must run again"
            )
        return TaskWritten(record_count=record_count, batch_count=self._batch_count, records=dict(self._records))
