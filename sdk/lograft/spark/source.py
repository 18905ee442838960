# SPDX-License-Identifier: Apache-2.0
"""Batch reads: planning on the driver, reading in the tasks.

This module talks to the brokers for a query. `ranges` (pure) decides what to read, `arrow_rows` makes the rows.

Life of a read: Spark calls `partitions` once while it plans a query. Offsets are resolved only there. So all tasks of one query
read the same log, whatever arrives later. Each action on a DataFrame plans again, and "latest" then means a later offset. A
task reads one range and ends when its position has reached the end of the range, not after a number of records, because some
offsets have no record. Clients are made inside the call that uses them, never at import, because Spark forks its workers.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from lograft.admin import Admin
from lograft.consumer import Consumer
from lograft.errors import OffsetOutOfRangeError, RequestTimeoutError, UnknownTopicError
from lograft.settings import UNREACHABLE_RANGE_MS
from lograft.spark.ranges import OffsetRange, Plan, Readable, check_named_partitions, plan, wanted_timestamps
from lograft.spark.settings import Assign, Bound, Connection, ReadOptions, Selection, Subscribe
from lograft.spark.values import OptionError
from lograft.types import TopicPartition

if TYPE_CHECKING:
    from lograft.spark.arrow_rows import ArrowBatch

logger: Final = logging.getLogger(__name__)

POLL_MS: Final = 500
"""Milliseconds of one poll. The position may also reach the end of the range without a batch."""


class BatchReader(DataSourceReader):
    """Reads the selected partitions between two bounds. Spark pickles it to the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the offsets, and return one input partition for each range.

        Raises:
            OptionError: a bound does not fit the partitions.
            UnknownTopicError: a topic or a partition does not exist.
            OffsetOutOfRangeError: requested records are gone, and failOnDataLoss is true.
        """
        _log_ignored(self.options.ignored)
        found = plan_read(self.options)
        for loss in found.losses:
            logger.warning("failOnDataLoss=false: %s", loss)
        # Spark turns an empty list into one partition without a value. `read` then returns no rows.
        return [InputPartition(each) for each in found.ranges]

    def read(self, partition: InputPartition) -> Iterator[ArrowBatch]:
        """Yield the rows of one range as Arrow batches."""
        chosen = cast("OffsetRange | None", partition.value)
        if chosen is None:
            return iter(())
        from lograft.spark.arrow_rows import joined

        return joined(read_range(self.options, chosen))


def plan_read(options: ReadOptions) -> Plan:
    """Ask the brokers for offsets, and turn the options into ranges."""
    connection = options.connection
    partitions = selected_partitions(options.selection, connection)
    for bound in (options.start, options.end):
        check_named_partitions(bound, partitions)
    if not partitions:
        return Plan(ranges=(), losses=())
    with Consumer(connection.bootstrap, cluster_id=connection.cluster_id) as consumer:
        # Look up the end first. Records that arrive between the two lookups are beyond it and are not read.
        ends = consumer.end_offsets(partitions)
        starts = consumer.beginning_offsets(partitions)
        readable = {each: Readable(log_start_offset=starts[each], high_watermark=ends[each]) for each in partitions}
        start_found = _found(consumer, options.start, partitions)
        end_found = _found(consumer, options.end, partitions)
    return plan(options, readable, start_found, end_found)


def selected_partitions(selection: Selection, connection: Connection) -> tuple[TopicPartition, ...]:
    """Return the selected partitions, ascending.

    Raises:
        UnknownTopicError: a named topic, or a partition of it, does not exist.
    """
    with Admin(connection.bootstrap, cluster_id=connection.cluster_id) as admin:
        if isinstance(selection, Subscribe):
            topics: Sequence[str] = selection.topics
        elif isinstance(selection, Assign):
            topics = sorted({each.topic for each in selection.partitions})
        else:
            pattern = re.compile(selection.pattern)
            topics = sorted(each.topic for each in admin.list_topics() if pattern.fullmatch(each.topic))
        there = {
            TopicPartition(topic, each.partition) for topic in topics for each in admin.describe_topic(topic).partitions
        }
    if not isinstance(selection, Assign):
        return tuple(sorted(there))
    for each in selection.partitions:
        if each not in there:
            count = sum(1 for other in there if other.topic == each.topic)
            raise OptionError("assign", f"topic {each.topic} has no partition {each.partition}, only 0 to {count - 1}")
    return selection.partitions


def read_range(options: ReadOptions, chosen: OffsetRange) -> Iterator[ArrowBatch]:
    """Read one range. The batches are as fetched, cut at the end of the range.

    Raises:
        OffsetOutOfRangeError: records of the range are gone, and failOnDataLoss is true.
        UnknownTopicError: the topic is gone, and failOnDataLoss is true.
        RequestTimeoutError: nothing came for `kafkaConsumer.pollTimeoutMs`.
        UnreachableError: nothing came for that time, and the partition could not be fetched.
    """
    from lograft.spark.arrow_rows import rows_of

    with Consumer(
        options.connection.bootstrap,
        cluster_id=options.connection.cluster_id,
        prefetch_bytes=options.credit_bytes,
        max_chunk_bytes=options.chunk_bytes,
        check_crcs=options.check_crcs,
        client_rack=options.client_rack,
        unreachable_timeout_ms=min(max(UNREACHABLE_RANGE_MS[0], options.poll_timeout_ms), UNREACHABLE_RANGE_MS[1]),
    ) as consumer:
        partition, position = chosen.partition, chosen.start_offset
        try:
            consumer.assign([partition], offsets={partition: position})
        except UnknownTopicError as error:
            _after_loss(consumer, options, chosen, position, error)
            return
        progress_s = time.monotonic()
        while position < chosen.end_offset:
            try:
                fetched = consumer.poll_batch(min(POLL_MS, options.poll_timeout_ms))
            except (OffsetOutOfRangeError, UnknownTopicError) as error:
                next_offset = _after_loss(consumer, options, chosen, position, error)
                if next_offset is None:
                    return
                consumer.seek(partition, next_offset)
                position = next_offset
                continue
            if fetched is not None:
                rows = rows_of(
                    fetched, partition, end_offset=chosen.end_offset, include_headers=options.include_headers
                )
                if rows is not None:
                    yield rows
            moved_to = consumer.position(partition)
            if moved_to > position:
                position, progress_s = moved_to, time.monotonic()
            elif (time.monotonic() - progress_s) * 1000 >= options.poll_timeout_ms:
                _check_still_readable(consumer, options, chosen, position)
                return


def _found(consumer: Consumer, bound: Bound, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
    wanted = wanted_timestamps(bound, partitions)
    return dict(consumer.offsets_for_times(wanted)) if wanted else {}


def _after_loss(
    consumer: Consumer,
    options: ReadOptions,
    chosen: OffsetRange,
    position: int,
    error: OffsetOutOfRangeError | UnknownTopicError,
) -> int | None:
    """Return the offset to continue from after records of the planned range were lost; None if nothing is left to read."""
    if options.fail_on_data_loss:
        raise error
    logger.warning("failOnDataLoss=false: %s from offset %d: %s", chosen.partition, position, error.message)
    if isinstance(error, UnknownTopicError):
        return None
    log_start_offset = consumer.beginning_offsets([chosen.partition])[chosen.partition]
    # The task can continue only in a log that now starts later. A log that ends earlier has nothing more for this range.
    return log_start_offset if position < log_start_offset < chosen.end_offset else None


def _check_still_readable(consumer: Consumer, options: ReadOptions, chosen: OffsetRange, position: int) -> None:
    high_watermark = consumer.end_offsets([chosen.partition])[chosen.partition]
    if high_watermark >= chosen.end_offset:
        raise RequestTimeoutError(
            f"{chosen.partition}: nothing came at offset {position} for {options.poll_timeout_ms} ms although the log "
            f"reaches {high_watermark}; kafkaConsumer.pollTimeoutMs sets how long to wait"
        )
    problem = f"{chosen.partition} ends at offset {high_watermark} by now; the range needs {chosen.end_offset}"
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{problem}. Set failOnDataLoss to false to read what there is")
    logger.warning("failOnDataLoss=false: %s", problem)


def _log_ignored(ignored: Sequence[str]) -> None:
    if ignored:
        logger.warning("options without effect in a batch query of Lograft: %s", ", ".join(ignored))
