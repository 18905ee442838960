# SPDX-License-Identifier: Apache-2.0
"""Mutants of the controller: mistakes in elections, found by `sim_controller` under `controller_storm`.

Owns the list; `mutants` defines and applies a mutant.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metaquorum.controller import elections, periodic
from metaquorum.testing.mutants import Mutant
from metaquorum.testing.options import controller_storm

_ControllerMutant = partial(Mutant, options=controller_storm)

CONTROLLER_MUTANTS: Final = (
    _ControllerMutant(
        name="first replicas never lead again by themselves",
        owner=periodic,
        function="elect_preferred",
        old="records, cursor = walk(image, command.cursor, _bounds(settings), lambda _: choose)",
        new="records, cursor = walk(image, command.cursor, _bounds(settings), lambda _: None)",
    ),
    _ControllerMutant(
        name="the last replica is taken for the preferred leader",
        owner=elections,
        function="preferred_change",
        old="preferred = partition.replicas[0]",
        new="preferred = partition.replicas[-1]",
    ),
    _ControllerMutant(
        name="a replica that may lack records leads where that is not allowed",
        owner=elections,
        function="rules_of",
        old="unclean=unclean == TRUE",
        new="unclean=True",
    ),
)
"""All mutants of the controller."""
