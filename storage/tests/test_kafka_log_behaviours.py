# SPDX-License-Identifier: Apache-2.0
"""Acceptance behaviours of Kafka's log layer, each named after the test that it is drawn from."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from lograft.wire.header import iter_batches, stamp

from storage.errors import OffsetOutOfRangeError, OutOfOrderOffsetError, OutOfOrderSequenceError, ProducerFencedError
from storage.log import Appended, PartitionLog, TimestampAndOffset
from storage.testing.builders import SMALL, ProducerStamp, append, make_batch, open_log, read_values
from storage.testing.sim_disk import Crash, SimDisk
from storage.types import EpochEnd


def test_1_duplicate_appends(log: PartitionLog) -> None:
    """A resend of any batch in the window returns the original offsets and appends nothing; overlap and older are refused.

    UnifiedLogTest.testDuplicateAppends; the window here is 16 batches.
    """
    for number in range(18):
        append(log, [b"a", b"b"], producer=ProducerStamp(producer_id=1, base_sequence=number * 2))
    for number in range(2, 18):
        stamped = ProducerStamp(producer_id=1, base_sequence=number * 2)
        assert append(log, [b"a", b"b"], producer=stamped) == Appended(number * 2, number * 2 + 2, True)
    assert log.log_end_offset == 36
    for base_sequence, values in ((35, [b"b", b"c"]), (34, [b"a"]), (32, [b"a", b"b", b"c"]), (2, [b"a", b"b"])):
        with pytest.raises(OutOfOrderSequenceError):
            append(log, values, producer=ProducerStamp(producer_id=1, base_sequence=base_sequence))
    assert log.log_end_offset == 36


def test_2_old_producer_epoch(log: PartitionLog) -> None:
    """After epoch 1, an append at epoch 0 is fenced and leaves the log as it was. UnifiedLogTest.testOldProducerEpoch."""
    append(log, [b"a"], producer=ProducerStamp(producer_id=1, producer_epoch=1))
    with pytest.raises(ProducerFencedError):
        append(log, [b"b"], producer=ProducerStamp(producer_id=1, producer_epoch=0, base_sequence=1))
    assert log.log_end_offset == 1


def test_3_time_based_log_roll_during_append(disk: SimDisk) -> None:
    """An empty segment never rolls by age; a filled one rolls by record timestamps, not by the clock.

    UnifiedLogTest.testTimeBasedLogRollDuringAppendMessages.
    """
    log = open_log(disk, "/data/log", replace(SMALL, segment_bytes=10**6, segment_ms=1_000)).log
    append(log, [b"a"], timestamp_ms=5_000, now_ms=10**9)
    assert log.segment_count == 1
    append(log, [b"b"], timestamp_ms=6_000, now_ms=2 * 10**9)
    assert log.segment_count == 1
    append(log, [b"c"], timestamp_ms=6_001, now_ms=2 * 10**9)
    assert log.segment_count == 2
    append(log, [b"d"], timestamp_ms=1, now_ms=2 * 10**9)
    assert log.segment_count == 2
    append(log, [b"e"], timestamp_ms=7_002, now_ms=2 * 10**9)
    assert log.segment_count == 3


def test_3_clock_counts_when_the_first_batch_has_no_timestamp(disk: SimDisk) -> None:
    """Without a timestamp in the segment's first batch, its age is the clock since it was created."""
    log = open_log(disk, "/data/log", replace(SMALL, segment_bytes=10**6, segment_ms=1_000), now_ms=50).log

    def follow(now_ms: int) -> None:
        batch = make_batch([b"x"])
        batch[35:43] = (-1).to_bytes(8, "big", signed=True)
        _restamp_crc(batch)
        stamp(batch, base_offset=log.log_end_offset, leader_epoch=0)
        log.append_as_follower(batch, now_ms=now_ms)

    follow(5_000)
    follow(1_050)
    assert log.segment_count == 1
    follow(1_051)
    assert log.segment_count == 2


def _restamp_crc(batch: bytearray) -> None:
    from lograft.wire.checksum import crc32c

    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")


def test_3_time_based_log_roll_without_an_append(disk: SimDisk) -> None:
    """An empty segment never rolls by age; a filled one rolls by the clock too, so that old data goes from an idle topic.

    UnifiedLogTest.testTimeBasedLogRollDuringAppendMessages; rolling without an append is Lograft's own.
    """
    log = open_log(disk, "/data/log", replace(SMALL, segment_bytes=10**6, segment_ms=1_000)).log
    assert not log.roll_if_due(10**9)
    append(log, [b"a"], timestamp_ms=5_000, now_ms=10**9)
    assert not log.roll_if_due(1_000)
    assert log.roll_if_due(1_001)
    assert log.segment_count == 2
    assert not log.roll_if_due(10**12)


def test_4_async_delete(disk: SimDisk) -> None:
    """Deleted segments get their files renamed at once; these vanish only after the delay.

    UnifiedLogTest.testAsyncDelete.
    """
    log = open_log(disk, "/data/log", replace(SMALL, retention_ms=999, file_delete_delay_ms=1_000)).log
    for _ in range(100):
        append(log, [b"x" * 20], timestamp_ms=0, now_ms=1)
    sealed = _sealed_bases(log)
    assert log.apply_retention(100, 1_000) == len(sealed) > 1
    for base_offset in sealed:
        for suffix in ("log", "index", "timeindex"):
            path = f"/data/log/{base_offset:020d}.{suffix}"
            assert not disk.exists(path)
            assert disk.exists(f"{path}.deleted")
    assert log.remove_deleted(1_999) == 0
    assert log.remove_deleted(2_000) == 3 * len(sealed)
    assert not [name for name in disk.list_directory("/data/log") if name.endswith(".deleted")]


def _sealed_bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log._segments][:-1]


def test_5_segments_below_the_log_start_go_without_a_retention(disk: SimDisk) -> None:
    """Without `delete` in the cleanup policy, moving the log start still removes the segments wholly below it.

    UnifiedLogTest.shouldDeleteStartOffsetBreachedSegmentsWhenPolicyDoesNotIncludeDelete.
    """
    log = open_log(disk, "/data/log", replace(SMALL, retention_ms=None, retention_bytes=None)).log
    while log.segment_count < 4:
        append(log, [b"x" * 20], timestamp_ms=0)
    end_offset = log.log_end_offset
    assert log.apply_retention(end_offset, 10**15) == 0
    bases = [*_sealed_bases(log), end_offset]
    assert log.truncate_prefix(bases[2] + 1, 0) == bases[2] + 1
    assert _sealed_bases(log) == [bases[2]]
    assert log.apply_retention(end_offset, 10**15) == 0


def test_7_appends_with_out_of_order_offsets_are_refused(log: PartitionLog) -> None:
    """A follower append with offsets 0, 1, 3, 2, 4 is refused as a whole.

    UnifiedLogTest.testAppendWithOutOfOrderOffsetsThrowsException.
    """
    region = bytearray()
    for offset in (0, 1, 3, 2, 4):
        batch = make_batch([b"x"])
        stamp(batch, base_offset=offset, leader_epoch=0)
        region += batch
    with pytest.raises(OutOfOrderOffsetError) as caught:
        log.append_as_follower(region, now_ms=0)
    assert (caught.value.expected_offset, caught.value.base_offset) == (2, 3)
    assert log.log_end_offset == 0
    size_bytes = next(iter_batches(region))[1].size_bytes
    log.append_as_follower(region[: 2 * size_bytes], now_ms=0)
    assert log.log_end_offset == 2


def test_8_index_rebuild(disk: SimDisk, log: PartitionLog) -> None:
    """With all index files gone or damaged, reopening rebuilds them and every look-up still works.

    LogLoaderTest.testIndexRebuild.
    """
    for number in range(60):
        append(log, [b"%03d" % number], timestamp_ms=1_000 + number * 10)
    log.close()
    for name in disk.list_directory("/data/log"):
        if name.endswith("index"):
            if "0.index" in name:
                disk.remove(f"/data/log/{name}")
            else:
                disk.corrupt(f"/data/log/{name}", 3, b"?")
    opened = open_log(disk, "/data/log")
    assert opened.report.clean
    assert opened.log.segment_count > 3
    for number in range(60):
        assert read_values(opened.log, offset=number)[0] == b"%03d" % number
        for timestamp_ms in (1_000 + number * 10, 991 + number * 10):
            found = opened.log.find_timestamp(timestamp_ms, end_offset=60)
            assert found == TimestampAndOffset(1_000 + number * 10, number)
    assert opened.log.find_timestamp(1_591, end_offset=60) is None


def test_9_unclean_stop_scans_from_the_recovery_point(disk: SimDisk, log: PartitionLog) -> None:
    """After an unclean stop only segments from the recovery point on are walked, and snapshots exist for them afterwards.

    LogLoaderTest.testProducerSnapshotsRecoveryAfterUncleanShutdown.
    """
    sequence = 0
    while log.segment_count < 6:
        append(log, [b"x"], producer=ProducerStamp(producer_id=1, base_sequence=sequence))
        sequence += 1
        if log.segment_count == 4 and log.flushed_offset == 0:
            log.flush()
    flushed_offset = log.flushed_offset
    for name in disk.list_directory("/data/log"):
        if name.endswith(".snapshot"):
            disk.remove(f"/data/log/{name}")
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    opened = open_log(disk, "/data/log")
    report = opened.report
    assert not report.clean
    assert report.recovery_point == report.scanned_from_offset == flushed_offset
    assert len(report.rebuilt_segments) == 3
    assert report.rebuilt_segments[0] <= flushed_offset
    snapshots = {name for name in disk.list_directory("/data/log") if name.endswith(".snapshot")}
    for base_offset in (*report.rebuilt_segments[1:], opened.log.log_end_offset):
        assert f"{base_offset:020d}.snapshot" in snapshots
    assert opened.log.log_end_offset == sequence
    again = append(opened.log, [b"x"], producer=ProducerStamp(producer_id=1, base_sequence=sequence - 1))
    assert again == Appended(sequence - 1, sequence, True)


EPOCH_BATCHES = ((0, 2), (3, 6), (4, 5), (7, 1), (9, 3))
"""Leader epochs and how many records each has: 0:0-1, 3:2-7, 4:8-12, 7:13, 9:14-16."""


@pytest.fixture
def epoch_log(log: PartitionLog) -> PartitionLog:
    """The log of behaviour 14: end offset 17, and now leader epoch 10 begins."""
    for epoch, count in EPOCH_BATCHES:
        for _ in range(count):
            append(log, [b"x"], leader_epoch=epoch)
    log.assign_epoch(10)
    assert log.log_end_offset == 17
    return log


@pytest.mark.parametrize(
    ("last_epoch", "fetch_offset", "diverging"),
    [
        (2, 5, (0, 2)),
        (0, 4, (0, 2)),
        (6, 6, (4, 13)),
        (5, 9, (4, 13)),
        (10, 18, (10, 17)),
        (0, 2, None),
        (7, 14, None),
        (9, 17, None),
        (10, 17, None),
    ],
)
def test_14_last_fetched_offset_validation(
    epoch_log: PartitionLog, last_epoch: int, fetch_offset: int, diverging: tuple[int, int] | None
) -> None:
    """A follower's (last epoch, end offset) is a prefix of this log, or is told where to cut.

    PartitionTest.testLastFetchedOffsetValidation.
    """
    expected = None if diverging is None else EpochEnd(*diverging)
    assert epoch_log.divergence(last_epoch=last_epoch, fetch_offset=fetch_offset) == expected


@pytest.mark.parametrize(("last_epoch", "fetch_offset"), [(11, 5), (0, -1)])
def test_14_unknown_epoch_and_offset_below_start(epoch_log: PartitionLog, last_epoch: int, fetch_offset: int) -> None:
    """An epoch above all known ones, or an offset below the log start, is out of range."""
    with pytest.raises(OffsetOutOfRangeError):
        epoch_log.divergence(last_epoch=last_epoch, fetch_offset=fetch_offset)


def test_14_empty_log_knows_no_epoch(log: PartitionLog) -> None:
    """A log without records cannot judge any epoch."""
    with pytest.raises(OffsetOutOfRangeError):
        log.divergence(last_epoch=0, fetch_offset=0)


def test_15_diverging_logs_meet_by_truncation_alone(disk: SimDisk) -> None:
    """Rounds of divergence and truncation make a follower's log equal the leader's.

    AbstractFetcherThreadTest.testDivergingEpochs.
    """
    leader = open_log(disk, "/data/leader").log
    follower = open_log(disk, "/data/follower").log
    for epoch, count in ((0, 5), (2, 5), (5, 6)):
        for _ in range(count):
            append(leader, [b"leader-%d" % epoch], leader_epoch=epoch)
    for epoch, count in ((0, 5), (2, 2), (3, 4), (4, 5)):
        for _ in range(count):
            append(follower, [b"follower-%d" % epoch], leader_epoch=epoch)
    follower.flush()
    rounds = 0
    while follower.last_epoch is not None:
        diverging = leader.divergence(last_epoch=follower.last_epoch, fetch_offset=follower.log_end_offset)
        if diverging is None:
            break
        rounds += 1
        own = follower.end_offset_for_epoch(diverging.epoch)
        assert own is not None
        follower.truncate_suffix(min(own.end_offset, diverging.end_offset))
    assert (rounds, follower.log_end_offset) == (1, 7)
    while follower.log_end_offset < leader.log_end_offset:
        follower.append_as_follower(leader.read(follower.log_end_offset, 300).data, now_ms=0)
    assert leader.divergence(last_epoch=5, fetch_offset=follower.log_end_offset) is None
    assert read_values(follower)[7:] == read_values(leader)[7:]
