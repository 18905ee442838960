# SPDX-License-Identifier: Apache-2.0
"""Computes the offsets that each read task reads.

This module turns bounds into offsets, finds data loss at planning time, and splits ranges. Pure: it takes the brokers' answers
and returns ranges. It must not ask a broker (`lograft.spark.source` does) and must not know Spark.

Laws: the ranges of one partition are disjoint and ascending, start inclusive, end exclusive. Together they are exactly the
readable part of the requested range. Empty ranges are left out. Which task reads a record depends only on offsets, never on a
number of records.

`minPartitions` splits by bytes (`record_sizes`).

Source: `KafkaOffsetRangeCalculator` of Spark's Kafka connector for the meaning of minPartitions (a minimum, reached by
splitting the larger ranges, there by offsets) and maxRecordsPerPartition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final

from lograft.errors import OffsetOutOfRangeError
from lograft.spark.conditions import ALL_OFFSETS, Offsets
from lograft.spark.record_sizes import Profile
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
    """The offsets that one task reads: `start_offset` inclusive, `end_offset` exclusive.

    `topic_id` is the id that the topic must have, 16 bytes; None: any.
    """

    partition: TopicPartition
    start_offset: int
    end_offset: int
    topic_id: bytes | None = None

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
    offsets: Offsets = ALL_OFFSETS,
) -> Plan:
    """Resolve both bounds, and cut the ranges to the readable offsets: one range for each partition that has any.

    Args:
        options: the settings. Their bounds name the partitions of `readable` (`check_named_partitions`).
        readable: the partitions with their readable offsets.
        start_found: answers to `wanted_timestamps(options.start)`: the first offset with the timestamp or a later one, or
            None if no such record exists.
        end_found: the same for `options.end`.
        offsets: offsets that the query wants; the ranges are cut to them.

    Raises:
        OptionError: no record is at or after the starting timestamp, or a start is after its end.
        OffsetOutOfRangeError: requested offsets are not readable, and failOnDataLoss is true.
    """
    whole: list[OffsetRange] = []
    losses: list[str] = []
    for partition in sorted(readable):
        limits = readable[partition]
        start = start_offset(options, partition, limits, start_found)
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
        start, end = offsets.cut(max(start, limits.log_start_offset), min(end, limits.high_watermark))
        if start < end:
            whole.append(OffsetRange(partition=partition, start_offset=start, end_offset=end))
    return Plan(ranges=tuple(whole), losses=tuple(losses))


def from_first_match(
    ranges: Sequence[OffsetRange], first_found: Mapping[TopicPartition, int | None]
) -> tuple[OffsetRange, ...]:
    """Leave out what lies before the first record with a time, which was found by partition; None: there is no such record."""
    cut: list[OffsetRange] = []
    for each in ranges:
        first = first_found[each.partition]
        if first is not None and first < each.end_offset:
            cut.append(replace(each, start_offset=max(each.start_offset, first)))
    return tuple(cut)


def needs_profiles(ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None) -> bool:
    """Return whether `split_ranges` splits by bytes, so that it wants to know where they are."""
    return (
        bool(ranges)
        and min_partitions is not None
        and sum(_parts_by_records(each, max_records) for each in ranges) < min_partitions
    )


def split_ranges(
    ranges: Sequence[OffsetRange],
    min_partitions: int | None,
    max_records: int | None,
    profiles: Sequence[Profile] | None = None,
) -> tuple[OffsetRange, ...]:
    """Split ranges into parts of at most `max_records` offsets, at least `min_partitions` parts if so many offsets exist.

    To reach `min_partitions` it makes parts of about equal bytes. Where only `max_records` splits, the parts of a range differ
    by at most one offset.

    Args:
        ranges: the ranges, not empty.
        min_partitions: the least number of parts; None: any.
        max_records: the most offsets of a part; None: any.
        profiles: the bytes of each range; None: all offsets weigh the same.

    Raises:
        OptionError: the split would make more than `MAX_READ_TASKS` parts.
    """
    pieces: list[OffsetRange] = list(ranges)
    if min_partitions is not None and needs_profiles(ranges, min_partitions, max_records):
        known = profiles or [Profile(each.start_offset, each.end_offset, ()) for each in ranges]
        counts = _parts_by_weight([each.total_bytes for each in known], [each.size for each in ranges], min_partitions)
        pieces = [
            replace(each, start_offset=start, end_offset=end)
            for each, profile, count in zip(ranges, known, counts, strict=True)
            for start, end in pairwise(profile.parts(count))
        ]
    total = sum(_parts_by_records(each, max_records) for each in pieces)
    if total > max(MAX_READ_TASKS, len(pieces)):
        raise OptionError(
            "maxRecordsPerPartition",
            f"gives {total} read tasks, more than the {MAX_READ_TASKS} that are made; take a larger one",
        )
    return tuple(part for each in pieces for part in _split(each, _parts_by_records(each, max_records)))


def _parts_by_records(each: OffsetRange, max_records: int | None) -> int:
    return 1 if max_records is None else -(-each.size // max_records)


def _parts_by_weight(weights: Sequence[int], most: Sequence[int], wanted: int) -> list[int]:
    """Return a number of parts for each range, from 1 to `most`, `wanted` in all if there can be so many; more for heavier ones."""
    total = max(1, sum(weights))
    parts = [min(limit, max(1, weight * wanted // total)) for weight, limit in zip(weights, most, strict=True)]
    # Rounding down leaves some out. They go to the ranges whose parts are the heaviest by then.
    heaviest = [(-weight / parts[index], index) for index, weight in enumerate(weights) if parts[index] < most[index]]
    heapify(heaviest)
    for _ in range(min(wanted, sum(most)) - sum(parts)):
        _, index = heappop(heaviest)
        parts[index] += 1
        if parts[index] < most[index]:
            heappush(heaviest, (-weights[index] / parts[index], index))
    return parts


def _split(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    edges = [whole.start_offset + whole.size * part // count for part in range(count + 1)]
    for start, end in pairwise(edges):
        yield replace(whole, start_offset=start, end_offset=end)


def start_offset(
    options: ReadOptions, partition: TopicPartition, limits: Readable, found: Mapping[TopicPartition, int | None]
) -> int:
    """Return where a partition starts, perhaps outside its readable offsets.

    Raises:
        OptionError: no record is at or after the starting timestamp.
    """
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
