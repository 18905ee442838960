# SPDX-License-Identifier: Apache-2.0
"""Watches a job while Spark runs it: the ingest, by asking its coordinator now and then, and Spark's tasks.

A thread of its own asks. The job stays in the calling thread, because Spark finds Python data sources through the session of the
thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from lograft.admin import Admin
from lograft.errors import IngestNotFoundError, LograftError
from lograft.spark.jobs.phases import Moments, noted
from lograft.types import IngestDescription

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S: Final = 0.1
"""Seconds between two questions, and so the exactness of the times."""


class IngestWatch:
    """Asks for the status of an ingest while the block runs. Only its thread writes `moments` and `last`.

    Args:
        bootstrap: brokers to ask.
        ingest_id: id of the ingest. It need not be open yet.
        moments: what is known of the times.
        on_status: called with each status, in the watching thread.
        cluster_id: the id that the cluster must have; None accepts any.
        timeout_ms: milliseconds that a question may take.

    Attributes:
        moments: when something was seen first.
        last: the last status; None: there was none yet.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        ingest_id: str,
        moments: Moments,
        *,
        on_status: Callable[[IngestDescription], None] | None = None,
        cluster_id: str | None = None,
        timeout_ms: int = 10_000,
    ) -> None:
        self.moments: Moments = moments
        self.last: IngestDescription | None = None
        self._bootstrap = bootstrap
        self._cluster_id = cluster_id
        self._ingest_id = ingest_id
        self._on_status = on_status
        self._timeout_ms = timeout_ms
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ingest-watch", daemon=True)

    def __enter__(self) -> IngestWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        with Admin(self._bootstrap, cluster_id=self._cluster_id, request_timeout_ms=self._timeout_ms) as admin:
            while not self._ended.wait(INTERVAL_S):
                self._look(admin)
            # The job has ended: this is the result.
            self._look(admin)

    def _look(self, admin: Admin) -> None:
        try:
            seen = admin.describe_ingest(self._ingest_id)
        except IngestNotFoundError:
            return
        except LograftError:
            # A coordinator moves. The job finds out by itself what it must know; the next look shows how far it is.
            return
        sealed_before = 0 if self.last is None else self.last.sealed_attempts
        self.moments = noted(self.moments, seen, sealed_before, time.monotonic())
        self.last = seen
        if self._on_status is not None:
            self._on_status(seen)


class TaskWatch:
    """Asks Spark how many tasks of its present stage are done while the block runs.

    Args:
        spark: the session.
        on_tasks: called with the tasks that are done and all tasks of the stage, in the watching thread.
    """

    def __init__(self, spark: SparkSession, on_tasks: Callable[[int, int], None]) -> None:
        self._spark = spark
        self._on_tasks = on_tasks
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="task-watch", daemon=True)

    def __enter__(self) -> TaskWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            found = present_tasks(self._spark)
            if found is not None:
                self._on_tasks(*found)


def present_tasks(spark: SparkSession) -> tuple[int, int] | None:
    """Return the tasks that are done and all tasks of the stage that runs; None if none runs."""
    tracker: Any = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(each) for each in sorted(tracker.getActiveStageIds())]
    last = stages[-1] if stages else None
    return None if last is None else (last.numCompletedTasks, last.numTasks)
