# SPDX-License-Identifier: Apache-2.0
"""Crashes a scenario before every recorded disk call, in every way that the simulated disk offers.

The points come from the calls that the simulated disk recorded, not from a list, so a new step of the engine is a new
point. After each crash the log must be legal (`World.recover`), and must not change when the power fails again at once.
It must also continue: with other batches at the lost offsets, a flush, a kill, a clean restart. Recoveries are crashed
in the same way.

A new operation of the log is proven by a scenario here: a function that performs operations on a `World`.
Source: docs/storage.md section 10; Pillai et al. (OSDI 2014).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from storage.testing.builders import SMALL, ProducerStamp
from storage.testing.log_appends import Append, AppendAsFollower, plain_batch
from storage.testing.log_faults import CloseAndOpen, CrashNow
from storage.testing.log_model import LogModel
from storage.testing.log_operations import AssignEpoch, BeginFlush, EndFlush, RunFlush, TruncateSuffix
from storage.testing.log_restart import RestartAt
from storage.testing.log_world import World
from storage.testing.sim_disk import SimCall, SimDisk
from storage.testing.sim_tree import Crash
from storage.types import LogSettings

RANDOM_KINDS = (Crash.TEAR, Crash.PREFIX)
"""Kinds of crash whose result depends on the seed."""
SECOND_LIFE_APPENDS = 3
END = "the end of the scenario"
LARGE = replace(SMALL, segment_bytes=10_000)
TINY = replace(SMALL, segment_bytes=400)

_RNG = random.Random(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """The disk and the model right before one call.

    Attributes:
        operation: name of the log's operation.
        call: the call that does not happen.
        disk: a copy.
        model: a copy.
    """

    operation: str
    call: SimCall
    disk: SimDisk
    model: LogModel


class IllegalLogError(AssertionError):
    """A log breaks a law, most likely after a crash; the message names the call and how to reproduce it."""


def append(world: World, count: int, *, size_bytes: int = 10, epoch: int = 0) -> None:
    """Append a batch of producer 1 that continues its sequence, like a client that resends."""
    window = world.model.windows().get(1)
    stamp = ProducerStamp(producer_id=1, base_sequence=window.next_sequence if window is not None else 0)
    batch = plain_batch(count, size_bytes=size_bytes, timestamp_ms=1_000 + world.model.end_offset, producer=stamp)
    world.perform(Append(batch=batch, leader_epoch=max(epoch, world.model.last_epoch or 0)), _RNG)


def flush(world: World) -> None:
    """Flush everything."""
    for operation in (BeginFlush(), RunFlush(), EndFlush()):
        if operation.is_possible(world):
            world.perform(operation, _RNG)


def truncate(world: World, to_offset: int) -> None:
    """Drop the tail."""
    world.perform(TruncateSuffix(to_offset=to_offset), _RNG)


def appends_and_flushes(world: World) -> None:
    """Small batches, several in one sector, in groups of different sizes."""
    for group in range(1, 5):
        for _ in range(group):
            append(world, 2)
        flush(world)
    append(world, 3)
    flush(world)
    append(world, 3)


def large_batches(world: World) -> None:
    """Batches over several sectors, five in a group."""
    for _ in range(3):
        for _ in range(5):
            append(world, 1, size_bytes=450)
        flush(world)
    for _ in range(5):
        append(world, 1, size_bytes=450)


def rolls_without_flush(world: World) -> None:
    """Several segments are dirty at once at the flush, or at the crash."""
    for number in range(14):
        append(world, 2, epoch=number // 6)
    flush(world)
    for number in range(14):
        append(world, 2, epoch=2 + number // 6)


def truncations(world: World) -> None:
    """Truncate inside a segment, across segments, below the flushed offset and under a flush; then append at these offsets."""
    for _ in range(16):
        append(world, 2)
    flush(world)
    append(world, 2, epoch=1)
    truncate(world, 32)
    append(world, 2, epoch=2)
    world.perform(BeginFlush(), _RNG)
    truncate(world, 7)
    world.perform(RunFlush(), _RNG)
    for _ in range(9):
        append(world, 2, epoch=3)
    world.perform(EndFlush(), _RNG)
    flush(world)
    truncate(world, 0)
    append(world, 1, epoch=4)
    flush(world)


def restarts(world: World) -> None:
    """Clean and unclean restarts between appends."""
    append(world, 2)
    flush(world)
    append(world, 2)
    world.perform(CloseAndOpen(clean=True), _RNG)
    append(world, 2, epoch=1)
    world.perform(CloseAndOpen(clean=False), _RNG)
    append(world, 2, epoch=2)
    flush(world)
    world.perform(CrashNow(how=Crash.KEEP_ALL), _RNG)
    world.perform(AssignEpoch(leader_epoch=3), _RNG)
    for _ in range(8):
        append(world, 2, epoch=3)
    world.perform(CloseAndOpen(clean=True), _RNG)


def follower(world: World) -> None:
    """A follower appends regions of several batches with one write each."""
    for number in range(6):
        batches = [
            plain_batch(2, size_bytes=20 * each, timestamp_ms=1_000, producer=None) for each in range(1, 3 + number % 2)
        ]
        region = AppendAsFollower(batches=tuple(batches), leader_epochs=tuple([number // 2] * len(batches)))
        world.perform(region, _RNG)
        if number % 2:
            flush(world)


def restart(world: World, offset: int) -> None:
    """Drop everything and restart at an offset."""
    world.perform(RestartAt(offset=offset), _RNG)


def restarts_anew(world: World) -> None:
    """Restart above the log, below its start and inside it, again and again; then append at these offsets."""
    for _ in range(9):
        append(world, 2)
    flush(world)
    append(world, 2, epoch=1)
    restart(world, 40)
    for _ in range(7):
        append(world, 2, epoch=3)
    flush(world)
    restart(world, 4)
    for number in range(5):
        append(world, 2, epoch=number % 2)
        flush(world)
        for _ in range(3):
            append(world, 2, epoch=4)
        restart(world, world.model.start_offset + 2)
    append(world, 2, epoch=1)
    world.perform(CloseAndOpen(clean=True), _RNG)
    restart(world, world.model.start_offset)
    restart(world, 0)
    append(world, 2)
    flush(world)


SCENARIOS: dict[Callable[[World], None], LogSettings] = {
    appends_and_flushes: TINY,
    large_batches: LARGE,
    rolls_without_flush: SMALL,
    truncations: SMALL,
    restarts: SMALL,
    follower: SMALL,
    restarts_anew: SMALL,
}
"""All scenarios, with the settings of their log; a new one is added here."""


def record(scenario: Callable[[World], None], settings: LogSettings) -> list[CrashPoint]:
    """Run a scenario; return the points before each of its calls, and one after its end.

    Raises:
        IllegalLogError: the log broke a law before any crash.
    """
    points: list[CrashPoint] = []

    def observe(world: World, call: SimCall) -> None:
        if call.path == "/" or (call.operation, call.path) == ("make_directory", "/data"):
            # The parent directory of the log is not part of it.
            return
        is_roll = world.doing.startswith("Append") and (call.operation, call.path[-4:]) != ("append", ".log")
        is_end = call.operation == END
        points.append(
            CrashPoint(
                operation=END if is_end else "roll" if is_roll else world.doing,
                call=call,
                disk=world.disk.fork(),
                model=world.model.copy(),
            )
        )

    world = World(settings, observe)
    try:
        scenario(world)
    except Exception as error:
        raise IllegalLogError(f"{scenario.__name__}, without a crash: {type(error).__name__}: {error}") from error
    observe(world, SimCall(operation=END, path=""))
    return points


def crash_and_check(point: CrashPoint, how: Crash, settings: LogSettings, *, seed: str) -> World:
    """Crash a copy of a point, open it, and continue to use it.

    Raises:
        IllegalLogError: the log breaks a law.
    """
    rng = random.Random(f"{seed}/{how.name}")
    disk = point.disk.fork()
    disk.crash(how, rng)
    world = World.of_crashed(settings, disk, point.model.copy())
    try:
        world.recover(everything_kept=how is Crash.KEEP_ALL)
        # What an opening has shown is on stable storage.
        world.perform(CrashNow(how=Crash.LOSE_ALL), rng)
        for _ in range(SECOND_LIFE_APPENDS):
            append(world, 3, size_bytes=5, epoch=99)
        flush(world)
        world.perform(CrashNow(how=Crash.KEEP_ALL), rng)
        world.perform(CloseAndOpen(clean=True), rng)
    except Exception as error:
        raise IllegalLogError(
            f"{point.operation}, crash before {point.call}, {how.name}, seed {seed}: {type(error).__name__}: {error}"
        ) from error
    return world


def recovery_points(point: CrashPoint, how: Crash, settings: LogSettings, *, seed: str) -> list[CrashPoint]:
    """Crash a copy of a point and open it; return the points before each call of that recovery."""
    disk = point.disk.fork()
    disk.crash(how, random.Random(f"{seed}/{how.name}"))
    world = World.of_crashed(settings, disk, point.model.copy())
    points: list[CrashPoint] = []

    def observe(_: World, call: SimCall) -> None:
        points.append(CrashPoint(operation="recovery", call=call, disk=disk.fork(), model=point.model.copy()))

    world.observer = observe
    world.recover(everything_kept=how is Crash.KEEP_ALL)
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumerated:
    """Counts of an enumeration.

    Attributes:
        points: number of disk calls for each operation.
        crashes: number of crashes, each opened and checked.
    """

    points: Counter[str]
    crashes: int


def crash_everywhere(
    scenario: Callable[[World], None],
    settings: LogSettings,
    *,
    seeds: int = 2,
    recovery_every: int | None = None,
    point_every: int = 1,
) -> Enumerated:
    """Run a scenario and crash it before every call and after its end, in every way.

    Args:
        scenario: the scenario.
        settings: settings of the log.
        seeds: crashes of each random kind at each point.
        recovery_every: at every n-th point, also crash the recovery before each of its calls; None: never.
        point_every: crash and count only every n-th point, for quick tests.

    Raises:
        IllegalLogError: a crash left an illegal log.
    """
    points: Counter[str] = Counter()
    crashes = 0
    for number, point in enumerate(record(scenario, settings)):
        if number % point_every:
            continue
        points[point.operation] += 1
        for how in Crash:
            for seed in range(seeds if how in RANDOM_KINDS else 1):
                name = f"{number}/{seed}"
                crash_and_check(point, how, settings, seed=name)
                crashes += 1
                if recovery_every is None or number % recovery_every:
                    continue
                for again in recovery_points(point, how, settings, seed=name):
                    points[again.operation] += 1
                    # As a power failure and as the end of a process; the kinds in between were tried above.
                    for how_again in (Crash.TEAR, Crash.KEEP_ALL):
                        crash_and_check(_of_second_crash(again, how, how_again), how_again, settings, seed=name)
                        crashes += 1
    return Enumerated(points=points, crashes=crashes)


def _of_second_crash(point: CrashPoint, how: Crash, how_again: Crash) -> CrashPoint:
    """Return a point whose model guarantees only what both crashes left."""
    if how is Crash.KEEP_ALL or how_again is not Crash.KEEP_ALL:
        return point
    model = point.model.copy()
    model.announced = [*model.batches[_flushed_count(model) :], *model.announced]
    model.batches = model.batches[: _flushed_count(model)]
    return replace(point, model=model)


def _flushed_count(model: LogModel) -> int:
    return sum(1 for batch in model.batches if batch.header.next_offset <= model.flushed_offset)
