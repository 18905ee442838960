# SPDX-License-Identifier: Apache-2.0
"""Named multi-step operations of a log. Each is prepared, then run on a recorded disk, and crashed at every disk call that it makes.

The crash points come from the recorded calls, not from a list. So a new step of an operation is a new point by itself. A new operation
is a line of `OPERATIONS`. `history` has the checks after a crash, and `enumeration` has the kinds of crash.
Source: docs/storage.md sections 3 to 8; docs/storage_format.md sections 3 to 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from integration_tests.crash.history import History
from integration_tests.crash.stage import Stage
from storage.log.flush import FlushWork
from storage.maintenance.flusher import run_groups
from storage.testing.builders import SMALL
from storage.testing.sim_disk import SimDisk
from storage.testing.sim_tree import Crash
from storage.types import LogSettings

Step = Callable[[Stage], None]

SETTINGS = replace(SMALL, segment_bytes=500, segment_ms=10_000, file_delete_delay_ms=0)
SIZED = replace(SETTINGS, retention_bytes=900)
AGED = replace(SETTINGS, retention_ms=5_000)
COMPACT = replace(SETTINGS, compact=True, min_cleanable_dirty_ratio=0.0, delete_retention_ms=150)
GROUPS_TO_SYNC = 64
"""Number of flush groups after which the recovery point is written with a sync."""
DAY_MS = 24 * 3_600 * 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOperation:
    """One line of the table.

    Attributes:
        name: the operation in words.
        prepare: creates the state before the operation; not recorded.
        act: the operation. Each of its calls is a crash point.
        settings: settings of the log.
        judge: judges a crashed disk, instead of opening the log.
    """

    name: str
    prepare: Step
    act: Step
    settings: LogSettings = SETTINGS
    judge: Callable[[SimDisk, History], None] | None = None


def nothing(stage: Stage) -> None:
    """Prepare nothing: the log does not exist yet."""


def create(stage: Stage) -> None:
    """Open a log that does not exist."""
    stage.open()


def flushed(stage: Stage) -> None:
    """Write several segments with two leader epochs, flush them, and append an unflushed tail."""
    stage.open()
    for epoch in range(2):
        stage.fill(7, epoch=epoch)
    stage.flush()
    stage.fill(2, epoch=1)


def roll(stage: Stage) -> None:
    """Append until segments are full, without a flush."""
    stage.fill(9, epoch=2)


def roll_by_age(stage: Stage) -> None:
    """Roll the active segment by its age."""
    stage.seal()
    stage.append(epoch=1)


def flush_group(stage: Stage) -> None:
    """Flush a group over several segments with a new leader epoch, while appends roll."""
    stage.fill(8, epoch=2)
    work = stage.begin_flush()
    stage.fill(5, epoch=3)
    work.run()
    stage.append(epoch=3)
    stage.end_flush(work)
    stage.flush()


def flush_together(stage: Stage) -> None:
    """Flush two groups with one sync of the file system, each with a new leader epoch."""
    stage.fill(4, epoch=2)
    other = Stage(stage.settings)
    other.open()
    work = stage.begin_flush()
    # The second group belongs to a log on another disk: the order of calls on this disk counts.
    other.append(epoch=5)
    items = [(each, _no_answer) for each in (work, other.begin_flush())]
    stage.fill(2, epoch=2)
    run_groups(items)
    stage.end_flush(work)


def _no_answer(work: FlushWork, error: BaseException | None) -> None:
    assert error is None, f"{work.directory}: {error}"


def many_groups(stage: Stage) -> None:
    """Run almost as many flush groups as come before a synced recovery point."""
    stage.open()
    for _ in range(GROUPS_TO_SYNC - 2):
        stage.append(1, size_bytes=1)
        stage.flush()


def recovery_points(stage: Stage) -> None:
    """Write the recovery point without a sync, then with one."""
    for number in range(4):
        stage.append(1, epoch=number)
        stage.flush()


def truncate_inside(stage: Stage) -> None:
    """Truncate above the flushed offset, inside the last segment; then append."""
    stage.truncate(stage.log.log_end_offset - 2)
    stage.append(epoch=2)
    stage.flush()


def truncate_deep(stage: Stage) -> None:
    """Truncate far below the flushed offset, across segments and an epoch, during a flush; then append."""
    work = stage.begin_flush()
    stage.truncate(6)
    work.run()
    stage.fill(4, epoch=3)
    stage.end_flush(work)
    stage.flush()


def truncate_at_log_start(stage: Stage) -> None:
    """Truncate the batch at the log start away, so that the log is empty at its start; then append."""
    stage.remove(9)
    stage.truncate(9)
    stage.fill(2, epoch=2)
    stage.flush()


def remove_inside(stage: Stage) -> None:
    """Move the log start inside a batch, then across segments."""
    stage.remove(3)
    stage.remove(13)
    stage.append(epoch=1)
    stage.flush()


def remove_everything(stage: Stage) -> None:
    """Move the log start to an unflushed log end, which removes the active segment too."""
    stage.remove(stage.log.log_end_offset)
    stage.fill(2, epoch=2)
    stage.flush()


def removals_and_restarts(stage: Stage) -> None:
    """Remove inside a batch, at a segment's end, across segments; append, flush, and restart cleanly and uncleanly in between."""
    stage.remove(7)
    stage.remove(20)
    stage.append(epoch=3)
    stage.close(clean=False)
    stage.open()
    stage.remove(25)
    stage.append(epoch=4)
    stage.flush()
    stage.log.remove_deleted(stage.now_ms)
    stage.close(clean=True)
    stage.open()
    stage.remove(31)
    stage.append(epoch=5)


def removals_of_everything(stage: Stage) -> None:
    """Remove repeatedly up to an unflushed log end. A crash may lose a tail below the log start."""
    for epoch in range(2, 5):
        stage.fill(8, epoch=epoch, producer=False)
        stage.remove(stage.log.log_end_offset)
        stage.append(epoch=epoch, producer=False)
        stage.flush()
    stage.append(1, epoch=5, producer=False)
    stage.remove(stage.log.log_end_offset)
    stage.close(clean=True)
    stage.open()
    stage.append(epoch=5, producer=False)
    stage.remove(stage.log.log_end_offset)


def retention_by_size(stage: Stage) -> None:
    """Remove old segments because the log has too many bytes."""
    assert stage.retain() > 0
    stage.append(epoch=2)
    stage.flush()
    stage.fill(6, epoch=2)
    stage.flush()
    assert stage.retain() > 0


def retention_by_age(stage: Stage) -> None:
    """Remove everything by age, after a roll of the active segment."""
    stage.seal()
    stage.now_ms += DAY_MS
    assert stage.retain() > 0
    stage.append(epoch=2)
    stage.flush()


def with_deleted(stage: Stage) -> None:
    """Remove segments whose renamed files still exist."""
    flushed(stage)
    stage.remove(14)


def remove_deleted(stage: Stage) -> None:
    """Delete the renamed files, and remove a second time."""
    assert stage.log.remove_deleted(stage.now_ms) > 0
    stage.remove(20)
    assert stage.log.remove_deleted(stage.now_ms) > 0
    stage.flush()


def keyed(stage: Stage) -> None:
    """Write sealed segments of an idempotent producer, with keys that are overwritten and deleted, and an unflushed tail."""
    stage.open()
    for number in range(16):
        value = None if number % 5 == 4 else b"%d" % number
        stage.put([(b"k%d" % (number % 4), value), (b"u%d" % (number % 7), b"x%d" % number)], epoch=number // 6)
    stage.seal()
    stage.put([(b"k1", b"not flushed")], epoch=3)


def compact(stage: Stage) -> None:
    """Run a pass: write and swap every group, then write the checkpoint."""
    stage.compact()


def keyed_again(stage: Stage) -> None:
    """Compact a log and write new dirty segments."""
    keyed(stage)
    stage.compact()
    for number in range(6):
        stage.put([(b"k%d" % (number % 4), b"again %d" % number), (b"d", None)], epoch=3)
    stage.seal()
    stage.now_ms += DAY_MS


def compact_and_go_on(stage: Stage) -> None:
    """Run a pass that merges segments and drops tombstones; then remove up to a log start inside its result, delete files, and roll."""
    stage.compact()
    stage.remove(5)
    stage.log.remove_deleted(stage.now_ms)
    stage.put([(b"k2", b"later")], epoch=4)
    stage.seal()
    stage.compact()


def compact_and_cut(stage: Stage) -> None:
    """Truncate everything behind the compacted part, so that its last segment is active again; then append."""
    compacted_end = stage.log.flushed_offset
    stage.compact()
    for number in range(6):
        stage.put([(b"k%d" % number, b"to be cut"), (b"u%d" % number, None)], epoch=4)
    stage.flush()
    stage.truncate(compacted_end)
    stage.put([(b"k1", b"after the cut"), (b"u1", b"too")], epoch=5)
    stage.flush()
    stage.seal()
    stage.compact()


def compact_beside_removal(stage: Stage) -> None:
    """Remove the sources of a group while it is written, so that the pass drops it."""
    work = stage.begin_pass()
    work.build()
    group = next(iter(work.groups()))
    cleaned = work.clean(group)
    assert cleaned is not None
    stage.remove(cleaned.sources[-1].end_offset)
    assert not stage.log.swap(cleaned, now_ms=stage.now_ms)
    stage.compact()


def snapshots(stage: Stage) -> None:
    """Roll more often than the four newest snapshots, close cleanly with one more snapshot, and open."""
    for _ in range(5):
        stage.fill(3, epoch=1)
        stage.seal()
    stage.close(clean=True)
    stage.open()
    stage.append(epoch=1)


def sealed(stage: Stage) -> None:
    """Seal segments that no scrub has checked."""
    flushed(stage)
    stage.seal()


def seal(stage: Stage) -> None:
    """Seal every segment by a scrub, truncate and remove sealed ones, and seal others."""
    stage.scrub()
    stage.truncate(20)
    stage.remove(9)
    stage.fill(3, epoch=2)
    stage.seal()
    stage.scrub()


def damaged(stage: Stage) -> None:
    """Damage a flushed batch of a sealed segment, not yet detected."""
    sealed(stage)
    # A process does not verify data that it wrote itself, so the log is opened again.
    stage.close(clean=True)
    stage.open()
    stage.damage(stage.history.sent[2])


def note_damage(stage: Stage) -> None:
    """Detect and note the damage by a read; then flush and shut down cleanly."""
    stage.notice()
    stage.append(epoch=2)
    stage.flush()
    stage.close(clean=True)
    stage.open()


def remove_damage(stage: Stage) -> None:
    """Detect the damage, and remove it with its segment by a higher log start."""
    stage.notice()
    stage.remove(13)
    stage.close(clean=True)
    stage.open()


def close_clean(stage: Stage) -> None:
    """Close cleanly with everything unflushed, open, and append."""
    stage.fill(3, epoch=2)
    stage.close(clean=True)
    stage.open()
    stage.append(epoch=2)
    stage.flush()
    stage.close(clean=True)


def torn(stage: Stage) -> None:
    """Fail the power, so that the log is torn."""
    flushed(stage)
    stage.fill(8, epoch=2)
    stage.remove(5)
    stage.crash(Crash.TEAR, seed=3)


def killed(stage: Stage) -> None:
    """End the process in the middle of everything."""
    flushed(stage)
    stage.fill(8, epoch=2)
    stage.remove(15)
    stage.crash(Crash.KEEP_ALL)


def recover(stage: Stage) -> None:
    """Open the log and append."""
    stage.open()
    stage.append(epoch=3)
    stage.flush()


OPERATIONS: tuple[LogOperation, ...] = (
    LogOperation(name="create a log", prepare=nothing, act=create),
    LogOperation(name="roll", prepare=flushed, act=roll),
    LogOperation(name="roll by age", prepare=flushed, act=roll_by_age),
    LogOperation(name="flush group", prepare=flushed, act=flush_group),
    LogOperation(name="flush groups together", prepare=flushed, act=flush_together),
    LogOperation(name="recovery point, 64th group", prepare=many_groups, act=recovery_points),
    LogOperation(name="truncation, not flushed", prepare=flushed, act=truncate_inside),
    LogOperation(name="truncation, flushed", prepare=flushed, act=truncate_deep),
    LogOperation(name="truncation at the log start", prepare=flushed, act=truncate_at_log_start),
    LogOperation(name="log start", prepare=flushed, act=remove_inside),
    LogOperation(name="log start at the log end", prepare=flushed, act=remove_everything),
    LogOperation(name="removals and restarts", prepare=flushed, act=removals_and_restarts),
    LogOperation(name="removals of everything", prepare=flushed, act=removals_of_everything),
    LogOperation(name="retention by size", prepare=flushed, act=retention_by_size, settings=SIZED),
    LogOperation(name="retention by age", prepare=flushed, act=retention_by_age, settings=AGED),
    LogOperation(name="removal of .deleted files", prepare=with_deleted, act=remove_deleted),
    LogOperation(name="compaction pass", prepare=keyed, act=compact, settings=COMPACT),
    LogOperation(name="compaction, merging", prepare=keyed_again, act=compact_and_go_on, settings=COMPACT),
    LogOperation(name="compaction, then truncation", prepare=keyed, act=compact_and_cut, settings=COMPACT),
    LogOperation(name="compaction beside log start", prepare=keyed, act=compact_beside_removal, settings=COMPACT),
    LogOperation(name="producer snapshots", prepare=flushed, act=snapshots),
    LogOperation(name="seals", prepare=sealed, act=seal),
    LogOperation(name="damage noted", prepare=damaged, act=note_damage),
    LogOperation(name="damage removed", prepare=damaged, act=remove_damage),
    LogOperation(name="clean close and opening", prepare=flushed, act=close_clean),
    LogOperation(name="opening of a torn log", prepare=torn, act=recover),
    LogOperation(name="opening after kill -9", prepare=killed, act=recover),
)
"""All operations. A new operation is added here."""
