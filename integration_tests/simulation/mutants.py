# SPDX-License-Identifier: Apache-2.0
"""Mutants of brokers, controller and clients: known mistakes that the world simulator must find, or its silence proves nothing.

Owns the list; `metaquorum.testing.mutants` says what a mutant is and makes the mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from integration_tests.simulation.options import WorldOptions
from metaquorum.testing.mutants import Mutant


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldMutant(Mutant):
    """A mistake, and what happens in the seeds that hunt it; nothing: what the seed draws."""

    def world_options(self, seed: int) -> WorldOptions | None:
        """Options of a seed."""
        return None


MUTANTS: Final[tuple[WorldMutant, ...]] = ()
