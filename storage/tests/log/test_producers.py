# SPDX-License-Identifier: Apache-2.0
"""The producer state and its snapshot format."""

from __future__ import annotations

import pytest
from lograft.wire.header import BatchHeader
from lograft.wire.limits import PUBLISHING_PRODUCER_ID_MIN

from storage.errors import OutOfOrderSequenceError, ProducerFencedError
from storage.log.producer_snapshots import SNAPSHOTS_KEPT, ProducerSnapshots, decode_snapshot, encode_snapshot
from storage.log.producers import SEQUENCE_MASK, ProducedBatch, ProducerWindows
from storage.testing.sim_disk import Refusal, SimDisk


def header(
    base_sequence: int, *, count: int = 1, producer_id: int = 7, epoch: int = 0, timestamp_ms: int = 0
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=49,
        leader_epoch=0,
        magic=16,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
        record_count=count,
    )


def windows(batch_count: int, *, count: int = 3) -> ProducerWindows:
    """Return the state of a producer with `batch_count` batches of `count` records, from offset 100 on."""
    producers = ProducerWindows()
    for number in range(batch_count):
        producers.update(header(number * count, count=count), 100 + number * count)
    return producers


def test_unknown_producer_may_start_anywhere() -> None:
    """A producer whose state was dropped continues with its sequence (as in Kafka)."""
    assert ProducerWindows().check(header(5)) is None


def test_next_sequence_is_accepted() -> None:
    """The batch that continues is appended."""
    assert windows(4).check(header(12, count=2)) is None


def test_each_of_the_last_16_batches_is_a_duplicate_with_its_own_offsets() -> None:
    """A resend of a remembered batch gives the original offsets; one batch older is refused."""
    producers = windows(20)
    for number in range(4, 20):
        assert producers.check(header(number * 3, count=3)) == ProducedBatch(number * 3, 100 + number * 3, 2)
    with pytest.raises(OutOfOrderSequenceError) as caught:
        producers.check(header(9, count=3))
    assert (caught.value.expected_sequence, caught.value.base_sequence) == (60, 9)


@pytest.mark.parametrize(("base_sequence", "count"), [(61, 1), (57, 2), (57, 4), (58, 2), (59, 3)])
def test_gap_and_partial_overlap_are_refused(base_sequence: int, count: int) -> None:
    """Only the whole batch is a duplicate; a gap and any overlap are out of order."""
    with pytest.raises(OutOfOrderSequenceError):
        windows(20).check(header(base_sequence, count=count))


def test_gap_is_taken_if_the_leader_says_so_and_nothing_else_is() -> None:
    """The log has lost what lies between; then the producer goes on from there. Duplicates stay duplicates, overlaps are refused."""
    producers = windows(20)
    assert producers.check(header(1_000, count=2), may_skip=True) is None
    assert producers.check(header(57, count=3), may_skip=True) == ProducedBatch(57, 157, 2)
    for base_sequence, count in ((57, 4), (58, 2), (59, 3), (0, 1)):
        with pytest.raises(OutOfOrderSequenceError):
            producers.check(header(base_sequence, count=count), may_skip=True)
    producers.update(header(1_000, count=2), 500)
    assert producers.check(header(1_002)) is None
    with pytest.raises(OutOfOrderSequenceError):
        producers.check(header(1_003))


def test_lower_epoch_is_fenced_and_higher_epoch_starts_at_zero() -> None:
    """An old epoch never appends; a new epoch starts new state with sequence 0."""
    producers = ProducerWindows()
    producers.update(header(0, epoch=3), 0)
    with pytest.raises(ProducerFencedError) as caught:
        producers.check(header(1, epoch=2))
    assert caught.value.current_epoch == 3
    with pytest.raises(OutOfOrderSequenceError) as out_of_order:
        producers.check(header(1, epoch=4))
    assert out_of_order.value.expected_sequence == 0
    assert producers.check(header(0, epoch=4)) is None
    producers.update(header(0, epoch=4), 1)
    with pytest.raises(ProducerFencedError):
        producers.check(header(0, epoch=3))
    assert producers.check(header(0, epoch=4)) == ProducedBatch(0, 1, 0)


def test_sequence_wraps_to_zero() -> None:
    """After 2**31 - 1 comes 0, inside a batch and between batches, and duplicates are found across the wrap."""
    producers = ProducerWindows()
    producers.update(header(SEQUENCE_MASK - 1, count=4), 0)
    assert producers.check(header(2)) is None
    producers.update(header(2), 4)
    assert producers.check(header(SEQUENCE_MASK - 1, count=4)) == ProducedBatch(SEQUENCE_MASK - 1, 0, 3)
    producers = ProducerWindows()
    producers.update(header(SEQUENCE_MASK), 0)
    assert producers.check(header(0)) is None


def test_batches_without_sequence_are_passed_over() -> None:
    """Control batches carry no sequence and leave the state unchanged."""
    producers = windows(1)
    producers.update(header(-1), 200)
    assert producers.check(header(3)) is None
    assert not producers.has_batch_from(200)


def test_idlest_producers_are_forgotten_first() -> None:
    """Beyond the limit the producers with the oldest last batch are forgotten, several at once."""
    producers = ProducerWindows()
    for producer_id in range(20):
        producers.update(header(0, producer_id=producer_id), 1_000 - producer_id)
    assert producers.evict_idlest(20) == 0
    assert producers.evict_idlest(16) == 6
    assert [producer_id for producer_id, _ in producers.states()] == list(range(14))
    assert producers.evict_idlest(1) == 13
    assert len(producers) == 1


def test_idle_producers_expire_by_the_clock_of_the_log() -> None:
    """Old record timestamps do not make a producer idle; one read back from batches counts from the first check on."""
    producers = ProducerWindows()
    producers.update(header(0, producer_id=1, timestamp_ms=5), 0, now_ms=1_000)
    producers.update(header(0, producer_id=2, timestamp_ms=10**12), 1, now_ms=2_000)
    producers.update(header(0, producer_id=3), 2)
    assert producers.expire(1_500, 500) == 0
    producers.update(header(1, producer_id=1), 3, now_ms=1_900)
    assert producers.expire(2_001, 500) == 1
    assert [producer_id for producer_id, _ in producers.states()] == [1, 2]
    restored = decode_snapshot(encode_snapshot(producers))
    assert restored is not None
    assert restored.expire(2_450, 500) == 1
    assert [producer_id for producer_id, _ in restored.states()] == [2]


def test_producer_that_was_active_after_the_snapshot_is_not_idle() -> None:
    """A crash restores an old time together with newer batches, which must not make a busy producer look idle."""
    producers = ProducerWindows()
    producers.update(header(0), 0, now_ms=1_000)
    restored = decode_snapshot(encode_snapshot(producers))
    assert restored is not None
    restored.update(header(1), 1)
    assert restored.expire(90_000, 500) == 0
    assert restored.check(header(1)) == ProducedBatch(1, 1, 0)
    assert restored.expire(90_500, 500) == 0
    assert restored.expire(90_501, 500) == 1


def test_snapshot_round_trip() -> None:
    """A snapshot holds the epochs, the times of the last append and all remembered batches of all producers."""
    producers = windows(20)
    producers.update(header(SEQUENCE_MASK, producer_id=9, epoch=5), 2**40, now_ms=123)
    decoded = decode_snapshot(encode_snapshot(producers))
    assert decoded is not None
    described = [(i, s.producer_epoch, s.last_append_ms, s.batches()) for i, s in producers.states()]
    assert [(i, s.producer_epoch, s.last_append_ms, s.batches()) for i, s in decoded.states()] == described
    assert len(described[0][3]) == 16


def test_damaged_snapshot_is_not_used() -> None:
    """A snapshot that is truncated or lengthened, or has a flipped bit, is refused."""
    content = encode_snapshot(windows(2))
    for size in range(len(content)):
        assert decode_snapshot(content[:size]) is None
    assert decode_snapshot(content + b"\0") is None
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_snapshot(bytes(flipped)) is None


@pytest.mark.parametrize("batch_count", [-1, 17])
def test_snapshot_with_an_impossible_batch_count_is_not_used(batch_count: int) -> None:
    """Even with a matching checksum, counts are checked."""
    from lograft.wire.checksum import crc32c

    body = (
        b"\0\0\0\1"
        + bytes(10)
        + batch_count.to_bytes(2, "big", signed=True)
        + bytes(8)
        + bytes(16 * max(0, batch_count))
    )
    assert decode_snapshot(b"\0\2" + crc32c(body).to_bytes(4, "big") + body) is None


def snapshots(disk: SimDisk, offsets: list[int] | None = None) -> ProducerSnapshots:
    if not disk.exists("/log"):
        disk.make_directory("/log")
    return ProducerSnapshots(disk, "/log", offsets or [])


def test_newest_valid_snapshot_is_used_and_bad_ones_are_removed() -> None:
    """The newest valid snapshot at or below the offset counts; damaged and missing files are dropped."""
    disk = SimDisk()
    files = snapshots(disk)
    for offset, batch_count in ((10, 1), (20, 2), (30, 3)):
        files.take(windows(batch_count), offset)
    newest = files.newest(25)
    assert newest is not None
    assert newest[0] == 20
    disk.corrupt("/log/00000000000000000020.snapshot", 8, b"\xff")
    newest = files.newest(29)
    assert newest is not None
    assert newest[0] == 10
    assert files.offsets == [10, 30]
    disk.remove("/log/00000000000000000010.snapshot")
    assert files.newest(29) is None
    assert files.offsets == [30]
    assert disk.list_directory("/log") == ["00000000000000000030.snapshot"]


def test_only_some_snapshots_are_kept() -> None:
    """The oldest file is removed when there are too many; a second snapshot at the same offset replaces the first."""
    disk = SimDisk()
    files = snapshots(disk)
    for offset in range(SNAPSHOTS_KEPT + 3):
        files.take(windows(1), offset)
        files.take(windows(1), offset)
    assert files.offsets == list(range(3, SNAPSHOTS_KEPT + 3))
    assert len(disk.list_directory("/log")) == SNAPSHOTS_KEPT
    assert files.remove_above(4)
    assert not files.remove_above(4)
    assert files.offsets == [3, 4]


def test_full_disk_leaves_the_snapshot_out() -> None:
    """A snapshot is a cache: without space for it the log continues."""
    disk = SimDisk()
    files = snapshots(disk)
    disk.refuse("append", ".snapshot", Refusal.FULL)
    files.take(windows(1), 10)
    assert files.offsets == []
    assert disk.list_directory("/log") == []


def test_publishing_producer_is_not_forgotten_for_room_either() -> None:
    """It may be the idlest of all."""
    producers = ProducerWindows()
    producers.update(header(0, producer_id=PUBLISHING_PRODUCER_ID_MIN), 0)
    for number in range(10):
        producers.update(header(0, producer_id=number), 1 + number)
    assert producers.evict_idlest(5) == 6
    assert PUBLISHING_PRODUCER_ID_MIN in dict(producers.states())
    assert producers.find(PUBLISHING_PRODUCER_ID_MIN) is not None
    assert producers.find(0) is None
