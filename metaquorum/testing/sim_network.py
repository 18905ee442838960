# SPDX-License-Identifier: Apache-2.0
"""A network that delays, loses, repeats and reorders messages, and cuts links in one direction.

Owns only the links; it does not know what a message means. After `heal` it is fast and loses nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from metaquorum.testing.options import SimOptions
from metaquorum.testing.scheduler import Scheduler


class SimNetwork:
    """Carries messages between named nodes."""

    def __init__(self, scheduler: Scheduler, options: SimOptions, counts: Counter[str]) -> None:
        self._scheduler = scheduler
        self._options = options
        self._counts = counts
        self._rng: random.Random = scheduler.rng("network")
        self._cuts: dict[tuple[str, str], int] = {}
        self._is_healed = False

    def send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Carry one message; `deliver` runs no, one or two times."""
        rng = self._rng
        if self._is_healed:
            self._scheduler.after(rng.randint(0, 2), deliver)
            return
        if self._cuts.get((source, target)) or rng.random() < self._options.loss:
            self._counts["message lost"] += 1
            return
        self._scheduler.after(rng.randint(0, self._options.delay_ms_max), deliver)
        if rng.random() < self._options.duplication:
            self._counts["message repeated"] += 1
            self._scheduler.after(rng.randint(0, 4 * self._options.delay_ms_max), deliver)

    def cut(self, links: list[tuple[str, str]], duration_ms: int) -> None:
        """Lose everything on these links, each (source, target), for a time in milliseconds."""
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1

        def restore() -> None:
            for link in links:
                self._cuts[link] -= 1

        self._scheduler.after(duration_ms, restore)

    def heal(self) -> None:
        """End all faults for good."""
        self._is_healed = True
