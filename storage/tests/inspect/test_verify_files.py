# SPDX-License-Identifier: Apache-2.0
"""Verify names the damaged file: caches, checkpoints and the recovery point of a real log, damaged in many ways."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from lograft.wire.checksum import crc32c

from storage.files.checkpoints import encode_lines
from storage.files.names import (
    DAMAGE_FILE,
    EPOCH_FILE,
    INDEX_SUFFIX,
    LOG_START_FILE,
    PARTITION_FILE,
    RECOVERY_POINT_FILE,
    SEAL_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_file_name,
)
from storage.inspect.findings import Severity
from storage.segment.seal import decode_seal, encode_seal
from storage.tests.inspect.logs import damage, failures, flip, make_log, only, places, segment_path, segments


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_log(tmp_path)


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX, SEAL_SUFFIX])
def test_every_byte_of_a_cache_of_a_segment_counts(tmp_path: Path, suffix: str) -> None:
    """Any changed byte of an index or a seal is reported, as a file that can be rebuilt."""
    directory = make_log(tmp_path, sealed=True)
    path = segment_path(directory, int(segments(directory)[1].stem), suffix)
    for position in range(0, path.stat().st_size, 5):
        flip(path, position)
        finding = only(failures(directory))
        assert (finding.severity, finding.file) == (Severity.CACHE, path.name)
        flip(path, position)


def resealed(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "big")


def test_false_entry_of_an_offset_index_is_found(directory: Path) -> None:
    """An index with a valid CRC whose entries are no batch boundaries, or do not ascend, is reported."""
    path = segment_path(directory, int(segments(directory)[1].stem), INDEX_SUFFIX)
    good = path.read_bytes()
    for entry, word in (
        (good[:4] + struct.pack(">I", struct.unpack(">I", good[4:8])[0] + 1), "no batch boundaries"),
        (struct.pack(">I", struct.unpack(">I", good[:4])[0] - 1) + good[4:8], "no batch boundaries"),
        (good[8:16], "do not ascend"),
        (struct.pack(">II", 0, 0), "no batch boundaries"),
    ):
        path.write_bytes(resealed(entry + good[8:-4]))
        finding = only(failures(directory))
        assert (finding.severity, finding.file) == (Severity.CACHE, path.name)
        assert word in finding.message
    last = len(good) - 32 - 8
    path.write_bytes(resealed(good[:last] + struct.pack(">II", 2**31, 2**31) + good[last + 8 : -4]))
    assert "no batch boundaries" in only(failures(directory)).message


def test_false_entry_of_a_time_index_is_found(directory: Path) -> None:
    """A time index that claims too little, points between batches, goes back or has a wrong footer is reported."""
    path = segment_path(directory, int(segments(directory)[1].stem), TIME_INDEX_SUFFIX)
    good = path.read_bytes()
    footer = len(good) - 40
    count = footer // 12
    stamps = list(struct.unpack(f">{count}q", good[: 8 * count]))
    offsets = list(struct.unpack(f">{count}I", good[8 * count : footer]))

    def write(stamps: list[int], offsets: list[int], tail: bytes) -> None:
        path.write_bytes(resealed(struct.pack(f">{count}q{count}I", *stamps, *offsets) + tail))

    tail = good[footer:-4]
    write([stamps[0] - 1, *stamps[1:]], offsets, tail)
    assert "not true" in only(failures(directory)).message
    write(stamps, [*offsets[:-1], offsets[-1] + 1], tail)
    assert "not true" in only(failures(directory)).message
    write([stamps[0]] * count, offsets, tail)
    assert "do not ascend" in only(failures(directory)).message
    write(stamps, offsets, tail[:28] + struct.pack(">q", 5_000))
    assert "footer" in only(failures(directory)).message
    path.write_bytes(good)
    assert failures(directory) == []


def test_seal_that_does_not_match_is_found(tmp_path: Path) -> None:
    """A chunk that differs although all its batches are good, and a wrong timestamp."""
    directory = make_log(tmp_path, sealed=True)
    path = segment_path(directory, 0, SEAL_SUFFIX)
    seal = decode_seal(path.read_bytes())
    path.write_bytes(encode_seal(replace(seal, chunk_crcs=(seal.chunk_crcs[0] ^ 1,))))
    assert "not what was sealed" in only(failures(directory)).message
    path.write_bytes(encode_seal(replace(seal, max_timestamp_ms=5)))
    assert "largest timestamp" in only(failures(directory)).message


def test_seal_says_no_more_than_what_another_finding_says(tmp_path: Path) -> None:
    """Damage inside a chunk, or a changed leader epoch, gives one finding and not two."""
    directory = make_log(tmp_path, sealed=True)
    place = places(directory)[2]
    path = segment_path(directory, place.segment_base_offset)
    flip(path, place.position + 65)
    assert len(failures(directory)) == 1
    flip(path, place.position + 65)
    flip(path, place.position + 15)
    assert len(failures(directory)) == 1


def test_every_byte_of_a_snapshot_counts(directory: Path) -> None:
    """Any changed byte of a producer snapshot is named."""
    for path in sorted(directory.glob(f"*{SNAPSHOT_SUFFIX}"))[-2:]:
        for position in range(0, path.stat().st_size, 31):
            flip(path, position)
            finding = only(failures(directory))
            assert (finding.severity, finding.file) == (Severity.CACHE, path.name)
            flip(path, position)


def test_snapshot_of_another_state_is_found(directory: Path) -> None:
    """The snapshot is undamaged, but contradicts the batches before it."""
    snapshots = sorted(directory.glob(f"*{SNAPSHOT_SUFFIX}"))
    newest, before = snapshots[-1], snapshots[-2]
    good = newest.read_bytes()
    newest.write_bytes(before.read_bytes())
    assert "contradicts" in only(failures(directory)).message
    before_content = before.read_bytes()
    newest.write_bytes(good)
    before.write_bytes(good)
    assert "beyond the snapshot" in only(failures(directory)).message
    before.write_bytes(before_content)
    inside = next(place for place in places(directory)[-10:] if place.header.record_count > 1)
    odd = directory / offset_file_name(inside.header.base_offset + 1, SNAPSHOT_SUFFIX)
    odd.write_bytes(before_content)
    assert "inside a batch" in only(failures(directory)).message


@pytest.mark.parametrize("name", [RECOVERY_POINT_FILE])
def test_every_used_byte_of_the_recovery_point_counts(directory: Path, name: str) -> None:
    """Any changed byte of either slot is named."""
    for slot in range(2):
        for position in range(slot * 512, slot * 512 + 44, 3):
            flip(directory / name, position)
            finding = only(failures(directory))
            assert (finding.severity, finding.file) == (Severity.LAW, name)
            assert f"slot {slot}" in finding.message
            flip(directory / name, position)


def test_lost_or_cut_recovery_point_is_found(directory: Path) -> None:
    """It was durable before the segments, so a missing or truncated one is a finding."""
    os.truncate(directory / RECOVERY_POINT_FILE, 600)
    assert "slot 1" in only(failures(directory)).message
    (directory / RECOVERY_POINT_FILE).unlink()
    assert "missing" in only(failures(directory)).message


@pytest.mark.parametrize("name", [EPOCH_FILE, PARTITION_FILE])
def test_every_byte_of_a_text_checkpoint_counts(directory: Path, name: str) -> None:
    """Any changed byte of a text checkpoint is named."""
    for position in range(0, (directory / name).stat().st_size, 3):
        flip(directory / name, position, 0x04)
        assert {finding.file for finding in failures(directory)} == {name}
        flip(directory / name, position, 0x04)


def test_partition_metadata_of_another_partition_is_found(directory: Path) -> None:
    """The file and the directory's name must agree; without the file only the name is known."""
    (directory / PARTITION_FILE).write_bytes(encode_lines([f"topic_id {'ab' * 16}", "partition 3"]))
    assert "directory's name does not" in only(failures(directory)).message
    (directory / PARTITION_FILE).unlink()
    assert "missing" in only(failures(directory)).message


def test_damaged_list_of_damage_is_found(directory: Path) -> None:
    """A list that is truncated, overlaps, or points beyond a segment."""
    (directory / DAMAGE_FILE).write_bytes(encode_lines(["0 1 2 3 4"])[:-3])
    assert only(failures(directory)).file == DAMAGE_FILE
    (directory / DAMAGE_FILE).write_bytes(encode_lines(["0 1 3 3 4", "0 2 4 5 6"]))
    assert "overlaps" in only(failures(directory)).message
    place = places(directory)[0]
    line = f"0 0 {place.header.next_offset} 0 {2**30}"
    (directory / DAMAGE_FILE).write_bytes(encode_lines([line]))
    assert DAMAGE_FILE in {finding.file for finding in failures(directory)}


def test_recorded_range_that_does_not_join_its_neighbours_is_found(directory: Path) -> None:
    """A range that begins behind the end of the previous batch leaves uncovered offsets."""
    first, second, third = places(directory)[:3]
    line = f"0 {second.header.base_offset} {third.header.base_offset} {second.position} {third.position}"
    (directory / DAMAGE_FILE).write_bytes(encode_lines([line]))
    assert failures(directory) == []
    line = f"0 {second.header.base_offset} {third.header.base_offset} {second.position - 1} {third.position}"
    (directory / DAMAGE_FILE).write_bytes(encode_lines([line]))
    assert damage(directory) == [(first.header.base_offset, second.header.base_offset)]
    line = f"0 {second.header.base_offset} {third.header.base_offset} 0 {third.position}"
    (directory / DAMAGE_FILE).write_bytes(encode_lines([line]))
    assert damage(directory) == [(0, second.header.base_offset)]


def test_bad_log_start_is_found(directory: Path) -> None:
    """A log start with a bad slot is told."""
    (directory / LOG_START_FILE).write_bytes(bytes(1024))
    assert [finding.file for finding in failures(directory)] == [LOG_START_FILE] * 2


def test_clean_mark_that_lies_is_found(directory: Path) -> None:
    """The mark of a clean close must match the end of the batches."""
    content = bytearray((directory / RECOVERY_POINT_FILE).read_bytes())
    for slot in range(2):
        flushed = struct.unpack_from(">q", content, slot * 512 + 16)[0]
        struct.pack_into(">q", content, slot * 512 + 16, flushed - 1)
        struct.pack_into(">I", content, slot * 512 + 40, crc32c(bytes(content[slot * 512 : slot * 512 + 40])))
    (directory / RECOVERY_POINT_FILE).write_bytes(content)
    assert "the batches end at" in only(failures(directory)).message
