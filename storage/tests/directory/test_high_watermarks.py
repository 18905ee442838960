# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of high watermarks: complete or ignored, and never a reason to fail."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.directory.high_watermarks import (
    MAX_OFFSET,
    LoadedHighWatermarks,
    decode_high_watermarks,
    encode_high_watermarks,
    load_high_watermarks,
    read_high_watermarks,
    write_high_watermarks,
)
from storage.errors import DiskFailedError, DiskFullError
from storage.files.checkpoints import encode_lines
from storage.files.names import MAX_PARTITION, PartitionIdentity, partition_directory_name
from storage.testing.sim_disk import Crash, Refusal, SimDisk

DIRECTORY = "/data"
FILE = f"{DIRECTORY}/high-watermark-checkpoint"


def name(number: int, topic: bytes = b"t") -> str:
    return partition_directory_name(PartitionIdentity(topic * 16, number))


OFFSETS = {name(2): 7, name(10): 0, name(0, b"a"): MAX_OFFSET}

NAMES = st.builds(
    lambda topic, partition: partition_directory_name(PartitionIdentity(topic, partition)),
    st.binary(min_size=16, max_size=16),
    st.integers(0, MAX_PARTITION),
)


def test_what_is_written_is_read_and_replaced_as_a_whole(disk: SimDisk) -> None:
    """Each checkpoint, even an empty one, replaces the whole one before."""
    assert read_high_watermarks(disk, DIRECTORY) == {}
    for offsets in (OFFSETS, {name(3): 9}, {}):
        write_high_watermarks(disk, DIRECTORY, offsets)
        assert read_high_watermarks(disk, DIRECTORY) == offsets
        assert load_high_watermarks(disk, DIRECTORY) == LoadedHighWatermarks(offsets, None)


def test_file_is_a_text_checkpoint_as_documented(disk: SimDisk) -> None:
    """Version, count, one line for each partition ascending by name, checksum; written without a sync."""
    disk.calls.clear()
    write_high_watermarks(disk, DIRECTORY, OFFSETS)
    assert [call.operation for call in disk.calls] == ["create_file", "append", "rename"]
    first, second, third = f"{'61' * 16}-0 {MAX_OFFSET}", f"{'74' * 16}-10 0", f"{'74' * 16}-2 7"
    content = disk.read_file(FILE)
    assert content == encode_lines([first, second, third])
    assert content.decode().splitlines()[:-1] == ["0", "3", first, second, third]


@given(st.dictionaries(NAMES, st.integers(0, MAX_OFFSET)))
def test_lines_round_trip(offsets: dict[str, int]) -> None:
    """Everything that can be written is read back."""
    assert decode_high_watermarks(encode_high_watermarks(offsets)) == offsets


@pytest.mark.parametrize(
    "line",
    [
        name(1),
        f"{name(1)} ",
        f"{name(1)} -1",
        f"{name(1)} x",
        f"{name(1)} 1 2",
        f"{name(1)} {MAX_OFFSET + 1}",
        f"{name(1)} {'0' * 5_000}1",
        f"{name(1)}.5.removed 1",
        " 1",
        "",
        f"{name(2)} 8",
    ],
)
def test_other_lines_make_the_whole_checkpoint_count_as_missing(disk: SimDisk, line: str) -> None:
    """The checksum is right but a line is not: the problem is reported, and nothing of the file is used."""
    file = disk.create_file(FILE)
    file.append([encode_lines([f"{name(2)} 7", line])])
    file.close()
    loaded = load_high_watermarks(disk, DIRECTORY)
    assert loaded.offsets == read_high_watermarks(disk, DIRECTORY) == {}
    assert loaded.problem is not None
    assert loaded.problem.startswith(f"{FILE}: the line ")


def test_impossible_names_and_offsets_are_programmer_errors(disk: SimDisk) -> None:
    """They come from open logs, never from outside; nothing is written."""
    for offsets in ({"topic-1": 3}, {name(1): -1}, {name(1): MAX_OFFSET + 1}):
        with pytest.raises(AssertionError):
            write_high_watermarks(disk, DIRECTORY, offsets)
    assert not disk.exists(FILE)


def test_damaged_and_cut_files_say_nothing_and_why(disk: SimDisk) -> None:
    """The checksum covers each byte, and a file of any other length is invalid."""
    write_high_watermarks(disk, DIRECTORY, OFFSETS)
    whole = disk.read_file(FILE)
    for position in range(len(whole)):
        damaged = disk.fork()
        damaged.corrupt(FILE, position, bytes([whole[position] ^ 0x01]))
        assert load_high_watermarks(damaged, DIRECTORY) == ({}, f"{FILE}: it is cut off or damaged")
        damaged.cut(FILE, position)
        assert load_high_watermarks(damaged, DIRECTORY) == ({}, f"{FILE}: it is cut off or damaged")


def test_unreadable_file_says_nothing_and_why(disk: SimDisk) -> None:
    """The device fails to return it, and the start continues without it."""
    write_high_watermarks(disk, DIRECTORY, OFFSETS)
    disk.refuse("pread", FILE, Refusal.IO_ERROR)
    loaded = load_high_watermarks(disk, DIRECTORY)
    assert loaded.offsets == {}
    assert loaded.problem is not None
    assert "it cannot be read" in loaded.problem


@pytest.mark.parametrize("how", Crash)
def test_crash_leaves_an_older_checkpoint_or_none(disk: SimDisk, how: Crash) -> None:
    """After a crash before any call of a write, a written checkpoint is read, or none."""
    write_high_watermarks(disk, DIRECTORY, {name(1): 5})
    disk.sync_filesystem("/")
    forks: list[SimDisk] = []
    disk.on_call = lambda call: forks.append(disk.fork())
    write_high_watermarks(disk, DIRECTORY, {name(1): 6})
    for fork in [*forks, disk.fork()]:
        for seed in range(8):
            crashed = fork.fork()
            crashed.crash(how, random.Random(seed))
            found = load_high_watermarks(crashed, DIRECTORY)
            assert found.offsets in ({}, {name(1): 5}, {name(1): 6})
            assert bool(found.offsets) != (found.problem is not None)
            write_high_watermarks(crashed, DIRECTORY, {name(1): 7})
            assert read_high_watermarks(crashed, DIRECTORY) == {name(1): 7}


def test_full_disk_leaves_the_old_checkpoint(disk: SimDisk) -> None:
    """The caller gets the error and tries again later; a failed disk is different."""
    write_high_watermarks(disk, DIRECTORY, {name(1): 5})
    disk.refuse("append", FILE, Refusal.FULL)
    with pytest.raises(DiskFullError):
        write_high_watermarks(disk, DIRECTORY, {name(1): 6})
    assert read_high_watermarks(disk, DIRECTORY) == {name(1): 5}
    disk.refuse("rename", FILE, Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        write_high_watermarks(disk, DIRECTORY, {name(1): 6})
