# SPDX-License-Identifier: Apache-2.0
"""Computes the offsets that each read task reads.

This module turns bounds into offsets, finds data loss at planning time, and splits ranges. Pure: it takes the brokers' answers
and returns ranges. It must not ask a broker (`lograft.spark.source` does) and must not know Spark.

Laws: the ranges of one partition are disjoint and ascending, start inclusive, end exclusive. Together they are exactly the
readable part of the requested range. Empty ranges are left out. Which task reads a record depends only on offsets, never on a
number of records.

Source: `KafkaOffsetRangeCalculator` of Spark's Kafka connector for the meaning of minPartitions (a minimum, reached by
splitting the larger ranges) and maxRecordsPerPartition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from lograft.errors import OffsetOutOfRangeError
from lograft.spark.settings import MAX_READ_TASKS, AtOffsets, AtPosition, AtTimestamp, AtTimestamps, Bound, ReadOptions
from lograft.spark.values import OptionError
from lograft.types import Position, TopicPartition

_NAMED_IN_ERRORS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """The readable offsets of a partition: `log_start_offset` inclusive, `high_watermark` exclusive."""

    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets that one task reads: `start_offset` inclusive, `end_offset` exclusive."""

    partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """Number of offsets. The range may have fewer records, because some offsets have none."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ranges to read. With failOnDataLoss=false, `losses` has one line for each missing part of the requested ranges."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def check_named_partitions(bound: Bound, partitions: Sequence[TopicPartition]) -> None:
    """Refuse a bound by partition that does not name exactly the selected partitions.

    Raises:
        OptionError: the JSON lacks a selected partition, or names another one.
    """
    match bound:
        case AtOffsets(option=option):
            named = set(bound.offsets)
        case AtTimestamps(option=option):
            named = set(bound.timestamps_ms)
        case _:
            return
    selected = set(partitions)
    if missing := sorted(selected - named):
        raise OptionError(option, f"must name every partition that is read; missing: {_listed(missing)}")
    if unknown := sorted(named - selected):
        raise OptionError(option, f"names partitions that are not read: {_listed(unknown)}")


def wanted_timestamps(bound: Bound, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the timestamps (milliseconds) to look up before the bound can be resolved; empty if it needs none."""
    if isinstance(bound, AtTimestamp):
        return dict.fromkeys(partitions, bound.timestamp_ms)
    if isinstance(bound, AtTimestamps):
        return {partition: bound.timestamps_ms[partition] for partition in partitions}
    return {}


def plan(
    options: ReadOptions,
    readable: Mapping[TopicPartition, Readable],
    start_found: Mapping[TopicPartition, int | None],
    end_found: Mapping[TopicPartition, int | None],
) -> Plan:
    """Resolve both bounds, cut the ranges to the readable offsets, and split them.

    Args:
        options: the settings. Their bounds name exactly the partitions of `readable` (`check_named_partitions`).
        readable: every selected partition with its readable offsets.
        start_found: answers to `wanted_timestamps(options.start)`: the first offset with the timestamp or a later one, or
            None if no such record exists.
        end_found: the same for `options.end`.

    Raises:
        OptionError: no record is at or after the starting timestamp, or a start is after its end.
        OffsetOutOfRangeError: requested offsets are not readable, and failOnDataLoss is true.
    """
    whole: list[OffsetRange] = []
    losses: list[str] = []
    for partition in sorted(readable):
        limits = readable[partition]
        start = _start_offset(options, partition, limits, start_found)
        end = _end_offset(options.end, partition, limits, end_found)
        _check_order(options, partition, start, end)
        for loss in _losses(options, partition, limits, start, end):
            if options.fail_on_data_loss:
                raise OffsetOutOfRangeError(
                    f"{loss}. Set failOnDataLoss to false to read what there is",
                    log_start_offset=limits.log_start_offset,
                    high_watermark=limits.high_watermark,
                )
            losses.append(loss)
        start, end = max(start, limits.log_start_offset), min(end, limits.high_watermark)
        if start < end:
            whole.append(OffsetRange(partition=partition, start_offset=start, end_offset=end))
    return Plan(
        ranges=split_ranges(whole, options.min_partitions, options.max_records_per_partition), losses=tuple(losses)
    )


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> tuple[OffsetRange, ...]:
    """Split ranges into parts of at most `max_records` offsets, at least `min_partitions` parts if so many offsets exist.

    The parts of one range differ in size by at most one offset. Larger ranges get more parts.

    Raises:
        OptionError: the split would make more than `MAX_READ_TASKS` parts.
    """
    parts = [1 if max_records is None else -(-each.size // max_records) for each in ranges]
    if min_partitions is not None and sum(parts) < min_partitions:
        parts = _parts_by_size([each.size for each in ranges], parts, min_partitions)
    if sum(parts) > max(MAX_READ_TASKS, len(ranges)):
        raise OptionError(
            "maxRecordsPerPartition",
            f"gives {sum(parts)} read tasks, more than the {MAX_READ_TASKS} that are made; take a larger one",
        )
    return tuple(piece for each, count in zip(ranges, parts, strict=True) for piece in _split(each, count))


def _parts_by_size(sizes: Sequence[int], floor: Sequence[int], wanted: int) -> list[int]:
    total = sum(sizes)
    parts = [min(size, max(least, size * wanted // total)) for size, least in zip(sizes, floor, strict=True)]
    # Rounding down loses less than one part for each range. The ranges with the largest parts get one more each.
    missing = max(0, min(wanted, total) - sum(parts))
    splittable = [index for index, size in enumerate(sizes) if parts[index] < size]
    splittable.sort(key=lambda index: (-sizes[index] / parts[index], index))
    for index in splittable[:missing]:
        parts[index] += 1
    return parts


def _split(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    edges = [whole.start_offset + whole.size * part // count for part in range(count + 1)]
    for start, end in pairwise(edges):
        yield OffsetRange(partition=whole.partition, start_offset=start, end_offset=end)


def _start_offset(
    options: ReadOptions, partition: TopicPartition, limits: Readable, found: Mapping[TopicPartition, int | None]
) -> int:
    bound = options.start
    if isinstance(bound, AtPosition | AtOffsets):
        return _fixed_offset(bound, partition, limits)
    offset = found[partition]
    if offset is not None:
        # Records may arrive between the two lookups. The start must stay within the end, which was looked up first.
        return min(offset, limits.high_watermark)
    if options.latest_if_no_match:
        return limits.high_watermark
    raise OptionError(
        bound.option,
        f"{partition} has no record at or after it; startingOffsetsByTimestampStrategy=latest passes over it",
    )


def _end_offset(
    bound: Bound, partition: TopicPartition, limits: Readable, found: Mapping[TopicPartition, int | None]
) -> int:
    if isinstance(bound, AtPosition | AtOffsets):
        return _fixed_offset(bound, partition, limits)
    offset = found[partition]
    return limits.high_watermark if offset is None else min(offset, limits.high_watermark)


def _fixed_offset(bound: AtPosition | AtOffsets, partition: TopicPartition, limits: Readable) -> int:
    chosen = bound.position if isinstance(bound, AtPosition) else bound.offsets[partition]
    if chosen is Position.EARLIEST:
        return limits.log_start_offset
    return limits.high_watermark if chosen is Position.LATEST else chosen


def _check_order(options: ReadOptions, partition: TopicPartition, start: int, end: int) -> None:
    # Only offsets that the user gave can be a mistake. A timestamp or "latest" may legitimately be before the start.
    match options.start, options.end:
        case AtOffsets(offsets=starts), AtOffsets(offsets=ends) if (
            not isinstance(starts[partition], Position) and not isinstance(ends[partition], Position) and start > end
        ):
            raise OptionError(options.end.option, f"{partition} ends at {end}, before its start {start}")
        case _:
            return


def _losses(options: ReadOptions, partition: TopicPartition, limits: Readable, start: int, end: int) -> Iterable[str]:
    for option, offset in ((options.start.option, start), (options.end.option, end)):
        if offset < limits.log_start_offset:
            yield f"{option}: {partition} starts at offset {limits.log_start_offset} by now; asked for {offset}"
        elif offset > limits.high_watermark:
            yield f"{option}: {partition} ends at offset {limits.high_watermark}; asked for {offset}"


def _listed(partitions: Sequence[TopicPartition]) -> str:
    names = ", ".join(str(partition) for partition in partitions[:_NAMED_IN_ERRORS])
    more = len(partitions) - _NAMED_IN_ERRORS
    return names if more <= 0 else f"{names} and {more} more"
