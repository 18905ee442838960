# SPDX-License-Identifier: Apache-2.0
"""A mutant: an engine with one wrong decision; `mutants` lists all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from storage.testing.log_world import Operation, World


class Finder(Enum):
    """The proof that finds a mutant."""

    MODEL = "model"
    CRASH_POINTS = "crash points"
    CORRUPTION = "corruption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong decision.

    Attributes:
        name: where, and what is wrong.
        finder: the proof that finds it.
        patches: (owner, attribute, replacement) of each patch.
        scenario: the scenario that finds it, for crash points.
        focus: operations that the model draws several times as often (`model_run.FOCUS`), to find it sooner.
        compact: True or False: the model's log is compacted or not; None: drawn at random.
    """

    name: str
    finder: Finder
    patches: tuple[tuple[object, str, object], ...]
    scenario: Callable[[World], None] | None = None
    focus: tuple[type[Operation], ...] = ()
    compact: bool | None = None
