# SPDX-License-Identifier: Apache-2.0
"""When the controller does what it does at intervals.

Owns the times at which each such work was begun: soft state, as sessions are. A new controller begins each of them one interval
after it took over; what is urgent, its first sweep finds. The intervals are configs of the cluster, and another value counts
from the last beginning on. Must not know what the works do.
"""

from __future__ import annotations

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Command
from metaquorum.controller.walk_commands import ElectPreferredLeaders, ElectUncleanLeaders
from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.topic_configs import (
    LEADER_REBALANCE,
    REBALANCE_INTERVAL,
    TOPIC_CONFIGS,
    TRUE,
    UNCLEAN_ELECTION_INTERVAL,
)

_MS_PER_SECOND = 1_000


def cluster_value(image: AppendedImage, name: str) -> str:
    """Return the value of a config that only the cluster has: what is set, else the default."""
    return image.configs_of(ConfigResource.CLUSTER, "").get(name, TOPIC_CONFIGS[name].default)


class PeriodicWork:
    """The works of one leadership that are begun at intervals.

    Args:
        now_ms: monotonic time in milliseconds at which the leadership began.
    """

    def __init__(self, now_ms: int) -> None:
        self._rebalanced_ms = now_ms
        self._elected_ms = now_ms

    def deadline_ms(self, image: AppendedImage) -> int:
        """Time at which `due` has something to say, or looks again whether it has."""
        return min(self._next_rebalance_ms(image), self._next_election_ms(image))

    def due(self, image: AppendedImage, now_ms: int) -> tuple[Command, ...]:
        """Return the works that begin now; the next time is an interval from now, whether there was something to do or not."""
        works: list[Command] = []
        if now_ms >= self._next_rebalance_ms(image):
            self._rebalanced_ms = now_ms
            if cluster_value(image, LEADER_REBALANCE) == TRUE:
                works.append(ElectPreferredLeaders())
        if now_ms >= self._next_election_ms(image):
            self._elected_ms = now_ms
            if image.counts.leaderless:
                works.append(ElectUncleanLeaders())
        return tuple(works)

    def _next_rebalance_ms(self, image: AppendedImage) -> int:
        return self._rebalanced_ms + int(cluster_value(image, REBALANCE_INTERVAL)) * _MS_PER_SECOND

    def _next_election_ms(self, image: AppendedImage) -> int:
        return self._elected_ms + int(cluster_value(image, UNCLEAN_ELECTION_INTERVAL))
