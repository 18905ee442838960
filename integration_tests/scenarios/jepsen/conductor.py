# SPDX-License-Identifier: Apache-2.0
"""Decides when which nemesis hurts and heals: a few at a time, at random by seed, with calm periods in which everything must recover.

Owns the schedule, the watch for servers that end by themselves, and for clients that hear nothing. Does not judge histories.

Connections die at random times among the other faults, and once more after each calm period without other faults. Then every client
must hear something again within its bound.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

from lograft.errors import LograftError
from lograft.types import ElectionType

from integration_tests.harness.scene import TOPIC
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.jepsen.nemeses import HalfOpen, Membership, Nemesis, Restart, World
from integration_tests.scenarios.jepsen.silence import SILENCE_S_MAX, Silence

ACTIVE_MAX = 2
"""Maximum nemeses that hurt at the same time."""
HURT_SHARE = 0.6
"""Probability that the next step hurts rather than heals, if both are possible."""
PAUSE_S = (1.0, 8.0)
"""Shortest and longest seconds between two steps."""
STEPS_TO_CALM = 12
"""Steps after which everything is healed and must recover."""
ADD_TIMEOUT_S = 120.0
EARLY_ENDS_MAX = 5
"""Number of servers that ended by themselves and were started again, after which the run ends."""


class Conductor:
    """Runs nemeses until a given time.

    Attributes:
        counts: number of actions, by nemesis.
        problems: a server ended, the cluster did not recover, or a client heard nothing for too long.
        silences_s: by client, the seconds without anything heard after each fault of connections alone.
    """

    def __init__(self, world: World, nemeses: Sequence[Nemesis]) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.silences_s: defaultdict[str, list[float]] = defaultdict(list)
        self._world = world
        self._nemeses = {nemesis.name: nemesis for nemesis in nemeses}

    def run(self, until_s: float) -> None:
        """Hurt and heal until a time of the monotonic clock, or until the cluster cannot be healed; then heal everything."""
        step = 0
        while time.monotonic() < until_s and len(self.problems) < EARLY_ENDS_MAX:
            step += 1
            if step % STEPS_TO_CALM == 0:
                if not self.calm():
                    return
                self._listen()
            else:
                self._step()
            self._world.scene.load.hold(min(until_s, time.monotonic() + self._world.rng.uniform(*PAUSE_S)))
            self._watch()
        if self.calm():
            self._listen()

    def calm(self) -> bool:
        """Heal everything and wait until the cluster is whole. Return whether it is."""
        scene = self._world.scene
        for name in sorted(self._world.active):
            self._heal(name)
        self._watch()
        try:
            scene.wait_in_sync()
            self._complete_membership()
            scene.load.wait_acknowledged(scene.partitions, time.monotonic())
        except TimeoutError as error:
            self.problems.append(f"not whole after healing: {error}")
            return False
        self._note("calm")
        return True

    def _listen(self) -> None:
        """Let connections die while all else is well, and wait until every client has heard something again."""
        nemesis = self._nemeses.get(HalfOpen.name)
        if nemesis is None:
            return
        load = self._world.scene.load
        # Every server should lead something before its connections die.
        with suppress(LograftError):
            self._world.admin.elect_leaders([TOPIC], election=ElectionType.PREFERRED)
        text = nemesis.hurt(self._world)
        # Values sent before the last connection died prove nothing.
        struck_s = time.monotonic()
        if not text:
            return
        self._note(f"{text}, and nothing else")
        silence = Silence(load, self._world.scene.partitions, struck_s)

        def is_heard() -> bool:
            load.check_alive()
            return silence.look()

        try:
            wait_for(is_heard, timeout_s=SILENCE_S_MAX, what="every client to hear something")
        except TimeoutError:
            # A client cannot hear anything while this process is paused.
            if not load.stood_still(struck_s, time.monotonic()):
                self.problems.append(f"heard nothing for {SILENCE_S_MAX} s: {', '.join(silence.silent)}; {text}")
        for name, heard_s in silence.heard_s.items():
            self.silences_s[name].append(heard_s)
        self.counts["half-open alone"] += 1
        self._note(f"heard again within {max(silence.heard_s.values(), default=0.0):.1f} s, silent: {silence.silent}")

    def _step(self) -> None:
        world = self._world
        idle = [name for name in self._nemeses if name not in world.active]
        can_hurt = len(world.active) < ACTIVE_MAX and bool(idle)
        if can_hurt and (not world.active or world.rng.random() < HURT_SHARE):
            name = world.rng.choice(idle)
            text = self._nemeses[name].hurt(world)
            if text:
                world.active.add(name)
                self.counts[name] += 1
                self._note(text)
        elif world.active:
            self._heal(world.rng.choice(sorted(world.active)))

    def _heal(self, name: str) -> None:
        self._note(self._nemeses[name].heal(self._world))
        self._world.active.discard(name)

    def _note(self, text: str) -> None:
        self._world.scene.load.history.note_fault(text)
        print(f"  {time.monotonic() - self._world.scene.load.started_s:6.1f} s  {text}", flush=True)

    def _watch(self) -> None:
        """Find servers that ended by themselves and start them again, so that the run can continue."""
        for name, process in self._world.processes().items():
            if not process.running and name not in self._world.taken:
                tail = process.log_tail().splitlines()[-3:]
                self.problems.append(f"{name} ended by itself: {' | '.join(tail)}")
                self._note(f"{name} ended by itself")
                process.start()
        for nemesis in self._nemeses.values():
            if isinstance(nemesis, Restart):
                self.problems += nemesis.problems
                nemesis.problems.clear()

    def _complete_membership(self) -> None:
        """Make every voter vote again."""
        for nemesis in self._nemeses.values():
            if isinstance(nemesis, Membership) and not nemesis.is_whole:
                self._wait_whole(nemesis)

    def _wait_whole(self, nemesis: Membership) -> None:
        def is_whole() -> bool:
            self._note(nemesis.heal(self._world))
            return nemesis.is_whole

        wait_for(is_whole, timeout_s=ADD_TIMEOUT_S, what="every voter to vote again", interval_s=1.0)
