# SPDX-License-Identifier: Apache-2.0
"""Ends of a log's life as operations: clean close, unclean close, crashes of every kind, power failure inside a call."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from storage.errors import DiskFailedError
from storage.testing.log_model import LogModel
from storage.testing.log_operations import OPERATIONS
from storage.testing.log_world import Operation, World, attempt
from storage.testing.sim_tree import Crash

CALLS_MAX = 20
"""A power failure inside an operation comes before one of this many disk calls."""


def draw_recovery_crashes(rng: random.Random) -> tuple[Crash, ...]:
    """Return crashes for inside the recovery; most of the time none."""
    return tuple(rng.choice(list(Crash)) for _ in range(rng.choice((0, 0, 0, 1, 2))))


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseAndOpen(Operation):
    """The same process closes the log, cleanly or not, and opens it again."""

    weight = 3
    clean: bool

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; a clean close needs the flush group and the removal back."""
        return world.is_writable and world.work is None and world.prefix is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> CloseAndOpen:
        """See `Operation`."""
        return cls(clean=rng.randrange(3) > 0)

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        outcome = attempt(partial(world.log.close, clean=self.clean))
        assert outcome is not DiskFailedError, "no fault was injected"
        return outcome

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert outcome is None, f"close answers {outcome}"
        if self.clean:
            model.flushed_offset = model.end_offset

    def after(self, world: World, rng: random.Random) -> None:
        """Open the log."""
        world.recover(everything_kept=True, clean=self.clean)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashNow(Operation):
    """The power fails (or the process is killed) between two calls."""

    weight = 3
    how: Crash
    inside_recovery: tuple[Crash, ...] = ()

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return True

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> CrashNow:
        """See `Operation`."""
        return cls(how=rng.choice(list(Crash)), inside_recovery=draw_recovery_crashes(rng))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`; calls nothing."""

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`; the opening shows what is left."""

    def after(self, world: World, rng: random.Random) -> None:
        """Crash, and open the log."""
        world.crash(self.how, rng, inside_recovery=self.inside_recovery)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashInside(Operation):
    """The power fails inside another operation, before one of its disk calls."""

    weight = 5
    operation: Operation
    before_call: int
    how: Crash

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.is_writable

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> CrashInside:
        """See `Operation`."""
        possible = [each for each in (*OPERATIONS, CloseAndOpen) if each.is_possible(world)]
        (kind,) = rng.choices(possible, weights=[each.crash_weight for each in possible])
        before_call = rng.randrange(rng.choice((3, CALLS_MAX)))
        return cls(operation=kind.draw(world, rng), before_call=before_call, how=rng.choice(list(Crash)))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`; calls nothing before `after`."""

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""

    def after(self, world: World, rng: random.Random) -> None:
        """Perform the operation, and crash inside it."""
        world.perform_with_power_failure(self.operation, rng, before_call=self.before_call, how=self.how)


EVERYTHING: tuple[type[Operation], ...] = (*OPERATIONS, CloseAndOpen, CrashNow, CrashInside)
"""All operations and all faults; the model test draws from them."""
