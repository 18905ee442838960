# SPDX-License-Identifier: Apache-2.0
"""Which segments are due, by the pure rules and in a log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.log.partition_log import PartitionLog
from storage.log.retention import RetentionView, SegmentExtent, count_due, must_roll, newest_record_ms
from storage.testing.builders import SMALL, append, open_log, read_values
from storage.testing.sim_disk import SimDisk
from storage.types import LogSettings

TEN = [SegmentExtent(end_offset=(number + 1) * 10, size_bytes=100) for number in range(10)]
"""Ten sealed segments of ten records and 100 bytes."""

ACTIVE = SegmentExtent(end_offset=105, size_bytes=50)

VIEW = RetentionView(
    log_start_offset=0, high_watermark=1_000, log_bytes=1_050, now_ms=1_000, retention_ms=None, retention_bytes=None
)
"""Those segments and an active one of 50 bytes, without limits."""


def due(view: RetentionView, newest_ms: list[int] | None = None) -> int:
    """Count the due segments; by default segment n has records up to 100 * n."""
    ages = newest_ms if newest_ms is not None else [number * 100 for number in range(10)]
    return count_due([*TEN, ACTIVE], [*ages, view.now_ms].__getitem__, view)


def test_without_limits_nothing_goes() -> None:
    """None is no limit, and no age is read."""
    assert due(VIEW, []) == 0


@pytest.mark.parametrize(("retention_ms", "expected"), [(1_000, 0), (999, 1), (900, 1), (899, 2), (0, 10)])
def test_age_is_compared_with_the_newest_record(retention_ms: int, expected: int) -> None:
    """At exactly the limit a segment stays; a segment is as young as its newest record."""
    assert due(replace(VIEW, retention_ms=retention_ms)) == expected


@pytest.mark.parametrize(("retention_bytes", "expected"), [(1_051, 0), (951, 0), (950, 1), (949, 1), (50, 10), (0, 10)])
def test_the_log_keeps_so_many_bytes(retention_bytes: int, expected: int) -> None:
    """A segment is removed only if at least this much is left without it; the active one counts."""
    assert due(replace(VIEW, retention_bytes=retention_bytes), []) == expected


@pytest.mark.parametrize(("log_start_offset", "expected"), [(9, 0), (10, 1), (19, 1), (35, 3), (100, 10)])
def test_below_the_log_start_goes_without_any_limit(log_start_offset: int, expected: int) -> None:
    """Only segments wholly below it are removed."""
    assert due(replace(VIEW, log_start_offset=log_start_offset), []) == expected


@pytest.mark.parametrize(("high_watermark", "expected"), [(0, 0), (9, 0), (10, 1), (99, 9), (100, 10)])
def test_nothing_beyond_the_high_watermark_goes(high_watermark: int, expected: int) -> None:
    """Whatever the reason would be."""
    for view in (
        replace(VIEW, retention_ms=0),
        replace(VIEW, retention_bytes=0),
        replace(VIEW, log_start_offset=high_watermark),
    ):
        assert due(replace(view, high_watermark=high_watermark)) == expected


def test_the_first_segment_that_is_not_due_ends_the_search() -> None:
    """An old segment behind a young one stays, so a log never gets a gap."""
    assert due(replace(VIEW, retention_ms=500), [0, 0, 600, 0, 0, 0, 0, 0, 0, 0]) == 2


def test_reasons_follow_each_other() -> None:
    """Below the log start, then too many, then too old: each segment needs one reason."""
    view = replace(VIEW, log_start_offset=15, retention_bytes=750, retention_ms=550)
    assert due(view) == 5


@pytest.mark.parametrize(
    ("max_timestamp_ms", "written_ms", "expected"), [(5, 9, 5), (9, 5, 5), (None, 7, 7), (-1, 7, 7), (0, 7, 0)]
)
def test_a_segment_is_never_newer_than_its_last_write(
    max_timestamp_ms: int | None, written_ms: int, expected: int
) -> None:
    """A timestamp from the future, or none, counts as the time of writing."""
    assert newest_record_ms(max_timestamp_ms, written_ms) == expected


AGED = replace(SMALL, retention_ms=10_000, segment_ms=5_000, file_delete_delay_ms=0)


def fill(log: PartitionLog, count: int, *, timestamp_ms: int, now_ms: int) -> None:
    for _ in range(count):
        append(log, [b"x" * 60], timestamp_ms=timestamp_ms, now_ms=now_ms)


def test_old_segments_of_a_log_go_and_its_young_ones_stay(disk: SimDisk) -> None:
    """By age: the log start moves to the first young enough segment, and reads begin there."""
    log = open_log(disk, "/data/log", AGED).log
    for number in range(20):
        fill(log, 2, timestamp_ms=1_000 * number, now_ms=1_000 * number)
    bases = [segment.base_offset for segment in log.segments]
    removed_count = log.apply_retention(log.log_end_offset, 20_000)
    assert removed_count > 1
    assert log.log_start_offset == bases[removed_count]
    assert log.oldest_timestamp_ms is not None
    newest_kept_ms = log.segments[0].load_index(100).max_timestamp_ms
    assert newest_kept_ms is not None
    assert newest_kept_ms >= 10_000
    assert log.apply_retention(log.log_end_offset, 20_000) == 0
    assert len(read_values(log)) == 40 - log.log_start_offset


def test_retention_of_an_idle_log_ends_with_an_empty_log(disk: SimDisk) -> None:
    """Without new records all data is removed once it is too old, whether the active segment was rolled or not."""
    log = open_log(disk, "/data/log", AGED).log
    fill(log, 3, timestamp_ms=0, now_ms=0)
    assert not log.roll_if_due(5_000)
    assert log.roll_if_due(5_001)
    assert not log.roll_if_due(10**9)
    assert log.apply_retention(3, 10_000) == 0
    assert log.apply_retention(3, 10_001) == 1
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (3, 3, 3)
    assert log.oldest_timestamp_ms is None
    assert log.remove_deleted(10_001) == 3
    assert [name for name in disk.list_directory("/data/log") if name.startswith("0")] == [
        f"{3:020d}.log",
        f"{3:020d}.snapshot",
    ]
    fill(log, 1, timestamp_ms=10_002, now_ms=10_002)
    assert log.oldest_timestamp_ms == 10_002


def test_a_record_from_the_future_does_not_keep_its_segment(disk: SimDisk) -> None:
    """Its segment is as old as the clock at its last write."""
    log = open_log(disk, "/data/log", AGED, now_ms=0).log
    fill(log, 1, timestamp_ms=10**12, now_ms=1_000)
    fill(log, 1, timestamp_ms=1_500, now_ms=2_000)
    assert log.roll_if_due(7_000)
    assert log.apply_retention(2, 12_000) == 0
    assert log.apply_retention(2, 12_001) == 1


def test_opening_a_log_does_not_make_it_young_again(disk: SimDisk) -> None:
    """A frequently restarted broker still rolls: the age of the reopened segment counts from its first record."""
    log = open_log(disk, "/data/log", AGED, now_ms=1_000).log
    fill(log, 1, timestamp_ms=1_000, now_ms=1_000)
    log.close()
    log = open_log(disk, "/data/log", AGED, now_ms=6_500).log
    assert log.roll_if_due(6_500)
    log.close()
    assert open_log(disk, "/data/log", AGED, now_ms=6_500).log.apply_retention(1, 11_001) == 1


def test_size_limit_of_a_log(disk: SimDisk) -> None:
    """The log keeps at least `retention_bytes`, and at most one more segment and the active one."""
    settings = replace(SMALL, retention_bytes=2_500)
    log = open_log(disk, "/data/log", settings).log
    fill(log, 80, timestamp_ms=0, now_ms=0)
    assert log.apply_retention(80, 0) > 0
    left_bytes = sum(segment.size_bytes for segment in log.segments)
    assert 2_500 <= left_bytes < 2_500 + log.segments[0].size_bytes


@pytest.mark.parametrize(
    "settings",
    [{"retention_ms": -1}, {"retention_bytes": -1}, {"file_delete_delay_ms": -1}],
    ids=lambda settings: next(iter(settings)),
)
def test_negative_limits_are_refused(settings: dict[str, int]) -> None:
    """None means no limit."""
    with pytest.raises(AssertionError, match="-1"):
        LogSettings(**settings)


def test_ages_are_read_anew_after_a_truncation(disk: SimDisk) -> None:
    """A sealed segment whose age was read, and that becomes active again and is sealed with newer records, is young."""
    log = open_log(disk, "/data/log", replace(AGED, segment_ms=10**6)).log
    fill(log, 9, timestamp_ms=0, now_ms=0)
    first_end = log.segments[0].end_offset
    assert log.apply_retention(9, 10_000) == 0
    log.truncate_suffix(first_end - 1)
    append(log, [b"x" * 60], timestamp_ms=9_000, now_ms=9_000)
    fill(log, 9, timestamp_ms=9_000, now_ms=9_000)
    assert log.segments[0].end_offset == first_end
    assert log.apply_retention(log.log_end_offset, 12_000) == 0
    assert log.apply_retention(log.log_end_offset, 19_001) > 0


@pytest.mark.parametrize(("newest_ms", "size_bytes", "expected"), [(99, 50, 11), (100, 50, 10), (99, 0, 10)])
def test_active_segment_goes_when_all_of_it_is_too_old(newest_ms: int, size_bytes: int, expected: int) -> None:
    """At exactly the limit it stays; an empty one has nothing to remove."""
    view = replace(VIEW, retention_ms=900)
    segments = [*TEN, SegmentExtent(end_offset=105, size_bytes=size_bytes)]
    assert count_due(segments, [*([0] * 10), newest_ms].__getitem__, view) == expected


def test_active_segment_never_goes_because_of_the_size() -> None:
    """A log keeps the active segment, however large it is."""
    assert due(replace(VIEW, retention_bytes=0), []) == 10


@pytest.mark.parametrize(("retention_ms", "size_bytes", "expected"), [(99, 1, True), (100, 1, False), (99, 0, False)])
def test_old_active_segment_is_rolled(retention_ms: int, size_bytes: int, expected: bool) -> None:
    """By the clock since its creation; an empty one has nothing to remove."""
    facts = SegmentExtent(end_offset=10, size_bytes=size_bytes)
    assert must_roll(facts, created_ms=900, now_ms=1_000, retention_ms=retention_ms) is expected
    assert not must_roll(facts, created_ms=0, now_ms=10**15, retention_ms=None)


def test_records_that_have_all_expired_go_though_they_are_in_the_active_segment(disk: SimDisk) -> None:
    """Otherwise they would wait for `segment.ms`, seven days by default, whatever `retention.ms` says."""
    settings = replace(SMALL, segment_bytes=1 << 20, segment_ms=7 * 86_400_000, retention_ms=1_000)
    log = open_log(disk, "/data/log", settings, now_ms=1_000).log
    for number in range(5):
        append(log, [b"%d" % number], timestamp_ms=1_000 + number, now_ms=1_000 + number)
    assert log.apply_retention(log.log_end_offset, 2_004) == 0
    assert log.apply_retention(3, 10_000) == 0, "the last records are not committed"
    assert log.apply_retention(log.log_end_offset, 2_005) == 1
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    append(log, [b"next"], timestamp_ms=2_006, now_ms=2_006)
    assert read_values(log) == [b"next"]


def test_a_trickle_of_records_does_not_keep_old_ones(disk: SimDisk) -> None:
    """The segment is rolled once its oldest record may be too old: nothing stays longer than twice the limit and a check."""
    settings = replace(SMALL, segment_bytes=1 << 20, segment_ms=10**9, retention_ms=1_000)
    log = open_log(disk, "/data/log", settings).log
    for now_ms in range(100, 10_000, 100):
        append(log, [b"v"], timestamp_ms=now_ms, now_ms=now_ms)
        log.apply_retention(log.log_end_offset, now_ms)
        oldest_ms = now_ms - 100 * (log.log_end_offset - log.log_start_offset - 1)
        assert now_ms - oldest_ms <= 2_200
