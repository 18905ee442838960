# SPDX-License-Identifier: Apache-2.0
"""The controller core of one leadership: commands in, decisions out.

Owns the dispatch and the state of one leadership: the appended image (committed image plus overlay), the sessions of
brokers, and the times of periodic work. Rules for the shell:

1. `decide` changes nothing. If its decision has records, append them as one batch in the quorum's log, then call
   `replay` with every one of them (single or in `runs`), before the next `decide`.
2. Give the response only when everything that was appended before or with it is committed: a decision without records
   also rests on what was appended before.
3. When committed records have been replayed on the committed image, call `committed`.
4. Call `hear` with the sign of life that a decision carries, appended or not.
5. From `deadline_ms` on, decide about `ExpireSessions`, and about what `due` returns unless such a work is still under way.
6. With the end of leadership, drop the object.

Must not read a clock, draw random numbers, wait or log.
Source: `docs/controller.md`.
"""

from __future__ import annotations

from typing import assert_never

from metaquorum.controller import (
    alter_partition,
    brokers,
    configs,
    elect_leaders,
    elections,
    features,
    periodic,
    reassignment,
    resignation,
    topics,
)
from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartition,
    Bootstrap,
    Command,
    CreatePartitions,
    CreateTopic,
    Decision,
    DeleteTopic,
    Done,
    ElectLeaders,
    ElectPreferredLeaders,
    ElectUncleanLeaders,
    ExpireSessions,
    FenceBroker,
    Heard,
    Heartbeat,
    ReassignPartitions,
    RegisterBroker,
    RemoveBroker,
    ResignLeadership,
    SweepPartitions,
    UpdateFeatureLevel,
)
from metaquorum.controller.periodic import PeriodicWork
from metaquorum.controller.sessions import BrokerSession, Sessions
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import FEATURE_LEVEL, FEATURE_NAME, FeatureLevelRecord
from metaquorum.metadata.runs import Run
from metaquorum.metadata.state import BrokerImage


class Controller:
    """One leadership of the controller.

    Args:
        committed: the committed image, with everything from before this leadership; its owner goes on replaying it.
        settings: times and limits.
        now_ms: monotonic time in milliseconds; every broker gets a whole session from here on.
    """

    def __init__(self, committed: MetadataImage, *, settings: ControllerSettings, now_ms: int) -> None:
        self._settings = settings
        self._image = AppendedImage(committed)
        self._sessions = Sessions(settings.session_timeout_ms, now_ms=now_ms)
        self._sessions.grace(self._image.brokers(), now_ms)
        self._periodic = PeriodicWork(now_ms)

    @property
    def image(self) -> AppendedImage:
        """What decisions see; to be read only."""
        return self._image

    def decide(self, command: Command, now_ms: int) -> Decision:
        """Decide about a command; changes nothing.

        Args:
            command: what is asked.
            now_ms: monotonic time in milliseconds.
        """
        match command:
            case Heartbeat():
                return brokers.heartbeat(self._image, self._sessions, command)
            case AlterPartition():
                return alter_partition.alter_partition(self._image, self._settings, command)
            case AlterConfigs():
                return configs.alter(self._image, self._settings, command)
            case CreateTopic():
                return topics.create(self._image, self._settings, command, may_grow=self._may_grow(now_ms))
            case CreatePartitions():
                return topics.grow(self._image, self._settings, command, may_grow=self._may_grow(now_ms))
            case DeleteTopic():
                return topics.delete(self._image, command)
            case AllocateProducerIds():
                return brokers.allocate_producer_ids(self._image, self._settings, command)
            case RegisterBroker():
                return brokers.register(self._image, self._sessions, self._settings, command, now_ms)
            case FenceBroker():
                return brokers.fence(self._image, command)
            case ExpireSessions():
                return brokers.expire(self._image, self._sessions, self._settings, now_ms)
            case SweepPartitions():
                return elections.sweep(self._image, self._settings, command)
            case ReassignPartitions():
                return reassignment.reassign(self._image, self._settings, command)
            case UpdateFeatureLevel():
                return features.update(self._image, self._settings, command)
            case ElectPreferredLeaders():
                return periodic.elect_preferred(self._image, self._sessions, self._settings, command)
            case ElectUncleanLeaders():
                return periodic.elect_unclean(self._image, self._settings, command)
            case RemoveBroker():
                return brokers.remove(self._image, self._sessions, self._settings, command, now_ms)
            case ResignLeadership():
                return resignation.resign_leadership(self._image, self._sessions, self._settings, command)
            case ElectLeaders():
                return elect_leaders.elect_leaders(self._image, self._settings, command)
            case Bootstrap():
                return self._bootstrap()
            case _:
                assert_never(command)

    def replay(self, record: Run, offset: int) -> None:
        """Apply the appended record at `offset`, or the run that begins there, to the overlay."""
        self._image.replay(record, offset)

    def committed(self, next_offset: int) -> None:
        """Learn that the committed image has replayed everything below `next_offset` (exclusive)."""
        self._image.forget_committed(next_offset)

    def hear(self, heard: Heard, now_ms: int) -> None:
        """Note a sign of life of a broker."""
        self._sessions.hear(heard, now_ms)

    def session_of(self, broker: BrokerImage, now_ms: int) -> BrokerSession | None:
        """What is known of a broker's session; None: nothing of this registration."""
        return self._sessions.describe(broker, now_ms)

    def grace(self, now_ms: int) -> None:
        """Start all sessions anew, because this process was held up and may have missed heartbeats."""
        self._sessions.grace(self._image.brokers(), now_ms)

    def deadline_ms(self) -> int:
        """Time at which `ExpireSessions` has something to do if nothing is heard until then, or `due` something to say."""
        periodic_ms = self._periodic.deadline_ms(self._image)
        expiry_ms = brokers.next_expiry_ms(self._image, self._sessions)
        return periodic_ms if expiry_ms is None else min(periodic_ms, expiry_ms)

    def due(self, now_ms: int) -> tuple[Command, ...]:
        """Return the works that begin now because their interval is over; each is returned once."""
        return self._periodic.due(self._image, now_ms)

    def _may_grow(self, now_ms: int) -> bool:
        """True while brokers that nobody knows yet may be about to register, as in a cluster that starts."""
        return now_ms < self._sessions.arrival_ms + self._settings.broker_arrival_ms

    def _bootstrap(self) -> Decision:
        known = self._image.feature_level(FEATURE_NAME) is not None
        level = FeatureLevelRecord(name=FEATURE_NAME, level=FEATURE_LEVEL)
        # An earlier controller may have fenced a broker and fallen before it had moved the leaders.
        return Decision(response=Done(), records=() if known else (level,), then=SweepPartitions())
