# SPDX-License-Identifier: Apache-2.0
"""The mark of a broker's clean shutdown, and files that prove nothing."""

from __future__ import annotations

import random

import pytest

from storage.directory.clean_stop import last_clean_stop, mark_clean_stop
from storage.directory.directories import LogDirectory
from storage.errors import DiskFullError
from storage.files.checkpoints import encode_lines
from storage.testing.sim_disk import Crash, Refusal, SimDisk

MARK = "/data/clean-stop"


def directory() -> LogDirectory:
    """A log directory on a disk of its own."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return LogDirectory(disk, "/data")


def write(place: LogDirectory, content: bytes) -> None:
    """Write a mark that this version would not write."""
    assert isinstance(place.disk, SimDisk)
    file = place.disk.create_file(MARK)
    file.append([content])
    file.close()


def test_mark_tells_the_epoch_of_the_registration_and_is_replaced_by_the_next() -> None:
    """Reading the mark keeps it, because a process that ends before it registers again has changed nothing."""
    place = directory()
    assert last_clean_stop([place]) is None
    mark_clean_stop([place], 41)
    assert [last_clean_stop([place]) for _ in range(2)] == [41, 41]
    mark_clean_stop([place], 977)
    assert last_clean_stop([place]) == 977


@pytest.mark.parametrize("how", Crash)
def test_mark_survives_a_power_failure(how: Crash) -> None:
    """It is on stable storage when the shutdown ends."""
    place = directory()
    mark_clean_stop([place], 0)
    assert isinstance(place.disk, SimDisk)
    place.disk.crash(how, random.Random(1))
    assert last_clean_stop([place]) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        encode_lines([]),
        encode_lines(["stopped"]),
        encode_lines(["broker_epoch"]),
        encode_lines(["broker_epoch -1"]),
        encode_lines(["broker_epoch 1_0"]),
        encode_lines(["broker_epoch " + "9" * 19]),
        encode_lines(["broker_epoch 1", "broker_epoch 2"]),
        encode_lines(["broker_epoch 12"])[:-1],
        encode_lines(["broker_epoch 12"]).replace(b"12", b"13"),
    ],
)
def test_mark_without_an_epoch_or_damaged_proves_nothing(content: bytes) -> None:
    """A mark from before epochs were written says nothing about the shutdown."""
    place = directory()
    write(place, content)
    assert last_clean_stop([place]) is None


def test_fields_of_later_versions_are_passed_over() -> None:
    """The epoch is found among lines that this version does not know."""
    place = directory()
    write(place, encode_lines(["written_ms 5", "broker_epoch 12", "flag"]))
    assert last_clean_stop([place]) == 12


def test_all_log_directories_must_say_the_same() -> None:
    """A disk with an older mark, or without one, leaves the whole broker unproven."""
    first, second = directory(), directory()
    mark_clean_stop([first, second], 7)
    assert last_clean_stop([first, second]) == 7
    mark_clean_stop([second], 6)
    assert last_clean_stop([first, second]) is None
    assert last_clean_stop([first, directory()]) is None


def test_full_disk_leaves_the_stop_unproven() -> None:
    """The old mark stays, and its epoch is not the one that the controller knows."""
    place = directory()
    mark_clean_stop([place], 7)
    assert isinstance(place.disk, SimDisk)
    place.disk.refuse("append", "clean-stop", Refusal.FULL)
    with pytest.raises(DiskFullError):
        mark_clean_stop([place], 8)
    assert last_clean_stop([place]) == 7


def test_mark_that_cannot_be_read_proves_nothing() -> None:
    """The logs on the failing device will report it."""
    place = directory()
    mark_clean_stop([place], 7)
    assert isinstance(place.disk, SimDisk)
    place.disk.refuse("pread", "clean-stop", Refusal.IO_ERROR)
    assert last_clean_stop([place]) is None
