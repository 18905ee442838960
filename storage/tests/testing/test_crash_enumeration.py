# SPDX-License-Identifier: Apache-2.0
"""Every recorded disk call, crashed there in every way, against the model: the quick form of `make crash`."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from storage.testing.crash_points import (
    SCENARIOS,
    CrashPoint,
    crash_and_check,
    crash_everywhere,
    record,
    recovery_points,
)
from storage.testing.log_world import World
from storage.testing.sim_tree import Crash

POINT_EVERY = 5
"""A test crashes every n-th point."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_crash_point_is_legal(scenario: Callable[[World], None]) -> None:
    """All lost, all kept, torn at sectors, a prefix: before some calls of the scenario; `make crash` runs all of them."""
    enumerated = crash_everywhere(scenario, SCENARIOS[scenario], seeds=1, point_every=POINT_EVERY)
    assert enumerated.crashes == 4 * enumerated.points.total() > 20


@pytest.mark.parametrize("how", Crash, ids=lambda how: how.name)
def test_recovery_is_crashed_too(how: Crash) -> None:
    """The recovery of a torn log is crashed before each of its calls, and the log is still legal."""
    scenario, settings = list(SCENARIOS.items())[2]
    point = record(scenario, settings)[-1]
    points = recovery_points(point, Crash.TEAR, settings, seed="3")
    assert len(points) > 5
    for number, again in enumerate(points):
        promised_only = _without_unflushed(again)
        crash_and_check(promised_only, how, settings, seed=str(number))


def _without_unflushed(point: CrashPoint) -> CrashPoint:
    """Return the state of a torn log, which may have lost everything unflushed."""
    model = point.model.copy()
    flushed = [batch for batch in model.batches if batch.header.next_offset <= model.flushed_offset]
    model.announced = [*model.batches[len(flushed) :], *model.announced]
    model.batches = flushed
    return CrashPoint(operation=point.operation, call=point.call, disk=point.disk, model=model)


def test_points_know_their_operation() -> None:
    """Points are counted for creating, appending, rolling, flushing, truncating, closing, recovering."""
    operations = {point.operation for scenario in SCENARIOS for point in record(scenario, SCENARIOS[scenario])}
    expected = {
        "create",
        "Append",
        "AppendAsFollower",
        "roll",
        "RunFlush",
        "EndFlush",
        "TruncateSuffix",
        "CloseAndOpen",
    }
    assert operations >= expected | {"recovery"}


def test_crash_of_a_copy_leaves_the_point_alone() -> None:
    """Each crash works on its own copy, so the same point can be crashed again in another way."""
    scenario, settings = next(iter(SCENARIOS.items()))
    point = record(scenario, settings)[-1]
    end_offset = point.model.end_offset
    crash_and_check(point, Crash.LOSE_ALL, settings, seed="0")
    assert point.model.end_offset == end_offset
    kept = crash_and_check(point, Crash.KEEP_ALL, settings, seed=str(random.Random(0).random()))
    assert kept.model.end_offset > end_offset
