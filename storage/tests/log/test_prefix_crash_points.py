# SPDX-License-Identifier: Apache-2.0
"""Crashes before every disk call of removals at the head; the laws are those of `test_crash_points`, and two more.

6. Once `truncate_prefix` has returned, nothing below its offset is served again; before it is called, nothing is lost.
7. The next opening removes what a removal has left behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from lograft.wire.errors import BatchError

import storage.log.recovery
from storage.errors import StorageError
from storage.files.names import LOG_START_FILE
from storage.log.log_start import LogStartFile
from storage.testing.builders import SMALL, open_log
from storage.testing.sim_disk import Crash, SimDisk, SimFile
from storage.tests.testing.test_crash_points import DIRECTORY, POINT_EVERY, Run, crash_everywhere
from storage.types import LogSettings

SIZED = replace(SMALL, retention_bytes=500, file_delete_delay_ms=0)


def removals(run: Run) -> None:
    """Removals inside a batch, at a segment's end, across segments; between them appends, flushes and restarts."""
    for number in range(14):
        run.append(2, epoch=number // 5)
    run.flush()
    run.remove(7)
    run.remove(20)
    run.append(2, epoch=3)
    run.reopen(clean=False)
    run.remove(25)
    run.append(2, epoch=4)
    run.flush()
    run.log.remove_deleted(10**9)
    run.reopen(clean=True)
    run.remove(31)
    run.append(2, epoch=5)


def removals_of_everything(run: Run) -> None:
    """Removals up to the log end, flushed and not, also of the active segment; a crash may lose a tail below the log start."""
    for epoch in range(3):
        for _ in range(8):
            run.append_plain(2, epoch=epoch)
        run.remove(len(run.ledger.current))
        run.append_plain(2, epoch=epoch)
        run.flush()
    run.append_plain(1, epoch=3)
    run.remove(len(run.ledger.current))
    run.reopen(clean=True)
    run.append_plain(2, epoch=3)
    run.remove(len(run.ledger.current))


def retention(run: Run) -> None:
    """Old segments are removed during appends; everything below the high watermark is flushed."""
    for number in range(2):
        for _ in range(4):
            run.append(1, size_bytes=300, epoch=number)
        run.flush()
        run.append(1, epoch=number)
        if number % 2 == 1:
            assert run.log.roll_if_due(2 * SIZED.segment_ms)
        run.ledger.starting = len(run.ledger.flushed)
        run.log.apply_retention(len(run.ledger.flushed), 0)
        run.ledger.start = run.ledger.starting = run.log.log_start_offset
        run.log.remove_deleted(0)
    assert run.ledger.start > 0


def cuts_at_the_log_start(run: Run) -> None:
    """The batch that holds the log start is truncated, flushed or not: the log is empty at its start."""
    for _ in range(14):
        run.append_plain(2)
    run.flush()
    run.remove(9)
    run.truncate(9)
    run.append_plain(3, epoch=1)
    run.flush()
    run.append_plain(2, epoch=1)
    run.remove(13)
    run.truncate(13)
    run.append_plain(2, epoch=2)
    run.flush()


SCENARIOS: dict[Callable[[Run], None], LogSettings] = {
    removals: SMALL,
    removals_of_everything: SMALL,
    retention: SIZED,
    cuts_at_the_log_start: SMALL,
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_crash_point_reopens_to_a_legal_log(scenario: Callable[[Run], None]) -> None:
    """All lost, all kept, torn at sectors, a prefix: before some calls and after the end; `make crash` runs all of them."""
    assert crash_everywhere(scenario, SCENARIOS[scenario], point_every=POINT_EVERY) > 20


def _in_memory(file: LogStartFile, offset: int) -> None:
    """Move the log start without writing it."""
    file._offset = offset


def _without_sync(file: SimFile) -> None:
    """Skip the sync of exactly this file."""
    if LOG_START_FILE not in file.path:
        _sync(file)


_sync = SimFile.sync

MUTANTS: dict[str, tuple[object, str, object, Callable[[Run], None]]] = {
    "the log start is not written": (LogStartFile, "write_synced", _in_memory, removals),
    "the log start is not synced": (SimFile, "sync", _without_sync, removals),
    "a lost tail below the log start is not noticed": (
        storage.log.recovery,
        "restart_empty",
        lambda *_, **__: None,
        removals_of_everything,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_forgotten_steps_are_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: each of these faults breaks a law at some crash point."""
    owner, name, replacement, scenario = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, StorageError, BatchError)):
        crash_everywhere(scenario, SCENARIOS[scenario], point_every=3)


def test_a_log_start_that_a_dead_process_left_in_the_page_cache_is_synced_before_segments_go() -> None:
    """The process dies before the sync, the next one removes segments, then the power fails: nothing is missing."""
    run = Run(SMALL)
    for _ in range(18):
        run.append(2)
    run.flush()
    run.remove(4)
    forks: list[SimDisk] = []
    run.disk.on_call = lambda call: (
        forks.append(run.disk.fork()) if (call.operation, LOG_START_FILE in call.path) == ("sync", True) else None
    )
    run.remove(20)
    (disk,) = forks
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    assert open_log(disk, DIRECTORY, SMALL).log.log_start_offset == 20
    disk.sync_directory(DIRECTORY)
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    opened = open_log(disk, DIRECTORY, SMALL)
    assert opened.log.log_start_offset == 20
    assert opened.report.damaged == ()
