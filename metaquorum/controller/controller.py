# SPDX-License-Identifier: Apache-2.0
"""The controller core of one leadership: commands in, decisions out.

Owns the dispatch and the state of one leadership: the appended image (committed image plus overlay), the sessions of brokers, and the
times of periodic work. Rules for the shell:

1. `decide` changes nothing. If its decision has records, append them as one batch to the quorum's log. Then call `replay` with each
of them (single or in `runs`) before the next `decide`. 2. Give the response only when everything that was appended before it or with
it is committed: a decision without records also depends on earlier appends. 3. When the committed image has replayed committed
records, call `committed`. 4. Call `hear` with the sign of life of a decision, whether its records were appended or not. 5. From
`deadline_ms` on, decide about `ExpireSessions`, and about each command of `due` unless one of its kind is still under way. 6. Drop
the object when the leadership ends.

It does not read a clock, draw random numbers, wait or log.
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
    """The controller during one leadership.

    Args:
        committed: the committed image, with everything from before this leadership; its owner continues to replay it.
        settings: times and limits.
        now_ms: monotonic time in milliseconds; the session of every broker starts now.
    """

    def __init__(self, committed: MetadataImage, *, settings: ControllerSettings, now_ms: int) -> None:
        self._settings = settings
        self._image = AppendedImage(committed)
        self._sessions = Sessions(settings.session_timeout_ms, now_ms=now_ms)
        self._sessions.grace(self._image.brokers(), now_ms)
        self._periodic = PeriodicWork(now_ms)

    @property
    def image(self) -> AppendedImage:
        """The image that decisions see. Callers must not change it."""
        return self._image

    def decide(self, command: Command, now_ms: int) -> Decision:
        """Return the decision about a command, without changing anything.

        Args:
            command: the command.
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
        """Note that the committed image has replayed everything below `next_offset` (exclusive)."""
        self._image.forget_committed(next_offset)

    def hear(self, heard: Heard, now_ms: int) -> None:
        """Store a sign of life of a broker."""
        self._sessions.hear(heard, now_ms)

    def session_of(self, broker: BrokerImage, now_ms: int) -> BrokerSession | None:
        """Return the session of a broker's registration; None without one."""
        return self._sessions.describe(broker, now_ms)

    def grace(self, now_ms: int) -> None:
        """Restart all sessions, because this process was paused and may have missed heartbeats."""
        self._sessions.grace(self._image.brokers(), now_ms)

    def deadline_ms(self) -> int:
        """Return when a session may end or periodic work may be due, in milliseconds."""
        periodic_ms = self._periodic.deadline_ms(self._image)
        expiry_ms = brokers.next_expiry_ms(self._image, self._sessions)
        return periodic_ms if expiry_ms is None else min(periodic_ms, expiry_ms)

    def due(self, now_ms: int) -> tuple[Command, ...]:
        """Return the periodic work that is due now; each is returned once for an interval."""
        return self._periodic.due(self._image, now_ms)

    def _may_grow(self, now_ms: int) -> bool:
        """Return True while further brokers may be about to register for the first time, as in a cluster that starts."""
        return now_ms < self._sessions.arrival_ms + self._settings.broker_arrival_ms

    def _bootstrap(self) -> Decision:
        known = self._image.feature_level(FEATURE_NAME) is not None
        level = FeatureLevelRecord(name=FEATURE_NAME, level=FEATURE_LEVEL)
        # An earlier controller may have fenced a broker and failed before it moved the leaders.
        return Decision(response=Done(), records=() if known else (level,), then=SweepPartitions())
