# SPDX-License-Identifier: Apache-2.0
"""Some crash points of every named operation, and that this proof can fail; `make crash` takes all points."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import storage.compaction.owner
import storage.log.recovery
from integration_tests.crash.enumeration import IllegalStateError, crash_operation, record, spread
from integration_tests.crash.history import History, check_log, read_found
from integration_tests.crash.operations import COMPACT, LogOperation, flushed, keyed
from integration_tests.crash.run import ALL_OPERATIONS
from integration_tests.crash.stage import Point, Stage
from storage.log.log_start import LogStartFile
from storage.log.recovery_point import RecoveryPointFile
from storage.segment.damage import DamagedRanges
from storage.testing.sim_disk import SimCall, SimDisk, SimFile

POINTS_A_TEST = 4
"""A test crashes about so many points of an operation."""


@pytest.mark.parametrize("operation", ALL_OPERATIONS, ids=lambda operation: operation.name)
def test_operation_is_legal_wherever_it_is_cut(operation: LogOperation) -> None:
    """All lost, all kept, torn at sectors, a prefix: before some calls and after the end."""
    point_every = max(1, len(record(operation)) // POINTS_A_TEST)
    counted = crash_operation(operation, seeds=1, recovery_every=20, point_every=point_every)
    assert counted.points > POINTS_A_TEST
    assert counted.crashes >= 4 * POINTS_A_TEST


def test_operation_makes_the_calls_of_its_steps() -> None:
    """The points are the recorded disk calls, and include those that an operation names."""
    expected = {
        "log start": ("sync", "log-start"),
        "removal of .deleted files": ("remove", ".deleted"),
        "compaction pass": ("rename", ".swap"),
        "seals": ("rename", ".seal.tmp"),
        "producer snapshots": ("remove", ".snapshot"),
        "damage noted": ("rename", "damaged-ranges.tmp"),
        "partition deletion": ("remove_directory", ".removed"),
    }
    operations = {operation.name: operation for operation in ALL_OPERATIONS}
    for name, (call, path_part) in expected.items():
        points = record(operations[name])
        assert any(point.call.operation == call and path_part in point.call.path for point in points), name


def _only_data(file: LogStartFile) -> None:
    """Sync the log start, and forget its name."""
    if file.offset:
        opened = file._disk.open_file(file._path)
        opened.sync()
        opened.close()


def _not_at_all(*_: object, **__: object) -> None:
    """Replace a step that was forgotten."""


def _unlike_seals(file: SimFile) -> None:
    """Forget to sync exactly the compacted segments."""
    if not file.path.endswith(".cleaned"):
        _SYNC(file)


_SYNC = SimFile.sync

MUTANTS: dict[str, tuple[object, str, Callable[..., object], str]] = {
    "the name of the log start is not synced": (LogStartFile, "sync", _only_data, "damage removed"),
    "the recovery point is not lowered": (
        RecoveryPointFile,
        "write_synced",
        RecoveryPointFile.write,
        "truncation, flushed",
    ),
    "swaps are not completed": (storage.log.recovery, "finish_swaps", lambda *names: names[2], "compaction pass"),
    "a compacted segment is not synced": (SimFile, "sync", _unlike_seals, "compaction pass"),
    "the memory of lost windows is compacted": (
        storage.compaction.owner.LogCompaction,
        "_memory_offsets",
        lambda compaction: frozenset(
            batch.base_offset for _, state in compaction.log.producers.states() for batch in state.batches()
        ),
        "compaction pass",
    ),
    "the damage is not forgotten before the repaired segment has its name": (
        DamagedRanges,
        "forget_between",
        _not_at_all,
        "repair",
    ),
    "directories are not synced": (SimDisk, "sync_directory", _not_at_all, "partition deletion"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_forgotten_steps_are_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The enumeration can fail: each of these faults breaks a law at some crash point, which is named."""
    owner, name, replacement, operation_name = MUTANTS[mutant]
    operation = next(each for each in ALL_OPERATIONS if each.name == operation_name)
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(IllegalStateError, match=f"{operation_name}: crash before call"):
        crash_operation(operation, seeds=3, recovery_every=40)


def played(prepare: Callable[[Stage], None]) -> Stage:
    """Return a stage on which a log was prepared."""
    stage = Stage(COMPACT)
    prepare(stage)
    return stage


def judged(stage: Stage, change: Callable[[History], object]) -> None:
    """Judge the log of a stage by a history in which something is changed."""
    history = stage.history.copy()
    check_log(stage.log, history)
    change(history)
    with pytest.raises(AssertionError):
        check_log(stage.log, history)


def test_laws_see_what_is_wrong() -> None:
    """A record too much, too few, another value, another epoch, a wrong log start, a window that is not known."""
    stage = played(flushed)
    judged(stage, lambda history: history.cut(20))
    judged(stage, lambda history: history.records.update({3: history.records[4]}))
    judged(stage, lambda history: history.records.update({3: history.records[3]._replace(epoch=1)}))
    judged(stage, lambda history: setattr(history, "start_offset", 1))
    judged(stage, lambda history: history.sent.append(history.sent[-1]._replace(base_offset=1, next_offset=3)))
    stage.log.read(0, 1)


def test_laws_of_compaction_see_what_is_wrong() -> None:
    """A newest record that is missing, and a deleted value that is back."""
    stage = played(keyed)
    judged(stage, lambda history: history.records.update({32: history.records[32]._replace(value=None)}))
    stage.compact()
    gone = next(iter(set(stage.history.records) - {offset for offset, _ in _left(stage)}))
    judged(stage, lambda history: history.records.update({gone: history.records[gone]._replace(key=b"other")}))


def _left(stage: Stage) -> Sequence[tuple[int, object]]:
    return list(read_found(stage.log, stage.history).items())


def test_openings_are_crashed_at_evenly_spread_calls() -> None:
    """The spread has at most the given number of calls, beginning with the first."""
    points = [
        Point(call=SimCall(operation=str(number), path=""), disk=SimDisk(), history=History()) for number in range(20)
    ]
    assert [point.call.operation for point in spread(points, 6)] == ["0", "4", "8", "12", "16"]
    assert len(spread(points, 100)) == 20
    assert spread([], 6) == []
