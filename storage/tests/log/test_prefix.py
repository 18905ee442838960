# SPDX-License-Identifier: Apache-2.0
"""The head of a log: what `truncate_prefix` does, what an opening finishes, and which records count as lost."""

from __future__ import annotations

import random

import pytest

from storage.errors import CorruptLogError, DataLossError, OffsetOutOfRangeError, OutOfOrderSequenceError
from storage.log.epochs import LeaderEpochs
from storage.log.partition_log import PartitionLog
from storage.testing.builders import ProducerStamp, append, open_log, read_all, read_values
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.support import kill
from storage.types import Appended, TimestampAndOffset

LOG = "/data/log"


def fill(log: PartitionLog, count: int, *, epoch: int = 0) -> None:
    """Append batches of two records, whose values contain their offsets."""
    for _ in range(count):
        offset = log.log_end_offset
        append(log, values(offset, offset + 2), leader_epoch=epoch, timestamp_ms=1_000 + offset)


def values(start: int, end: int) -> list[bytes]:
    return [b"%03d" % offset * 16 for offset in range(start, end)]


def names(disk: SimDisk, suffix: str) -> list[str]:
    return [name for name in disk.list_directory(LOG) if name.endswith(suffix)]


def test_the_log_begins_where_it_was_told_to(disk: SimDisk, log: PartitionLog) -> None:
    """Nothing below the new start is served, and everything from it on is, even from inside a batch; a restart keeps it."""
    fill(log, 30)
    bases = [segment.base_offset for segment in log.segments]
    start = bases[2] + 3
    assert log.truncate_prefix(start, 0) == log.log_start_offset == start
    assert log.segment_count == len(bases) - 2
    for offset in (0, start - 1):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(offset, 100)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (start, 60)
    assert read_values(log, offset=start) == values(start - 1, 60)
    assert log.find_timestamp(0, end_offset=60) == TimestampAndOffset(1_000 + start - 1, start)
    assert log.oldest_timestamp_ms == 1_000 + start - 1
    log.close()
    again = open_log(disk, LOG)
    assert again.report.clean
    assert again.log.log_start_offset == start
    assert read_values(again.log, offset=start) == values(start - 1, 60)


def test_the_log_start_never_goes_back(log: PartitionLog) -> None:
    """At or below the log start nothing happens; beyond the log end it is refused."""
    fill(log, 5)
    assert log.truncate_prefix(0, 0) == 0
    assert log.truncate_prefix(4, 0) == 4
    assert log.truncate_prefix(2, 0) == 4
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_prefix(11, 0)
    assert (log.log_start_offset, log.log_end_offset) == (4, 10)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("flush", [True, False])
def test_up_to_the_log_end_leaves_an_empty_log_that_goes_on(disk: SimDisk, flush: bool, clean: bool) -> None:
    """The active segment is rolled and removed; offsets continue, and so do leader epochs while the log is open."""
    log = open_log(disk, LOG).log
    fill(log, 7, epoch=3)
    if flush:
        log.flush()
    assert log.truncate_prefix(14, 0) == 14
    assert (log.flushed_offset, log.log_end_offset, log.segment_count, log.last_epoch) == (14, 14, 1, 3)
    assert read_values(log) == []
    log.close(clean=clean)
    opened = open_log(disk, LOG)
    assert opened.report.damaged == ()
    log = opened.log
    assert (log.log_start_offset, log.log_end_offset) == (14, 14)
    fill(log, 2, epoch=4)
    assert log.epoch_at(14) == 4
    assert read_values(log) == values(14, 18)


def test_an_empty_log_has_nothing_to_remove(log: PartitionLog) -> None:
    """An empty active segment is not rolled."""
    assert log.truncate_prefix(0, 0) == 0
    assert log.segment_count == 1
    assert log.remove_deleted(10**9) == 0
    assert not log.roll_if_due(10**18)


def test_leader_epochs_are_trimmed_at_the_front(disk: SimDisk, log: PartitionLog) -> None:
    """The epoch that covers the log start begins there now; older ones are unknown, also after a restart."""
    for epoch in range(5):
        fill(log, 5, epoch=epoch)
    log.flush()
    log.truncate_prefix(24, 0)
    for _ in range(2):
        assert [log.epoch_at(offset) for offset in (23, 24, 29, 30, 49)] == [None, 2, 2, 3, 4]
        assert log.end_offset_for_epoch(0) == (0, 24)
        assert log.end_offset_for_epoch(2) == (2, 30)
        kill(disk)
        log = open_log(disk, LOG).log


@pytest.mark.parametrize(
    ("to_offset", "entries", "changed"),
    [
        (0, [(1, 5), (4, 9)], False),
        (5, [(1, 5), (4, 9)], False),
        (6, [(1, 6), (4, 9)], True),
        (9, [(4, 9)], True),
        (99, [(4, 99)], True),
    ],
)
def test_epochs_at_the_front(to_offset: int, entries: list[tuple[int, int]], changed: bool) -> None:
    """`truncate_prefix` of the epochs alone."""
    epochs = LeaderEpochs()
    epochs.assign(1, 5)
    epochs.assign(4, 9)
    assert epochs.truncate_prefix(to_offset) is changed
    assert epochs.entries() == entries


def test_a_duplicate_of_a_removed_batch_is_still_found(disk: SimDisk, log: PartitionLog) -> None:
    """The producer state outlives the batches, while the log is open and after a clean restart."""
    sequence = 0
    while log.segment_count < 4:
        append(log, [b"x" * 50], producer=ProducerStamp(producer_id=1, base_sequence=sequence))
        sequence += 1
    log.truncate_prefix(sequence, 0)
    for _ in range(2):
        again = append(log, [b"x" * 50], producer=ProducerStamp(producer_id=1, base_sequence=sequence - 1))
        assert again == Appended(sequence - 1, sequence, True)
        log.close()
        log = open_log(disk, LOG).log


def test_an_outdated_snapshot_does_not_lock_a_producer_out(disk: SimDisk, log: PartitionLog) -> None:
    """The newest snapshot is lost, and the batches after the older one were removed: the producer is unknown, not wrong."""
    sequence = 0
    while log.segment_count < 5:
        append(log, [b"x" * 50], producer=ProducerStamp(producer_id=1, base_sequence=sequence))
        sequence += 1
    first_left = log.segments[3].base_offset
    for _ in range(10):
        append(log, [b"plain"])
    log.flush()
    log.truncate_prefix(log.segments[4].base_offset, 0)
    # The segment with the last producer batches is removed, and so are the newer snapshots.
    kill(disk)
    for name in names(disk, ".snapshot"):
        if int(name[:20]) > first_left:
            disk.remove(f"{LOG}/{name}")
    log = open_log(disk, LOG).log
    try:
        append(log, [b"y"], producer=ProducerStamp(producer_id=1, base_sequence=sequence))
    except OutOfOrderSequenceError as error:
        pytest.fail(f"an outdated snapshot was believed: {error}")


def test_damage_below_the_log_start_is_forgotten(disk: SimDisk) -> None:
    """It is forgotten with its segment; damage in the first segment is remembered, but no longer reported."""
    log = open_log(disk, LOG).log
    fill(log, 30)
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    kill(disk)
    for base_offset in (bases[0], bases[2]):
        disk.corrupt(f"{LOG}/{base_offset:020d}.log", 70, b"\xff\xff\xff")
    log = open_log(disk, LOG).log
    for base_offset in (bases[0], bases[2]):
        with pytest.raises(DataLossError):
            log.read(base_offset, 100)
    assert [damaged.base_offset for damaged in log.damaged] == [bases[0], bases[2]]
    log.truncate_prefix(bases[1], 0)
    assert [damaged.base_offset for damaged in log.damaged] == [bases[2]]
    log.truncate_prefix(bases[2] + 2, 0)
    assert log.damaged == ()
    kill(disk)
    opened = open_log(disk, LOG)
    assert opened.report.damaged == opened.log.damaged == ()
    assert read_values(opened.log) == values(bases[2] + 2, 60)


def test_a_lost_front_is_damage_for_exactly_the_missing_offsets(disk: SimDisk, log: PartitionLog) -> None:
    """The first segment is above the log start: reads say what is lost and where to continue, also after more restarts."""
    fill(log, 30)
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    log.truncate_prefix(bases[1] + 1, 0)
    for clean in (True, False):
        log.close(clean=clean)
        if clean:
            disk.remove(f"{LOG}/{bases[1]:020d}.log")
            disk.remove(f"{LOG}/{bases[2]:020d}.log")
        opened = open_log(disk, LOG)
        log = opened.log
        assert opened.report.clean is clean
        assert [(found.base_offset, found.end_offset) for found in log.damaged] == [(bases[1] + 1, bases[3])]
        for offset in (bases[1] + 1, bases[3] - 1):
            with pytest.raises(DataLossError) as caught:
                log.read(offset, 100)
            assert (caught.value.base_offset, caught.value.end_offset) == (bases[1] + 1, bases[3])
        assert read_values(log, offset=bases[3]) == values(bases[3], log.log_end_offset)
        assert log.find_timestamp(0, end_offset=60) == TimestampAndOffset(1_000 + bases[3], bases[3])
        fill(log, 1)
        log.flush()
    assert log.truncate_prefix(bases[3], 0) == bases[3]
    assert log.damaged == ()
    kill(disk)
    assert open_log(disk, LOG).report.damaged == ()


def test_a_lost_front_is_found_again_when_the_list_of_damage_is_lost(disk: SimDisk, log: PartitionLog) -> None:
    """The empty segment that stands for the missing offsets is too short."""
    fill(log, 30)
    log.close()
    bases = [segment.base_offset for segment in log.segments]
    disk.remove(f"{LOG}/{0:020d}.log")
    open_log(disk, LOG).log.close()
    disk.remove(f"{LOG}/damaged-ranges")
    log = open_log(disk, LOG).log
    with pytest.raises(DataLossError) as caught:
        log.read(0, 100)
    assert (caught.value.base_offset, caught.value.end_offset) == (0, bases[1])


def test_a_log_that_ends_below_its_start_begins_again_there(disk: SimDisk) -> None:
    """Its tail was removed before it was flushed, and a power failure lost it: no damage, and nothing is served."""
    for keep_prefix_names in (True, False):
        directory = f"/data/{keep_prefix_names}"
        log = open_log(disk, directory).log
        fill(log, 8)
        log.flush()
        disk.sync_directory(directory)
        fill(log, 3)
        log.truncate_prefix(19, 0)
        if keep_prefix_names:
            disk.sync_directory(directory)
        assert log.log_start_offset == log.flushed_offset == 19
        disk.crash(Crash.LOSE_ALL, random.Random(0))
        opened = open_log(disk, directory)
        assert opened.report.restarted_offset == 19
        assert opened.report.damaged == ()
        log = opened.log
        assert (log.log_start_offset, log.log_end_offset) == (19, 19)
        append(log, [b"next"])
        assert read_values(log) == [b"next"]
        log.close()
        assert open_log(disk, directory).report.clean


def test_a_log_that_begins_again_forgets_the_leader_epochs_of_truncated_batches(disk: SimDisk) -> None:
    """The checkpoint still has the epoch of a truncated tail. The log start passes it, and a power failure loses the new segment."""
    log = open_log(disk, LOG).log
    fill(log, 3, epoch=1)
    fill(log, 2, epoch=5)
    log.flush()
    log.truncate_suffix(6)
    fill(log, 2, epoch=3)
    log.truncate_prefix(10, 0)
    assert [name for name in disk.list_directory(LOG) if name.endswith(".log")] == [f"{10:020d}.log"]
    disk.remove(f"{LOG}/{10:020d}.log")
    kill(disk)
    log = open_log(disk, LOG).log
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (10, 10, None)
    append(log, [b"next"], leader_epoch=3)
    kill(disk)
    log = open_log(disk, LOG).log
    assert (log.last_epoch, log.epoch_at(10)) == (3, 3)


def test_a_log_start_is_no_excuse_for_lost_segments(disk: SimDisk, log: PartitionLog) -> None:
    """Without any segment file an opening succeeds only if nothing was flushed above the log start, and this is known."""
    fill(log, 8)
    log.flush()
    log.truncate_prefix(16, 0)
    kill(disk)
    for name in names(disk, ".log"):
        disk.remove(f"{LOG}/{name}")
    opened = open_log(disk, LOG)
    assert opened.report.restarted_offset == 16
    assert not opened.report.created
    fill(opened.log, 2)
    opened.log.flush()
    kill(disk)
    for name in names(disk, ".log"):
        disk.remove(f"{LOG}/{name}")
    with pytest.raises(CorruptLogError, match="flushed up to 20"):
        open_log(disk, LOG)
    disk.corrupt(f"{LOG}/recovery-point", 0, bytes(1_024))
    with pytest.raises(CorruptLogError, match="missing"):
        open_log(disk, LOG)


def test_an_open_finishes_a_removal(disk: SimDisk, log: PartitionLog) -> None:
    """Renamed files, segments that were not renamed yet, and indexes without a segment are removed; nothing else is."""
    fill(log, 30)
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    fork = disk.fork()
    log.truncate_prefix(bases[3] + 1, 0)
    assert len(names(disk, ".log.deleted")) == 3
    kill(disk)
    # As if the renames of the first segment's log and of the second one's indexes had been lost.
    disk.rename(f"{LOG}/{bases[0]:020d}.log.deleted", f"{LOG}/{bases[0]:020d}.log")
    disk.rename(f"{LOG}/{bases[1]:020d}.index.deleted", f"{LOG}/{bases[1]:020d}.index")
    log = open_log(disk, LOG).log
    assert read_values(log, offset=bases[3] + 1)[1:] == values(bases[3] + 1, 60)
    left = disk.list_directory(LOG)
    assert not [name for name in left if name.endswith(".deleted")]
    assert {int(name[:20]) for name in left if name[0] == "0"} == {*bases[3:], 60}
    assert len(names(fork, ".log")) == len(bases)


def test_a_reader_keeps_what_it_has_and_positions_are_forgotten(log: PartitionLog) -> None:
    """Remembered positions and timestamps of removed segments are dropped."""
    fill(log, 40)
    assert log.find_timestamp(1_050, end_offset=80) == TimestampAndOffset(1_050, 50)
    assert len(read_all(log)) == 40
    log.truncate_prefix(41, 0)
    fill(log, 3)
    for offset in range(42, 86, 2):
        assert log.find_timestamp(1_000 + offset, end_offset=86) == TimestampAndOffset(1_000 + offset, offset)
        assert read_values(log, offset=offset)[:1] == values(offset, offset + 1)


def test_a_flush_in_flight_may_sync_a_removed_segment(disk: SimDisk, log: PartitionLog) -> None:
    """Its files are closed after the group; the flushed offset is never below the log start."""
    fill(log, 20)
    work = log.begin_flush()
    assert work is not None
    fill(log, 2)
    assert log.truncate_prefix(44, 0) == 44
    assert log.flushed_offset == 44
    work.run()
    assert log.end_flush(work) == 44
    fill(log, 2)
    assert log.flush() == 48
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    opened = open_log(disk, LOG)
    assert opened.report.damaged == ()
    assert read_values(opened.log) == values(44, 48)


def test_a_log_start_inside_an_unflushed_batch_is_no_claim_that_it_is_flushed(disk: SimDisk, log: PartitionLog) -> None:
    """The recovery point does not follow the log start: a torn batch around it is torn, not damaged."""
    fill(log, 3)
    log.flush()
    fill(log, 1)
    log.truncate_prefix(7, 0)
    assert log.flushed_offset == 7
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    opened = open_log(disk, LOG)
    assert opened.report.damaged == ()
    assert opened.report.restarted_offset == 7
    assert (opened.log.log_start_offset, opened.log.log_end_offset) == (7, 7)


@pytest.mark.parametrize("flush", [True, False])
def test_a_cut_inside_the_batch_of_the_log_start_empties_the_log(disk: SimDisk, flush: bool) -> None:
    """`truncate_suffix` drops whole batches, but the log never ends below its start."""
    log = open_log(disk, LOG).log
    fill(log, 20, epoch=1)
    if flush:
        log.flush()
    log.truncate_prefix(21, 0)
    assert log.truncate_suffix(21) == 21
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (21, 21, 21)
    append(log, [b"a", b"b"], leader_epoch=2)
    assert log.epoch_at(21) == 2
    kill(disk)
    log = open_log(disk, LOG).log
    assert (log.log_start_offset, log.log_end_offset) == (21, 23)
    assert read_values(log) == [b"a", b"b"]


def test_a_cut_inside_the_batch_of_a_log_start_in_flight_empties_the_log(disk: SimDisk, log: PartitionLog) -> None:
    """The same if the log start moves into the batch during the truncation."""
    fill(log, 10)
    log.flush()
    work = log.begin_prefix(9)
    assert log.truncate_suffix(9) == 8
    work.run()
    log.end_prefix(work, 0)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.segment_count) == (9, 9, 9, 1)
    append(log, [b"next"])
    log.flush()
    kill(disk)
    opened = open_log(disk, LOG)
    assert opened.report.damaged == ()
    assert (opened.log.log_start_offset, read_values(opened.log)) == (9, [b"next"])


def test_nothing_is_cut_below_where_a_work_in_flight_puts_the_log_start(log: PartitionLog) -> None:
    """The log start may be on disk already, and the log would end below it."""
    fill(log, 10)
    work = log.begin_prefix(8)
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_suffix(6)
    assert log.truncate_suffix(10) == 10
    work.run()
    assert log.log_start_offset == 0
    log.end_prefix(work, 0)
    assert (log.log_start_offset, log.log_end_offset) == (8, 10)
