# SPDX-License-Identifier: Apache-2.0
"""Restarts of a log at an offset: what is forgotten, what is refused, what a crash or a full disk leaves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from lograft.wire.batch import read_header
from lograft.wire.header import stamp

from storage.compaction.owner import LogCompaction
from storage.directory.move_source import MoveSource
from storage.errors import DataLossError, DiskFailedError, DiskFullError, LogClosedError, OffsetOutOfRangeError
from storage.files.names import (
    CLEANER_FILE,
    DAMAGE_FILE,
    EPOCH_FILE,
    LOG_START_FILE,
    LOG_SUFFIX,
    RECOVERY_POINT_FILE,
    RESTART_SUFFIX,
    parse_restart_file_name,
    restart_file_name,
)
from storage.files.rate_limit import RateLimit
from storage.log.log_start import LogStartFile
from storage.log.partition_log import MAX_START_OFFSET, PartitionLog
from storage.maintenance.scrub import LogScrub
from storage.testing.builders import ProducerStamp, append, make_batch, open_log, read_values
from storage.testing.move_ground import Ground, copy_all, fill, switch
from storage.testing.sim_disk import Crash, Refusal, SimDisk
from storage.tests.compaction.support import begin, compact, new_log, put, roll
from storage.tests.support import LOG, kill
from storage.types import Appended

WIDE = b"x" * 200


def filled(disk: SimDisk, *, start: int = 12) -> PartitionLog:
    """Return a log from `start` to 40 with several segments, epochs 1 and 3, a producer, and an unflushed tail."""
    log = open_log(disk, LOG).log
    for number in range(20):
        append(
            log,
            [b"old %02d" % number, WIDE],
            leader_epoch=1 if number < 10 else 3,
            producer=ProducerStamp(producer_id=5, base_sequence=2 * number),
        )
        if number == 15:
            log.flush()
    log.truncate_prefix(start, 0)
    assert log.segment_count > 3
    return log


def follow(log: PartitionLog, value: bytes, *, leader_epoch: int) -> None:
    """Append one batch as a follower."""
    batch = make_batch([value])
    stamp(batch, base_offset=log.log_end_offset, leader_epoch=leader_epoch)
    log.append_as_follower(batch, now_ms=0)


def ends(log: PartitionLog) -> tuple[int, int, int]:
    return log.log_start_offset, log.flushed_offset, log.log_end_offset


@pytest.mark.parametrize("offset", [0, 5, 12, 13, 26, 40, 41, 1_000])
def test_log_begins_anew_wherever_it_is_told_to(disk: SimDisk, offset: int) -> None:
    """Below its start, at it, inside, at its end, above: the log is empty there, accepts other records, and stays so."""
    log = filled(disk)
    log.restart_at(offset)
    assert ends(log) == (offset, offset, offset)
    assert (log.segment_count, log.last_epoch, len(log.producers), log.damaged) == (1, None, 0, ())
    assert log.read(offset, 100).data == b""
    for outside in {max(0, offset - 1), offset + 1} - {offset}:
        with pytest.raises(OffsetOutOfRangeError):
            log.read(outside, 100)
    assert log.find_timestamp(0, end_offset=log.log_end_offset) is None
    follow(log, b"new", leader_epoch=2)
    assert (log.end_offset_for_epoch(2), log.epoch_at(offset - 1)) == ((2, offset + 1), None)
    log.flush()
    kill(disk)
    again = open_log(disk, LOG).log
    assert ends(again) == (offset, offset + 1, offset + 1)
    assert (read_values(again), again.last_epoch) == ([b"new"], 2)


def test_empty_log_stays_empty_at_its_offset(disk: SimDisk) -> None:
    """After a clean close, a kill or a power failure: it opens there, and a clean close is noticed."""
    log = filled(disk)
    log.restart_at(7)
    for how in Crash:
        crashed = disk.fork()
        crashed.crash(how, random.Random(0))
        opened = open_log(crashed, LOG)
        assert ends(opened.log) == (7, 7, 7)
        assert not opened.report.created
    log.close()
    opened = open_log(disk, LOG)
    assert opened.report.clean
    assert ends(opened.log) == (7, 7, 7)


def test_nothing_of_the_old_log_is_left_on_the_disk(disk: SimDisk) -> None:
    """Only the empty segment, the log start and the recovery point; no mark."""
    log = filled(disk)
    log.close()
    log = open_log(disk, LOG).log
    log.remove_deleted(10**9)
    assert {name.rpartition(".")[2] for name in disk.list_directory(LOG)} > {"snapshot", "index"}
    log.restart_at(3)
    first = f"{3:020d}{LOG_SUFFIX}"
    assert disk.list_directory(LOG) == [first, LOG_START_FILE, RECOVERY_POINT_FILE]
    assert LogStartFile.read(disk, LOG).offset == 3
    log.restart_at(0)
    assert disk.list_directory(LOG) == [f"{0:020d}{LOG_SUFFIX}", LOG_START_FILE, RECOVERY_POINT_FILE]
    assert LogStartFile.read(disk, LOG).offset == 0


def test_producers_and_transactions_are_forgotten(disk: SimDisk) -> None:
    """A sequence that was known counts as new, also after an opening."""
    log = filled(disk)
    log.restart_at(20)
    stamped = ProducerStamp(producer_id=5, base_sequence=38)
    assert append(log, [b"again", WIDE], producer=stamped) == Appended(20, 22, False)
    assert append(log, [b"again", WIDE], producer=stamped) == Appended(20, 22, True)
    log.flush()
    kill(disk)
    again = open_log(disk, LOG).log
    assert append(again, [b"again", WIDE], producer=stamped) == Appended(20, 22, True)
    log = open_log(disk, "/data/other").log
    batch = bytearray(make_batch([b"t"], producer=ProducerStamp(producer_id=1)))
    log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=0)
    log.restart_at(0)
    assert not log.producers.has_transactions
    assert log.producers.last_stable_offset(0) == 0


def test_damage_is_forgotten_with_the_records(disk: SimDisk) -> None:
    """Old damage does not apply to records that come to these offsets later."""
    log = filled(disk)
    log.close()
    path = next(f"{LOG}/{name}" for name in disk.list_directory(LOG) if name.endswith(LOG_SUFFIX))
    disk.corrupt(path, disk.size_bytes(path) - 1, b"y")
    log = open_log(disk, LOG).log
    with pytest.raises(DataLossError):
        read_values(log)
    assert log.damaged
    assert disk.exists(f"{LOG}/{DAMAGE_FILE}")
    log.restart_at(12)
    assert log.damaged == ()
    assert not disk.exists(f"{LOG}/{DAMAGE_FILE}")
    append(log, [b"a", b"b", b"c"])
    assert read_values(log) == [b"a", b"b", b"c"]


def test_refused_restart_changes_nothing(disk: SimDisk) -> None:
    """An offset where no log can begin; a closed log; a flush group or removal in flight, which is a bug of the caller."""
    log = filled(disk)
    before = (ends(log), read_values(log), disk.list_directory(LOG))
    for offset in (-1, MAX_START_OFFSET + 1):
        with pytest.raises(OffsetOutOfRangeError, match=rf"offset {offset} is outside \[0, {MAX_START_OFFSET}\]"):
            log.restart_at(offset)
    work = log.begin_flush()
    assert work is not None
    with pytest.raises(AssertionError, match="a flush group is in flight"):
        log.restart_at(0)
    work.run()
    log.end_flush(work)
    prefix = log.begin_prefix(12)
    with pytest.raises(AssertionError, match="a log start is in flight"):
        log.restart_at(0)
    prefix.run()
    log.end_prefix(prefix, 0)
    assert read_values(log) == before[1]
    log.close()
    with pytest.raises(LogClosedError):
        log.restart_at(0)


def test_largest_offset(disk: SimDisk) -> None:
    """The last legal offset is accepted, and read back."""
    log = filled(disk)
    log.restart_at(MAX_START_OFFSET)
    log.close()
    assert ends(open_log(disk, LOG).log) == (MAX_START_OFFSET,) * 3


def test_full_disk_before_anything_went_leaves_the_log(disk: SimDisk) -> None:
    """The mark cannot be made, and the old log continues."""
    log = filled(disk)
    values = read_values(log)
    disk.refuse("create_file", RESTART_SUFFIX, Refusal.FULL)
    with pytest.raises(DiskFullError):
        log.restart_at(0)
    assert (ends(log), log.failure) == ((12, 32, 40), None)
    assert read_values(log) == values
    log.restart_at(0)
    assert ends(log) == (0, 0, 0)


@pytest.mark.parametrize(
    ("call", "path_part"),
    [
        ("sync_directory", ""),
        ("create_file", LOG_SUFFIX),
        ("create_file", LOG_START_FILE),
        ("sync", RECOVERY_POINT_FILE),
    ],
)
@pytest.mark.parametrize("refusal", Refusal)
def test_failure_in_the_middle_is_finished_by_the_next_opening(
    disk: SimDisk, call: str, path_part: str, refusal: Refusal
) -> None:
    """After the mark the restart cannot be undone: the log accepts no writes, and opens again as the empty one."""
    log = open_log(disk, LOG).log
    for number in range(20):
        append(log, [b"old %02d" % number, WIDE])
    log.flush()
    disk.refuse(call, path_part, refusal)
    with pytest.raises(DiskFailedError):
        log.restart_at(60)
    assert log.failure is not None
    with pytest.raises(DiskFailedError):
        append(log, [b"refused"])
    log.close(clean=False)
    kill(disk)
    opened = open_log(disk, LOG)
    assert ends(opened.log) == (60, 60, 60)
    assert (opened.report.restarted_offset, opened.report.created, opened.report.damaged) == (60, False, ())
    assert not any(name.endswith(RESTART_SUFFIX) for name in disk.list_directory(LOG))


def forks_of(disk: SimDisk, act: Callable[[], object]) -> list[SimDisk]:
    """Return copies of a disk before each call of something, and after its end."""
    forks: list[SimDisk] = []
    disk.on_call = lambda call: forks.append(disk.fork())
    act()
    disk.on_call = None
    return [*forks, disk.fork()]


@pytest.mark.parametrize("offset", [0, 22, 50])
def test_crash_leaves_the_old_log_or_the_empty_one(disk: SimDisk, offset: int) -> None:
    """Before each call, in every way. A crash of the opening that finishes it changes nothing, and no record comes back."""
    log = filled(disk)
    old = read_values(log)
    forks = forks_of(disk, lambda: log.restart_at(offset))
    found: set[bool] = set()
    for number, fork in enumerate(forks):
        for how in Crash:
            for seed in range(2):
                crashed = fork.fork()
                crashed.crash(how, random.Random(f"{number}/{seed}"))
                recording = crashed.fork()
                openings = forks_of(recording, lambda recording=recording: open_log(recording, LOG))
                for again in openings[:: max(1, len(openings) // 3)]:
                    again.crash(how, random.Random(seed))
                    opened = open_log(again, LOG).log
                    is_empty = ends(opened) == (offset, offset, offset)
                    found.add(is_empty)
                    assert is_empty or (opened.log_start_offset == 12 and opened.log_end_offset >= 32)
                    assert is_empty or read_values(opened) == old[: opened.log_end_offset - 12]
                    assert is_empty or number < len(forks) - 1
                    follow(opened, b"new", leader_epoch=4)
                    opened.flush()
                    again.crash(Crash.LOSE_ALL, random.Random(0))
                    assert read_values(open_log(again, LOG).log)[-1] == b"new"
    assert found == {True, False}


def test_mark_that_a_killed_process_left_unsynced_is_not_lost_under_the_opening(disk: SimDisk) -> None:
    """The opening syncs the name before it removes anything; otherwise a power failure leaves half of the old log."""
    log = filled(disk)
    killed = forks_of(disk, lambda: log.restart_at(22))[1]
    assert killed.exists(f"{LOG}/{restart_file_name(22)}")
    killed.crash(Crash.KEEP_ALL, random.Random(0))
    for number, fork in enumerate(forks_of(killed, lambda: open_log(killed, LOG))):
        for seed in range(4):
            failed = fork.fork()
            failed.crash(Crash.TEAR, random.Random(f"{number}/{seed}"))
            opened = open_log(failed, LOG)
            start, flushed, _ = ends(opened.log)
            assert (start, flushed) == (22, 22) or (start == 12 and flushed >= 32)
            assert opened.report.damaged == ()


def test_pass_of_compaction_is_void_after_a_restart() -> None:
    """Other records may have the offsets and sizes of those that a pass read: the pass must not swap in its segment."""
    log = new_log()

    def put_all(letter: bytes) -> None:
        for number in range(12):
            put(log, [(b"k%d" % (number % 2), letter * 40), (b"u%02d" % number, letter)])
        roll(log)

    put_all(b"a")
    work = begin(log)
    assert work is not None
    work.build()
    cleaned = [group for each in work.groups() if (group := work.clean(each)) is not None]
    assert cleaned
    log.restart_at(0)
    put_all(b"b")
    values = read_values(log)
    assert not log.swap(cleaned[0], now_ms=0)
    LogCompaction(log).end(work.outcome())
    assert read_values(log) == values
    assert LogCompaction(log).facts(log.log_end_offset).dirty_offset == 0
    assert compact(log) is not None
    assert b"a" not in b"".join(value or b"" for value in read_values(log))


def test_compaction_begins_anew_after_a_restart(disk: SimDisk) -> None:
    """The state of compaction of the old log does not apply to the new one, also after an opening."""
    log = new_log(disk)
    for number in range(12):
        put(log, [(b"k%d" % (number % 2), b"a" * 40)])
    roll(log)
    assert compact(log) is not None
    assert disk.exists(f"{LOG}/{CLEANER_FILE}")
    assert LogCompaction(log).facts(log.log_end_offset).dirty_offset > 0
    log.restart_at(2)
    assert not disk.exists(f"{LOG}/{CLEANER_FILE}")
    assert LogCompaction(log).facts(log.log_end_offset).dirty_offset == 2


def test_scrub_that_ran_under_a_restart_is_stale(disk: SimDisk) -> None:
    """It read another log: nothing is sealed, and no damage is reported."""
    log = filled(disk)
    log.flush()
    scrub = LogScrub(log)
    work = scrub.begin(now_ms=0, interval_ms=1, flushed_offset=log.flushed_offset)
    assert work is not None
    work.run(RateLimit(10**9, now_ms=lambda: 0, wait_ms=lambda _: False))
    log.restart_at(12)
    follow(log, b"new", leader_epoch=3)
    log.flush()
    outcome = scrub.end(work, flushed_offset=log.flushed_offset, now_ms=1)
    assert outcome.stale
    assert not outcome.damaged
    assert not any(name.endswith(".seal") for name in disk.list_directory(LOG))


def test_restart_under_a_move_is_copied() -> None:
    """The copy of a restarted log has nothing of the old one, although a segment has the same name."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 24)
    log.flush()
    source, future = MoveSource(log), ground.future()
    future.create()
    copy_all(source, future)
    log.restart_at(0)
    append(log, [b"new"], leader_epoch=2)
    log.flush()
    moved = switch(ground, log, source, future)
    assert (read_values(moved), moved.last_epoch, len(moved.producers)) == ([b"new"], 2, 0)


def test_epoch_checkpoint_of_the_new_log_is_written_before_its_records_count(disk: SimDisk) -> None:
    """The old checkpoint is removed. The first flush group writes the new one, so that a lost header epoch misleads no opening."""
    log = filled(disk)
    log.restart_at(4)
    assert not disk.exists(f"{LOG}/{EPOCH_FILE}")
    append(log, [b"new"], leader_epoch=9)
    log.flush()
    assert b"9 4\n" in disk.read_file(f"{LOG}/{EPOCH_FILE}")


def test_name_of_the_mark() -> None:
    """Twenty digits and the suffix; no other name is a mark."""
    assert restart_file_name(42) == "00000000000000000042.restart"
    assert parse_restart_file_name("00000000000000000042.restart") == 42
    for name in ("42.restart", "00000000000000000042.log", "99999999999999999999.restart", "x"):
        assert parse_restart_file_name(name) is None
