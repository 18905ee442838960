# SPDX-License-Identifier: Apache-2.0
"""Findings of the crash enumeration and the corruption run, each as one test that failed before the fix."""

from __future__ import annotations

import random

import pytest
from lograft.wire.batch import encode_batch, iter_batches, read_header
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from storage.errors import DataLossError
from storage.files.names import LOG_START_FILE
from storage.files.rate_limit import RateLimit
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub
from storage.testing.builders import append, make_batch, open_log
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.compaction.support import compact, new_log, put, roll
from storage.types import Appended, DamagedRange

DIRECTORY = "/data/log"


def test_a_log_start_that_a_clean_opening_has_shown_stays_after_a_power_failure() -> None:
    """Killed before the name of `log-start` was synced; a clean opening shows the new log start, and it survives a power failure."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    log = open_log(disk, DIRECTORY).log
    for _ in range(20):
        append(log, [b"x" * 100])
    log.close()
    log = open_log(disk, DIRECTORY).log
    forks: list[SimDisk] = []
    disk.on_call = lambda call: forks.append(disk.fork()) if call.operation == "sync_directory" else None
    log.truncate_prefix(15, 0)
    killed = forks[0]
    assert killed.exists(f"{DIRECTORY}/{LOG_START_FILE}")
    killed.crash(Crash.KEEP_ALL, random.Random(0))
    opened = open_log(killed, DIRECTORY)
    assert opened.report.clean
    assert opened.log.log_start_offset == 15
    for seed in range(10):
        failed = killed.fork()
        failed.crash(Crash.TEAR if seed else Crash.LOSE_ALL, random.Random(seed))
        again = open_log(failed, DIRECTORY)
        assert again.log.log_start_offset == 15
        assert again.report.damaged == ()


def put_numbered(log: PartitionLog, number: int) -> tuple[bytes, Appended]:
    """Append batch `number` of producer 1, whose record the next such batch replaces; return the sent batch."""
    batch = bytes(
        encode_batch(
            [b"%d" % number], keys=[b"k"], timestamps_ms=10, producer_id=1, producer_epoch=0, base_sequence=number
        )
    )
    return batch, log.append_as_leader(bytearray(batch), read_header(batch), leader_epoch=0, now_ms=0)


def test_compaction_keeps_the_memory_of_batches_that_a_power_failure_puts_back_into_the_window() -> None:
    """Flushed batches are compacted while newer, unflushed ones fill the producer state. These are lost; the older are known."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    log = new_log(disk, segment_bytes=10_000)
    sent = [put_numbered(log, number) for number in range(DEDUP_WINDOW_BATCHES + 4)]
    put(log, [(b"other", b"1")])
    roll(log)
    for number in range(DEDUP_WINDOW_BATCHES):
        put_numbered(log, len(sent) + number)
    assert compact(log) is not None
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    again = open_log(disk, DIRECTORY, log.settings).log
    assert again.log_end_offset == len(sent) + 1
    for batch, appended in sent[-DEDUP_WINDOW_BATCHES:]:
        answer = again.append_as_leader(bytearray(batch), read_header(batch), leader_epoch=0, now_ms=0)
        assert answer == appended._replace(duplicate=True)


def test_scrub_of_a_file_that_was_cut_before_its_known_damage() -> None:
    """The damage is known, then the file loses everything from before it on: the scrub still finds the rest."""
    disk = SimDisk()
    disk.make_directory("/data")
    log = open_log(disk, DIRECTORY).log
    for _ in range(12):
        append(log, [b"x" * 100])
    log.close()
    log = open_log(disk, DIRECTORY).log
    path = f"{DIRECTORY}/{0:020d}.log"
    batch_bytes = len(log.read(0, 1).data)
    disk.corrupt(path, 3 * batch_bytes - 1, b"?")
    with pytest.raises(DataLossError):
        log.read(2, 1)
    disk.cut(path, batch_bytes)
    scrub = LogScrub(log)
    work = scrub.begin(flushed_offset=log.flushed_offset, now_ms=0, interval_ms=1)
    assert work is not None
    work.run(RateLimit(10**9, now_ms=lambda: 0, wait_ms=lambda _: False))
    assert scrub.end(work, flushed_offset=log.flushed_offset, now_ms=0).damaged
    for offset in range(1, 5):
        with pytest.raises(DataLossError):
            log.read(offset, 1)
    assert log.read(0, 1).next_offset == 1


def new_two_segments() -> tuple[SimDisk, list[bytes]]:
    """Make a log of batches of one record, closed cleanly; return its disk and its batches."""
    disk = SimDisk()
    disk.make_directory("/data")
    log = open_log(disk, DIRECTORY).log
    for number in range(12):
        append(log, [b"%d" % number * 50], timestamp_ms=1_000 + number)
    batches = [log.read(offset, 1).data for offset in range(12)]
    log.close()
    return disk, batches


def scrub_first(log: PartitionLog) -> tuple[DamagedRange, ...]:
    """Scrub the first segment and return the quarantined ranges."""
    scrub = LogScrub(log)
    work = scrub.begin(flushed_offset=log.flushed_offset, now_ms=0, interval_ms=1)
    assert work is not None
    work.run(RateLimit(10**9, now_ms=lambda: 0, wait_ms=lambda _: False))
    return scrub.end(work, flushed_offset=log.flushed_offset, now_ms=0).damaged


def test_scrub_of_an_older_longer_state_of_a_segment() -> None:
    """The file holds batches that reach into the next segment, then garbage: all of that belongs to no record, and nothing is lost."""
    disk, batches = new_two_segments()
    path = f"{DIRECTORY}/{0:020d}.log"
    content = disk.read_file(path)
    count = len(content) // len(batches[0])
    disk.corrupt(path, 0, content + batches[count] + b"garbage" * 30)
    log = open_log(disk, DIRECTORY).log
    assert scrub_first(log) == ()
    assert [log.read(offset, 1).data for offset in range(12)] == batches


@pytest.mark.parametrize("kept_batches", [0, 1, 2])
def test_scrub_and_look_up_when_a_file_is_cut_at_its_known_damage(kept_batches: int) -> None:
    """Damage is known, then the file is truncated before or at it: the loss is reported once, and look-ups by time continue."""
    disk, batches = new_two_segments()
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.corrupt(path, 3 * len(batches[0]) - 1, b"?")
    log = open_log(disk, DIRECTORY).log
    with pytest.raises(DataLossError):
        log.read(2, 1)
    count = len(disk.read_file(path)) // len(batches[0])
    log.truncate_prefix(1, 0)
    log.close(clean=False)
    disk.cut(path, kept_batches * len(batches[0]))
    log = open_log(disk, DIRECTORY).log
    for timestamp_ms in (1_000, 1_001, 1_000 + count):
        found = log.find_timestamp(timestamp_ms, end_offset=12)
        assert found is not None
        assert found.offset == (1 if kept_batches == 2 and timestamp_ms < 1_002 else count)
    scrub_first(log)
    lost = {offset for each in log.damaged for offset in range(max(1, each.base_offset), each.end_offset)}
    assert lost == set(range(max(1, kept_batches), count))
    assert [log.read(offset, 1).data for offset in range(1, 12) if offset not in lost] == [
        batch for offset, batch in enumerate(batches) if offset > 0 and offset not in lost
    ]


@pytest.mark.parametrize("read_bytes", [1, 300, 10_000])
def test_batches_that_moved_before_known_damage(read_bytes: int) -> None:
    """A batch vanished, those behind it moved down, and garbage fills the place before known damage: all else is served."""
    disk, batches = new_two_segments()
    path, size_bytes = f"{DIRECTORY}/{0:020d}.log", len(batches[0])
    disk.corrupt(path, 5 * size_bytes - 1, b"?")
    log = open_log(disk, DIRECTORY).log
    with pytest.raises(DataLossError):
        log.read(4, 1)
    log.close(clean=False)
    disk.corrupt(path, size_bytes, b"g" * 9 + batches[2] + batches[3] + b"g" * (size_bytes - 9))
    for _ in range(2):
        log = open_log(disk, DIRECTORY).log
        served: dict[int, bytes] = {}
        offset = 0
        while offset < 12:
            try:
                chunk = log.read(offset, read_bytes)
            except DataLossError as loss:
                offset = loss.end_offset
                continue
            for position, header in iter_batches(chunk.data):
                served[header.base_offset] = chunk.data[position : position + header.size_bytes]
            offset = chunk.next_offset
        assert served == {offset: batch for offset, batch in enumerate(batches) if offset not in (1, 4)}
        assert {log.find_timestamp(1_000 + each, end_offset=12).offset for each in served} == set(served)  # type: ignore[union-attr]
        log.close(clean=read_bytes == 300)


def test_an_older_batch_that_reaches_over_known_damage_is_not_served() -> None:
    """A lost write restores a whole batch of two records over one of one record, before known damage."""
    disk, batches = new_two_segments()
    path, size_bytes = f"{DIRECTORY}/{0:020d}.log", len(batches[0])
    older = make_batch([b"3" * 24, b"4" * 24], timestamp_ms=1_003)
    older[0:8] = (3).to_bytes(8, "big")
    disk.corrupt(path, 5 * size_bytes - 1, b"?")
    log = open_log(disk, DIRECTORY).log
    with pytest.raises(DataLossError):
        log.read(4, 1)
    log.close(clean=False)
    disk.corrupt(path, 3 * size_bytes, bytes(older)[:size_bytes].ljust(size_bytes, b"g"))
    log = open_log(disk, DIRECTORY).log
    for offset in (3, 4):
        with pytest.raises(DataLossError) as caught:
            log.read(offset, 10_000)
        assert (caught.value.base_offset, caught.value.end_offset) == (offset, offset + 1)
    assert log.read(5, 1).data == batches[5]
