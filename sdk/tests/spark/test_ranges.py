# SPDX-License-Identifier: Apache-2.0
"""The ranges that tasks read, from bounds and the answers of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.errors import OffsetOutOfRangeError
from lograft.spark.ranges import (
    OffsetRange,
    Plan,
    Readable,
    check_named_partitions,
    plan,
    split_ranges,
    wanted_timestamps,
)
from lograft.spark.settings import (
    MAX_READ_TASKS,
    Assign,
    AtOffsets,
    AtPosition,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Connection,
    ReadOptions,
)
from lograft.spark.values import OptionError
from lograft.types import Position, TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
START = AtPosition(option="startingOffsets", position=Position.EARLIEST)
END = AtPosition(option="endingOffsets", position=Position.LATEST)
NOTHING: Mapping[TopicPartition, int | None] = {}


def reading(start: Bound = START, end: Bound = END) -> ReadOptions:
    return ReadOptions(
        connection=Connection(bootstrap=("127.0.0.1:1",)), selection=Assign(partitions=(ZERO,)), start=start, end=end
    )


def one(
    options: ReadOptions,
    *,
    readable: Readable | None = None,
    start_found: int | None = None,
    end_found: int | None = None,
) -> Plan:
    limits = readable or Readable(log_start_offset=10, high_watermark=20)
    return plan(options, {ZERO: limits}, {ZERO: start_found}, {ZERO: end_found})


def piece(start: int, end: int, partition: TopicPartition = ZERO) -> OffsetRange:
    return OffsetRange(partition=partition, start_offset=start, end_offset=end)


def offsets_of(ranges: Iterable[OffsetRange]) -> list[tuple[TopicPartition, int]]:
    return [(each.partition, offset) for each in ranges for offset in range(each.start_offset, each.end_offset)]


def test_earliest_to_latest_is_everything_that_is_readable() -> None:
    """The default range runs from the log start to the high watermark of every partition."""
    readable = {
        ONE: Readable(log_start_offset=0, high_watermark=3),
        ZERO: Readable(log_start_offset=10, high_watermark=20),
    }
    assert plan(reading(), readable, NOTHING, NOTHING) == Plan(ranges=(piece(10, 20), piece(0, 3, ONE)), losses=())


def test_empty_partition_gives_no_range() -> None:
    """A partition without readable records needs no task."""
    assert one(reading(), readable=Readable(log_start_offset=7, high_watermark=7)).ranges == ()


def test_offsets_are_taken_as_given() -> None:
    """Start is inclusive, end exclusive."""
    options = reading(
        AtOffsets(option="startingOffsets", offsets={ZERO: 12}), AtOffsets(option="endingOffsets", offsets={ZERO: 15})
    )
    assert one(options).ranges == (piece(12, 15),)


def test_positions_inside_offsets_are_resolved() -> None:
    """-2 and -1 in JSON offsets are the ends of the readable range."""
    options = reading(
        AtOffsets(option="startingOffsets", offsets={ZERO: Position.EARLIEST}),
        AtOffsets(option="endingOffsets", offsets={ZERO: Position.LATEST}),
    )
    assert one(options).ranges == (piece(10, 20),)


def test_time_range_is_half_open() -> None:
    """It starts at the first record at or after the start, and ends before the first one at or after the end."""
    options = reading(
        AtTimestamp(option="startingTimestamp", timestamp_ms=100), AtTimestamps(option="e", timestamps_ms={ZERO: 200})
    )
    assert wanted_timestamps(options.start, [ZERO, ONE]) == {ZERO: 100, ONE: 100}
    assert wanted_timestamps(options.end, [ZERO]) == {ZERO: 200}
    assert wanted_timestamps(START, [ZERO]) == {}
    assert wanted_timestamps(AtOffsets(option="o", offsets={ZERO: 1}), [ZERO]) == {}
    assert one(options, start_found=12, end_found=18).ranges == (piece(12, 18),)


def test_no_record_after_the_ending_timestamp_means_to_the_end() -> None:
    """A time range that reaches beyond the last record ends at the high watermark."""
    options = reading(end=AtTimestamp(option="endingTimestamp", timestamp_ms=200))
    assert one(options, end_found=None).ranges == (piece(10, 20),)


def test_records_that_arrive_while_planning_are_not_read() -> None:
    """A lookup result beyond the earlier high watermark is cut to it."""
    by_time = AtTimestamp(option="startingTimestamp", timestamp_ms=100)
    assert one(reading(end=by_time), end_found=25).ranges == (piece(10, 20),)
    with pytest.raises(OffsetOutOfRangeError):
        one(reading(start=AtOffsets(option="startingOffsets", offsets={ZERO: 25})))
    assert one(reading(start=by_time), start_found=25) == Plan(ranges=(), losses=())


def test_no_record_after_the_starting_timestamp_is_an_error_unless_told() -> None:
    """The strategy decides, as in the Kafka connector: an error by default, or no records from this partition."""
    options = reading(AtTimestamp(option="startingTimestamp", timestamp_ms=100))
    with pytest.raises(OptionError, match=r"startingTimestamp.*t-0 has no record at or after it"):
        one(options)
    assert one(replace(options, latest_if_no_match=True)).ranges == ()


@pytest.mark.parametrize(
    ("start", "end", "left", "message"),
    [
        (5, 15, (10, 15), "t-0 starts at offset 10 by now; asked for 5"),
        (12, 25, (12, 20), "t-0 ends at offset 20; asked for 25"),
        (21, 22, None, "t-0 ends at offset 20; asked for 21"),
        (3, 5, None, "t-0 starts at offset 10 by now; asked for 3"),
    ],
)
def test_lost_offsets_fail_or_are_passed_over(start: int, end: int, left: tuple[int, int] | None, message: str) -> None:
    """failOnDataLoss=true refuses a range that is not completely readable. false reads the rest and reports the loss."""
    options = reading(
        AtOffsets(option="startingOffsets", offsets={ZERO: start}),
        AtOffsets(option="endingOffsets", offsets={ZERO: end}),
    )
    with pytest.raises(OffsetOutOfRangeError, match=message) as caught:
        one(options)
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (10, 20)
    found = one(replace(options, fail_on_data_loss=False))
    assert found.ranges == (() if left is None else (piece(*left),))
    assert message in found.losses[0]


def test_start_after_end_is_refused_when_both_were_written() -> None:
    """Crossed offsets are an error. A crossed time range or position is empty."""
    crossed = AtOffsets(option="endingOffsets", offsets={ZERO: 12})
    with pytest.raises(OptionError, match="endingOffsets: t-0 ends at 12, before its start 15"):
        one(reading(AtOffsets(option="startingOffsets", offsets={ZERO: 15}), crossed))
    assert one(reading(AtTimestamp(option="startingTimestamp", timestamp_ms=1), crossed), start_found=15).ranges == ()


@pytest.mark.parametrize("kind", ["offsets", "timestamps"])
def test_bounds_by_partition_name_exactly_what_is_read(kind: str) -> None:
    """A missing or foreign partition in the JSON is an error that names it."""

    def bound(*partitions: TopicPartition) -> Bound:
        if kind == "offsets":
            return AtOffsets(option="o", offsets=dict.fromkeys(partitions, 1))
        return AtTimestamps(option="o", timestamps_ms=dict.fromkeys(partitions, 1))

    check_named_partitions(bound(ZERO, ONE), [ZERO, ONE])
    check_named_partitions(START, [ZERO])
    with pytest.raises(OptionError, match="missing: t-1"):
        check_named_partitions(bound(ZERO), [ZERO, ONE])
    many = [TopicPartition("t", number) for number in range(9)]
    with pytest.raises(OptionError, match="not read: t-1, t-2, t-3, t-4, t-5 and 3 more"):
        check_named_partitions(bound(*many), [ZERO])


def test_min_partitions_splits_the_larger_ranges() -> None:
    """Larger ranges get more parts."""
    pieces = split_ranges([piece(0, 90), piece(0, 10, ONE)], 5, None)
    assert [each.size for each in pieces if each.partition == ONE] == [10]
    assert [each.size for each in pieces if each.partition == ZERO] == [22, 23, 22, 23]


def test_max_records_bounds_every_piece() -> None:
    """No part exceeds the limit."""
    assert [each.size for each in split_ranges([piece(5, 15)], None, 4)] == [3, 3, 4]


def test_too_many_pieces_are_refused() -> None:
    """A limit that would make millions of tasks is an error, and does not exhaust the driver's memory."""
    with pytest.raises(OptionError, match="maxRecordsPerPartition"):
        split_ranges([piece(0, MAX_READ_TASKS + 1)], None, 1)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), max_size=6),
    min_partitions=st.none() | st.integers(1, 400),
    max_records=st.none() | st.integers(1, 60),
)
def test_split_ranges_cover_exactly_what_was_there(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    """Parts are disjoint, not empty, cover the whole, keep the maximum, and reach the minimum if offsets allow."""
    whole = [piece(100, 100 + size, TopicPartition("t", number)) for number, size in enumerate(sizes)]
    pieces = split_ranges(whole, min_partitions, max_records)
    offsets = [(each.partition, offset) for each in pieces for offset in range(each.start_offset, each.end_offset)]
    assert offsets == [
        (each.partition, offset) for each in whole for offset in range(each.start_offset, each.end_offset)
    ]
    assert all(each.size >= 1 for each in pieces)
    assert max_records is None or all(each.size <= max_records for each in pieces)
    assert len(pieces) >= min(min_partitions or 0, sum(sizes))
