# SPDX-License-Identifier: Apache-2.0
"""Log directories on a real file system whose every byte is known. The corruption run copies them.

Each template is a log of one kind (plain, with a removed start, compacted, in the middle of a swap) after one kind of stop. Beside it
is an older state of the same directory, from before a truncation and other appends at the same offsets, or from before removals and
compaction. Stale sectors come from that state.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from lograft.wire.batch import check_batch, iter_batches, read_header
from lograft.wire.limits import MAX_BATCH_BYTES

from integration_tests.crash.maintenance import compact_once, scrub_all
from storage.errors import DataLossError
from storage.files.names import SWAP_SUFFIX, PartitionIdentity
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.testing.log_appends import draw_batch, draw_epoch
from storage.testing.log_model import LogModel, ModelBatch
from storage.types import LogSettings

SETTINGS = LogSettings(segment_bytes=6_000, index_interval_bytes=400, segment_ms=10**15)
COMPACTED = replace(SETTINGS, compact=True, min_cleanable_dirty_ratio=0.0)
IDENTITY = PartitionIdentity(topic_id=bytes(range(16)), partition=3)
NOW_MS = 5_000
PASS_MS = 10**13
"""The clock of a compaction pass, later than every timestamp."""
BATCHES_BEFORE = 25
BATCHES_AFTER = 25
UNFLUSHED_BATCHES = 6
STOPS = ("clean", "killed", "killed with an unflushed group", "killed with known damage")


class Kind(Enum):
    """The kind of a template."""

    PLAIN = "plain"
    REMOVED = "with a log start, renamed files, seals"
    COMPACTED = "compacted, with fillers, a log start, seals"
    SWAPPING = "in the middle of a swap"


PLAN = (
    *((Kind.PLAIN, stop) for stop in (*STOPS, *STOPS)),
    *((Kind.REMOVED, stop) for stop in STOPS),
    *((Kind.COMPACTED, stop) for stop in STOPS),
    (Kind.SWAPPING, "killed"),
    (Kind.SWAPPING, "killed with an unflushed group"),
)
"""Kind and stop of every template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A batch and its place: its segment file, and its first byte there."""

    batch: ModelBatch
    file_name: str
    position: int

    @property
    def end_position(self) -> int:
        """The byte after its last byte."""
        return self.position + len(self.batch.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One stopped log.

    Attributes:
        name: its number, its kind, and how it stopped.
        kind: its kind.
        path: its directory.
        older: an older state of the directory.
        start_offset: its log start (inclusive).
        end_offset: its log end (exclusive).
        flushed_offset: end of what was acknowledged as flushed (exclusive).
        placed: its batches with their places after an opening, ascending. The first may be below the log start.
        windows: batches in the producer state, as they were sent, from the log start on. Each is recognised when it is sent again.
        older_batches: bytes of batches of the older state that no longer exist.
        known_lost: damaged ranges from before, (first offset, end offset).
    """

    name: str
    kind: Kind
    path: Path
    older: Path
    start_offset: int
    end_offset: int
    flushed_offset: int
    placed: tuple[Placed, ...]
    windows: tuple[ModelBatch, ...]
    older_batches: frozenset[bytes]
    known_lost: tuple[tuple[int, int], ...]


def open_log(path: Path) -> PartitionLog:
    """Open a log on the real disk."""
    return PartitionLog.open(PosixDisk(), str(path), settings=SETTINGS, now_ms=NOW_MS, identity=IDENTITY).log


def append_drawn(log: PartitionLog, model: LogModel, rng: random.Random, count: int) -> None:
    """Append `count` random batches to log and model."""
    for _ in range(count):
        batch = bytearray(draw_batch(model, rng))
        if model.judge(read_header(batch)) is not None:
            continue
        epoch = draw_epoch(model, rng)
        header = check_batch(batch, max_bytes=MAX_BATCH_BYTES, allow_control=True)
        model.append([ModelBatch.stamped(batch, base_offset=model.end_offset, leader_epoch=epoch)])
        log.append_as_leader(batch, header, leader_epoch=epoch, now_ms=NOW_MS)


def build(root: Path, number: int) -> Template:
    """Write one template below `root`."""
    rng = random.Random(f"template {number}")
    kind, stop = PLAN[number]
    path, older, model = root / f"template-{number}", root / f"older-{number}", LogModel()
    disk = _CopyingDisk(root / f"swapping-{number}") if kind is Kind.SWAPPING else PosixDisk()
    settings = COMPACTED if kind in (Kind.COMPACTED, Kind.SWAPPING) else SETTINGS
    log = PartitionLog.open(disk, str(path), settings=settings, now_ms=NOW_MS, identity=IDENTITY).log
    append_drawn(log, model, rng, BATCHES_BEFORE)
    log.flush()
    shutil.copytree(path, older)
    before = {batch.data for batch in model.batches}
    model.announce_truncation(rng.randrange(model.end_offset))
    model.truncate()
    log.truncate_suffix(model.end_offset)
    for _ in range(5):
        append_drawn(log, model, rng, BATCHES_AFTER // 5)
        log.flush()
    flushed_offset = model.end_offset
    if stop == "killed with an unflushed group":
        append_drawn(log, model, rng, UNFLUSHED_BATCHES)
    _make(kind, log, rng)
    start_offset = log.log_start_offset
    log.close(clean=stop == "clean")
    if isinstance(disk, _CopyingDisk):
        path = disk.copy
    placed = _place_recovered(path, root / "recovered") if kind is Kind.SWAPPING else _place(path)
    known_lost: tuple[tuple[int, int], ...] = ()
    if stop == "killed with known damage":
        readable = [each for each in placed if each.batch.header.base_offset >= start_offset]
        victim = readable[len(readable) // 3]
        _flip(path / victim.file_name, victim.end_position - 1)
        known_lost = ((victim.batch.header.base_offset, victim.batch.header.next_offset),)
        _find_damage(path, known_lost[0])
    _check_known(kind, placed, model)
    originals = {batch.header.base_offset: batch for batch in model.batches}
    windows = [header.base_offset for window in model.windows().values() for header in window.batches]
    return Template(
        name=f"{number}, {kind.value} ({stop})",
        kind=kind,
        path=path,
        older=older,
        start_offset=start_offset,
        end_offset=model.end_offset,
        flushed_offset=flushed_offset,
        placed=tuple(placed),
        windows=tuple(originals[offset] for offset in windows if offset >= start_offset),
        older_batches=frozenset(before - {each.batch.data for each in placed}),
        known_lost=known_lost,
    )


class _CopyingDisk(PosixDisk):
    """Copies the log's directory just before the first compacted segment replaces its sources, as a kill there would leave it."""

    def __init__(self, copy: Path) -> None:
        super().__init__()
        self.copy = copy

    def rename(self, source: str, target: str) -> None:
        """Copy the directory at the first swap, then rename."""
        if source.endswith(SWAP_SUFFIX) and not self.copy.exists():
            shutil.copytree(Path(source).parent, self.copy)
        super().rename(source, target)


def _make(kind: Kind, log: PartitionLog, rng: random.Random) -> None:
    """Change a log into one of its kind."""
    if kind in (Kind.COMPACTED, Kind.SWAPPING):
        compact_once(log, now_ms=PASS_MS)
    if kind in (Kind.REMOVED, Kind.COMPACTED):
        log.truncate_prefix(rng.randrange(log.flushed_offset // 3, log.flushed_offset // 2), NOW_MS)
        scrub_all(log, now_ms=NOW_MS)


def _check_known(kind: Kind, placed: list[Placed], model: LogModel) -> None:
    """Check that every record is where it was appended, and that only compaction removed records."""
    records = {record.offset: (record.key, record.value) for batch in model.batches for record in batch.records}
    found = {record.offset: (record.key, record.value) for each in placed for record in each.batch.records}
    assert found.items() <= records.items(), "the template holds records that were not written"
    first_offset = placed[0].batch.header.base_offset
    if kind in (Kind.PLAIN, Kind.REMOVED):
        assert set(found) == {offset for offset in records if offset >= first_offset}, "the template has a gap"
    else:
        assert len(found) < len(records), "nothing was compacted"


def _place_recovered(path: Path, scratch: Path) -> list[Placed]:
    """Return the places of the batches after an opening has completed everything interrupted."""
    shutil.copytree(path, scratch)
    open_log(scratch).close(clean=False)
    placed = _place(scratch)
    shutil.rmtree(scratch)
    return placed


def _place(path: Path) -> list[Placed]:
    found: list[Placed] = []
    for file in sorted(path.glob("*.log")):
        content = file.read_bytes()
        for position, header in iter_batches(content):
            data = content[position : position + header.size_bytes]
            found.append(Placed(batch=ModelBatch.standing(data), file_name=file.name, position=position))
    return found


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def _find_damage(path: Path, lost: tuple[int, int]) -> None:
    """Let the log detect and save the damage, and stop it again."""
    log = open_log(path)
    with suppress(DataLossError):
        log.read(lost[0], 1)
    assert [(damaged.base_offset, damaged.end_offset) for damaged in log.damaged] == [lost], "the damage was not found"
    log.close(clean=False)
