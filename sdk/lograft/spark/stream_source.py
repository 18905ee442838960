# SPDX-License-Identifier: Apache-2.0
"""Streaming reads: the offsets of each micro-batch on the driver, reading in the tasks.

This module talks to the brokers for one run of a streaming query. `stream_offsets` (pure) decides how far a micro-batch goes,
`source` reads a range.

Life of a run: Spark makes one reader in a process beside the driver and keeps it until the query stops. For a query
without a checkpoint it asks for `initialOffset`. For each trigger it asks for `latestOffset`, writes that to the checkpoint, asks for
`partitions`, and runs the tasks. After a restart it asks for the `partitions` of the last micro-batch again, so they depend
on nothing but its two offsets. For the tasks Spark makes other readers and pickles them. So a reader connects at its
first call, not when it is made.

`Trigger.AvailableNow` fixes a target: the ends of the logs at the start of the run. Neither the starting options nor any earlier
offset is needed for that, so that a query goes on from its checkpoint even if its first offsets were deleted long ago.

Source: `pyspark.sql.datasource.DataSourceStreamReader`, `pyspark.sql.streaming.datasource`.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from lograft.spark.lookups import Lookups, Topic, selected_partitions
from lograft.spark.ranges import OffsetRange, check_named_partitions, start_offset, wanted_timestamps
from lograft.spark.record_sizes import RANGE_WINDOWS, WALK_STEPS, ByteWalk, byte_shares, walked, windows_per_range
from lograft.spark.settings import StreamReadOptions
from lograft.spark.source import log_ignored, profiles_of, read_partition, split
from lograft.spark.stream_offsets import (
    StreamOffset,
    TopicLog,
    TopicOffsets,
    available,
    ends_of,
    from_json,
    limited,
    moved,
    offset_count,
    planned,
    to_json,
)
from lograft.types import TopicPartition

if TYPE_CHECKING:
    from lograft.spark.arrow_rows import ArrowBatch

logger: Final = logging.getLogger(__name__)

MAX_TRIGGER_WINDOWS: Final = 512
"""Most samples of all partitions for each estimate of one trigger, as long as each partition has one."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the selected topics as a stream. Spark calls its methods one after another."""

    def __init__(self, options: StreamReadOptions) -> None:
        self.options = options
        self._lookups: Lookups | None = None
        self._target: dict[str, TopicOffsets] | None = None
        self._seen: dict[str, TopicOffsets] | None = None
        self._triggered_s: float | None = None

    # -- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins, as the starting options say.

        Raises:
            OptionError: a bound does not fit the partitions.
            UnknownTopicError: a topic or a partition does not exist.
            OffsetOutOfRangeError: requested records are gone, and failOnDataLoss is true.
        """
        log_ignored(self.options.read.ignored)
        read, lookups = self.options.read, self._connected()
        topics = lookups.topics(read.selection)
        partitions = selected_partitions(read.selection, topics)
        check_named_partitions(read.start, partitions)
        readable = lookups.readable(partitions)
        found = lookups.first_at(wanted_timestamps(read.start, partitions))
        offsets: dict[str, dict[int, int]] = {name: {} for name in topics}
        for each in partitions:
            offsets[each.topic][each.partition] = start_offset(read, each, readable[each], found)
        start = {name: TopicOffsets(topics[name].topic_id, own) for name, own in offsets.items()}
        # A start outside the log is an error now, not when records arrive.
        self._available(start, _logs(topics, readable))
        return to_json(start)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` itself if there is nothing to read yet.

        Raises:
            TopicRecreatedError: a topic was deleted and created again.
            UnknownTopicError: a topic was deleted, and failOnDataLoss is true.
            OffsetOutOfRangeError: records after `start` are gone, and failOnDataLoss is true.
        """
        begun = from_json(start)
        topics = self._topics()
        self._seen = ends_of(topics)
        ranges = self._available(begun, topics)
        if self._is_too_early(ranges, limit):
            return start
        end = to_json(moved(begun, topics, self._limited(ranges, limit, begun)))
        if end == start:
            return start
        self._triggered_s = time.monotonic()
        return end

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options. Where they have several, `latestOffset` keeps the others too."""
        options = self.options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_records is None else ReadMinRows(options.min_records)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present ends of the logs as what this run must read."""
        self._target = ends_of(self._topics())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the logs as the last trigger saw them, for the progress of the query."""
        return None if self._seen is None else to_json(self._seen)

    # -- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the input partitions of one micro-batch.

        Raises:
            TopicRecreatedError: a topic was deleted and created again.
            UnknownTopicError: a topic was deleted, and failOnDataLoss is true.
            OffsetOutOfRangeError: records of the micro-batch are gone, and failOnDataLoss is true.
        """
        read = self.options.read
        found = planned(from_json(start), from_json(end), self._topics(), fail_on_data_loss=read.fail_on_data_loss)
        _warn(found.losses)
        ranges = split(self._connected(), read, found.ranges, most_windows=MAX_TRIGGER_WINDOWS)
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[ArrowBatch]:
        """Yield the rows of one range as Arrow batches."""
        return read_partition(self.options.read, partition)

    def stop(self) -> None:
        """Close the connections."""
        lookups, self._lookups = self._lookups, None
        if lookups is not None:
            lookups.close()

    # -- how far

    def _available(self, start: StreamOffset, topics: Mapping[str, TopicLog]) -> tuple[OffsetRange, ...]:
        is_strict = self.options.read.fail_on_data_loss
        found = available(start, topics, target=self._target, fail_on_data_loss=is_strict)
        _warn(found.losses)
        return found.ranges

    def _is_too_early(self, ranges: Sequence[OffsetRange], limit: ReadLimit) -> bool:
        """Return whether the trigger waits for more records. A run of AvailableNow never waits: no more may come."""
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self.options.min_records
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if self._triggered_s is None:
            return False  # The first trigger of a run never waits, as in the Kafka connector.
        waited_ms = (time.monotonic() - self._triggered_s) * 1000
        return offset_count(ranges) < least and waited_ms < self.options.max_delay_ms

    def _limited(
        self, ranges: tuple[OffsetRange, ...], limit: ReadLimit, start: StreamOffset
    ) -> tuple[OffsetRange, ...]:
        if isinstance(limit, ReadAllAvailable):
            return ranges
        max_records, max_bytes = self.options.max_records, self.options.max_bytes
        if isinstance(limit, ReadMaxRows):
            max_records = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        turn = _turn(start)
        if max_records is not None:
            ranges = limited(ranges, max_records, turn)
        return ranges if max_bytes is None or not ranges else self._within_bytes(ranges, max_bytes, turn)

    def _within_bytes(self, ranges: tuple[OffsetRange, ...], max_bytes: int, turn: int) -> tuple[OffsetRange, ...]:
        """Return the ranges cut to about `max_bytes` in all, in proportion to their bytes."""
        lookups, options = self._connected(), self.options.read
        window_count = windows_per_range(len(ranges), RANGE_WINDOWS, MAX_TRIGGER_WINDOWS)
        profiles = profiles_of(lookups, options, ranges, window_count)
        own_bytes = byte_shares(max_bytes, [each.total_bytes for each in profiles], turn)
        steps = windows_per_range(len(ranges), WALK_STEPS, MAX_TRIGGER_WINDOWS)
        walks = [
            ByteWalk(each.start_offset, each.end_offset, share, expected_end=profile.offset_at(share), steps=steps)
            for each, profile, share in zip(ranges, profiles, own_bytes, strict=True)
        ]
        while open_walks := [(each, walk) for each, walk in zip(ranges, walks, strict=True) if not walk.is_done]:
            places = [(each.partition, walk.position) for each, walk in open_walks]
            windows = lookups.windows(places, include_headers=options.include_headers)
            for (_, walk), window in zip(open_walks, windows, strict=True):
                walk.take(window)
        cut = (replace(each, end_offset=end) for each, end in zip(ranges, walked(walks, max_bytes, turn), strict=True))
        return tuple(each for each in cut if each.size > 0)

    # -- the brokers

    def _topics(self) -> dict[str, TopicLog]:
        selection, lookups = self.options.read.selection, self._connected()
        topics = lookups.topics(selection, may_lack=True)
        return _logs(topics, lookups.readable(selected_partitions(selection, topics)))

    def _connected(self) -> Lookups:
        if self._lookups is None:
            self._lookups = Lookups(self.options.read.connection)
        return self._lookups


def _logs(topics: Mapping[str, Topic], readable: Mapping[TopicPartition, Any]) -> dict[str, TopicLog]:
    return {
        name: TopicLog(
            topic.topic_id, {each.partition: found for each, found in readable.items() if each.topic == name}
        )
        for name, topic in topics.items()
    }


def _turn(start: StreamOffset) -> int:
    """Return a number that changes whenever the query advances, and is the same when a trigger is planned again."""
    return zlib.crc32(repr(sorted((name, sorted(each.offsets.items())) for name, each in start.items())).encode())


def _warn(losses: Sequence[str]) -> None:
    for loss in losses:
        logger.warning("failOnDataLoss=false: %s", loss)
