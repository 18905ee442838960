# SPDX-License-Identifier: Apache-2.0
"""Verify names exactly what is damaged: the segments of a real log, damaged in many ways."""

from __future__ import annotations

import itertools
import os
import random
import struct
from pathlib import Path

import pytest
from lograft.wire.errors import BatchError
from lograft.wire.header import iter_batches

from storage.files.checkpoints import encode_lines
from storage.files.names import EPOCH_FILE
from storage.inspect.findings import Severity
from storage.tests.inspect.logs import (
    change_batch,
    check,
    damage,
    failures,
    fill,
    flip,
    make_log,
    only,
    open_partition,
    places,
    segment_path,
    segments,
)

CLEAN_OR_NOT = pytest.mark.parametrize("clean", [False, True])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_log(tmp_path)


@CLEAN_OR_NOT
@pytest.mark.parametrize("at", [*range(12), 16, *range(17, 61, 3), 70])
def test_changed_byte_of_a_batch_is_named_by_its_offsets_and_bytes(tmp_path: Path, clean: bool, at: int) -> None:
    """For any byte except those of the leader epoch, the finding is exactly the batch."""
    directory = make_log(tmp_path, clean=clean)
    for place in places(directory)[5::17]:
        path = segment_path(directory, place.segment_base_offset)
        flip(path, place.position + at)
        finding = only(failures(directory))
        assert finding.severity is Severity.DAMAGE
        assert finding.file == path.name
        assert (finding.base_offset, finding.end_offset) == (place.header.base_offset, place.header.next_offset)
        assert (finding.position, finding.end_position) == (place.position, place.position + place.header.size_bytes)
        flip(path, place.position + at)
    assert failures(directory) == []


@pytest.mark.parametrize("mask", [0x01, 0x40])
def test_changed_leader_epoch_is_named(directory: Path, mask: int) -> None:
    """The checkpoint shows which batch has the wrong epoch."""
    for place in places(directory)[3::11]:
        path = segment_path(directory, place.segment_base_offset)
        flip(path, place.position + 15, mask)
        finding = only(failures(directory))
        assert (finding.severity, finding.base_offset) == (Severity.LAW, place.header.base_offset)
        assert finding.end_offset == place.header.next_offset
        assert "leader epoch" in finding.message
        flip(path, place.position + 15, mask)


def test_without_checkpoint_the_neighbours_tell_of_an_odd_leader_epoch(directory: Path) -> None:
    """The headers alone show epochs that go back, both too high and too low ones."""
    (directory / EPOCH_FILE).unlink()
    for place, mask in ((places(directory)[20], 0x40), (places(directory)[20], 0x01)):
        path = segment_path(directory, place.segment_base_offset)
        flip(path, place.position + 15, mask)
        found = failures(directory)
        assert [finding.file for finding in found] == [EPOCH_FILE, path.name]
        assert (found[1].base_offset, found[1].end_offset) == (place.header.base_offset, place.header.next_offset)
        flip(path, place.position + 15, mask)


def test_neighbours_with_a_wrong_leader_epoch_are_one_finding(directory: Path) -> None:
    """A checkpoint that disagrees with a whole part of the log gives one finding for each segment."""
    content = (directory / EPOCH_FILE).read_bytes()
    lines = content.decode().splitlines()[2:-1]
    (directory / EPOCH_FILE).write_bytes(
        encode_lines(
            [lines[0].replace("0 ", "7 "), *(f"{9 + n} {line.split()[1]}" for n, line in enumerate(lines[1:]))]
        )
    )
    found = failures(directory)
    assert {finding.severity for finding in found} == {Severity.LAW}
    assert found[0].base_offset == 0
    assert found[-1].end_offset == check(directory).log_end_offset
    assert len(found) <= 2 * len(segments(directory))


def test_several_damages_are_told_apart(directory: Path) -> None:
    """Damage in different places gives several findings; everything between is good."""
    victims = places(directory)[2], places(directory)[4], places(directory)[30]
    for place in victims:
        flip(segment_path(directory, place.segment_base_offset), place.position + 65)
    assert damage(directory) == [(place.header.base_offset, place.header.next_offset) for place in victims]


@pytest.mark.parametrize("seed", range(30))
def test_random_garbage_hits_exactly_the_batches_that_it_touches(tmp_path: Path, seed: int) -> None:
    """Random bytes over several batches: every batch that they touch is named, in neighbouring ranges, and no other."""
    directory = make_log(tmp_path)
    rng = random.Random(seed)
    path = rng.choice(segments(directory)[:-1])
    here = [place for place in places(directory) if place.segment_base_offset == int(path.stem)]
    start = rng.randrange(path.stat().st_size - 1)
    garbage = rng.randbytes(rng.randint(30, 400))[: path.stat().st_size - start]
    content = path.read_bytes()
    path.write_bytes(content[:start] + garbage + content[start + len(garbage) :])
    touched = [
        place
        for place in here
        if place.position + place.header.size_bytes > start and place.position < start + len(garbage)
    ]
    found = damage(directory)
    assert found[0][0] == touched[0].header.base_offset
    assert found[-1][1] == touched[-1].header.next_offset
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))


def test_cut_segment_in_the_middle_loses_the_offsets_up_to_the_next(directory: Path) -> None:
    """A sealed segment became shorter: the offsets from its new end to the next segment are damaged."""
    first, second = segments(directory)[:2]
    os.truncate(first, first.stat().st_size // 2)
    ((base_offset, end_offset),) = damage(directory)
    whole = list(places_before(directory, first))
    assert base_offset == whole[-1]
    assert end_offset == int(second.stem)


def places_before(directory: Path, path: Path) -> list[int]:
    """Return the boundaries of the complete batches of a truncated segment."""
    ends = [int(path.stem)]
    try:
        for _, header in iter_batches(path.read_bytes()):
            ends.append(header.next_offset)
    except BatchError:
        pass
    return ends


@CLEAN_OR_NOT
def test_cut_last_segment_below_the_recovery_point_is_damage(tmp_path: Path, clean: bool) -> None:
    """Flushed records that are missing are damage up to the recovery point, even at a batch boundary."""
    directory = make_log(tmp_path, clean=clean)
    end_offset, last = check(directory).log_end_offset, segments(directory)[-1]
    last_place = places(directory)[-1]
    for size_bytes in (last_place.position + 10, last_place.position):
        os.truncate(last, size_bytes)
        assert damage(directory) == [(last_place.header.base_offset, end_offset)]


def test_missing_segment_is_named(directory: Path) -> None:
    """A segment in the middle, the first one, and all of them."""
    paths = segments(directory)
    content = paths[1].read_bytes()
    paths[1].unlink()
    assert damage(directory) == [(int(paths[1].stem), int(paths[2].stem))]
    paths[1].write_bytes(content)
    paths[0].unlink()
    assert (0, int(paths[1].stem)) in [
        (finding.base_offset, finding.end_offset)
        for finding in failures(directory)
        if finding.severity is Severity.DAMAGE
    ]
    end_offset = check(directory).log_end_offset
    for path in paths[1:]:
        path.unlink()
    assert damage(directory) == [(0, end_offset)]


def test_overlapping_segments_are_named(directory: Path) -> None:
    """A segment that reaches into the next one: the log does not open."""
    first, second = segments(directory)[:2]
    content = second.read_bytes()
    first.write_bytes(first.read_bytes() + content)
    found = failures(directory)
    assert {finding.file for finding in found} >= {first.name}
    assert any("the log does not open" in finding.message for finding in found)


def test_bytes_behind_the_last_record_of_a_segment_are_named(directory: Path) -> None:
    """Bytes that belong to no record are reported with their place."""
    path = segments(directory)[1]
    size_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"z" * 99)
    found = [finding for finding in failures(directory) if finding.file == path.name]
    finding = only(found)
    assert (finding.position, finding.end_position) == (size_bytes, size_bytes + 99)


def test_damage_above_the_recovery_point_in_front_of_good_batches_is_damage(tmp_path: Path) -> None:
    """Every sector of the bad bytes was written, and good batches follow, so it is not a torn tail."""
    log = open_partition(tmp_path)
    fill(log, 30)
    log.close(clean=False)
    directory = Path(log.directory)
    assert failures(directory) == []
    for place in (places(directory)[3], places(directory)[20]):
        flip(segment_path(directory, place.segment_base_offset), place.position + 65)
    assert damage(directory) == [
        (place.header.base_offset, place.header.next_offset) for place in (places(directory)[3], places(directory)[20])
    ]


@pytest.mark.parametrize(
    ("at", "data", "word"),
    [
        (21, b"\x01\x00", "attributes"),
        (35, struct.pack(">q", 7), "largest timestamp"),
        (51, struct.pack(">h", -1), "producer"),
        (53, struct.pack(">i", -1), "without a sequence"),
        (57, struct.pack(">i", 100), "records"),
        (57, struct.pack(">i", -1), "records"),
        (57, struct.pack(">i", 0), "payload"),
        (61, b"\xff\xff", "rule"),
    ],
)
def test_batch_that_breaks_a_rule_under_a_right_crc_is_found(directory: Path, at: int, data: bytes, word: str) -> None:
    """As a buggy writer would leave it: the CRC matches and the content is wrong."""
    place = next(place for place in places(directory)[4:] if place.header.has_producer)
    path = segment_path(directory, place.segment_base_offset)
    change_batch(path, place.position, at, data, place.header.size_bytes)
    found = [finding for finding in failures(directory) if finding.severity is Severity.LAW]
    finding = only(found)
    assert (finding.base_offset, finding.end_offset) == (place.header.base_offset, place.header.next_offset)
    assert word in finding.message
