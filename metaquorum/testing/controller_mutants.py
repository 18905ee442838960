# SPDX-License-Identifier: Apache-2.0
"""Mutants of the controller: mistakes in elections and with staging topics, found by `sim_controller` under `controller_storm`.

Owns the list; `mutants` defines and applies a mutant.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metaquorum.controller import configs, elections, periodic, reassignment, topics
from metaquorum.testing.mutants import Mutant
from metaquorum.testing.options import controller_storm

_ControllerMutant = partial(Mutant, options=controller_storm)

STAGING_MUTANTS: Final = (
    _ControllerMutant(
        name="a staging topic does not grow with its topic",
        owner=topics,
        function="grow",
        old="beside = staging.staging_of(image, topic)",
        new="beside = None",
    ),
    _ControllerMutant(
        name="a staging topic outlives its topic",
        owner=topics,
        function="delete",
        old="gone = (topic,) if beside is None else (topic, beside)",
        new="gone = (topic,)",
    ),
    _ControllerMutant(
        name="a staging partition stays where it is when that of its topic moves",
        owner=reassignment,
        function="_one",
        old="staging = staging_of(cluster.image, topic)",
        new="staging = None",
    ),
    _ControllerMutant(
        name="a staging partition moves on when that of its topic does not",
        owner=reassignment,
        function="_one",
        old="if staging is None:",
        new="if staging is None or target is None:",
    ),
    _ControllerMutant(
        name="staged records last less than those of the topic",
        owner=configs,
        function="alter",
        old="name in FOLLOWED_CONFIGS",
        new="name not in FOLLOWED_CONFIGS",
    ),
)
"""Mutants of what ties a staging topic to its topic."""

CONTROLLER_MUTANTS: Final = (
    *STAGING_MUTANTS,
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
