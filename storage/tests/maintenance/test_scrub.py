# SPDX-License-Identifier: Apache-2.0
"""Scrub of sealed segments: seals, damage found and quarantined, the rate limit, and changes during a scrub."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import DataLossError, DiskAccessError, DiskFullError, FileMissingError
from storage.files.names import LOG_SUFFIX, SEAL_SUFFIX, offset_file_name
from storage.files.posix import PosixDisk
from storage.files.rate_limit import RateLimit
from storage.files.read_only import ReadOnlyFile
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import CHUNKS_KEPT, LogScrub, ScrubOutcome, ScrubTask, ScrubWork, scrub_segment
from storage.segment.seal import SEAL_CHUNK_BYTES, decode_seal, encode_seal
from storage.testing.builders import SMALL, append, make_batch, open_log, read_values
from storage.types import LogSettings

HOUR_MS = 3_600_000
MANY_BYTES = 10**12


class World:
    """A log on a real file system, its scrub, and a clock that only waiting moves."""

    def __init__(self, path: Path, settings: LogSettings = SMALL) -> None:
        self.directory = f"{path}/log"
        self.disk = PosixDisk()
        self.settings = settings
        self.now_ms = 0
        self.waits_ms: list[int] = []
        self.stop_after: int | None = None
        self.reopen()

    def reopen(self) -> None:
        self.log: PartitionLog = open_log(self.disk, self.directory, self.settings).log
        self.scrub = LogScrub(self.log)

    def wait_ms(self, wait_ms: int) -> bool:
        self.waits_ms.append(wait_ms)
        self.now_ms += wait_ms
        return self.stop_after is not None and len(self.waits_ms) > self.stop_after

    def rate(self, bytes_per_s: int = MANY_BYTES) -> RateLimit:
        return RateLimit(bytes_per_s, now_ms=lambda: self.now_ms, wait_ms=self.wait_ms)

    def begin(self) -> ScrubWork | None:
        return self.scrub.begin(flushed_offset=self.log.flushed_offset, now_ms=self.now_ms, interval_ms=HOUR_MS)

    def end(self, work: ScrubWork) -> ScrubOutcome:
        return self.scrub.end(work, flushed_offset=self.log.flushed_offset, now_ms=self.now_ms)

    def round(self) -> list[tuple[ScrubWork, ScrubOutcome]]:
        """Check every due segment."""
        done: list[tuple[ScrubWork, ScrubOutcome]] = []
        while (work := self.begin()) is not None:
            work.run(self.rate())
            done.append((work, self.end(work)))
        return done

    def later(self) -> list[tuple[ScrubWork, ScrubOutcome]]:
        self.now_ms += HOUR_MS
        return self.round()

    def path(self, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
        return Path(self.directory) / offset_file_name(base_offset, suffix)


def hurt(path: Path, position: int, mask: int = 0x40) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def fill(log: PartitionLog, count: int = 30, *, size_bytes: int = 20) -> list[int]:
    """Append batches of one record; return the position of each in its segment."""
    positions: list[int] = []
    for number in range(count):
        append(log, [b"%0*d" % (size_bytes, number)], leader_epoch=number // 10, timestamp_ms=1_000 + number)
        segment = log.segments.active
        positions.append(segment.size_bytes - _size_of_batch(size_bytes))
    log.flush()
    return positions


def _size_of_batch(size_bytes: int) -> int:
    return len(make_batch([b"0" * size_bytes]))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    fill(made.log)
    assert made.log.segment_count > 2
    return made


def test_every_sealed_segment_gets_a_seal_once(world: World) -> None:
    """The first round verifies and seals all but the active segment, the second compares; nothing is due in between."""
    first = world.round()
    bases = [segment.base_offset for segment in world.log.segments][:-1]
    assert [work.task.base_offset for work, _ in first] == bases
    assert all(outcome.sealed and not outcome.damaged for _, outcome in first)
    assert [work.result.compared for work, _ in first if work.result] == [False] * len(bases)
    for segment in list(world.log.segments)[:-1]:
        seal = decode_seal(world.path(segment.base_offset, SEAL_SUFFIX).read_bytes())
        assert seal.fits(log_bytes=segment.size_bytes, end_offset=segment.end_offset)
        assert seal.max_timestamp_ms == 1_000 + segment.end_offset - 1
    assert not world.path(world.log.segments.active.base_offset, SEAL_SUFFIX).exists()
    assert world.round() == []
    second = world.later()
    assert [work.result.compared for work, _ in second if work.result] == [True] * len(bases)
    assert all(outcome == ScrubOutcome() for _, outcome in second)


def test_unflushed_segments_are_left_alone(tmp_path: Path) -> None:
    """A sealed segment that a crash may still change is not scrubbed."""
    world = World(tmp_path)
    for number in range(30):
        append(world.log, [b"%020d" % number])
    assert world.round() == []
    world.log.flush()
    assert len(world.round()) == world.log.segment_count - 1


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("at", [3, 10, 16, 18, 30, 60, 70])
def test_damage_is_put_out_of_service_exactly(tmp_path: Path, sealed: bool, at: int) -> None:
    """A changed byte outside the leader epoch is found with and without a seal; one batch is quarantined, the rest is served."""
    world = World(tmp_path)
    positions = fill(world.log)
    if sealed:
        world.round()
    segment = world.log.segments[1]
    victim = segment.base_offset + 2
    hurt(world.path(segment.base_offset), positions[victim] + at)
    outcomes = [outcome for _, outcome in world.later()]
    (damaged,) = [damaged for outcome in outcomes for damaged in outcome.damaged]
    assert (damaged.base_offset, damaged.end_offset) == (victim, victim + 1)
    assert damaged.position == positions[victim]
    assert world.log.damaged == (damaged,)
    with pytest.raises(DataLossError):
        world.log.read(victim, 1)
    assert read_values(world.log, offset=victim + 1)[0] == b"%020d" % (victim + 1)
    world.log.close(clean=False)
    world.reopen()
    assert world.log.damaged == (damaged,), "damage is saved"


def test_leader_epoch_is_protected_by_the_seal(tmp_path: Path) -> None:
    """A changed leader epoch, which no CRC covers, is found because the seal proves that the bytes changed."""
    world = World(tmp_path)
    positions = fill(world.log)
    victim = world.log.segments[1].base_offset + 1
    world.round()
    hurt(world.path(world.log.segments[1].base_offset), positions[victim] + 15, 0x10)
    (found,) = [each for _, outcome in world.later() for each in outcome.damaged]
    assert (found.base_offset, found.end_offset) == (victim, victim + 1)


def test_without_a_seal_an_odd_leader_epoch_is_no_proof(tmp_path: Path) -> None:
    """Before a segment is sealed, its records are served as they are: it is unknown whether header or checkpoint is right."""
    world = World(tmp_path)
    positions = fill(world.log)
    base = world.log.segments[1].base_offset
    hurt(world.path(base), positions[base + 1] + 15, 0x10)
    assert all(outcome.sealed for _, outcome in world.round())
    assert world.log.damaged == ()


def test_damaged_segment_is_sealed_as_it_is_in_the_next_round(tmp_path: Path) -> None:
    """Known damage does not prevent the protection of the rest, and further damage behind it is found."""
    world = World(tmp_path)
    positions = fill(world.log)
    base = world.log.segments[1].base_offset
    hurt(world.path(base), positions[base + 1] + 70)
    assert sum(len(outcome.damaged) for _, outcome in world.round()) == 1
    assert not world.path(base, SEAL_SUFFIX).exists()
    assert [work.task.base_offset for work, outcome in world.later() if outcome.sealed] == [base]
    hurt(world.path(base), positions[base + 3] + 70)
    (found,) = [each for _, outcome in world.later() for each in outcome.damaged]
    assert found.base_offset == base + 3
    assert len(world.log.damaged) == 2
    assert [work.task.base_offset for work, outcome in world.later() if outcome.sealed] == [base]


def test_change_that_breaks_nothing_is_sealed_anew(world: World) -> None:
    """A seal that disagrees with a segment in which every law holds was itself wrong."""
    world.round()
    path = world.path(0, SEAL_SUFFIX)
    seal = decode_seal(path.read_bytes())
    path.write_bytes(encode_seal(replace(seal, chunk_crcs=(seal.chunk_crcs[0] ^ 1,))))
    outcomes = {work.task.base_offset: outcome for work, outcome in world.later()}
    assert outcomes[0] == ScrubOutcome(sealed=True)
    assert decode_seal(path.read_bytes()) == seal


@pytest.mark.parametrize("content", [b"", b"LGSL", bytes(60)])
def test_bad_seal_is_made_anew(world: World, content: bytes) -> None:
    """A truncated or damaged seal counts as missing."""
    world.round()
    good = world.path(0, SEAL_SUFFIX).read_bytes()
    world.path(0, SEAL_SUFFIX).write_bytes(content)
    outcomes = {work.task.base_offset: outcome for work, outcome in world.later()}
    assert outcomes[0].sealed
    assert world.path(0, SEAL_SUFFIX).read_bytes() == good


def test_stale_seal_is_made_anew(world: World) -> None:
    """A seal of another end is not compared."""
    world.round()
    path = world.path(0, SEAL_SUFFIX)
    good = decode_seal(path.read_bytes())
    path.write_bytes(encode_seal(replace(good, end_offset=good.end_offset + 1)))
    work = next(work for work, _ in world.later() if work.task.base_offset == 0)
    assert work.result is not None
    assert not work.result.compared
    assert decode_seal(path.read_bytes()) == good


def test_cut_file_loses_exactly_its_last_offsets(world: World) -> None:
    """If a sealed file became shorter, its missing offsets are damaged, and nothing is sealed."""
    world.round()
    segment = world.log.segments[0]
    world.log.close()
    os.truncate(world.path(0), segment.size_bytes - 1)
    (found,) = [each for _, outcome in world.later() for each in outcome.damaged]
    assert (found.base_offset, found.end_offset) == (segment.end_offset - 1, segment.end_offset)


def test_missing_bytes_at_a_batch_boundary_are_damage(tmp_path: Path) -> None:
    """A file that ends with a whole batch too early has lost the offsets after it."""
    world = World(tmp_path)
    positions = fill(world.log)
    segment = world.log.segments[0]
    work = world.begin()
    assert work is not None
    world.log.close()
    os.truncate(world.path(0), positions[segment.end_offset - 1])
    work.run(world.rate())
    assert work.result is not None
    (found,) = work.result.found
    assert (found.damaged.base_offset, found.damaged.end_offset) == (segment.end_offset - 1, segment.end_offset)
    assert found.damaged.position == found.damaged.end_position
    assert work.result.seal is None


def test_truncation_meanwhile_makes_the_result_stale(world: World) -> None:
    """The result for a segment that was truncated in the meantime is dropped; its seal was removed with the tail."""
    world.round()
    world.now_ms += HOUR_MS
    work = world.begin()
    assert work is not None
    assert work.task.base_offset == 0
    hurt(world.path(0), 70)
    work.run(world.rate())
    world.log.truncate_suffix(3)
    assert world.end(work) == ScrubOutcome(stale=True)
    assert not list(Path(world.directory).glob(f"*{SEAL_SUFFIX}"))


def test_segment_that_became_shorter_and_longer_again_is_not_judged_by_its_past(tmp_path: Path) -> None:
    """The segment has the same size and end but other bytes: the result quarantines nothing."""
    world = World(tmp_path)
    positions = fill(world.log)
    end_offset = world.log.segments[0].end_offset
    work = world.begin()
    assert work is not None
    content = world.path(0).read_bytes()
    hurt(world.path(0), positions[2] + 70)
    work.run(world.rate())
    assert work.result is not None
    assert len(work.result.found) == 1
    world.path(0).write_bytes(content)
    world.log.truncate_suffix(2)
    for number in range(2, 30):
        append(world.log, [b"%020d" % (100 + number)], leader_epoch=3)
    world.log.flush()
    assert world.log.segments[0].end_offset == end_offset
    assert world.end(work) == ScrubOutcome(stale=True)
    assert world.log.damaged == ()


def test_segment_that_became_shorter_and_longer_again_gets_no_seal_of_its_past(tmp_path: Path) -> None:
    """The segment has the same size and end but other bytes: a seal of the old bytes would make them look damaged."""
    world = World(tmp_path)
    fill(world.log)
    end_offset = world.log.segments[0].end_offset
    work = world.begin()
    assert work is not None
    work.run(world.rate())
    assert work.result is not None
    assert work.result.seal is not None
    world.log.truncate_suffix(2)
    for number in range(2, 30):
        append(world.log, [b"%020d" % (100 + number)], leader_epoch=3)
    world.log.flush()
    segment = world.log.segments[0]
    assert (segment.size_bytes, segment.end_offset) == (work.task.size_bytes, end_offset)
    assert world.end(work) == ScrubOutcome(stale=True)
    assert not world.path(0, SEAL_SUFFIX).exists()
    assert all(outcome.sealed for _, outcome in world.round())
    assert all(outcome == ScrubOutcome() for _, outcome in world.later())


def test_truncation_of_the_active_segment_leaves_the_result_valid(world: World) -> None:
    """It changes no sealed segment."""
    work = world.begin()
    assert work is not None
    work.run(world.rate())
    world.log.truncate_suffix(world.log.segments.active.base_offset)
    assert world.end(work).sealed


def test_damage_that_a_reader_found_meanwhile_is_not_counted_twice(tmp_path: Path) -> None:
    """A range that a read has quarantined in the meantime stays as the read found it."""
    world = World(tmp_path)
    positions = fill(world.log)
    world.log.close(clean=False)
    world.reopen()
    hurt(world.path(0), positions[2] + 70)
    work = world.begin()
    assert work is not None
    work.run(world.rate())
    with pytest.raises(DataLossError):
        world.log.read(2, 1)
    before = world.log.damaged
    assert world.end(work) == ScrubOutcome()
    assert world.log.damaged == before


def test_removed_segment_is_reported_and_skipped(world: World) -> None:
    """A file that was removed before the scrub opened it is an error of the work, and the next segment comes first."""
    work = world.begin()
    assert work is not None
    world.path(0).rename(world.path(0).with_suffix(".elsewhere"))
    world.log.close(clean=False)
    work.run(world.rate())
    assert isinstance(work.error, FileMissingError)
    assert world.end(work).stale
    following = world.begin()
    assert following is not None
    assert following.task.base_offset > 0


def test_full_disk_leaves_the_seal_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal without space is not written, and tried again in the next round."""
    work = world.begin()
    assert work is not None
    work.run(world.rate())

    def refuse(path: str) -> None:
        raise DiskFullError(path, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "create_file", refuse)
        assert world.end(work) == ScrubOutcome()
    assert all(outcome.sealed for _, outcome in world.later())


def test_scrub_reads_in_small_steps_at_the_rate_that_was_set(tmp_path: Path) -> None:
    """No read is larger than 1 MiB, each byte is read once, and the waits add up to size by rate."""
    world = World(tmp_path, LogSettings(segment_bytes=5 * SEAL_CHUNK_BYTES))
    for _ in range(9):
        append(world.log, [os.urandom(900_000)])
    world.log.flush()
    sizes: list[int] = []
    work = world.begin()
    assert work is not None
    rate = world.rate(SEAL_CHUNK_BYTES)
    take = rate.take
    rate.take = lambda size_bytes: (sizes.append(size_bytes), take(size_bytes))[1]  # type: ignore[method-assign]
    work.run(rate)
    assert work.result is not None
    assert max(sizes) == SEAL_CHUNK_BYTES
    assert sum(sizes) == work.result.read_bytes == work.task.size_bytes
    assert world.waits_ms[0] == 0
    assert world.waits_ms[1:] == [1_000] * (len(sizes) - 1)
    assert world.end(work).sealed


def test_largest_batches_are_read_once(tmp_path: Path) -> None:
    """For a batch that spans nine chunks, the scrub reads no chunk twice."""
    world = World(tmp_path, LogSettings(segment_bytes=12 * SEAL_CHUNK_BYTES))
    for size_bytes in (700_000, 8 * SEAL_CHUNK_BYTES - 200, 100, 8 * SEAL_CHUNK_BYTES - 200):
        append(world.log, [os.urandom(size_bytes)])
    world.log.flush()
    work = world.begin()
    assert work is not None
    work.run(world.rate())
    assert work.result is not None
    assert work.result.read_bytes == work.task.size_bytes > 8 * SEAL_CHUNK_BYTES


def test_a_long_segment_is_read_once_in_bounded_memory(tmp_path: Path) -> None:
    """Chunks far behind the walk are dropped."""
    world = World(tmp_path, LogSettings(segment_bytes=(CHUNKS_KEPT + 5) * SEAL_CHUNK_BYTES))
    for _ in range(3):
        append(world.log, [os.urandom(7 * SEAL_CHUNK_BYTES)])
    world.log.flush()
    (first, *_) = world.round()
    assert first[0].result is not None
    assert first[0].result.read_bytes == first[0].task.size_bytes


def test_file_that_shrinks_under_the_scrub_is_read_to_its_end(world: World) -> None:
    """A file that is truncated after it was opened gives the rest, and no seal is written for it."""
    work = world.begin()
    assert work is not None
    rate = world.rate()
    take = rate.take
    rate.take = lambda size_bytes: (os.truncate(world.path(0), 50), take(size_bytes))[1]  # type: ignore[method-assign]
    work.run(rate)
    assert work.result is not None
    assert [each.damaged.base_offset for each in work.result.found] == [0]
    assert work.result.seal is None


def test_scrub_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """A scrub that is stopped in the middle reports nothing, and the segment stays due."""
    world = World(tmp_path, LogSettings(segment_bytes=5 * SEAL_CHUNK_BYTES))
    for _ in range(9):
        append(world.log, [os.urandom(900_000)])
    world.log.flush()
    world.stop_after = 2
    work = world.begin()
    assert work is not None
    work.run(world.rate())
    assert (work.result, work.error) == (None, None)
    assert world.end(work).stale
    assert world.begin() is not None


def test_bytes_behind_the_end_of_a_segment_are_sealed_with_it(tmp_path: Path) -> None:
    """Bytes that belong to no record are not damage."""
    world = World(tmp_path)
    fill(world.log)
    segment = world.log.segments[0]
    world.log.close()
    with world.path(0).open("ab") as file:
        file.write(b"x" * 100)
    task = ScrubTask(
        path=str(world.path(0)),
        seal_path=str(world.path(0, SEAL_SUFFIX)),
        base_offset=0,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes + 100,
        sealed_version=0,
        known=(),
        epochs=(),
    )
    result = scrub_segment(world.disk, task, world.rate())
    assert result.found == ()
    assert result.seal is not None


def test_read_only_file_refuses_every_change() -> None:
    """No call can change the file through it."""
    file = ReadOnlyFile("/a", 10)
    assert (file.path, file.size) == ("/a", 10)
    for change in (
        lambda: file.append([b"x"]),
        lambda: file.write(b"x", 0),
        lambda: file.truncate(0),
        file.sync,
    ):
        with pytest.raises(DiskAccessError, match="reading only"):
            change()
    with pytest.raises(NotImplementedError):
        file.pread(1, 0)
    file.close()
