# SPDX-License-Identifier: Apache-2.0
"""Truncation at the log end: a leader epoch without a record is forgotten for good."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from lograft.wire.header import stamp

from storage.errors import OutOfOrderOffsetError
from storage.files.names import EPOCH_FILE
from storage.log.partition_log import PartitionLog
from storage.testing.builders import append, make_batch, open_log, read_values
from storage.testing.sim_disk import Crash, SimDisk
from storage.types import EpochEnd

DIRECTORY = "/data/log"


def follow(log: PartitionLog, value: bytes, *, leader_epoch: int) -> None:
    """Append one batch as a follower."""
    batch = make_batch([value])
    stamp(batch, base_offset=log.log_end_offset, leader_epoch=leader_epoch)
    log.append_as_follower(batch, now_ms=0)


def led(disk: SimDisk) -> PartitionLog:
    """Return a log whose leader appended nothing in epoch 7, although the checkpoint has it."""
    log = open_log(disk, DIRECTORY).log
    append(log, [b"a"], leader_epoch=2)
    append(log, [b"b"], leader_epoch=3)
    log.assign_epoch(7)
    log.flush()
    assert b"7 2\n" in disk.read_file(f"{DIRECTORY}/{EPOCH_FILE}")
    return log


@pytest.mark.parametrize("leader_epoch", [3, 5])
def test_epoch_without_a_record_is_forgotten_at_the_log_end(disk: SimDisk, leader_epoch: int) -> None:
    """As a follower the log then accepts records of an older epoch, down to that of its last record, and none older."""
    log = led(disk)
    with pytest.raises(OutOfOrderOffsetError):
        follow(log, b"c", leader_epoch=leader_epoch)
    assert log.truncate_suffix(log.log_end_offset) == 2
    assert (log.last_epoch, log.end_offset_for_epoch(7)) == (3, None)
    with pytest.raises(OutOfOrderOffsetError):
        follow(log, b"c", leader_epoch=2)
    follow(log, b"c", leader_epoch=leader_epoch)
    assert (log.last_epoch, log.epoch_at(2)) == (leader_epoch, leader_epoch)
    assert read_values(log) == [b"a", b"b", b"c"]


def test_epoch_with_records_stays(disk: SimDisk) -> None:
    """An epoch with a record is not forgotten, and a call above the log end forgets nothing."""
    log = led(disk)
    assert log.truncate_suffix(3) == 2
    assert log.last_epoch == 7
    append(log, [b"c"], leader_epoch=7)
    assert log.truncate_suffix(3) == 3
    assert (log.last_epoch, log.end_offset_for_epoch(3)) == (7, EpochEnd(3, 2))


def test_epoch_of_an_empty_log_is_forgotten(disk: SimDisk) -> None:
    """Also if there never was a record, or all were removed."""
    log = open_log(disk, DIRECTORY).log
    log.assign_epoch(4)
    log.truncate_suffix(0)
    assert log.last_epoch is None
    append(log, [b"a"], leader_epoch=1)
    log.truncate_prefix(1, 0)
    log.truncate_suffix(1)
    assert log.last_epoch is None


@pytest.mark.parametrize("ending", [lambda log: log.flush(), lambda log: log.close(), lambda log: None])
@pytest.mark.parametrize("leader_epoch", [3, 5])
def test_forgotten_epoch_does_not_come_back(
    disk: SimDisk, leader_epoch: int, ending: Callable[[PartitionLog], object]
) -> None:
    """Wherever the power fails afterwards, each record has the epoch of its batch, whatever the checkpoint had."""
    log = led(disk)
    forks: list[SimDisk] = []
    disk.on_call = lambda call: forks.append(disk.fork())
    log.truncate_suffix(2)
    follow(log, b"c", leader_epoch=leader_epoch)
    ending(log)
    assert forks
    for seed, fork in enumerate([*forks, disk.fork()]):
        for how in Crash:
            crashed = fork.fork()
            crashed.crash(how, random.Random(seed))
            again = open_log(crashed, DIRECTORY).log
            epochs = [again.epoch_at(offset) for offset in range(again.log_end_offset)]
            assert epochs == [2, 3, leader_epoch][: again.log_end_offset]
            assert again.last_epoch == epochs[-1]
            assert again.log_end_offset >= 2


def test_flush_in_flight_does_not_save_the_forgotten_epoch(disk: SimDisk) -> None:
    """A group with the epoch is written after the epoch was forgotten; the next group replaces the checkpoint."""
    log = open_log(disk, DIRECTORY).log
    append(log, [b"a"], leader_epoch=2)
    log.assign_epoch(7)
    work = log.begin_flush()
    assert work is not None
    log.truncate_suffix(1)
    work.run()
    log.end_flush(work)
    follow(log, b"b", leader_epoch=2)
    log.flush()
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    again = open_log(disk, DIRECTORY).log
    assert [again.epoch_at(offset) for offset in range(2)] == [2, 2]
    assert (again.log_end_offset, again.last_epoch) == (2, 2)
