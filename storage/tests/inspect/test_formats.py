# SPDX-License-Identifier: Apache-2.0
"""The parsers of the tools: they read what the engine writes, and every broken rule of the page has its own reason."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from lograft.wire.checksum import crc32c

from storage.files.checkpoints import encode_lines, parse_lines
from storage.files.names import PartitionIdentity
from storage.inspect.formats import (
    NO_TRANSACTIONS,
    AbortedTransaction,
    CoordinatorEpoch,
    MalformedError,
    OpenTransaction,
    TransactionsView,
    WindowBatch,
    newest_slot,
    parse_log_start,
    parse_offset_index,
    parse_recovery_point,
    parse_snapshot,
    parse_time_index,
    was_never_written,
)
from storage.inspect.texts import (
    parse_cleaner_checkpoint,
    parse_damaged_ranges,
    parse_epochs,
    parse_partition_metadata,
)
from storage.log.cleaner_checkpoint import CleanState, SegmentSize
from storage.log.epochs import EpochStart
from storage.log.recovery_point import CleanEnd, RecoveryPoint, encode_slot
from storage.segment.offset_index import OffsetIndex
from storage.segment.time_index import TimeIndex
from storage.types import DamagedRange


def resealed(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "big")


def offset_index() -> bytes:
    index = OffsetIndex(100)
    index.add(105, 4_000)
    index.add(119, 9_000)
    return index.encode(log_bytes=10_000, end_offset=130)


def time_index() -> bytes:
    index = TimeIndex(100)
    index.note(1_000, 104)
    index.note(2_000, 118)
    return index.encode(log_bytes=10_000, first_timestamp_ms=900, max_timestamp_ms=2_000)


def snapshot(body: bytes, *, version: int = 2) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


PRODUCER = struct.pack(">qhhq", 7, 1, 1, 55) + struct.pack(">iqi", 3, 40, 2)
IDLE = struct.pack(">qhhq", 9, 2, 0, 0)
TRANSACTIONS = struct.pack(">qiiqqqqq", 60, 1, 1, 7, 50, 9, 10, 20)
COORDINATORS = struct.pack(">iqiqi", 2, 7, 2, 9, 3)


def test_indexes_are_read() -> None:
    """What the engine encodes is read back, number for number."""
    offsets = parse_offset_index(offset_index())
    assert (list(offsets.offsets), list(offsets.positions)) == ([5, 19], [4_000, 9_000])
    assert (offsets.log_bytes, offsets.end_offset) == (10_000, 130)
    times = parse_time_index(time_index())
    assert (list(times.timestamps_ms), list(times.offsets)) == ([1_000, 2_000], [4, 18])
    assert (times.log_bytes, times.first_timestamp_ms, times.max_timestamp_ms) == (10_000, 900, 2_000)


@pytest.mark.parametrize(("parse", "content"), [(parse_offset_index, offset_index()), (parse_time_index, time_index())])
def test_broken_indexes_are_refused(parse: Callable[[bytes], object], content: bytes) -> None:
    """Every changed byte, every shorter file, another version and a wrong count are refused."""
    for position in range(len(content)):
        with pytest.raises(MalformedError):
            parse(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(MalformedError):
            parse(content[:position])
    with pytest.raises(MalformedError, match="entries"):
        parse(resealed(bytes(4) + content[:-4]))
    footer = content.index(b"LG")
    with pytest.raises(MalformedError, match="version 2"):
        parse(resealed(content[: footer + 4] + b"\0\2" + content[footer + 6 : -4]))


def test_snapshots_are_read() -> None:
    """Producers with and without batches, and transactions if there are any."""
    assert parse_snapshot(snapshot(struct.pack(">i", 0))) == ((), NO_TRANSACTIONS)
    found = parse_snapshot(snapshot(struct.pack(">i", 2) + PRODUCER + IDLE + TRANSACTIONS))
    first, second = found.producers
    assert (first.producer_id, first.producer_epoch, first.newest_ms) == (7, 1, 55)
    assert first.batches == (WindowBatch(3, 40, 2),)
    assert second.batches == ()
    assert found.transactions == TransactionsView(60, (OpenTransaction(7, 50),), (AbortedTransaction(9, 10, 20),))
    known = parse_snapshot(snapshot(struct.pack(">i", 1) + PRODUCER + TRANSACTIONS + COORDINATORS)).transactions
    assert known == found.transactions._replace(coordinators=(CoordinatorEpoch(7, 2), CoordinatorEpoch(9, 3)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "head alone"),
        (snapshot(struct.pack(">i", 0), version=1), "version 1"),
        (snapshot(struct.pack(">i", 0))[:-1] + b"\1", "CRC"),
        (snapshot(struct.pack(">i", 1) + PRODUCER[:-1]), "ends inside"),
        (snapshot(struct.pack(">i", 1) + PRODUCER + TRANSACTIONS[:-1]), "ends inside"),
        (snapshot(struct.pack(">i", 1) + PRODUCER + TRANSACTIONS + b"x"), "ends inside"),
        (snapshot(struct.pack(">i", 1) + PRODUCER + TRANSACTIONS + COORDINATORS + b"x"), "1 bytes follow"),
        (snapshot(struct.pack(">i", 2) + IDLE + PRODUCER), "do not ascend"),
        (snapshot(struct.pack(">i", 2) + IDLE + IDLE), "do not ascend"),
        (snapshot(struct.pack(">i", 1) + struct.pack(">qhhq", 9, 2, 17, 0)), "17 batches"),
    ],
)
def test_broken_snapshots_are_refused(content: bytes, reason: str) -> None:
    """Each rule of the page has its own reason."""
    with pytest.raises(MalformedError, match=reason):
        parse_snapshot(content)


def slots(*points: tuple[RecoveryPoint, int]) -> bytes:
    content = bytearray(1_024)
    for point, sequence in points:
        content[sequence % 2 * 512 : sequence % 2 * 512 + 44] = encode_slot(point, sequence)
    return bytes(content)


def test_the_slot_with_the_larger_sequence_counts() -> None:
    """Both slots are shown; the newer one is the recovery point."""
    clean = RecoveryPoint(flushed_offset=9, clean_end=CleanEnd(segment_base_offset=5, segment_bytes=77))
    found = parse_recovery_point(slots((RecoveryPoint(flushed_offset=3), 4), (clean, 5)))
    newest = newest_slot(found)
    assert newest is found[1]
    assert (newest.sequence, newest.flags, newest.values) == (5, 1, (9, 5, 77))
    assert found[0].values == (3, 0, 0)


def test_bad_slots_say_why() -> None:
    """Truncated, never written, damaged, of another kind, in the wrong place."""
    good = slots((RecoveryPoint(flushed_offset=3), 4), (RecoveryPoint(flushed_offset=3), 5))
    assert [slot.fault for slot in parse_recovery_point(good)] == [None, None]
    assert [slot.fault for slot in parse_recovery_point(good[:600])] == [None, "the file has 88 of its 512 bytes"]
    assert [slot.fault for slot in parse_recovery_point(bytes(1_024))] == ["it was never written"] * 2
    assert newest_slot(parse_recovery_point(b"")) is None
    assert parse_recovery_point(good[:20] + b"\xff" + good[21:])[0].fault == "its CRC does not match"
    swapped = parse_recovery_point(good[512:] + good[:512])
    assert all("other slot" in (slot.fault or "") for slot in swapped)
    start = struct.pack(">4sHHQq", b"LGLS", 1, 0, 2, 88)
    log_start = resealed(start).ljust(512, b"\0")
    assert newest_slot(parse_log_start(log_start + bytes(512)))
    other = struct.pack(">4sHHQqqq", b"LGLS", 1, 0, 2, 88, 0, 0)
    assert "it begins with b'LGLS'" in (parse_recovery_point(resealed(other).ljust(1_024, b"\0"))[0].fault or "")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", True),
        (bytes(10), True),
        (b"x" * 512 + bytes(20), True),
        (b"x" * 512 + bytes(20) + b"x", False),
        (b"x", False),
    ],
)
def test_sectors_that_were_never_written_show(content: bytes, expected: bool) -> None:
    """A file that is empty, or has a sector of zeros, was not written completely."""
    assert was_never_written(content) is expected


def test_texts_are_read() -> None:
    """What the engine writes is read back."""
    assert parse_lines(encode_lines([])) == []
    assert parse_epochs(encode_lines(["0 0", "3 17"])) == (EpochStart(0, 0), EpochStart(3, 17))
    damaged = DamagedRange(segment_base_offset=5, base_offset=6, end_offset=8, position=100, end_position=200)
    assert parse_damaged_ranges(encode_lines(["5 6 8 100 200"])) == (damaged,)
    identity = PartitionIdentity(b"\xab" * 16, 12)
    assert parse_partition_metadata(encode_lines([f"topic_id {'ab' * 16}", "partition 12"])) == identity


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\n", "ASCII"),
        (b"", "cut off"),
        (encode_lines(["0 0"])[:-1], "cut off"),
        (encode_lines(["0 0"]).replace(b"0 0", b"0 1"), "not the CRC"),
        (b"1\n0\ncrc32c %08x\n" % crc32c(b"1\n0\n"), "version 0"),
        (b"0\n1\ncrc32c %08x\n" % crc32c(b"0\n1\n"), "second line"),
        (encode_lines(["0"]), "2 numbers"),
        (encode_lines(["0 -1"]), "2 numbers"),
        (encode_lines(["0 0", "0 5"]), "follows epoch"),
        (encode_lines(["0 5", "1 5"]), "follows epoch"),
    ],
)
def test_broken_epoch_checkpoints_are_refused(content: bytes, reason: str) -> None:
    """Each rule of the page has its own reason."""
    with pytest.raises(MalformedError, match=reason):
        parse_epochs(content)


@pytest.mark.parametrize("line", ["5 4 8 1 2", "5 6 6 1 2", "5 6 8 2 1"])
def test_impossible_ranges_are_refused(line: str) -> None:
    """A range begins in its segment, has offsets, and does not go back."""
    with pytest.raises(MalformedError, match="no range"):
        parse_damaged_ranges(encode_lines([line]))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["topic_id x", "partition 1"],
        [f"topic_id {'AB' * 16}", "partition 1"],
        [f"topic_id {'ab' * 16}", "partition -1"],
        [f"topic_id {'ab' * 16}", f"partition {2**31}"],
        [f"topic_id {'ab' * 16}"],
        ["partition 1", f"topic_id {'ab' * 16}"],
    ],
)
def test_other_partition_metadata_is_refused(lines: list[str]) -> None:
    """Two lines, in this order, with a possible topic id and partition."""
    with pytest.raises(MalformedError, match="not topic_id and partition"):
        parse_partition_metadata(encode_lines(lines))


CLEANER = ["dirty_offset 9", "map_offset 4", "leader_epoch -1", "next_horizon_ms 5"]


def test_cleaner_checkpoint_is_read() -> None:
    """Four numbers with names, and a line for each segment."""
    state = parse_cleaner_checkpoint(encode_lines([*CLEANER, "0 77", "5 88"]))
    segments = (SegmentSize(0, 77), SegmentSize(5, 88))
    assert state == CleanState(dirty_offset=9, map_offset=4, leader_epoch=None, next_horizon_ms=5, segments=segments)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (CLEANER[:3], "first lines"),
        ([*CLEANER[:3], "next_horizon_ms x"], "first lines"),
        ([*CLEANER[:3], "next_horizon_ms"], "first lines"),
        ([*CLEANER, "5 88", "0 77"], "in order"),
        ([*CLEANER, "9 88"], "in order"),
        (["dirty_offset 3", *CLEANER[1:]], "in order"),
    ],
)
def test_broken_cleaner_checkpoints_are_refused(lines: list[str], reason: str) -> None:
    """Each rule of the page has its own reason."""
    with pytest.raises(MalformedError, match=reason):
        parse_cleaner_checkpoint(encode_lines(lines))
