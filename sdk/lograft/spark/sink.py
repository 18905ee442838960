# SPDX-License-Identifier: Apache-2.0
"""Batch writes: rows of a DataFrame to topics, exactly once or at least once.

This module has one writer for each guarantee. `staging` has what an ingest takes, `arrow_routes` decides how rows are split.

Exactly once (`IngestWriter`): one job is one ingest. Its tasks stage their rows where no reader looks. The commit of the job publishes,
as one decision, one attempt for each task: the one that Spark names. So nothing depends on what Spark repeats, or on the order in which
a repeated task sees its rows. With an `ingest.id` of the user this holds for reruns of the whole job as well: a committed id is
skipped. Without one, the id is random, and a rerun is another ingest.

At least once (`AppendWriter`): a task appends its rows at once. A task that runs again writes them again, and records of failed tasks
stay.

Life of a write: Spark makes one writer on the driver and pickles it. `write` runs in each task and returns a message. `commit` or
`abort` runs once on the driver, in another process, with all messages. If `commit` raises, Spark calls `abort` as well.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lograft.admin import Admin
from lograft.errors import LograftError
from lograft.ingest import Ingest
from lograft.producer import Producer
from lograft.spark.schema import SinkColumns, check_sink_columns
from lograft.spark.settings import Guarantee, WriteOptions
from lograft.spark.staging import (
    OpenedIngest,
    TaskStaged,
    abort_staged,
    attached,
    commit_staged,
    explained,
    is_speculative,
    opened_by,
    stage_rows,
    staged,
    task_context,
    topics_of,
)
from lograft.types import BatchReceipt, TopicPartition

if TYPE_CHECKING:
    from lograft.spark.arrow_routes import ArrowBatch

logger: Final = logging.getLogger(__name__)


def batch_writer(options: WriteOptions, schema: StructType) -> IngestWriter | AppendWriter:
    """Return the writer of one job. An exactly-once write opens its ingest here, once, on the driver.

    Raises:
        OptionError: a column is wrong, or an option does not fit the columns.
        UnknownTopicError: a topic that is named on the driver does not exist.
        IngestConflictError: `ingest.id` is the id of transactions.
        LograftError: the cluster could not be reached in time, or it refused.
    """
    columns = check_sink_columns(schema, options)
    if options.ignored:
        logger.warning("options without effect in a batch write of Lograft: %s", ", ".join(options.ignored))
    if columns.unused:
        logger.warning("columns that are not written: %s", ", ".join(columns.unused))
    if options.guarantee is Guarantee.AT_LEAST_ONCE:
        check_topic_exists(options)
        return AppendWriter(options, columns)
    return IngestWriter(options, columns, open_ingest(options))


def open_ingest(options: WriteOptions) -> OpenedIngest:
    """Open the ingest of a job, or find that an earlier run has committed it. It stays open when this returns.

    Raises:
        UnknownTopicError: a topic does not exist.
        LograftError: the coordinator could not be reached in time, or it refused.
    """
    ingest_id = options.ingest_id or f"spark/{uuid.uuid4()}"
    with (
        explained(ingest_id),
        closing(
            Ingest.open(
                options.connection.bootstrap,
                ingest_id,
                topics=topics_of(options),
                ttl_ms=options.ingest_ttl_ms,
                cluster_id=options.connection.cluster_id,
            )
        ) as ingest,
    ):
        opened = opened_by(ingest)
        if opened.is_committed:
            records = 0 if ingest.result is None else ingest.result.records
            logger.warning(
                "ingest %s was committed by an earlier run with %d records: this run writes nothing", ingest_id, records
            )
    return opened


class IngestWriter(DataSourceArrowWriter):
    """Writes rows exactly once. Spark pickles it to the tasks, and to the process that commits."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, ingest: OpenedIngest) -> None:
        self.options = options
        self.columns = columns
        self.ingest = ingest

    def write(self, iterator: Iterator[ArrowBatch]) -> TaskStaged:
        """Stage the rows of one task, and wait until all of them are acknowledged. Of an ingest that was committed, take none.

        Raises:
            DeliveryError: rows were not staged within `kafka.delivery.timeout.ms`, or were refused.
            IngestFencedError: another run has opened the ingest since.
            IngestAbortedError: nobody touched it for `ingest.ttl.ms`.
            OptionError: a row names a topic that `ingest.topics` does not name.
        """
        context = task_context()
        message = self.stage(context.partitionId(), iterator)
        message.is_speculative = is_speculative(context)
        return message

    def stage(self, task: int, rows: Iterator[ArrowBatch]) -> TaskStaged:
        """Stage the rows of the task with this number. Raises as `write`."""
        if self.ingest.is_committed:
            return TaskStaged(ingest=self.ingest)
        with closing(attached(self.options.connection, self.ingest)) as ingest:
            return TaskStaged(ingest=self.ingest, sealed=stage_rows(ingest, task, rows, self.options, self.columns))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged, and wait until everything can be read.

        Raises:
            LograftError: as `staging.commit_staged`.
        """
        if not self.ingest.is_committed:
            commit_staged(self.options.connection, self.ingest, staged(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the ingest of a job that has failed. What was committed stays. It raises nothing: Spark has an error already."""
        del messages
        if not self.ingest.is_committed:
            abort_staged(self.options.connection, self.ingest)


@dataclass
class TaskWritten(WriterCommitMessage):
    """What one task attempt has appended.

    Attributes:
        record_count: number of rows from Spark, all acknowledged.
        batch_count: number of acknowledged record batches.
        records: number of acknowledged records by partition.
    """

    record_count: int = 0
    batch_count: int = 0
    records: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])


class AppendWriter(DataSourceArrowWriter):
    """Appends rows at least once. Spark pickles it to the tasks.

    A task reports success only after all in-sync replicas have acknowledged every record of it. The producer's own resends do not
    duplicate, because it is idempotent within one task attempt.
    """

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self.options = options
        self.columns = columns

    def write(self, iterator: Iterator[ArrowBatch]) -> TaskWritten:
        """Write the rows of one task, and wait until all of them are acknowledged.

        Raises:
            DeliveryError: records were not acknowledged within `kafka.delivery.timeout.ms`, or were refused.
            LograftError: the number of acknowledged records differs from the number of rows.
        """
        from lograft.spark.arrow_routes import send_rows

        options = self.options
        receipts = _Receipts()
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
            record_count = send_rows(producer, iterator, options, self.columns)
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
