# SPDX-License-Identifier: Apache-2.0
"""Crashes every operation of the table before each of its disk calls, in every way that the simulated disk offers.

After each crash the log is opened and judged (`history`). It loses power at once, because what an opening has shown must be on stable
storage. Then it lives on: other records at the lost offsets, a flush, a compaction pass, the end of the process, a clean shutdown.
Every n-th opening is itself crashed before its calls, up to a limit.
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
"""Kinds of crash whose result depends on the seed."""
SECOND_CRASHES_MAX = 6
"""Maximum number of calls before which one opening is crashed, spread evenly."""
SECOND_LIFE_BATCHES = 3


class IllegalStateError(AssertionError):
    """A law is broken after a crash. The text says which one, and after which calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The counts of one operation.

    Attributes:
        points: its disk calls, plus its end.
        crashes: crashes at these points, each opened and judged.
        second_crashes: crashes of the openings after them.
    """

    points: int
    crashes: int
    second_crashes: int


def record(operation: LogOperation) -> list[Point]:
    """Run an operation. Return the points before each of its calls, and the one after its end."""
    stage = Stage(operation.settings)
    operation.prepare(stage)
    stage.is_recording = True
    operation.act(stage)
    stage.record_end()
    return stage.points


def crash_operation(operation: LogOperation, *, seeds: int, recovery_every: int, point_every: int = 1) -> Counted:
    """Crash an operation at every point.

    Args:
        operation: the operation.
        seeds: crashes of each random kind at each point, 1 or more.
        recovery_every: the opening after every n-th crash is crashed too; 1 or more.
        point_every: use only every n-th point, for quick tests.

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
    """Crash a point, open it, and crash that opening before some of its calls. Return the number of crashes."""
    disk, history = _crashed(point, how, seed)
    again: list[Point] = []

    def on_call(call: SimCall) -> None:
        again.append(Point(call=call, disk=disk.fork(), history=history.copy()))

    disk.on_call = on_call
    open_on(disk, settings, now_ms=0)
    done = 0
    for second in spread(again, SECOND_CRASHES_MAX):
        # As a power failure, and as the end of a process. Other kinds were tried above.
        for how_again in (Crash.TEAR, Crash.KEEP_ALL):
            try:
                judge(second, how_again, settings, seed=f"{seed}/{done}")
            except Exception as error:
                error.add_note(f"inside the opening, crash before {second.call}, {how_again.name}")
                raise
            done += 1
    return done


def spread(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points, evenly spread."""
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
        StorageError: the log does not open or does not answer.
    """
    disk, history = _crashed(point, how, seed)
    opened = open_on(disk, settings, now_ms=0)
    check_opened(opened, disk.list_directory(LOG_DIRECTORY), history, everything_kept=True)
    history.settle(opened.log)
    # What an opening has shown must be on stable storage.
    disk.crash(Crash.LOSE_ALL, random.Random(seed))
    second_life(disk, history, settings)


def second_life(disk: SimDisk, history: History, settings: LogSettings) -> None:
    """Open what is left, write other records at the lost offsets, end the process, shut down cleanly, and judge each step."""
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
