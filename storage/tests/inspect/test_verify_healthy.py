# SPDX-License-Identifier: Apache-2.0
"""Verify finds nothing wrong in a legal log: closed, killed, torn by a power failure, or with recorded damage."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from lograft.wire.checksum import crc32c

from storage.files.checkpoints import encode_lines
from storage.files.names import EPOCH_FILE, INDEX_SUFFIX, SNAPSHOT_SUFFIX
from storage.files.posix import PosixDisk
from storage.inspect.findings import Severity
from storage.inspect.log_check import check_log
from storage.log.partition_log import PartitionLog
from storage.testing.builders import append, open_log
from storage.tests.inspect.logs import (
    check,
    failures,
    fill,
    flip,
    make_log,
    open_partition,
    places,
    scrub,
    segment_path,
    segments,
)


def notes(directory: Path) -> list[str]:
    assert failures(directory) == []
    return [finding.message for finding in check(directory).findings]


def test_log_that_was_closed_is_healthy(tmp_path: Path) -> None:
    """A closed log, with and without seals, has not even a note; the report has the right counts."""
    directory = make_log(tmp_path, sealed=True)
    assert notes(directory) == []
    report = check(directory)
    assert report.is_clean
    assert report.batch_count == len(places(directory)) == 40
    assert report.record_count == report.log_end_offset == report.flushed_offset
    assert report.segment_count == len(segments(directory)) > 3
    assert report.verified_bytes == sum(path.stat().st_size for path in segments(directory))


def test_log_in_use_is_healthy(tmp_path: Path) -> None:
    """A copy taken during operation: open, partly flushed, with a stale index from before."""
    make_log(tmp_path)
    log = open_partition(tmp_path)
    directory = Path(log.directory)
    append(log, [b"more"], leader_epoch=9)
    assert notes(directory) == ["it was made for another size or end of the segment: not used, and built again"] * 2
    log.flush()
    fill_more(log)
    assert failures(directory) == []
    log.close(clean=False)
    assert failures(directory) == []


def fill_more(log: PartitionLog) -> None:
    for number in range(30):
        append(log, [b"%d" % number * 20], leader_epoch=9 + number // 7)


def test_new_and_empty_logs_are_healthy(tmp_path: Path) -> None:
    """A directory that is only partly made, an empty log, and one with only an empty segment."""
    directory = tmp_path / "000102030405060708090a0b0c0d0e0f-3"
    directory.mkdir()
    assert notes(directory) == []
    log = open_partition(tmp_path)
    assert notes(directory) == []
    log.close()
    assert notes(directory) == []
    assert check(directory).is_clean


def test_torn_tail_is_noted_with_its_bytes(tmp_path: Path) -> None:
    """A batch that was written only in part before the end is what a crash leaves."""
    directory = make_log(tmp_path, clean=False)
    last = segments(directory)[-1]
    size_bytes, end_offset = last.stat().st_size, check(directory).log_end_offset
    with last.open("ab") as file:
        file.write(places_bytes(directory)[:50])
    (finding,) = check(directory).findings
    assert finding.severity is Severity.NOTE
    assert "torn tail" in finding.message
    assert (finding.position, finding.end_position) == (size_bytes, size_bytes + 50)
    assert check(directory).log_end_offset == end_offset
    with last.open("ab") as file:
        file.write(bytes(600))
    assert "torn tail" in notes(directory)[0]


def places_bytes(directory: Path) -> bytes:
    return segments(directory)[0].read_bytes()


def test_flush_group_torn_in_its_middle_is_noted(tmp_path: Path) -> None:
    """Sectors that were never written, before good batches and good segments, above the recovery point."""
    log = open_partition(tmp_path)
    fill(log, 40)
    log.close(clean=False)
    directory = Path(log.directory)
    path = segments(directory)[1]
    content = path.read_bytes()
    path.write_bytes(content[:512] + bytes(512) + content[1024:])
    (message,) = [message for message in notes(directory) if "torn" in message]
    assert message.startswith("torn flush group")
    path.write_bytes(content[:700])
    assert any(message.startswith("torn flush group") for message in notes(directory))
    cut_at = check(directory).log_end_offset
    log = open_partition(tmp_path)
    assert log.log_end_offset == cut_at, "the next opening decides as verify did"


def test_damage_that_is_recorded_is_a_note(tmp_path: Path) -> None:
    """Once the engine has quarantined damage, the log is legal; everything around it is still judged."""
    directory = make_log(tmp_path, clean=False)
    victims = places(directory)[3], places(directory)[25]
    for place in victims:
        flip(segment_path(directory, place.segment_base_offset), place.position + 66)
    assert len(failures(directory)) == 2
    log = open_partition(tmp_path)
    scrub(log)
    assert len(log.damaged) == 2
    scrub(log)
    log.close()
    assert [message for message in notes(directory) if "known damage" in message] == [
        "known damage, out of service"
    ] * 2
    later = places_after(directory)
    flip(segment_path(directory, later), 70)
    assert len(failures(directory)) == 1


def places_after(directory: Path) -> int:
    """Return the last segment that has batches."""
    return int([path for path in segments(directory) if path.stat().st_size][-1].stem)


def test_damage_at_the_end_with_a_new_segment_behind_it_is_a_note(tmp_path: Path) -> None:
    """The last segment was truncated below the recovery point; then the log was opened and written again."""
    directory = make_log(tmp_path)
    last = segments(directory)[-1]
    os.truncate(last, last.stat().st_size - 10)
    log = open_partition(tmp_path)
    assert log.damaged
    fill_more(log)
    log.close()
    assert "known damage, out of service" in notes(directory)


def test_lost_front_is_a_note_once_it_is_recorded(tmp_path: Path) -> None:
    """The empty segment for the missing files at the start is not a finding."""
    directory = make_log(tmp_path)
    segments(directory)[0].unlink()
    assert failures(directory)
    log = open_partition(tmp_path)
    log.close()
    assert "known damage, out of service" in notes(directory)


def test_truncated_logs_are_healthy(tmp_path: Path) -> None:
    """After the tail or the head was dropped, at once and after further appends."""
    log = open_partition(tmp_path)
    directory = Path(log.directory)
    fill(log)
    log.flush()
    scrub(log)
    log.truncate_suffix(log.log_end_offset // 2)
    assert failures(directory) == []
    fill_more(log)
    log.flush()
    log.truncate_prefix(log.log_end_offset // 3, now_ms=0)
    assert failures(directory) == []
    assert check(directory).log_start_offset == log.log_start_offset
    fill_more_later(log)
    log.close()
    assert failures(directory) == []


def fill_more_later(log: PartitionLog) -> None:
    for number in range(30):
        append(log, [b"%d" % number * 20], leader_epoch=20, timestamp_ms=2_000)


def test_segments_below_the_log_start_are_noted(tmp_path: Path) -> None:
    """A crash between the log start and the removal leaves segments that the next opening removes."""
    log = open_partition(tmp_path)
    directory = Path(log.directory)
    fill(log)
    log.flush()
    first = segments(directory)[0]
    content = first.read_bytes()
    log.truncate_prefix(int(segments(directory)[2].stem), now_ms=0)
    log.close(clean=False)
    first.write_bytes(content)
    (directory / f"{'0' * 20}.snapshot").write_bytes(b"x")
    messages = notes(directory)
    assert any("wholly below the log start" in message for message in messages)
    assert any("below the first segment" in message for message in messages)


def test_missing_caches_are_no_finding(tmp_path: Path) -> None:
    """Without indexes, snapshots and seals the next opening only has more work."""
    directory = make_log(tmp_path, sealed=True)
    for path in list(directory.iterdir()):
        if path.suffix in (INDEX_SUFFIX, ".timeindex", SNAPSHOT_SUFFIX, ".seal"):
            path.unlink()
    assert notes(directory) == []


def test_missing_epochs_of_a_flushed_log_are_a_finding(tmp_path: Path) -> None:
    """The checkpoint was saved with the flush, so it must exist."""
    directory = make_log(tmp_path)
    (directory / EPOCH_FILE).unlink()
    (finding,) = failures(directory)
    assert (finding.severity, finding.file) == (Severity.CACHE, EPOCH_FILE)


@pytest.mark.parametrize("content", [b"", bytes(40), bytes(700), b"x" * 512 + bytes(512)])
def test_cache_that_power_failure_left_unwritten_is_a_note(tmp_path: Path, content: bytes) -> None:
    """Caches are not synced: an empty file and sectors of zeros do not prove damage."""
    directory = make_log(tmp_path)
    for suffix in (INDEX_SUFFIX, ".timeindex", ".seal"):
        segment_path(directory, 0, suffix).write_bytes(content)
    newest = max(directory.glob(f"*{SNAPSHOT_SUFFIX}"))
    newest.write_bytes(content)
    assert len(notes(directory)) == 4


def test_leftovers_are_noted(tmp_path: Path) -> None:
    """Interrupted replacements, removed files, caches without a segment, snapshots beyond the end."""
    directory = make_log(tmp_path)
    snapshot = max(directory.glob(f"*{SNAPSHOT_SUFFIX}")).read_bytes()
    for name in ("recovery-point.tmp", f"{7:020d}.log.deleted", f"{7:020d}.index", "notes.txt"):
        (directory / name).write_bytes(b"x")
    (directory / f"{10**6:020d}{SNAPSHOT_SUFFIX}").write_bytes(snapshot)
    messages = notes(directory)
    assert len([message for message in messages if "belongs to no segment" in message]) == 3
    assert len([message for message in messages if "beyond the log end" in message]) == 1


def test_range_of_a_segment_that_is_gone_is_a_note(tmp_path: Path) -> None:
    """The next save forgets the recorded damage of removed segments."""
    directory = make_log(tmp_path)
    (directory / "damaged-ranges").write_bytes(encode_lines(["7 8 9 10 11"]))
    assert any("not there: forgotten" in message for message in notes(directory))


def test_verify_can_read_what_posix_wrote_without_an_identity(tmp_path: Path) -> None:
    """A log that belongs to no partition (the metadata log) needs no partition.metadata."""
    log = open_log(PosixDisk(), f"{tmp_path}/log").log
    append(log, [b"x"])
    log.close()
    assert check_log(f"{tmp_path}/log").findings == []


def test_interrupted_compaction_is_a_note(tmp_path: Path) -> None:
    """A compacted segment waiting for its name replaces the originals, whichever of them are left."""
    directory = make_log(tmp_path, sealed=True)
    first, second, third = segments(directory)[:3]
    swap = directory / f"{first.stem}-{third.stem}.swap"
    swap.write_bytes(first.read_bytes() + second.read_bytes())
    (directory / f"{first.name}.cleaned").write_bytes(b"half")
    expected = check(directory).log_end_offset
    assert any("compaction was interrupted" in message for message in notes(directory))
    first.unlink()
    assert any("compaction was interrupted" in message for message in notes(directory))
    second.unlink()
    assert any("compaction was interrupted" in message for message in notes(directory))
    assert check(directory).log_end_offset == expected
    flip(swap, 70)
    (finding,) = failures(directory)
    assert (finding.severity, finding.file) == (Severity.DAMAGE, swap.name)


def test_cleaner_checkpoint_is_judged_by_its_form(tmp_path: Path) -> None:
    """A complete one is fine, a torn one comes from an unsynced write, a damaged one is a finding."""
    directory = make_log(tmp_path)
    path = directory / "cleaner-checkpoint"
    path.write_bytes(encode_lines(["dirty_offset 9", "map_offset 0", "leader_epoch -1", "next_horizon_ms -1", "0 77"]))
    assert notes(directory) == []
    flip(path, 20)
    (finding,) = failures(directory)
    assert (finding.severity, finding.file) == (Severity.CACHE, path.name)
    path.write_bytes(b"")
    assert len(notes(directory)) == 1


def test_snapshot_and_stale_seal_in_a_damaged_place_are_no_findings(tmp_path: Path) -> None:
    """A snapshot in the middle of damage cannot be judged; a seal of another end is stale."""
    directory = make_log(tmp_path, sealed=True)
    second = segments(directory)[1]
    snapshot = max(directory.glob(f"*{SNAPSHOT_SUFFIX}"))
    place = next(place for place in places(directory) if place.segment_base_offset == int(second.stem))
    (directory / f"{int(second.stem) + 1:020d}{SNAPSHOT_SUFFIX}").write_bytes(snapshot.read_bytes())
    content = second.read_bytes()
    second.write_bytes(b"\xff" * (place.header.size_bytes * 4) + content[place.header.size_bytes * 4 :])
    assert {finding.severity for finding in failures(directory)} == {Severity.DAMAGE}
    second.write_bytes(content)
    (directory / f"{int(second.stem) + 1:020d}{SNAPSHOT_SUFFIX}").unlink()
    segment_path(directory, int(second.stem), ".seal").write_bytes(segment_path(directory, 0, ".seal").read_bytes())
    assert notes(directory) == ["it was made for another size or end of the segment: not used, and built again"]


def test_torn_batch_at_the_end_of_a_segment_in_front_of_others(tmp_path: Path) -> None:
    """A header that promises more bytes than the file has, above the recovery point, is a torn flush group."""
    log = open_partition(tmp_path)
    fill(log, 40)
    log.close(clean=False)
    directory = Path(log.directory)
    place = places(directory)[5]
    os.truncate(segment_path(directory, place.segment_base_offset), place.position + place.header.size_bytes - 1)
    assert any(message.startswith("torn flush group") for message in notes(directory))
    path = segment_path(directory, place.segment_base_offset)
    path.write_bytes(path.read_bytes()[: place.position] + b"\xff" * 900)
    found = failures(directory)
    assert [finding.severity for finding in found] == [Severity.DAMAGE], "every byte was written: damage"


def test_tail_that_was_removed_before_it_was_flushed_is_a_note(tmp_path: Path) -> None:
    """A log that ends below its log start restarts there at the next opening."""
    log = open_partition(tmp_path)
    fill(log, 20)
    log.close(clean=False)
    directory = Path(log.directory)
    slots = (
        struct.pack(">4sHHQq", b"LGLS", 1, 0, sequence, check(directory).log_end_offset + 7) for sequence in (2, 1)
    )
    content = b"".join((slot + crc32c(slot).to_bytes(4, "big")).ljust(512, b"\0") for slot in slots)
    (directory / "log-start").write_bytes(content)
    assert any("begins again there, empty" in message for message in notes(directory))


def test_log_that_is_being_emptied_is_as_empty_as_its_next_opening_makes_it(tmp_path: Path) -> None:
    """The mark of a restart is a note; all other files, torn or partly removed, do not count."""
    directory = make_log(tmp_path)
    segments(directory)[1].unlink()
    flip(segments(directory)[0], 70)
    mark = directory / "00000000000000000017.restart"
    mark.touch()
    report = check(directory)
    assert [(finding.severity, finding.file) for finding in report.findings] == [(Severity.NOTE, mark.name)]
    assert "it restarts at 17 when it is opened" in report.findings[0].message
    assert (report.log_start_offset, report.log_end_offset) == (17, 17)
    log = open_partition(tmp_path)
    assert (log.log_start_offset, log.log_end_offset, log.damaged) == (17, 17, ())
    append(log, [b"new"])
    log.restart_at(3)
    append(log, [b"newer"])
    log.close()
    assert notes(directory) == []
    assert (check(directory).log_start_offset, check(directory).log_end_offset) == (3, 4)
