# SPDX-License-Identifier: Apache-2.0
"""What both exactly-once sinks do with an ingest: stage the rows of a task, commit what Spark names, or abort.

Spark decides which tries of its tasks count. It calls `commit` with one message of each task; the manifest of the ingest names exactly
these attempts. What other tries have staged is never published, and their space is freed.

An ingest is kept alive by whoever has an open attempt. Between two tasks, nobody touches it for its time to live.

Source: docs/ingest.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.taskcontext import TaskContext

from lograft.errors import (
    IngestAbortedError,
    IngestCommittedError,
    IngestConflictError,
    IngestFencedError,
    IngestIncompleteError,
    IngestNotFoundError,
    LograftError,
    RetriableError,
)
from lograft.ingest import Ingest
from lograft.spark.schema import SinkColumns
from lograft.spark.settings import Connection, WriteOptions
from lograft.types import IngestResult, IngestState, SealedAttempt

if TYPE_CHECKING:
    from lograft.spark.arrow_routes import ArrowBatch

logger: Final = logging.getLogger(__name__)

PUBLICATION_LIMIT_MS: Final = 86_400_000
"""Milliseconds for which a commit waits until everything is published, once it is decided."""

SPECULATION_COST: Final = (
    "spark.speculation is on: both copies of a task stage all their rows, so a job may stage up to twice its data; only one copy "
    "of each task is published. If Spark refuses the copies of one task spark.task.maxFailures times, the job fails and publishes "
    "nothing (SPARK-56564). Turn spark.speculation off for jobs that write, unless slow machines cost more than that"
)
"""The warning of a job with speculation."""

_ADVICE: Final[Mapping[type[LograftError], str]] = {
    IngestFencedError: "Another run has opened the same ingest since. That one publishes; let this one end",
    IngestAbortedError: "Nothing is published; run the job again. If no task wrote for longer than ingest.ttl.ms, give it more",
    IngestNotFoundError: "It was forgotten after it had ended. Nothing is published; run the job again",
    IngestCommittedError: "Another run has committed it. Let this one end: its rows are dropped",
    IngestConflictError: (
        "Another run has committed the same ingest with its own tasks. The rows of this run are dropped; if they are other data, "
        "they need another ingest.id"
    ),
    IngestIncompleteError: "Nothing is published; run the job again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedIngest:
    """An ingest that was opened, as the processes of a job hand it on.

    Attributes:
        ingest_id: id of the ingest.
        epoch: epoch of the open.
        topics: ids of its topics, by name.
        is_committed: an earlier run has committed it, so there is nothing to do.
    """

    ingest_id: str
    epoch: int
    topics: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    is_committed: bool = False


@dataclass
class TaskStaged(WriterCommitMessage):
    """What one try of a task has staged.

    Attributes:
        ingest: the ingest.
        sealed: the attempt; None: the ingest was committed before, so the task has staged nothing.
        is_speculative: the job runs with `spark.speculation=true`.
    """

    ingest: OpenedIngest
    sealed: SealedAttempt | None = None
    is_speculative: bool = False


def opened_by(ingest: Ingest) -> OpenedIngest:
    """Return what other processes need of an ingest that was opened here."""
    return OpenedIngest(
        ingest_id=ingest.ingest_id,
        epoch=ingest.epoch,
        topics=ingest.topics,
        is_committed=ingest.state is IngestState.COMMITTED,
    )


def topics_of(options: WriteOptions) -> tuple[str, ...]:
    """Return the names of the topics that a write may publish to."""
    return options.ingest_topics if options.topic is None else (options.topic,)


def attached(connection: Connection, opened: OpenedIngest) -> Ingest:
    """Use an ingest that another process of the job has opened. This makes no call."""
    return Ingest.attach(
        connection.bootstrap,
        opened.ingest_id,
        epoch=opened.epoch,
        topics=opened.topics,
        cluster_id=connection.cluster_id,
    )


def stage_rows(
    ingest: Ingest, task: int, rows: Iterator[ArrowBatch], options: WriteOptions, columns: SinkColumns
) -> SealedAttempt:
    """Stage the rows of one task as one attempt, and seal it: then every row is acknowledged.

    Raises:
        DeliveryError: rows were not staged within `kafka.delivery.timeout.ms`, or were refused.
        OptionError: a row names a topic that the ingest does not have.
        LograftError: the ingest has ended or is another one's; or the numbers of rows and of staged records differ.
    """
    from lograft.spark.arrow_routes import send_rows

    with (
        explained(ingest.ingest_id),
        ingest.attempt(
            task,
            linger_ms=options.linger_ms,
            batch_bytes=options.batch_bytes,
            max_in_flight=options.max_in_flight,
            buffer_bytes=options.buffer_bytes,
            codec=options.codec,
            delivery_timeout_ms=options.delivery_timeout_ms,
        ) as attempt,
    ):
        row_count = send_rows(attempt, rows, options, columns)
        sealed = attempt.seal()
    if sealed.records != row_count:
        raise LograftError(f"{row_count} rows were sent and {sealed.records} staged; the task must run again")
    return sealed


def commit_staged(connection: Connection, opened: OpenedIngest, messages: Sequence[TaskStaged]) -> IngestResult:
    """Publish what the tasks have staged, and wait until everything can be read. The same call again has the same result.

    Raises:
        IngestConflictError: another run has committed the ingest.
        IngestFencedError: another run has opened it since.
        IngestAbortedError: nobody touched it for its time to live.
        IngestIncompleteError: records that were staged are missing.
        LograftError: the coordinator could not be reached in time. It may be committed: an abort, or a rerun, finds out.
    """
    sealed = [each.sealed for each in messages if each.sealed is not None]
    with explained(opened.ingest_id), closing(attached(connection, opened)) as ingest:
        result = _commit(ingest, sealed)
    logger.info(
        "ingest %s is published: %d records in %d partitions",
        opened.ingest_id,
        result.records,
        len(result.partitions),
    )
    if result.dropped_attempts:
        logger.warning(
            "ingest %s: %d tries of tasks did not count (retries or speculation), and what they have staged is dropped",
            opened.ingest_id,
            result.dropped_attempts,
        )
    if any(each.is_speculative for each in messages):
        logger.warning(SPECULATION_COST)
    return result


def _commit(ingest: Ingest, sealed: Sequence[SealedAttempt]) -> IngestResult:
    """Commit, and wait on while a decision is being published: large ones take longer than one call."""
    deadline_s = time.monotonic() + PUBLICATION_LIMIT_MS / 1000
    while True:
        try:
            return ingest.commit(sealed)
        except RetriableError:
            found = ingest.describe()
            is_decided = found.state in (IngestState.DECIDED, IngestState.COMMITTED)
            if not is_decided or time.monotonic() >= deadline_s:
                raise
            logger.warning(
                "ingest %s is being published: %d of %d partitions are done",
                ingest.ingest_id,
                found.published_parts,
                found.parts,
            )


def abort_staged(connection: Connection, opened: OpenedIngest) -> None:
    """End an ingest whose job has failed. What was committed stays, and is named. Failures are logged: its time ends it too."""
    try:
        with closing(attached(connection, opened)) as ingest:
            ingest.abort()
    except IngestCommittedError:
        logger.error(
            "ingest %s is committed although the job failed: all its records are published, once", opened.ingest_id
        )
    except (IngestFencedError, IngestNotFoundError) as error:
        logger.warning("ingest %s is no longer of this run: %s", opened.ingest_id, error.message)
    except LograftError as error:
        logger.warning("ingest %s ends when its time is over; it could not be aborted: %s", opened.ingest_id, error)
    else:
        logger.warning("ingest %s is aborted: nothing of it is published", opened.ingest_id)


def staged(messages: Sequence[WriterCommitMessage | None]) -> list[TaskStaged]:
    """Return the messages of the tasks that have ended well. None stands for a failed task."""
    return [cast("TaskStaged", each) for each in messages if each is not None]


def task_context() -> TaskContext:
    """Return what Spark says about the running task.

    Raises:
        LograftError: this is no task of Spark.
    """
    context = TaskContext.get()
    if context is None:
        raise LograftError("write() runs in a task of Spark only")
    return context


def is_speculative(context: TaskContext) -> bool:
    """Return True if the job runs with `spark.speculation=true`. Spark hands its settings to tasks as local properties."""
    return (context.getLocalProperty("spark.speculation") or "").lower() == "true"


@contextmanager
def explained(ingest_id: str) -> Generator[None]:
    """Raise errors about an ingest with its id, and with what to do."""
    try:
        yield
    except tuple(_ADVICE) as error:
        raise type(error)(f"ingest {ingest_id}: {error.message}. {_ADVICE[type(error)]}", code=error.code) from error
