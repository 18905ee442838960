# SPDX-License-Identifier: Apache-2.0
"""The log is a list: a hypothesis state machine applies the operations of `storage.testing` to a log and to its model.

The long form, without shrinking: `python -m storage.testing.model_run` (part of `make crash`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from storage.log.flush import FlushWork
from storage.testing import model_run
from storage.testing.builders import SMALL
from storage.testing.log_appends import Append, plain_batch
from storage.testing.log_faults import EVERYTHING, CloseAndOpen, CrashInside, CrashNow
from storage.testing.log_operations import BeginFlush, EndFlush, RunFlush, TruncateSuffix
from storage.testing.log_world import Operation, World
from storage.testing.sim_tree import Crash

EXAMPLES = 12
STEPS = 30
RUNS = 12
RUN_STEPS = 120

randoms = st.randoms(use_true_random=False)


class LogAgainstModel(RuleBasedStateMachine):
    """One rule for each operation and fault; each one compares log and model."""

    world: World

    @initialize(rng=randoms)
    def create(self, rng: random.Random) -> None:
        self.world = World.drawn(rng)


def _rule_of(kind: type[Operation]) -> Callable[..., Any]:
    def perform(self: LogAgainstModel, rng: random.Random) -> None:
        self.world.now_ms += rng.randrange(50)
        self.world.perform(kind.draw(self.world, rng), rng)

    perform.__name__ = kind.__name__
    return precondition(lambda self: kind.is_possible(self.world))(rule(rng=randoms)(perform))


for _kind in EVERYTHING:
    setattr(LogAgainstModel, _kind.__name__, _rule_of(_kind))


def test_log_is_a_list() -> None:
    """Appends, flushes, truncations, reads, restarts and crashes in any order: the log equals the list."""
    run_state_machine_as_test(
        LogAgainstModel,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_seeded_runs_are_clean() -> None:
    """The first seeds of the long run."""
    assert model_run.run_many(first_seed=0, runs=RUNS, steps=RUN_STEPS) is None


def test_same_seed_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing seed fails again in the same step, with the same operations before it."""
    monkeypatch.setattr(FlushWork, "run", _claim_without_syncing)
    failures = [model_run.run_many(first_seed=0, runs=RUNS, steps=RUN_STEPS) for _ in range(2)]
    assert failures[0] is not None
    assert str(failures[0]) == str(failures[1])
    assert f"seed {failures[0].seed}, step {failures[0].step}" in str(failures[0])
    # A flush that writes nothing leaves no epoch checkpoint; a clean close shows that as well as a crash.
    assert any(ending in str(failures[0]) for ending in ("CrashNow", "CrashInside", "CloseAndOpen"))


def _claim_without_syncing(work: FlushWork) -> None:
    work.is_done = True


def append(world: World, count: int = 1, *, size_bytes: int = 10) -> None:
    batch = plain_batch(count, size_bytes=size_bytes, timestamp_ms=1_000, producer=None)
    world.perform(Append(batch=batch, leader_epoch=0), random.Random(0))


def flush(world: World) -> None:
    for operation in (BeginFlush(), RunFlush(), EndFlush()):
        world.perform(operation, random.Random(0))


def test_cut_that_only_the_page_cache_has_is_synced_by_recovery() -> None:
    """A process is killed between truncating and syncing, right at the recovery point: the tail stays removed.

    Found by the model (seed 17): recovery saw a log that ends at the recovery point, and synced nothing.
    """
    rng = random.Random(0)
    world = World(replace(SMALL, segment_bytes=10**6))
    for _ in range(4):
        append(world)
    flush(world)
    cut = TruncateSuffix(to_offset=2)
    cut.announce(world.model)
    calls = _calls_before_the_last_sync(cut)
    world.perform_with_power_failure(cut, rng, before_call=calls, how=Crash.KEEP_ALL)
    assert world.log.log_end_offset == 2
    append(world, size_bytes=3)
    world.perform(CrashNow(how=Crash.LOSE_ALL), rng)
    assert world.log.log_end_offset == 2


def _calls_before_the_last_sync(operation: Operation) -> int:
    """Return the number of disk calls of the truncation of four flushed records before it syncs the log file."""
    counted: list[str] = []
    world = World(replace(SMALL, segment_bytes=10**6))
    for _ in range(4):
        append(world)
    flush(world)
    world.observer = lambda _, call: counted.append(f"{call.operation} {call.path}")
    world.perform(operation, random.Random(0))
    return max(number for number, call in enumerate(counted) if call.startswith("sync ") and call.endswith(".log"))


@pytest.mark.parametrize("how", Crash, ids=lambda how: how.name)
def test_every_crash_kind_inside_a_close_is_legal(how: Crash) -> None:
    """Power failures before each call of a clean close leave a legal log."""
    for before_call in range(14):
        world = World()
        for _ in range(6):
            append(world, 2)
        flush(world)
        append(world, 3)
        world.perform(
            CrashInside(operation=CloseAndOpen(clean=True), before_call=before_call, how=how), random.Random(1)
        )
