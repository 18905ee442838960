# SPDX-License-Identifier: Apache-2.0
"""Crashes every operation of the table before each call of the disk that it makes, in every way that the simulated disk offers.

After each crash the log is opened and judged (`history`), loses power at once (what an opening has shown is on stable storage), and
lives on: other records at the lost offsets, a flush, a pass of compaction, the end of the process, a clean stop. Every n-th
opening is itself crashed before its calls, up to a bound.
Source: docs/storage.md section 10; Pillai et al. (OSDI 2014).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from integration_tests.crash.history import SECOND_LIFE_EPOCH, History, check_log, check_opened, check_seals
from integration_tests.crash.operations import LogOperation
from integration_tests.crash.stage import LOG_DIRECTORY, Point, Stage, open_on
from storage.testing.sim_disk import SimCall, SimDisk
from storage.testing.sim_tree import Crash
from storage.types import LogSettings

RANDOM_KINDS = (Crash.TEAR, Crash.PREFIX)
"""Kinds of crash that leave something else for each seed."""
SECOND_CRASHES_MAX = 6
"""One opening is crashed before so many of its calls at most, spread evenly."""
SECOND_LIFE_BATCHES = 3


class IllegalStateError(AssertionError):
    """A law is broken after a crash; says which, and after which calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one operation came to.

    Attributes:
        points: calls of the disk that it makes, and its end.
        crashes: crashes of these, each opened and judged.
        second_crashes: crashes of the openings that followed.
    """

    points: int
    crashes: int
    second_crashes: int


def record(operation: LogOperation) -> list[Point]:
    """Play an operation; return the points before each of its calls, and the one after its end."""
    stage = Stage(operation.settings)
    operation.prepare(stage)
    stage.is_recording = True
    operation.act(stage)
    stage.record_end()
    return stage.points


def crash_operation(operation: LogOperation, *, seeds: int, recovery_every: int, point_every: int = 1) -> Counted:
    """Crash an operation everywhere.

    Args:
        operation: which.
        seeds: crashes of each random kind at each point, 1 or more.
        recovery_every: the opening after every n-th crash is crashed too; 1 or more.
        point_every: only every n-th point: for quick tests.

    Raises:
        IllegalStateError: a law is broken.
    """
    points = record(operation)
    crashes = second_crashes = 0
    for number, point in enumerate(points):
        if number % point_every and number != len(points) - 1:
            continue
        for how in Crash:
            for seed in range(seeds if how in RANDOM_KINDS else 1):
                name = f"{number}/{how.name}/{seed}"
                try:
                    crashes += 1
                    if operation.judge is not None:
                        operation.judge(*_crashed(point, how, name))
                        continue
                    judge(point, how, operation.settings, seed=name)
                    if crashes % recovery_every == 0:
                        second_crashes += crash_openings(point, how, operation.settings, seed=name)
                except Exception as error:
                    raise IllegalStateError(
                        f"{operation.name}: crash before call {number}, {point.call}, {how.name}, seed {seed}: "
                        f"{type(error).__name__}: {error}"
                    ) from error
    return Counted(points=len(points), crashes=crashes, second_crashes=second_crashes)


def crash_openings(point: Point, how: Crash, settings: LogSettings, *, seed: str) -> int:
    """Crash a point, open it, and crash that opening before some of its calls; return how often."""
    disk, history = _crashed(point, how, seed)
    again: list[Point] = []

    def on_call(call: SimCall) -> None:
        again.append(Point(call=call, disk=disk.fork(), history=history.copy()))

    disk.on_call = on_call
    open_on(disk, settings, now_ms=0)
    done = 0
    for second in spread(again, SECOND_CRASHES_MAX):
        # As a power failure and as the end of a process: what differs between them was tried above.
        for how_again in (Crash.TEAR, Crash.KEEP_ALL):
            try:
                judge(second, how_again, settings, seed=f"{seed}/{done}")
            except Exception as error:
                error.add_note(f"inside the opening, crash before {second.call}, {how_again.name}")
                raise
            done += 1
    return done


def spread(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points, evenly spread."""
    step = max(1, -(-len(points) // most))
    return list(points[::step])


def _crashed(point: Point, how: Crash, seed: str) -> tuple[SimDisk, History]:
    disk, history = point.disk.fork(), point.history.copy()
    disk.crash(how, random.Random(seed))
    if how is not Crash.KEEP_ALL:
        history.written_offset = history.flushed_offset
    return disk, history


def judge(point: Point, how: Crash, settings: LogSettings, *, seed: str) -> None:
    """Crash a copy of a point, open it, judge it, and let it live on.

    Raises:
        AssertionError: a law is broken.
        StorageError: the log does not open, or does not answer.
    """
    disk, history = _crashed(point, how, seed)
    opened = open_on(disk, settings, now_ms=0)
    check_opened(opened, disk.list_directory(LOG_DIRECTORY), history, everything_kept=True)
    history.settle(opened.log)
    # What an opening has shown is on stable storage.
    disk.crash(Crash.LOSE_ALL, random.Random(seed))
    second_life(disk, history, settings)


def second_life(disk: SimDisk, history: History, settings: LogSettings) -> None:
    """Open what is left, write other records at the lost offsets, end the process, stop cleanly; judge each."""
    stage = Stage(settings)
    stage.disk, stage.history = disk, history
    opened = open_on(disk, settings, now_ms=0)
    check_opened(opened, disk.list_directory(LOG_DIRECTORY), history, everything_kept=True)
    history.settle(opened.log)
    stage.log = opened.log
    is_known = history.knows_producer()
    for number in range(SECOND_LIFE_BATCHES):
        key = b"k%d" % number if settings.compact else None
        pairs = [(key, b"second life %d %d" % (number, at)) for at in range(3)]
        stage.put(pairs, epoch=SECOND_LIFE_EPOCH, producer=is_known)
    stage.flush()
    if settings.compact:
        stage.seal()
        stage.compact()
    check_seals(stage.log, history)
    check_log(stage.log, history)
    stage.close(clean=False)
    opened = open_on(disk, settings, now_ms=0)
    check_opened(opened, disk.list_directory(LOG_DIRECTORY), history, everything_kept=True)
    opened.log.close()
    opened = open_on(disk, settings, now_ms=0)
    assert opened.report.clean, "the log opened as after an unclean stop"
    check_opened(opened, disk.list_directory(LOG_DIRECTORY), history, everything_kept=True)
