# SPDX-License-Identifier: Apache-2.0
"""Periodic work of the controller: the return of preferred leaders, and unclean elections of partitions without a leader.

Owns the time at which each kind of work last started: soft state, like sessions. A new controller starts each kind one interval after
its take-over; its first sweep does everything urgent. The intervals are configs of the cluster; a new value counts from the last
start. Laws:

* When a broker was away, other brokers lead its partitions. That is not an error, so preferred leaders return at intervals and not at
  once. Only an existing leader is replaced, and only by a replica that has everything committed.
* Every change after which a partition could get a leader starts a sweep, which elects at once; periodic unclean elections are only a
  safety net. A partition with a leader keeps it. A partition whose topic does not allow unclean elections waits for a clean one.

Source: Kafka 4's ReplicationControlManager (maybeBalancePartitionLeaders, maybeElectUncleanLeaders); KIP-966; `docs/controller.md`
section "Elections by themselves".
"""

from __future__ import annotations

from functools import cache

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Command, Decision, Done, ElectPreferredLeaders, ElectUncleanLeaders
from metaquorum.controller.elections import ElectionRules, partition_change, preferred_change, rules_of
from metaquorum.controller.sessions import Sessions
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller.walks import Choose, SliceBounds, walk
from metaquorum.metadata.records import ConfigResource, PartitionChangeRecord
from metaquorum.metadata.state import TopicImage, example
from metaquorum.metadata.topic_configs import (
    LEADER_REBALANCE,
    REBALANCE_INTERVAL,
    TOPIC_CONFIGS,
    TRUE,
    UNCLEAN_ELECTION_INTERVAL,
)

_MS_PER_SECOND = 1_000


def cluster_value(image: AppendedImage, name: str) -> str:
    """Return the value of a config that only the cluster has: the set value, else the default."""
    return image.configs_of(ConfigResource.CLUSTER, "").get(name, TOPIC_CONFIGS[name].default)


class PeriodicWork:
    """The times of periodic work during one leadership.

    Args:
        now_ms: monotonic time in milliseconds at which the leadership began.
    """

    def __init__(self, now_ms: int) -> None:
        self._rebalanced_ms = now_ms
        self._elected_ms = now_ms

    def deadline_ms(self, image: AppendedImage) -> int:
        """Return when `due` must be called again, in milliseconds."""
        return min(self._next_rebalance_ms(image), self._next_election_ms(image))

    def due(self, image: AppendedImage, now_ms: int) -> tuple[Command, ...]:
        """Return the work that starts now. The next start is one interval later, whether there was anything to do or not."""
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


def elect_preferred(
    image: AppendedImage, sessions: Sessions, settings: ControllerSettings, command: ElectPreferredLeaders
) -> Decision:
    """Decide one slice; `then` of the decision is the next one, or None. If the config switches it off, it ends at its next slice.

    A broker without room for appends gets no leadership back, because it would resign again.
    """
    if cluster_value(image, LEADER_REBALANCE) != TRUE:
        return Decision(response=Done())
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead and sessions.has_room(broker.broker_id)}

    @cache
    def choose(members: bytes) -> PartitionChangeRecord | None:
        return preferred_change(b"", example(members), fit.__contains__)

    records, cursor = walk(image, command.cursor, _bounds(settings), lambda _: choose)
    then = None if cursor is None else ElectPreferredLeaders(cursor=cursor)
    return Decision(response=Done(), records=tuple(records), then=then)


def elect_unclean(image: AppendedImage, settings: ControllerSettings, command: ElectUncleanLeaders) -> Decision:
    """Decide one slice; `then` of the decision is the next one, or None. It ends early once every partition has a leader."""
    if not image.counts.leaderless:
        return Decision(response=Done())
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}

    @cache
    def needed(rules: ElectionRules) -> Choose:
        @cache
        def choose(members: bytes) -> PartitionChangeRecord | None:
            partition = example(members)
            if partition.leader_id is not None:
                return None
            # A replica with everything committed comes before any other. Lossy brokers are fenced, so they are not elected.
            return partition_change(b"", partition, fit.__contains__, rules=rules)

        return choose

    def choose_in(topic: TopicImage) -> Choose | None:
        rules = rules_of(image, topic)
        return needed(rules) if rules.unclean else None

    records, cursor = walk(image, command.cursor, _bounds(settings), choose_in)
    then = None if cursor is None else ElectUncleanLeaders(cursor=cursor)
    return Decision(response=Done(), records=tuple(records), then=then)


def _bounds(settings: ControllerSettings) -> SliceBounds:
    return SliceBounds(
        records=settings.max_walk_records, partitions=settings.max_walk_partitions, topics=settings.max_walk_topics
    )
