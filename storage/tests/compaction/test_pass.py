# SPDX-License-Identifier: Apache-2.0
"""Passes over a log on the simulated disk: what stays, what a reader sees, and what the next pass needs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.batch import Codec, encode_batch, read_header

from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import PassOutcome
from storage.errors import OutOfOrderSequenceError
from storage.log.partition_log import PartitionLog
from storage.testing.builders import ProducerStamp, open_log, read_all
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.compaction.support import COMPACT, LOG, Pair, compact, new_log, pairs, put, records, roll
from storage.types import Appended, TimestampAndOffset


def test_the_newest_value_of_each_key_stays_at_its_offset() -> None:
    """Older records are removed, their offsets stay covered, and nothing is due afterwards."""
    log = new_log()
    for number in range(40):
        put(log, [(b"k%d" % (number % 5), b"v%d" % number), (b"same", b"s%d" % number)])
    roll(log)
    put(log, [(b"k0", b"active")])
    expected = {2 * number: (b"k%d" % (number % 5), b"v%d" % number) for number in range(35, 40)}
    expected |= {79: (b"same", b"s39"), 80: (b"k0", b"active")}
    assert compact(log) == PassOutcome(
        map_offset=80, dirty_offset=80, next_horizon_ms=None, read_count=80, kept_count=6
    )
    assert pairs(log) == expected
    assert compact(log) is None
    assert log.damaged == ()


def test_what_is_active_or_unflushed_or_not_committed_is_left_alone() -> None:
    """Only flushed sealed segments below the high watermark are compacted."""
    log = new_log()
    for number in range(30):
        put(log, [(b"k", b"%d" % number)])
    assert log.segment_count > 3
    assert LogCompaction(log).facts(30).stable_end_offset == 0
    log.flush()
    assert LogCompaction(log).facts(12).stable_end_offset == 12
    before = pairs(log)
    compact(log)
    active = LogCompaction(log).facts(30).sealed[-1].end_offset
    assert pairs(log) == {offset: pair for offset, pair in before.items() if offset >= active - 1}


def test_a_log_without_duplicates_is_not_written() -> None:
    """The pass reads each segment and leaves it byte for byte; the checkpoint is the only new file."""
    disk = SimDisk()
    log = new_log(disk, segment_bytes=300)
    for number in range(30):
        put(log, [(b"k%d" % number, b"v" * 40)])
    roll(log)
    disk.calls.clear()
    assert compact(log) is not None
    assert {call.path.rpartition("/")[2].removesuffix(".tmp") for call in disk.calls} == {"cleaner-checkpoint"}
    assert len(pairs(log)) == 30


def test_a_segment_is_copied_up_to_its_first_change() -> None:
    """A change in the middle of a segment leaves everything before it byte for byte."""
    disk = SimDisk()
    log = new_log(disk, segment_bytes=10_000)
    for number in range(20):
        put(log, [(b"k%d" % (number if number != 15 else 19), b"v" * 30)])
    roll(log)
    first = f"{LOG}/{0:020d}.log"
    before = disk.read_file(first)
    kept_bytes = 15 * read_header(before).size_bytes
    compact(log)
    after = disk.read_file(first)
    assert after[:kept_bytes] == before[:kept_bytes]
    assert len(after) < len(before)
    assert len(pairs(log)) == 19


def test_small_segments_are_merged() -> None:
    """Neighbours that fit into one segment become one, and the fillers of a group become few."""
    log = new_log()
    for number in range(40):
        put(log, [(b"k", b"%d" % number)])
    roll(log)
    assert log.segment_count > 5
    compact(log)
    put(log, [(b"k", b"last")])
    roll(log)
    compact(log)
    assert log.segment_count == 2
    assert [batch.record_count for batch in read_all(log)] == [0, 1]


def test_control_batches_and_records_without_key_stay() -> None:
    """Compaction by key applies to neither."""
    log = new_log()
    put(log, [(b"k", b"1"), (None, b"no key")])
    put(log, [(b"k", b"marker")], control=True)
    put(log, [(b"k", b"2")])
    put(log, [(None, b"no keys"), (None, None)])
    roll(log)
    compact(log)
    expected = {1: (None, b"no key"), 2: (b"k", b"marker"), 3: (b"k", b"2"), 4: (None, b"no keys"), 5: (None, None)}
    assert pairs(log) == expected


def test_a_time_look_up_finds_what_is_left() -> None:
    """The look-up finds the first remaining record at or after the time, wherever fillers are."""
    log = new_log()
    for number in range(30):
        put(log, [(b"k%d" % (number % 3), b"%d" % number)], timestamp_ms=100 * number)
    roll(log)
    compact(log, now_ms=10_000)
    assert log.find_timestamp(0, end_offset=30) == TimestampAndOffset(2_700, 27)
    assert log.find_timestamp(2_750, end_offset=30) == TimestampAndOffset(2_800, 28)
    assert log.find_timestamp(2_901, end_offset=30) is None


def test_a_tombstone_stays_for_its_retention_and_then_goes() -> None:
    """The first pass removes all older records and gives the tombstone a horizon; at the horizon a pass is due and removes it."""
    log = new_log(delete_retention_ms=500)
    put(log, [(b"k", b"old"), (b"other", b"x")])
    put(log, [(b"k", None)])
    roll(log)
    outcome = compact(log, now_ms=100)
    assert outcome is not None
    assert outcome.next_horizon_ms == 600
    assert pairs(log) == {1: (b"other", b"x"), 2: (b"k", None)}
    assert [record.timestamp_ms for record in records(log)] == [10, 10]
    assert compact(log, now_ms=599) is None
    assert compact(log, now_ms=600) is not None
    assert pairs(log) == {1: (b"other", b"x")}
    assert compact(log, now_ms=10**6) is None


def test_the_horizon_survives_a_restart() -> None:
    """The batch holds the horizon, and the checkpoint says when the next pass is due."""
    disk = SimDisk()
    log = new_log(disk)
    put(log, [(b"k", None)])
    roll(log)
    compact(log, now_ms=100)
    log.close()
    log = open_log(disk, LOG, COMPACT).log
    assert compact(log, now_ms=1_099) is None
    compact(log, now_ms=1_100)
    assert pairs(log) == {}


def three_producers(log: PartitionLog) -> list[tuple[bytes, Appended]]:
    """Send batches of three idempotent producers with overlapping keys; return each batch with its place."""
    sent: list[tuple[bytes, Appended]] = []
    for number in range(5):
        for producer_id in (1, 2, 3):
            batch = encode_batch(
                [b"%d-%d" % (producer_id, number)] * 2,
                keys=[b"shared", b"p%d-%d" % (producer_id, number % 2)],
                timestamps_ms=number,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=2 * number,
                codec=Codec.ZSTD if number % 2 else Codec.NONE,
            )
            appended = log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=0)
            sent.append((bytes(batch), appended))
    return sent


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("with_snapshots", [True, False])
def test_duplicates_are_found_after_compaction(clean: bool, with_snapshots: bool) -> None:
    """Kafka behaviour 12: newest value of each key at its offset, batch ends and sequences kept, resends are duplicates."""
    disk = SimDisk()
    log = new_log(disk)
    sent = three_producers(log)
    before = {batch.base_offset: batch.header for batch in read_all(log)}
    newest = {key: offset for offset, (key, _) in pairs(log).items()}
    values = pairs(log)
    roll(log)
    assert compact(log) is not None
    log.close(clean=clean)
    if not clean:
        disk.crash(Crash.KEEP_ALL, random.Random(0))
    for name in disk.list_directory(LOG):
        if not with_snapshots and name.endswith(".snapshot"):
            disk.remove(f"{LOG}/{name}")
    log = open_log(disk, LOG, COMPACT).log
    assert pairs(log) == {offset: values[offset] for offset in newest.values()}
    for batch in read_all(log):
        old = before[batch.base_offset]
        assert (batch.header.last_offset, batch.header.last_sequence) == (old.last_offset, old.last_sequence)
    for batch, original in sent:
        again = log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=0)
        assert again == Appended(original.base_offset, original.next_offset, True)
    gap = encode_batch([b"x"], keys=[b"x"], producer_id=1, producer_epoch=0, base_sequence=11)
    with pytest.raises(OutOfOrderSequenceError):
        log.append_as_leader(gap, read_header(gap), leader_epoch=0, now_ms=0)


def test_fillers_out_of_the_window_are_merged() -> None:
    """Only the last 16 batches of a producer are remembered; one filler covers the older ones."""
    log = new_log(segment_bytes=10**6)
    for number in range(30):
        put(log, [(b"k", b"%d" % number)], producer=ProducerStamp(producer_id=1, base_sequence=number))
    roll(log)
    compact(log)
    found = [(batch.base_offset, batch.next_offset, batch.header.base_sequence) for batch in read_all(log)]
    assert found == [(0, 14, -1), *((number, number + 1, number) for number in range(14, 30))]
    for number in range(30, 40):
        put(log, [(b"k", b"%d" % number)], producer=ProducerStamp(producer_id=1, base_sequence=number))
    roll(log)
    compact(log)
    found = [(batch.base_offset, batch.next_offset, batch.header.base_sequence) for batch in read_all(log)]
    assert found == [(0, 24, -1), *((number, number + 1, number) for number in range(24, 40))]


def test_fillers_keep_leader_epochs_apart() -> None:
    """Without its checkpoint the log still knows the epoch of each offset."""
    disk = SimDisk()
    log = new_log(disk)
    for number in range(30):
        put(log, [(b"k", b"%d" % number)], leader_epoch=number // 10)
    roll(log)
    compact(log)
    log.close(clean=False)
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    disk.remove(f"{LOG}/leader-epoch-checkpoint")
    log = open_log(disk, LOG, COMPACT).log
    assert [log.epoch_at(offset) for offset in range(30)] == [offset // 10 for offset in range(30)]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.one_of(
            st.lists(
                st.tuples(
                    st.sampled_from([b"a", b"b", b"c", b"long" * 8, None]),
                    st.one_of(st.none(), st.binary(max_size=3)),
                ),
                min_size=1,
                max_size=4,
            ),
            st.sampled_from(["roll", "compact", "reopen", "crash"]),
        ),
        max_size=25,
    )
)
def test_a_reader_of_the_whole_log_ends_with_the_same_values(steps: list[list[Pair] | str]) -> None:
    """After any appends and passes, the newest value of each key is at its offset, and no new record appears."""
    disk = SimDisk()
    log = new_log(disk, segment_bytes=250, delete_retention_ms=150)
    appended: dict[int, Pair] = {}
    now_ms = 0
    for step in steps:
        now_ms += 100
        if isinstance(step, list):
            base_offset = put(log, step).base_offset
            appended.update((base_offset + at, pair) for at, pair in enumerate(step))
        elif step == "roll":
            log.roll_if_due(10**18 + now_ms * 10**17)
        elif step == "compact":
            log.flush()
            compact(log, now_ms=now_ms)
        elif step in ("reopen", "crash"):
            log.flush()
            log.close(clean=step == "reopen")
            disk.crash(Crash.KEEP_ALL, random.Random(0))
            log = open_log(disk, LOG, log.settings).log
        left = pairs(log)
        assert left.items() <= appended.items()
        newest = {key: offset for offset, (key, _) in appended.items() if key is not None}
        for key, offset in newest.items():
            assert offset in left or appended[offset] == (key, None)
        assert {offset for offset, (key, _) in appended.items() if key is None} <= left.keys()
        assert log.log_end_offset == len(appended)
