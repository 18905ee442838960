# SPDX-License-Identifier: Apache-2.0
"""Log directories on a real file system whose every byte is known: what the corruption run makes its copies from.

Each template is a log after one kind of stop, beside an older state of the same directory (before a truncation and other
appends at the same offsets), from which stale sectors are taken.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lograft.wire.batch import check_batch, iter_batches, read_header
from lograft.wire.limits import MAX_BATCH_BYTES

from storage.env_posix import PosixDisk
from storage.errors import DataLossError
from storage.log import LogSettings, PartitionIdentity, PartitionLog
from storage.testing.log_appends import draw_batch, draw_epoch
from storage.testing.log_model import LogModel, ModelBatch

SETTINGS = LogSettings(segment_bytes=6_000, index_interval_bytes=400, segment_ms=10**15)
IDENTITY = PartitionIdentity(topic_id=bytes(range(16)), partition=3)
NOW_MS = 5_000
BATCHES_BEFORE = 25
BATCHES_AFTER = 25
UNFLUSHED_BATCHES = 6
STOPS = ("clean", "killed", "killed with an unflushed group", "killed with known damage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A batch and where it stands: its segment file, and its first byte there."""

    batch: ModelBatch
    file_name: str
    position: int

    @property
    def end_position(self) -> int:
        """The byte after its last one."""
        return self.position + len(self.batch.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One stopped log.

    Attributes:
        name: how it stopped, and its number.
        path: its directory.
        older: an older state of the directory.
        model: its batches, and how far they are flushed.
        placed: its batches with their places, ascending.
        older_batches: bytes of batches of the older state that were truncated later.
        known_lost: damaged ranges from before, (first offset, end offset).
    """

    name: str
    path: Path
    older: Path
    model: LogModel
    placed: tuple[Placed, ...]
    older_batches: frozenset[bytes]
    known_lost: tuple[tuple[int, int], ...]


def open_log(path: Path) -> PartitionLog:
    """Open a log on the real disk."""
    return PartitionLog.open(PosixDisk(), str(path), settings=SETTINGS, now_ms=NOW_MS, identity=IDENTITY).log


def append_drawn(log: PartitionLog, model: LogModel, rng: random.Random, count: int) -> None:
    """Append so many drawn batches to log and model."""
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
    stop = STOPS[number % len(STOPS)]
    path, older, model = root / f"template-{number}", root / f"older-{number}", LogModel()
    log = open_log(path)
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
    model.flushed_offset = model.end_offset
    if stop == "killed with an unflushed group":
        append_drawn(log, model, rng, UNFLUSHED_BATCHES)
    log.close(clean=stop == "clean")
    placed = _place(path)
    known_lost: tuple[tuple[int, int], ...] = ()
    if stop == "killed with known damage":
        victim = placed[len(placed) // 3]
        _flip(path / victim.file_name, victim.end_position - 1)
        known_lost = ((victim.batch.header.base_offset, victim.batch.header.next_offset),)
        _find_damage(path, known_lost[0])
    assert [each.batch.data for each in placed] == [batch.data for batch in model.batches], "the template is not known"
    return Template(
        name=f"{number} ({stop})",
        path=path,
        older=older,
        model=model,
        placed=tuple(placed),
        older_batches=frozenset(before - {batch.data for batch in model.batches}),
        known_lost=known_lost,
    )


def _place(path: Path) -> list[Placed]:
    found: list[Placed] = []
    for file in sorted(path.glob("*.log")):
        content = file.read_bytes()
        for position, header in iter_batches(content):
            data = content[position : position + header.size_bytes]
            batch = ModelBatch.stamped(data, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
            found.append(Placed(batch=batch, file_name=file.name, position=position))
    return found


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def _find_damage(path: Path, lost: tuple[int, int]) -> None:
    """Let the log find and save the damage, and stop it again."""
    log = open_log(path)
    with suppress(DataLossError):
        log.read(lost[0], 1)
    assert [(damaged.base_offset, damaged.end_offset) for damaged in log.damaged] == [lost], "the damage was not found"
    log.close(clean=False)
