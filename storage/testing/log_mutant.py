# SPDX-License-Identifier: Apache-2.0
"""What a mutant is: an engine with one decision wrong; `mutants` has them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from storage.testing.log_world import Operation, World


class Finder(Enum):
    """What finds a mutant."""

    MODEL = "model"
    CRASH_POINTS = "crash points"
    CORRUPTION = "corruption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong decision.

    Attributes:
        name: where: what.
        finder: the proof that finds it.
        patches: (owner, attribute, replacement) of each.
        scenario: the scenario that finds it, for crash points.
        focus: operations that the model draws several times as often (`model_run.FOCUS`): it finds it sooner.
        compact: whether the log of the model is a compacted one; None: as drawn.
    """

    name: str
    finder: Finder
    patches: tuple[tuple[object, str, object], ...]
    scenario: Callable[[World], None] | None = None
    focus: tuple[type[Operation], ...] = ()
    compact: bool | None = None
