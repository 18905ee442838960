# SPDX-License-Identifier: Apache-2.0
"""Appends: as a leader, as a follower, rolls, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.batch import RecordBatch
from lograft.wire.errors import CorruptBatchError, InvalidBatchError
from lograft.wire.header import stamp

from storage.errors import DiskFailedError, DiskFullError, LogClosedError, OutOfOrderOffsetError, WrongPartitionError
from storage.files.names import PartitionIdentity
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, ProducerStamp, append, make_batch, open_log, read_all, read_values
from storage.testing.sim_disk import Refusal, SimDisk
from storage.types import Appended, LogSettings


def test_append_stamps_offset_and_epoch_and_nothing_else(log: PartitionLog) -> None:
    """The stored batch is the client's, except base offset and leader epoch; the CRC still matches."""
    append(log, [b"a", b"b"], leader_epoch=4)
    sent = make_batch([b"c", b"d", b"e"])
    header = RecordBatch(sent).header
    before = bytes(sent)
    assert log.append_as_leader(sent, header, leader_epoch=5, now_ms=0) == Appended(2, 5, False)
    assert bytes(sent) == before
    stored = bytearray(log.read(2, 10_000).data)
    assert RecordBatch(stored).header._replace(base_offset=0, leader_epoch=0) == header
    stamp(stored, base_offset=0, leader_epoch=0)
    assert bytes(stored) == before
    assert (log.last_epoch, log.epoch_at(1), log.epoch_at(2)) == (5, 4, 5)


def test_control_batches_take_offsets_and_are_kept(log: PartitionLog) -> None:
    """A control batch is a batch of the log like any other (the Raft log is full of them)."""
    append(log, [b"leader change"], control=True)
    append(log, [b"record"])
    assert [batch.header.is_control for batch in read_all(log)] == [True, False]
    assert log.log_end_offset == 2


def test_segment_rolls_by_size_and_each_batch_stays_whole(log: PartitionLog) -> None:
    """A batch that does not fit starts a new segment; one larger than a segment gets its own."""
    append(log, [b"x" * 400])
    append(log, [b"x" * 400])
    assert log.segment_count == 1
    append(log, [b"y" * 400])
    assert log.segment_count == 2
    append(log, [b"z" * 5_000])
    append(log, [b"w"])
    assert log.segment_count == 4
    assert [len(value or b"") for value in read_values(log)] == [400, 400, 400, 5_000, 1]


def test_segment_rolls_when_an_index_is_full(disk: SimDisk) -> None:
    """An index file never grows beyond its limit."""
    settings = replace(SMALL, segment_bytes=10**6, index_interval_bytes=1, index_bytes=48)
    log = open_log(disk, "/data/log", settings).log
    for number in range(30):
        append(log, [b"x"], timestamp_ms=number)
    assert log.segment_count > 5
    assert [batch.base_offset for batch in read_all(log)] == list(range(30))
    for name in disk.list_directory("/data/log"):
        if name.endswith("index"):
            assert disk.size_bytes(f"/data/log/{name}") <= 48 + 40


def test_segment_rolls_when_a_relative_offset_would_not_fit(log: PartitionLog) -> None:
    """No offset of a segment is more than 2**31 - 1 above its base."""
    batch = make_batch([b"x"])
    batch[23:27] = (2**31 - 1).to_bytes(4, "big")
    from lograft.wire.checksum import crc32c

    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    header = RecordBatch(batch).header
    log.append_as_leader(batch, header, leader_epoch=0, now_ms=0)
    assert log.log_end_offset == 2**31
    append(log, [b"y"])
    assert log.segment_count == 2
    assert read_values(log, offset=2**31) == [b"y"]


def test_settings_can_be_replaced(log: PartitionLog) -> None:
    """New settings apply from the next append on."""
    log.apply_settings(replace(SMALL, segment_bytes=1))
    append(log, [b"a"])
    append(log, [b"b"])
    assert log.segment_count == 2
    assert log.settings.segment_bytes == 1


@pytest.mark.parametrize(
    "settings",
    [{"segment_bytes": 0}, {"segment_bytes": 2**31}, {"segment_ms": 0}, {"index_bytes": 23}, {"max_producers": 0}],
)
def test_impossible_settings_are_a_programmer_error(settings: dict[str, int]) -> None:
    """Values that no log can use are refused when the settings are made."""
    with pytest.raises(AssertionError):
        replace(LogSettings(), **settings)


def test_follower_keeps_bytes_and_rolls_inside_a_region(disk: SimDisk) -> None:
    """A follower's log has the leader's bytes, whatever its own segments are."""
    leader = open_log(disk, "/data/leader", replace(SMALL, segment_bytes=10**6)).log
    for number in range(30):
        append(
            leader,
            [b"v%d" % number],
            leader_epoch=number // 10,
            producer=ProducerStamp(producer_id=1, base_sequence=number),
        )
    region = leader.read(0, 10**6).data
    follower = open_log(disk, "/data/follower").log
    assert follower.append_as_follower(region, now_ms=0) == Appended(0, 30, False)
    assert follower.segment_count == 3
    assert b"".join(bytes(follower.read(b.base_offset, 1).data) for b in read_all(follower)) == region
    assert [follower.epoch_at(offset) for offset in (0, 10, 20)] == [0, 1, 2]
    again = append(follower, [b"v29"], leader_epoch=2, producer=ProducerStamp(producer_id=1, base_sequence=29))
    assert again == Appended(29, 30, True)
    assert follower.append_as_follower(b"", now_ms=0) == Appended(30, 30, False)


def test_follower_rolls_inside_a_region_by_age(disk: SimDisk) -> None:
    """Batches of one region that are too far apart in time go to different segments."""
    settings = replace(SMALL, segment_bytes=10**6, segment_ms=100)
    leader = open_log(disk, "/data/leader", replace(settings, segment_ms=10**9)).log
    for timestamp_ms in (0, 100, 150, 251):
        append(leader, [b"x"], timestamp_ms=timestamp_ms)
    follower = open_log(disk, "/data/follower", settings).log
    follower.append_as_follower(leader.read(0, 10**6).data, now_ms=0)
    assert [segment.base_offset for segment in follower.segments] == [0, 2, 3]


def test_follower_refuses_bad_bytes_and_writes_nothing(log: PartitionLog) -> None:
    """Torn, damaged and impossible batches, and epochs that go back, are refused as a whole."""
    good = make_batch([b"a"])
    stamp(good, base_offset=0, leader_epoch=3)
    second = make_batch([b"b"])
    stamp(second, base_offset=1, leader_epoch=2)
    with pytest.raises(OutOfOrderOffsetError, match="leader epoch 2 after 3"):
        log.append_as_follower(good + second, now_ms=0)
    stamp(second, base_offset=1, leader_epoch=3)
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(good + second[:-1], now_ms=0)
    second[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(good + second, now_ms=0)
    second[-1] ^= 1
    second[23:27] = (-1).to_bytes(4, "big", signed=True)
    with pytest.raises(InvalidBatchError):
        log.append_as_follower(good + second, now_ms=0)
    assert log.log_end_offset == 0
    assert log.last_epoch is None


def test_leader_epoch_must_not_go_back(log: PartitionLog) -> None:
    """An append under an older epoch is refused. Fencing comes before, so this is damage or a bug; nothing is written."""
    append(log, [b"a"], leader_epoch=3)
    with pytest.raises(OutOfOrderOffsetError, match="leader epoch 2 after 3"):
        append(log, [b"b"], leader_epoch=2)
    assert log.log_end_offset == 1
    append(log, [b"b"], leader_epoch=3)
    assert read_values(log) == [b"a", b"b"]


def test_full_disk_leaves_the_log_as_it_was(disk: SimDisk, log: PartitionLog) -> None:
    """Without space nothing is appended and no sequence is used up; appends work again once there is space."""
    append(log, [b"a"], producer=ProducerStamp(producer_id=1))
    disk.refuse("append", ".log", Refusal.FULL)
    with pytest.raises(DiskFullError, match="free space"):
        append(log, [b"b"], producer=ProducerStamp(producer_id=1, base_sequence=1))
    assert log.log_end_offset == 1
    assert log.failure is None
    append(log, [b"b"], producer=ProducerStamp(producer_id=1, base_sequence=1))
    assert read_values(log) == [b"a", b"b"]


def test_full_disk_at_a_roll_leaves_the_log_as_it_was(disk: SimDisk, log: PartitionLog) -> None:
    """A roll without space for the new segment changes nothing; caches without space are omitted."""
    append(log, [b"a" * 800])
    disk.refuse("create_file", ".log", Refusal.FULL)
    with pytest.raises(DiskFullError):
        append(log, [b"b" * 800])
    assert (log.segment_count, log.log_end_offset) == (1, 1)
    disk.refuse("append", ".index", Refusal.FULL)
    append(log, [b"b" * 800])
    assert log.segment_count == 2
    assert read_values(log) == [b"a" * 800, b"b" * 800]


def test_real_capacity_limit(disk: SimDisk, log: PartitionLog) -> None:
    """A full disk refuses appends and serves reads, and an opening finds everything that was appended."""
    disk.capacity_bytes = 6_000
    appended = 0
    while disk.free_bytes("/data") > 300:
        append(log, [b"%04d" % appended * 20])
        appended += 1
    assert appended > 10
    with pytest.raises(DiskFullError):
        append(log, [b"x" * 400])
    values = [b"%04d" % number * 20 for number in range(appended)]
    assert read_values(log) == values
    disk.capacity_bytes = None
    log.close()
    assert read_values(open_log(disk, "/data/log").log) == values


def test_write_error_fails_the_log_for_good(disk: SimDisk, log: PartitionLog) -> None:
    """After an I/O error nothing is written, and reads continue."""
    append(log, [b"a"])
    disk.refuse("append", ".log", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        append(log, [b"b"])
    for _ in range(2):
        with pytest.raises(DiskFailedError):
            append(log, [b"c"])
        with pytest.raises(DiskFailedError):
            log.append_as_follower(b"", now_ms=0)
        with pytest.raises(DiskFailedError):
            log.truncate_suffix(0)
        with pytest.raises(DiskFailedError):
            log.begin_flush()
    assert log.failure is not None
    assert read_values(log) == [b"a"]
    log.close()


def test_follower_write_error_fails_the_log(disk: SimDisk, log: PartitionLog) -> None:
    """The same holds for a follower's append."""
    batch = make_batch([b"a"])
    disk.refuse("append", ".log", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        log.append_as_follower(batch, now_ms=0)
    assert log.failure is not None


def test_closed_log_refuses_everything(log: PartitionLog) -> None:
    """A closed log raises an error with its directory; a second close is allowed."""
    append(log, [b"a"])
    log.close()
    log.close()
    calls = (
        lambda: append(log, [b"b"]),
        lambda: log.append_as_follower(b"", now_ms=0),
        lambda: log.read(0, 1),
        lambda: log.find_timestamp(0, end_offset=1),
        lambda: log.truncate_suffix(0),
        log.begin_flush,
    )
    for call in calls:
        with pytest.raises(LogClosedError, match="/data/log"):
            call()


def test_producers_are_bounded(disk: SimDisk) -> None:
    """Beyond the limit the log forgets producers, those that were idle longest first."""
    log = open_log(disk, "/data/log", replace(SMALL, max_producers=4)).log
    for producer_id in range(10):
        append(log, [b"x"], producer=ProducerStamp(producer_id=producer_id))
    assert append(log, [b"x"], producer=ProducerStamp(producer_id=9)).duplicate
    assert not append(log, [b"x"], producer=ProducerStamp(producer_id=0)).duplicate
    log.apply_settings(replace(SMALL, max_producers=1))
    assert append(log, [b"x"], producer=ProducerStamp(producer_id=0)).duplicate


def test_directory_of_another_partition_is_refused(disk: SimDisk) -> None:
    """`partition.metadata` is written once and never accepted for another partition."""
    identity = PartitionIdentity(bytes(range(16)), 3)
    PartitionLog.open(disk, "/data/p", settings=SMALL, now_ms=0, identity=identity).log.close()
    PartitionLog.open(disk, "/data/p", settings=SMALL, now_ms=0, identity=identity).log.close()
    for other in (PartitionIdentity(bytes(16), 3), PartitionIdentity(bytes(range(16)), 4)):
        with pytest.raises(WrongPartitionError, match=bytes(range(16)).hex()):
            PartitionLog.open(disk, "/data/p", settings=SMALL, now_ms=0, identity=other)
