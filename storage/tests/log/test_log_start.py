# SPDX-License-Identifier: Apache-2.0
"""The file `log-start` after every way to write, lose and damage it."""

from __future__ import annotations

import random

import pytest

from storage.errors import DiskFailedError, DiskFullError
from storage.files.two_slots import Slot, TwoSlots
from storage.log.log_start import LogStartFile
from storage.testing.sim_disk import Crash, Refusal, SimDisk

SLOTS = TwoSlots(b"TEST", "q")


@pytest.fixture
def root() -> SimDisk:
    """Return a disk on which the file is written into `/`."""
    return SimDisk()


def load(disk: SimDisk) -> LogStartFile:
    file = LogStartFile.read(disk, "")
    file.sync()
    return file


def test_a_log_that_never_lost_its_front_has_no_file(root: SimDisk) -> None:
    """Without a file the log start is 0, and reading makes no file."""
    assert load(root).offset == 0
    assert root.list_directory("/") == []


@pytest.mark.parametrize("how", Crash)
def test_what_was_written_is_on_stable_storage(root: SimDisk, how: Crash) -> None:
    """The first write makes the file by replacement, later ones overwrite it in place; each survives every crash."""
    file = load(root)
    for offset in (5, 9, 12):
        file.write_synced(offset)
        assert file.offset == offset
        root.crash(how, random.Random(offset))
        file = load(root)
        assert file.offset == offset
    assert root.size_bytes("/log-start") == 1_024


def test_one_bad_slot_is_no_loss(root: SimDisk) -> None:
    """Both slots have the same content, so either may be damaged."""
    file = load(root)
    file.write_synced(5)
    file.write_synced(9)
    for position in (0, 512):
        fork = root.fork()
        fork.corrupt("/log-start", position + 17, b"\xff")
        assert load(fork).offset == 9


def test_two_bad_slots_count_as_zero_and_are_replaced(root: SimDisk) -> None:
    """Then the log start is unknown; the next write makes the file valid again."""
    load(root).write_synced(5)
    root.corrupt("/log-start", 0, bytes(1_024))
    file = load(root)
    assert file.offset == 0
    file.write_synced(7)
    assert load(root).offset == 7


def test_a_file_that_was_cut_is_replaced_by_the_next_write(root: SimDisk) -> None:
    """Its remaining slot is still read; a missing slot cannot be written in place."""
    load(root).write_synced(5)
    root.cut("/log-start", 600)
    file = load(root)
    assert file.offset == 5
    file.write_synced(6)
    assert (load(root).offset, root.size_bytes("/log-start")) == (6, 1_024)


def test_a_full_disk_leaves_the_old_log_start(root: SimDisk) -> None:
    """Neither the creation of the file nor a write in place claims anything."""
    file = load(root)
    root.refuse("append", "log-start", Refusal.FULL)
    with pytest.raises(DiskFullError):
        file.write_synced(5)
    assert (file.offset, load(root).offset) == (0, 0)
    file.write_synced(5)
    root.refuse("write", "log-start", Refusal.FULL)
    with pytest.raises(DiskFullError):
        file.write_synced(9)
    assert (file.offset, load(root).offset) == (5, 5)
    file.write_synced(10)
    assert load(root).offset == 10


def test_a_failed_sync_is_fatal(root: SimDisk) -> None:
    """The log start moves only after the sync."""
    file = load(root)
    file.write_synced(5)
    root.refuse("sync", "log-start", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        file.write_synced(9)
    assert file.offset == 5


def test_slots_of_another_file_or_version_are_not_read() -> None:
    """Magic, version and CRC guard a slot; the larger sequence counts."""
    old, new = SLOTS.encode(3, 0, 30).ljust(512, b"\0"), SLOTS.encode(4, 1, 40)
    assert SLOTS.decode(old + new) == SLOTS.decode(new.ljust(512, b"\0") + old) == Slot(4, 1, (40,))
    assert TwoSlots(b"ELSE", "q").decode(old + new) is None
    assert SLOTS.decode(b"") is None
    for bit in range(len(new) * 8):
        flipped = bytearray(new)
        flipped[bit // 8] ^= 1 << bit % 8
        assert SLOTS.decode(old + flipped) == Slot(3, 0, (30,))
