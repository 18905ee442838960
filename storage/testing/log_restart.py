# SPDX-License-Identifier: Apache-2.0
"""A restart of a log as an operation of the model test: everything is dropped, and the log is empty at another offset."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

from storage.errors import DiskFailedError, DiskFullError
from storage.testing.log_model import LogModel
from storage.testing.log_world import Operation, World, attempt
from storage.testing.sim_disk import Refusal

FULL_PLACES = (
    ("create_file", ".restart"),
    ("create_file", ".log"),
    ("create_file", "log-start"),
    ("sync_directory", ""),
)
"""Calls of a restart that find no space; only the first one leaves the log as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAt(Operation):
    """The log drops everything and restarts at any offset; sometimes the disk is full."""

    weight = 1
    crash_weight = 3
    offset: int
    refused: tuple[str, str, Refusal] | None = None

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; nothing may be in flight."""
        return world.is_writable and world.work is None and world.prefix is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> RestartAt:
        """See `Operation`; the offset is above the log, at its ends, inside it, or below it."""
        model = world.model
        start, end = model.start_offset, model.end_offset
        offset = rng.choice((end + rng.randrange(1, 9), end, rng.randint(start, end), start, rng.randint(0, start), 0))
        refused = (*rng.choice(FULL_PLACES), Refusal.FULL) if rng.randrange(8) == 0 else None
        return cls(offset=offset, refused=refused)

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        model.restarting_to = self.offset

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        if self.refused is not None:
            world.disk.refuse(*self.refused)
        outcome = attempt(partial(world.log.restart_at, self.offset))
        world.disk.forgive()
        if outcome is None and world.pass_rule is not None:
            # The pass under way is void. It may do nothing to the records that come now.
            world.pass_rule = replace(world.pass_rule, end_offset=0)
        return outcome

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`; after a failure inside the restart, an opening shows which of the two logs exists."""
        if outcome is DiskFailedError:
            assert self.refused is not None, "no fault was injected"
            return
        model.restarting_to = None
        if outcome is DiskFullError:
            assert self.refused is not None, "no fault was injected"
            return
        assert outcome is None, f"a restart answers {outcome}"
        model.restart(self.offset)

    def after(self, world: World, rng: random.Random) -> None:
        """Check that no look-up finds the old log; open a failed log again, as another process would."""
        if world.log.failure is not None and world.disk.failure is None:
            world.log.close(clean=False)
            world.recover(everything_kept=True)
        world.check_in_depth()
