# SPDX-License-Identifier: Apache-2.0
"""Atomic small files, text checkpoints and the recovery point."""

from __future__ import annotations

import random

import pytest

from storage.errors import DiskFailedError, DiskFullError
from storage.files.checkpoints import decode_lines, encode_lines, parent_of, read_lines, replace_file
from storage.log.recovery_point import CleanEnd, RecoveryPoint, RecoveryPointFile, decode_slots, encode_slot
from storage.testing.sim_disk import Crash, Refusal, SimDisk


def test_lines_round_trip() -> None:
    """Any number of lines comes back."""
    for lines in ([], ["one"], ["one", "two 3", "-"]):
        assert decode_lines(encode_lines(lines)) == lines


def test_damaged_lines_are_not_used() -> None:
    """A text that is truncated or lengthened, or has a flipped bit, is refused."""
    content = encode_lines(["5 100", "6 200"])
    for size in range(len(content)):
        assert decode_lines(content[:size]) is None
    assert decode_lines(content + b"\n") is None
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_lines(bytes(flipped)) is None


@pytest.mark.parametrize("body", [b"", b"0\n", b"1\n0\n", b"0\n2\nx\n", b"0\nx\n"])
def test_checksum_alone_does_not_make_a_checkpoint(body: bytes) -> None:
    """Version and count are checked too."""
    from lograft.wire.checksum import crc32c

    assert decode_lines(body + f"crc32c {crc32c(body):08x}\n".encode()) is None


def test_parent_of() -> None:
    """The parent directory of a path, including that of the root."""
    assert parent_of("/a/b") == "/a"
    assert parent_of("/a") == "/"


def test_replace_is_old_or_new_at_every_crash_point() -> None:
    """Whatever survives an interrupted replacement, one complete content is read; the new one once the call has returned."""
    disk = SimDisk()
    replace_file(disk, "/file", encode_lines(["old"]))
    points: list[SimDisk] = []
    disk.on_call = lambda call: points.append(disk.fork())
    replace_file(disk, "/file", encode_lines(["new"]))
    for how in Crash:
        for seed in range(10):
            for point in points:
                crashed = point.fork()
                crashed.crash(how, random.Random(seed))
                assert read_lines(crashed, "/file") in (["old"], ["new"])
            done = disk.fork()
            done.crash(how, random.Random(seed))
            assert read_lines(done, "/file") == ["new"]
    assert len(points) == 5


def test_replace_cleans_up_after_a_full_disk_and_after_a_crash() -> None:
    """A full disk leaves the old content and no temporary file; an old temporary file is replaced."""
    disk = SimDisk()
    replace_file(disk, "/file", b"old")
    disk.refuse("append", ".tmp", Refusal.FULL)
    with pytest.raises(DiskFullError):
        replace_file(disk, "/file", b"new")
    assert disk.list_directory("/") == ["file"]
    assert disk.read_file("/file") == b"old"
    disk.create_file("/file.tmp").append([b"left behind"])
    replace_file(disk, "/file", b"new")
    assert disk.read_file("/file") == b"new"
    disk.refuse("sync", ".tmp", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        replace_file(disk, "/file", b"newer")
    assert read_lines(disk, "/missing") is None


CLEAN = RecoveryPoint(flushed_offset=9, clean_end=CleanEnd(segment_base_offset=5, segment_bytes=1_234))


def test_slot_with_the_larger_sequence_counts() -> None:
    """Of two valid slots the later one is read; a damaged one is ignored."""
    old, new = encode_slot(RecoveryPoint(flushed_offset=3), 4).ljust(512, b"\0"), encode_slot(CLEAN, 5)
    assert decode_slots(old + new) == (5, CLEAN)
    assert decode_slots(new.ljust(512, b"\0") + old) == (5, CLEAN)
    assert decode_slots(old) == (4, RecoveryPoint(flushed_offset=3))
    assert decode_slots(b"") == (0, None)
    for bit in range(len(new) * 8):
        flipped = bytearray(new)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_slots(old + flipped) == (4, RecoveryPoint(flushed_offset=3))


def test_unsynced_point_never_claims_more_than_was_written() -> None:
    """After a crash the file holds a point that was written, never a later one; a synced point stays."""
    for how in Crash:
        for seed in range(20):
            disk = SimDisk()
            file = RecoveryPointFile.open_or_create(disk, "")
            assert file.point is None
            file.write_synced(RecoveryPoint(flushed_offset=10))
            disk.sync_directory("/")
            for offset in range(11, 16):
                file.write(RecoveryPoint(flushed_offset=offset))
            disk.crash(how, random.Random(seed))
            again = RecoveryPointFile.open_or_create(disk, "")
            assert again.point is not None
            assert 10 <= again.point.flushed_offset <= 15
            again.write_synced(RecoveryPoint(flushed_offset=2))
            again.write(RecoveryPoint(flushed_offset=3))
            disk.crash(how, random.Random(seed))
            lowered = RecoveryPointFile.open_or_create(disk, "").point
            assert lowered is not None
            assert lowered.flushed_offset in (2, 3)


def test_full_disk_leaves_the_old_point() -> None:
    """A point without space is not written, and the old lower bound is still valid."""
    disk = SimDisk()
    file = RecoveryPointFile.open_or_create(disk, "")
    file.write_synced(CLEAN)
    disk.refuse("write", "/recovery-point", Refusal.FULL)
    file.write(RecoveryPoint(flushed_offset=10))
    assert file.point == CLEAN
    file.close()
    disk.cut("/recovery-point", 100)
    assert RecoveryPointFile.open_or_create(disk, "").point in (None, CLEAN)
