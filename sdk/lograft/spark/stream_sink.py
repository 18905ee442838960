# SPDX-License-Identifier: Apache-2.0
"""The sink of Structured Streaming: each micro-batch of a query to topics, exactly once.

One micro-batch is one ingest with the id `<query id>/<batch id>`. Spark keeps the query id in the checkpoint, and gives a micro-batch
that it repeats after a restart the same batch id. So a micro-batch that was committed before is answered as done, and none is published
twice. **A fresh checkpoint is a new query**: it has another query id, and publishes what it reads again.

Life of a micro-batch: Spark makes a `StreamWriter` on the driver and pickles it to the tasks. Nothing runs before the tasks, so each of
them opens the ingest itself. They share the owner that the writer has made, and so join one another. A restarted driver has another one:
its first task fences what is left of the older driver, and the older one's tasks do not take the ingest back. `commit` and `abort` run
in a fresh writer, which knows only what the messages of the tasks say.

Two drivers on one checkpoint: the coordinator commits each micro-batch once. The other driver fails, or finds the micro-batch done.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage

from lograft.errors import IngestIncompleteError, LograftError
from lograft.ingest import Ingest
from lograft.spark.schema import SinkColumns
from lograft.spark.settings import WriteOptions
from lograft.spark.staging import (
    TaskStaged,
    abort_staged,
    commit_staged,
    explained,
    is_speculative,
    opened_by,
    stage_rows,
    staged,
    task_context,
    topics_of,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    from lograft.spark.arrow_routes import ArrowBatch
else:
    # Spark 4.1 has it; without it this module cannot be imported, and `streamWriter` says so.
    DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter

logger: Final = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""Local property of the tasks of a streaming query: its id, which the checkpoint keeps."""

BATCH_ID: Final = "streaming.sql.batchId"
"""Local property of the tasks of a micro-batch: its number."""

_logged: Final[set[str]] = set()
"""Warnings that this process has logged. Spark makes two writers for each micro-batch, in processes that it uses again."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches exactly once. Spark makes one for the tasks of a micro-batch, and another one for its commit."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self.options = options
        self.columns = columns
        self.owner: bytes = uuid.uuid4().bytes
        if options.ignored:
            _warn_once(f"options without effect in a streaming write of Lograft: {', '.join(options.ignored)}")
        if columns.unused:
            _warn_once(f"columns that are not written: {', '.join(columns.unused)}")

    def write(self, iterator: Iterator[ArrowBatch]) -> TaskStaged:
        """Stage the rows of one task of a micro-batch, and wait until all of them are acknowledged.

        Raises:
            UnknownTopicError: a topic does not exist.
            DeliveryError: rows were not staged within `kafka.delivery.timeout.ms`, or were refused.
            IngestFencedError: another driver has opened the micro-batch since.
            OptionError: a row names a topic that `ingest.topics` does not name.
        """
        context = task_context()
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise LograftError("the task is of no micro-batch; lograft writes in micro-batches only, not continuously")
        message = self.stage(f"{query_id}/{batch_id}", context.partitionId(), iterator)
        message.is_speculative = is_speculative(context)
        return message

    def stage(self, ingest_id: str, task: int, rows: Iterator[ArrowBatch]) -> TaskStaged:
        """Stage the rows of the task with this number. Of a micro-batch that was committed, take none. Raises as `write`."""
        options = self.options
        with (
            explained(ingest_id),
            # Not the block of the ingest itself: that would abort it for all tasks when this one fails.
            closing(
                Ingest.open(
                    options.connection.bootstrap,
                    ingest_id,
                    topics=topics_of(options),
                    ttl_ms=options.ingest_ttl_ms,
                    owner=self.owner,
                    cluster_id=options.connection.cluster_id,
                )
            ) as ingest,
        ):
            opened = opened_by(ingest)
            if opened.is_committed:
                return TaskStaged(ingest=opened)
            sealed = stage_rows(ingest, task, rows, options, self.columns)
        return TaskStaged(ingest=opened, sealed=sealed)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks of a micro-batch have staged, and wait until everything can be read.

        Without a message there is nothing to publish. If a task found the micro-batch committed, it is done.

        Raises:
            LograftError: as `staging.commit_staged`.
        """
        found = staged(messages)
        if not found:
            return
        if any(each.ingest.is_committed for each in found):
            logger.warning("micro-batch %s was committed before: nothing is written", found[0].ingest.ingest_id)
            return
        latest = max((each.ingest for each in found), key=lambda each: each.epoch)
        if any(each.ingest.epoch != latest.epoch for each in found):
            raise IngestIncompleteError(
                f"micro-batch {batchId}: its ingest {latest.ingest_id} was aborted while tasks wrote it, and opened again; nothing is "
                "published. Start the query again; if no task wrote for longer than ingest.ttl.ms, give it more"
            )
        commit_staged(self.options.connection, latest, found)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """End the ingest of a micro-batch that has failed. What was committed stays. It raises nothing: Spark has an error already."""
        del batchId
        found = staged(messages)
        if found and not any(each.ingest.is_committed for each in found):
            abort_staged(self.options.connection, max((each.ingest for each in found), key=lambda each: each.epoch))


def _warn_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        logger.warning(text)
