# SPDX-License-Identifier: Apache-2.0
"""Sectors in wrong places, truncated files with known damage, segments of an older, longer log: reported exactly, never a crash.

Each test is a seed of the corruption run (`integration_tests.crash.corrupt`) that broke a law, reduced to its cause.
"""

from __future__ import annotations

import pytest
from lograft.wire.checksum import crc32c

from storage.errors import DataLossError
from storage.files.names import DAMAGE_FILE, INDEX_SUFFIX, offset_file_name
from storage.log.partition_log import PartitionLog
from storage.segment.scan import TRUSTED_RUN_BYTES
from storage.testing.builders import append, open_log, read_all
from storage.testing.sim_disk import SimDisk
from storage.tests.support import FIRST, LARGE, LOG, flip, kill, position_of, readable, write_log


def move(disk: SimDisk, batches_bytes: bytes, to_position: int) -> None:
    disk.corrupt(FIRST, to_position, batches_bytes)


def test_run_of_later_batches_in_a_wrong_place_hides_nothing(disk: SimDisk) -> None:
    """A sector from farther back holds whole batches with higher offsets; everything behind its place is still served."""
    batches = write_log(disk, count=20)
    content = disk.read_file(FIRST)
    # Batches 15 and 16, written over the middle of batches 3 to 5 by a misdirected write.
    piece = content[position_of(batches, 15) : position_of(batches, 17)]
    move(disk, piece, position_of(batches, 3) + 20)
    served, lost = readable(open_log(disk, LOG, LARGE).log)
    assert lost == [(3, 6)]
    assert served == [n for n in range(20) if not 3 <= n < 6]


def test_few_batches_moved_back_do_not_hide_the_run_before_them(disk: SimDisk) -> None:
    """A few earlier batches that are farther back by mistake do not count against a longer run."""
    batches = write_log(disk, count=20)
    content = disk.read_file(FIRST)
    piece = content[position_of(batches, 4) : position_of(batches, 6)]
    flip(disk, FIRST, position_of(batches, 3) + 70)
    flip(disk, FIRST, position_of(batches, 3) + 10)
    move(disk, piece, position_of(batches, 15) + 20)
    served, lost = readable(open_log(disk, LOG, LARGE).log)
    assert lost == [(3, 4), (15, 18)]
    assert served == [n for n in range(20) if n != 3 and not 15 <= n < 18]


def test_long_run_behind_damage_is_trusted_at_once(disk: SimDisk) -> None:
    """A run with more whole bytes than a misplaced sector can hold is accepted without a further search."""
    log = open_log(disk, LOG, LARGE).log
    values = [b"%02d" % number * 6_000 for number in range(20)]
    for value in values:
        append(log, [value])
    log.close()
    # The header is useless, so that the next batch must be searched for.
    flip(disk, FIRST, 2 * (len(disk.read_file(FIRST)) // 20) + 10)
    flip(disk, FIRST, 2 * (len(disk.read_file(FIRST)) // 20) + 16)
    log = open_log(disk, LOG, LARGE).log
    with pytest.raises(DataLossError) as caught:
        log.read(2, 1)
    assert (caught.value.base_offset, caught.value.end_offset) == (2, 3)
    assert len(disk.read_file(FIRST)) > 3 * TRUSTED_RUN_BYTES
    assert [batch.values() for batch in read_all(log, offset=3)] == [[value] for value in values[3:]]


def damaged_log(disk: SimDisk, number: int) -> int:
    """Make a log of 12 batches with one known and saved damaged batch; return the size of a batch."""
    batches = write_log(disk)
    size_bytes = batches[0].header.size_bytes
    flip(disk, FIRST, position_of(batches, number) + 70)
    log = open_log(disk, LOG, LARGE).log
    with pytest.raises(DataLossError):
        log.read(number, 1)
    kill(disk)
    return size_bytes


@pytest.mark.parametrize("left", [0, 1, 3, 5])
def test_file_cut_before_known_damage(disk: SimDisk, left: int) -> None:
    """A segment file ends before its known damage: everything from its end on is lost, each record once."""
    size_bytes = damaged_log(disk, 5)
    disk.cut(FIRST, left * size_bytes + (65 if left else 0))
    log = open_log(disk, LOG, LARGE).log
    served, lost = readable(log)
    assert served == list(range(left))
    assert sorted(n for start, end in lost for n in range(start, end)) == list(range(left, 12))
    append(log, [b"value-12" * 3])
    assert readable(log)[0] == [*served, 12]


def test_empty_read_inside_the_log_is_never_given(disk: SimDisk) -> None:
    """Index files from before the damage do not match it: the segment is walked, and reading continues."""
    batches = write_log(disk)
    index = offset_file_name(0, INDEX_SUFFIX)
    log = open_log(disk, LOG, LARGE).log
    log.close()
    kept = disk.read_file(f"{LOG}/{index}")
    size_bytes = batches[0].header.size_bytes
    # As after a moved run: batch 8 is in the place of batch 6, and the damage behind it ends at batch 10.
    piece = disk.read_file(FIRST)[8 * size_bytes : 9 * size_bytes]
    move(disk, piece, 6 * size_bytes)
    lines = f"0\n2\n0 6 8 {6 * size_bytes} {6 * size_bytes}\n0 9 10 {7 * size_bytes} {10 * size_bytes}\n"
    file = disk.create_file(f"{LOG}/{DAMAGE_FILE}")
    file.append([f"{lines}crc32c {crc32c(lines.encode()):08x}\n".encode()])
    assert disk.read_file(f"{LOG}/{index}") == kept
    log = open_log(disk, LOG, LARGE).log
    served, lost = readable(log)
    assert served == [0, 1, 2, 3, 4, 5, 8, 10, 11]
    assert lost == [(6, 8), (9, 10)]


def longer_segment(disk: SimDisk) -> tuple[int, PartitionLog]:
    """Make a log of small segments whose first file comes from an older log and reaches beyond the next segment's base."""
    log = open_log(disk, LOG).log
    for number in range(30):
        append(log, [b"value-%02d" % number * 3])
    log.flush()
    next_base = log.segments[1].base_offset
    log.close()
    older = SimDisk()
    older.make_directory("/data")
    source = open_log(older, LOG, LARGE).log
    # Smaller batches: more of them in the same bytes, each whole and at its own offset.
    for number in range(30):
        append(source, [b"%02d" % number])
    content = older.read_file(FIRST)
    disk.corrupt(FIRST, 0, content[: len(disk.read_file(FIRST))])
    return next_base, open_log(disk, LOG).log


def test_older_longer_segment_keeps_to_its_end(disk: SimDisk) -> None:
    """Whole batches beyond the end of their segment are not served; at most a typed error follows."""
    next_base, log = longer_segment(disk)
    seen: list[int] = []
    offset = 0
    while offset < log.log_end_offset:
        try:
            chunk = log.read(offset, 200)
        except DataLossError as loss:
            assert offset < next_base
            offset = loss.end_offset
            continue
        assert chunk.next_offset > offset
        seen.append(offset)
        offset = chunk.next_offset
    assert [batch.values() for batch in read_all(log, offset=next_base)] == [
        [b"value-%02d" % number * 3] for number in range(next_base, 30)
    ]
