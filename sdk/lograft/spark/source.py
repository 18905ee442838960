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
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from lograft.consumer import Consumer
from lograft.errors import OffsetOutOfRangeError, RequestTimeoutError, UnknownTopicError
from lograft.settings import UNREACHABLE_RANGE_MS
from lograft.spark.conditions import ALL_ROWS, RowConditions
from lograft.spark.lookups import Lookups, selected_partitions
from lograft.spark.pushdown import NOTHING_PUSHED, Pushed, is_pushing_filters, push
from lograft.spark.ranges import (
    OffsetRange,
    Plan,
    check_named_partitions,
    from_first_match,
    needs_profiles,
    plan,
    split_ranges,
    wanted_timestamps,
)
from lograft.spark.record_sizes import RANGE_WINDOWS, Profile, window_offsets, windows_per_range
from lograft.spark.settings import ReadOptions

if TYPE_CHECKING:
    from lograft.fetched import FetchedBatch
    from lograft.spark.arrow_rows import ArrowBatch

logger: Final = logging.getLogger(__name__)

POLL_MS: Final = 500
"""Milliseconds of one poll. The position may also reach the end of the range without a batch."""
MAX_WINDOWS: Final = 4_096
"""Most samples of all ranges of one query, as long as each range has one."""
PREFETCH_RECORD_BYTES: Final = 2_048
"""Bytes that a task may have ahead for each offset of its range, if that is less than `kafka.fetch.max.bytes`."""


class BatchReader(DataSourceReader):
    """Reads the selected partitions between two bounds. Spark pickles it to the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.pushed: Pushed = NOTHING_PUSHED

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the offsets, and return one input partition for each range.

        Raises:
            OptionError: a bound does not fit the partitions.
            UnknownTopicError: a topic or a partition does not exist.
            OffsetOutOfRangeError: requested records are gone, and failOnDataLoss is true.
        """
        log_ignored(self.options.ignored)
        found = plan_read(self.options, self.pushed)
        for loss in found.losses:
            logger.warning("failOnDataLoss=false: %s", loss)
        # Spark turns an empty list into one partition without a value. `read` then returns no rows.
        return [InputPartition(each) for each in found.ranges]

    def read(self, partition: InputPartition) -> Iterator[ArrowBatch]:
        """Yield the rows of one range as Arrow batches."""
        return read_partition(self.options, partition, self.pushed.rows)


class FilteringReader(BatchReader):
    """A reader that takes filters over from Spark. Spark refuses such a reader unless it pushes filters down."""

    pushed: Pushed

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what the read can apply, and return the filters that Spark must still apply."""
        self.pushed, left = push(filters)
        return left


def new_reader(options: ReadOptions) -> BatchReader:
    """Return the reader of one query. It takes filters over if Spark pushes them down, or if the option `pushdown` asks for it."""
    wants_filters = is_pushing_filters() if options.pushdown is None else options.pushdown
    return FilteringReader(options) if wants_filters else BatchReader(options)


def plan_read(options: ReadOptions, pushed: Pushed = NOTHING_PUSHED) -> Plan:
    """Ask the brokers for offsets, and turn options and filters into ranges."""
    with Lookups(options.connection) as lookups:
        topics = lookups.topics(options.selection)
        selected = selected_partitions(options.selection, topics)
        for bound in (options.start, options.end):
            check_named_partitions(bound, selected)
        partitions = [each for each in selected if pushed.has(each)]
        readable = lookups.readable(partitions)
        start_found = lookups.first_at(wanted_timestamps(options.start, partitions))
        end_found = lookups.first_at(wanted_timestamps(options.end, partitions))
        found = plan(options, readable, start_found, end_found, pushed.offsets)
        ranges = found.ranges
        if pushed.rows.first_ms is not None and pushed.rows.first_ms > 0:
            times_ms = {each.partition: pushed.rows.first_ms for each in ranges}
            ranges = from_first_match(ranges, lookups.first_at(times_ms))
        ranges = split(lookups, options, ranges)
    return replace(
        found, ranges=tuple(replace(each, topic_id=topics[each.partition.topic].topic_id) for each in ranges)
    )


def split(
    lookups: Lookups, options: ReadOptions, ranges: Sequence[OffsetRange], *, most_windows: int = MAX_WINDOWS
) -> tuple[OffsetRange, ...]:
    """Split ranges into read tasks. It looks at samples of the records if `minPartitions` asks for more tasks than ranges."""
    minimum, maximum = options.min_partitions, options.max_records_per_partition
    profiles: list[Profile] | None = None
    if needs_profiles(ranges, minimum, maximum):
        window_count = windows_per_range(len(ranges), RANGE_WINDOWS, most_windows)
        profiles = profiles_of(lookups, options, ranges, window_count)
    return split_ranges(ranges, minimum, maximum, profiles)


def profiles_of(
    lookups: Lookups, options: ReadOptions, ranges: Sequence[OffsetRange], window_count: int
) -> list[Profile]:
    """Estimate where the bytes of ranges are, from so many samples of each."""
    offsets = [window_offsets(each.start_offset, each.end_offset, window_count) for each in ranges]
    places = [(each.partition, offset) for each, own in zip(ranges, offsets, strict=True) for offset in own]
    windows = iter(lookups.windows(places, include_headers=options.include_headers))
    return [
        Profile(each.start_offset, each.end_offset, list(islice(windows, len(own))))
        for each, own in zip(ranges, offsets, strict=True)
    ]


def read_partition(
    options: ReadOptions, partition: InputPartition, conditions: RowConditions = ALL_ROWS
) -> Iterator[ArrowBatch]:
    """Yield the rows of an input partition as Arrow batches of a good size for Spark."""
    chosen = cast("OffsetRange | None", partition.value)
    if chosen is None:
        return iter(())
    return read_range(options, chosen, conditions)


def read_range(options: ReadOptions, chosen: OffsetRange, conditions: RowConditions = ALL_ROWS) -> Iterator[ArrowBatch]:
    """Read the rows of one range, without the records that the query does not want. Raises as `fetch_range`."""
    from lograft.spark.arrow_rows import rows_of_range

    return rows_of_range(
        fetch_range(options, chosen),
        chosen.partition,
        end_offset=chosen.end_offset,
        columns=options.columns,
        conditions=conditions,
    )


def fetch_range(options: ReadOptions, chosen: OffsetRange) -> Iterator[FetchedBatch]:
    """Fetch the batches of one range. The first and the last may have records outside of it.

    Raises:
        OffsetOutOfRangeError: records of the range are gone, and failOnDataLoss is true.
        UnknownTopicError: the topic is gone, and failOnDataLoss is true.
        RequestTimeoutError: nothing came for `kafkaConsumer.pollTimeoutMs`.
        UnreachableError: nothing came for that time, and the partition could not be fetched.
    """
    with Consumer(
        options.connection.bootstrap,
        cluster_id=options.connection.cluster_id,
        prefetch_bytes=_prefetch_bytes(options, chosen),
        max_chunk_bytes=options.chunk_bytes,
        check_crcs=options.check_crcs,
        client_rack=options.client_rack,
        unreachable_timeout_ms=min(max(UNREACHABLE_RANGE_MS[0], options.poll_timeout_ms), UNREACHABLE_RANGE_MS[1]),
    ) as consumer:
        partition, position = chosen.partition, chosen.start_offset
        topic_ids = None if chosen.topic_id is None else {partition.topic: chosen.topic_id}
        try:
            consumer.assign([partition], offsets={partition: position}, topic_ids=topic_ids)
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
                yield fetched
            moved_to = consumer.position(partition)
            if moved_to > position:
                position, progress_s = moved_to, time.monotonic()
            elif (time.monotonic() - progress_s) * 1000 >= options.poll_timeout_ms:
                _check_still_readable(consumer, options, chosen, position)
                return


def _prefetch_bytes(options: ReadOptions, chosen: OffsetRange) -> int:
    """Return the bytes that a task may have ahead. A fetch stream has no end, so a short range must not fetch far beyond its own."""
    return min(options.credit_bytes, max(options.chunk_bytes, chosen.size * PREFETCH_RECORD_BYTES))


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


def log_ignored(ignored: Sequence[str]) -> None:
    """Warn about options that change no record of this query."""
    if ignored:
        logger.warning("options without effect in this query of Lograft: %s", ", ".join(ignored))
