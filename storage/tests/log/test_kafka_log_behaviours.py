# SPDX-License-Identifier: Apache-2.0
"""Acceptance behaviours of Kafka's log layer, each named after the original test.

6, 12 and 13 are behaviours of compaction and are tested there: `compaction/test_survivors`, `test_pass` and
`test_transaction_ends`. The second half of 10 is in `brokerd.tests.replica.test_cleaning`, and 11 over gRPC in
`test_compression_type`.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from lograft.wire.batch import Codec, RecordBatch, check_batch, encode_batch
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchTooLargeError, InvalidBatchError
from lograft.wire.header import TRANSACTIONAL_BIT, iter_batches, read_header, stamp
from lograft.wire.limits import MAX_BATCH_BYTES

from storage.errors import (
    CoordinatorFencedError,
    OffsetOutOfRangeError,
    OutOfOrderOffsetError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from storage.log.partition_log import PartitionLog
from storage.log.recompression import recompress
from storage.testing.builders import SMALL, ProducerStamp, append, make_batch, open_log, read_all, read_values
from storage.testing.sim_disk import Crash, SimDisk
from storage.types import Appended, EpochEnd, TimestampAndOffset


def test_1_duplicate_appends(log: PartitionLog) -> None:
    """A resend of a remembered batch returns the original offsets and appends nothing; overlap and older batches are refused.

    UnifiedLogTest.testDuplicateAppends; Lograft remembers 16 batches.
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
    """After epoch 1, an append with epoch 0 is fenced and leaves the log as it was. UnifiedLogTest.testOldProducerEpoch."""
    append(log, [b"a"], producer=ProducerStamp(producer_id=1, producer_epoch=1))
    with pytest.raises(ProducerFencedError):
        append(log, [b"b"], producer=ProducerStamp(producer_id=1, producer_epoch=0, base_sequence=1))
    assert log.log_end_offset == 1


def test_2_zombie_coordinator_fenced(disk: SimDisk, log: PartitionLog) -> None:
    """After a marker of coordinator epoch 2, one of coordinator epoch 1 is refused, now and after a restart.

    UnifiedLogTest.testZombieCoordinatorFenced.
    """
    _end_transaction(log, coordinator_epoch=1)
    _end_transaction(log, coordinator_epoch=2)
    for _ in range(2):
        with pytest.raises(CoordinatorFencedError) as caught:
            _end_transaction(log, coordinator_epoch=1)
        assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert log.log_end_offset == 2
        log.close()
        log = open_log(disk, "/data/log").log
    _end_transaction(log, coordinator_epoch=2)
    assert log.log_end_offset == 3


def _end_transaction(log: PartitionLog, *, coordinator_epoch: int) -> None:
    """Append the marker that commits a transaction; the coordinator's epoch replaces the sequence."""
    batch = make_batch([b""], producer=ProducerStamp(producer_id=1, base_sequence=coordinator_epoch), control=True)
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">h", batch, 21, attributes | TRANSACTIONAL_BIT)
    _restamp_crc(batch)
    log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=0)


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
    """If the segment's first batch has no timestamp, its age is the time since it was created."""
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
    """An empty segment never rolls by age; a filled one also rolls by the clock, so that an idle topic loses its old data.

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
    """The files of deleted segments are renamed at once, and removed only after the delay.

    UnifiedLogTest.testAsyncDelete.
    """
    log = open_log(disk, "/data/log", replace(SMALL, retention_ms=999, file_delete_delay_ms=1_000)).log
    for _ in range(100):
        append(log, [b"x" * 20], timestamp_ms=0, now_ms=1)
    # All of it is too old, including the active segment.
    bases = [segment.base_offset for segment in log.segments]
    assert log.apply_retention(100, 1_000) == len(bases) > 1
    for base_offset in bases:
        for suffix in ("log", "index", "timeindex"):
            path = f"/data/log/{base_offset:020d}.{suffix}"
            assert not disk.exists(path)
            assert disk.exists(f"{path}.deleted")
    assert log.remove_deleted(1_999) == 0
    assert log.remove_deleted(2_000) == 3 * len(bases)
    assert not [name for name in disk.list_directory("/data/log") if name.endswith(".deleted")]


def _sealed_bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments][:-1]


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
    """After an unclean stop only segments from the recovery point on are walked, and then have snapshots.

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


def test_10_control_records_not_allowed_from_clients() -> None:
    """A client's control batch is refused; `brokerd.tests.replica.test_cleaning` tests timestamps in the future.

    LogValidatorTest.testControlRecordsNotAllowedFromClients.
    """
    batch = make_batch([b"end"], control=True)
    with pytest.raises(InvalidBatchError, match="control") as caught:
        check_batch(batch, max_bytes=MAX_BATCH_BYTES)
    assert caught.value.code is ErrorCode.INVALID_BATCH
    assert check_batch(batch, max_bytes=MAX_BATCH_BYTES, allow_control=True).is_control


def test_11_different_codec_causes_recompression(log: PartitionLog) -> None:
    """A batch in another codec than the topic's is stored in the topic's codec, otherwise unchanged.

    LogValidatorTest.testDifferentCodecCausesRecompression; the codecs here are none and zstd.
    """
    for came, kept in ((Codec.ZSTD, Codec.NONE), (Codec.NONE, Codec.ZSTD)):
        batch = _full_batch(came, base_sequence=log.log_end_offset)
        header = read_header(batch)
        stored = recompress(batch, header, kept, zstd_level=3)
        checked = check_batch(stored, max_bytes=MAX_BATCH_BYTES)
        assert (header.codec, checked.codec) == (came, kept)
        assert checked == header._replace(
            attributes=checked.attributes, batch_length=len(stored) - 12, crc=checked.crc
        ), "only codec, length and CRC may differ"
        before, after = RecordBatch(batch), RecordBatch(stored)
        assert list(after.records()) == list(before.records())
        log.append_as_leader(stored, checked, leader_epoch=0, now_ms=0)
    assert [batch.header.codec for batch in read_all(log)] == [Codec.NONE, Codec.ZSTD]
    assert read_values(log) == 2 * FULL_VALUES


def test_11_different_level_does_not_cause_recompression() -> None:
    """A batch that has the topic's codec stays byte for byte, whatever its level. LogValidatorTest.testDifferentLevel..."""
    sent = {}
    for level in (1, 9, 19):
        plain = _full_batch(Codec.NONE)
        sent[level] = recompress(plain, read_header(plain), Codec.ZSTD, zstd_level=level)
    assert len({bytes(batch) for batch in sent.values()}) > 1, "levels give other bytes"
    for batch in (*sent.values(), _full_batch(Codec.ZSTD)):
        assert recompress(batch, read_header(batch), Codec.ZSTD, zstd_level=3) is batch
    plain = _full_batch(Codec.NONE)
    assert recompress(plain, read_header(plain), Codec.NONE, zstd_level=3) is plain


FULL_VALUES = [b"value-%03d" % number * 5 if number % 7 else None for number in range(200)]


def _full_batch(codec: Codec, base_sequence: int = 0) -> bytearray:
    """Return a batch with all optional parts of a record."""
    count = len(FULL_VALUES)
    return encode_batch(
        FULL_VALUES,
        keys=[b"key-%d" % number if number % 3 else None for number in range(count)],
        timestamps_ms=[5_000 + number % 11 for number in range(count)],
        headers=[[("name", b"%d" % number), ("none", None)] for number in range(count)],
        codec=codec,
        producer_id=4,
        producer_epoch=2,
        base_sequence=base_sequence,
    )


def test_11_recompression_keeps_the_limit_of_the_topic() -> None:
    """A batch that is too large in the topic's codec is refused, and at most the limit is inflated for that."""
    batch = encode_batch([bytes(100_000)], timestamps_ms=1, codec=Codec.ZSTD)
    header = read_header(batch)
    for max_bytes in (1_024, 100_000, 100_061):
        with pytest.raises(BatchTooLargeError, match=r"compression\.type=none"):
            recompress(batch, header, Codec.NONE, zstd_level=1, max_bytes=max_bytes)
    inflated = recompress(batch, header, Codec.NONE, zstd_level=1)
    assert recompress(batch, header, Codec.NONE, zstd_level=1, max_bytes=len(inflated)) == inflated
    noise = encode_batch([random.Random(1).randbytes(1_000)], timestamps_ms=1)
    with pytest.raises(BatchTooLargeError, match=r"compression\.type=zstd"):
        recompress(noise, read_header(noise), Codec.ZSTD, zstd_level=1, max_bytes=len(noise))


EPOCH_BATCHES = ((0, 2), (3, 6), (4, 5), (7, 1), (9, 3))
"""Leader epochs and how many records each has: 0:0-1, 3:2-7, 4:8-12, 7:13, 9:14-16."""


@pytest.fixture
def epoch_log(log: PartitionLog) -> PartitionLog:
    """Return the log of behaviour 14: end offset 17, where leader epoch 10 begins."""
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
    """A follower's (last epoch, end offset) is a prefix of this log, or the follower is told where to truncate.

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
