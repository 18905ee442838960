# SPDX-License-Identifier: Apache-2.0
"""The controllers of the simulated quorum: the real core on each leader, with brokers and an operator that keep it busy.

Owns the work of a shell for the core (`docs/controller.md` section "Shell"), without callers, and the committed images. Laws, checked
with each committed record on the state before it, whichever leadership wrote it:

* only a broker that may lead is elected;
* one that may lack records is elected only where that is allowed;
* a leader that may lead is replaced only by the first replica, in sync, or in a reassignment by a replica in sync;
* a staging topic fits its topic: partitions, replicas to which they move, durability. So does none without a topic.

And when everything is healed, with intervals of a second: every partition has a leader, its first replica if that one is in sync.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from metaquorum.controller.commands import (
    PERIODIC_COMMANDS,
    AlterConfigs,
    AlterPartition,
    Bootstrap,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ExpireSessions,
    FenceBroker,
    Heartbeat,
    IsrProposal,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    ResourceChanges,
)
from metaquorum.controller.controller import Controller
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller.staging import FOLLOWED_CONFIGS
from metaquorum.metadata import record_codec
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    ConfigResource,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.state import PartitionImage, TopicImage
from metaquorum.metadata.topic_configs import (
    FLUSH_POLICY,
    LEADER_REBALANCE,
    MIN_INSYNC_REPLICAS,
    REBALANCE_INTERVAL,
    UNCLEAN_ELECTION,
    UNCLEAN_ELECTION_INTERVAL,
)
from metaquorum.metadata.topic_names import staged_topic_id, staging_topic
from metaquorum.raft.effects import Activate
from metaquorum.raft.types import Offset, QuorumEpoch, ReplicaKey
from metaquorum.testing.invariants import require
from metaquorum.testing.options import SimOptions
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.sim_log import SimBatch
from metaquorum.testing.sim_node import SimNode

BROKERS: Final = (1, 2, 3, 4)
TOPICS: Final = ("orders", "payments")
PARTITIONS: Final = 4
REPLICAS: Final = 3

STAGED: Final = "ledger"
"""A topic with a staging topic. Both grow, move and go; the other topics stay."""

STAGED_PARTITIONS_MAX: Final = 6
"""Partitions at which it is not grown any more."""

STAGED_SHARE: Final = 0.2
"""Share of the turns in which something happens to it."""

QUICK_SHARE: Final = 0.7
"""Share of the runs with a controller whose intervals are a second from the start."""

SETTINGS: Final = ControllerSettings()

_QUICK: Final[tuple[tuple[str, str | None], ...]] = ((REBALANCE_INTERVAL, "1"), (UNCLEAN_ELECTION_INTERVAL, "1000"))
_HEALED: Final = (*_QUICK, (LEADER_REBALANCE, "true"))
"""Configs of the cluster with which everything settles within seconds."""


class ControlledWorld(Protocol):
    """The part of the world that controllers need."""

    scheduler: Scheduler
    options: SimOptions
    counts: Counter[str]
    is_healed: bool

    def propose_at(self, node: SimNode, quorum_epoch: QuorumEpoch, record_count: int) -> tuple[Offset, str] | None:
        """Append a batch at a leader. Return its offset and its payload, or None if it is refused."""
        ...


@dataclass(slots=True)
class _Leadership:
    """One leadership; `controller` is None until the node has everything from before it."""

    node: SimNode
    quorum_epoch: QuorumEpoch
    start_offset: Offset
    controller: Controller | None = None
    work: deque[Command] = field(default_factory=deque[Command])
    waiting_offset: int = 0
    driven_ms: int = 0


class SimControllers:
    """All controllers of one run; none in a run without `controller_every_ms`."""

    def __init__(self, world: ControlledWorld) -> None:
        self._world = world
        self._rng: random.Random = world.scheduler.rng("controller")
        self._staged_rng: random.Random = world.scheduler.rng("staging")
        self._staged_ids = 0
        self._leaderships: dict[ReplicaKey, _Leadership] = {}
        self._images: dict[ReplicaKey, MetadataImage] = {}
        self._records: dict[str, tuple[MetadataRecord, ...]] = {}
        self._processes = dict.fromkeys(BROKERS, 0)
        self._silent: set[int] = set()
        self._checked_offset = 0
        # In the other runs the intervals are the defaults, longer than a run, until an operator or the end shortens them.
        self._is_quick = self._rng.random() < QUICK_SHARE

    # Reports of nodes.

    def on_activate(self, node: SimNode, effect: Activate) -> None:
        """Note that a node leads."""
        if self._world.options.controller_every_ms is not None:
            self._leaderships[node.key] = _Leadership(node, effect.quorum_epoch, effect.start_offset)
            self.on_commit(node, node.disk.applied_offset)

    def on_deactivate(self, node: SimNode) -> None:
        """Note that a node no longer leads, or that its process is gone: drop the core, keep the committed image."""
        self._leaderships.pop(node.key, None)

    def on_commit(self, node: SimNode, commit_offset: Offset) -> None:
        """Note that a node delivers up to an offset (exclusive)."""
        leadership = self._leaderships.get(node.key)
        if leadership is None or commit_offset < leadership.start_offset:
            return
        image = self._images.setdefault(node.key, MetadataImage())
        self._replay(node, image, commit_offset)
        if leadership.controller is not None:
            leadership.controller.committed(commit_offset)
            return
        now_ms = node.local_now_ms()
        leadership.controller = Controller(image, settings=SETTINGS, now_ms=now_ms)
        leadership.work.append(Bootstrap())
        leadership.driven_ms = now_ms
        self._world.counts["controller active"] += 1

    def _replay(self, node: SimNode, image: MetadataImage, commit_offset: Offset) -> None:
        missing: list[SimBatch] = []
        batch = node.disk.batch_before(commit_offset)
        while batch is not None and batch.next_offset > image.metadata_offset:
            missing.append(batch)
            batch = batch.before
        for batch in reversed(missing):
            records = self._records.get(batch.payload, ())
            for offset, record in enumerate(records, start=batch.base_offset):
                if isinstance(record, PartitionChangeRecord):
                    self._check(image, record, is_first=offset >= self._checked_offset)
                image.replay(record, offset)
            image.advance(batch.next_offset)
            if records:
                _check_staging(image)
            self._checked_offset = max(self._checked_offset, batch.next_offset)

    def _check(self, image: MetadataImage, record: PartitionChangeRecord, *, is_first: bool) -> None:
        """Check the laws of elections for a record, on the state before it."""
        topic = image.topic_by_id(record.topic_id)
        assert topic is not None, "replay refuses it"
        before = topic.partitions[record.partition]
        leader_id = None if record.leader is None else record.leader.leader_id
        if leader_id is None:
            return
        require(_can_lead(image, leader_id), "only a broker that may lead is elected", (before, record))
        if (record.replicas, record.adding, record.removing) != (None, None, None):
            in_sync = leader_id in (before.isr if record.isr is None else record.isr)
            require(in_sync, "a reassignment gives a leader that is in sync", (before, record))
            self._world.counts["leader of a reassignment"] += is_first
            return
        name = "leader elected"
        if before.leader_id is not None and _can_lead(image, before.leader_id):
            is_return = leader_id == before.replicas[0] and leader_id in before.isr
            require(is_return, "a leader gives way only to the first replica, in sync", (before, record))
            name = "preferred leader returned"
        elif leader_id not in (*before.isr, *before.elr):
            allowed = _allows_unclean(image, topic)
            require(allowed, "one that may lack records is elected only where that is allowed", (before, record))
            name = "unclean leader elected"
        self._world.counts[name] += is_first

    # The work of the shell.

    def schedule(self) -> None:
        """Start the controllers' turns."""
        mean_ms = self._world.options.controller_every_ms
        if mean_ms is None:
            return

        def strike() -> None:
            for leadership in list(self._leaderships.values()):
                awake = leadership.node.paused_until_ms <= self._world.scheduler.now_ms
                if awake and leadership.controller is not None:
                    self._drive(leadership, leadership.controller)
            self._world.scheduler.after(self._rng.randint(1, 2 * mean_ms), strike)

        self._world.scheduler.after(self._rng.randint(1, 2 * mean_ms), strike)

    def _drive(self, leadership: _Leadership, controller: Controller) -> None:
        now_ms = leadership.node.local_now_ms()
        if now_ms - leadership.driven_ms > SETTINGS.session_timeout_ms // 2:
            controller.grace(now_ms)
        leadership.driven_ms = now_ms
        for command in (ExpireSessions(), *self._of_brokers(controller), *self._of_leaders(controller)):
            self._execute(leadership, controller, command)
        self._operate(leadership, controller)
        for work in controller.due(now_ms):
            if not any(isinstance(each, type(work)) for each in leadership.work):
                leadership.work.append(work)
        if leadership.work and leadership.waiting_offset <= self._images[leadership.node.key].metadata_offset:
            waiting = (each for each in leadership.work if not isinstance(each, PERIODIC_COMMANDS))
            command = next(waiting, leadership.work[0])
            if self._execute(leadership, controller, command):
                leadership.work.remove(command)
                leadership.waiting_offset = controller.image.next_offset
                self._world.counts[f"controller: {type(command).__name__}"] += 1

    def _execute(self, leadership: _Leadership, controller: Controller, command: Command) -> bool:
        """Decide and append, as the shell does. Return whether that succeeded."""
        if self._leaderships.get(leadership.node.key) is not leadership:
            return False
        now_ms = leadership.node.local_now_ms()
        decision = controller.decide(command, now_ms)
        if decision.heard is not None:
            controller.hear(decision.heard, now_ms)
        if decision.records and not self._append(leadership, controller, decision.records):
            return False
        if decision.then is not None and decision.then not in leadership.work:
            leadership.work.append(decision.then)
        return True

    def _append(self, leadership: _Leadership, controller: Controller, records: Sequence[MetadataRecord]) -> bool:
        appended = self._world.propose_at(leadership.node, leadership.quorum_epoch, len(records))
        if appended is None:
            return False
        base_offset, payload = appended
        # Through bytes, so that the replayed records are those that a log would hold.
        self._records[payload] = tuple(record_codec.decode(record_codec.encode(record)) for record in records)
        for offset, record in enumerate(self._records[payload], start=base_offset):
            controller.replay(record, offset)
        return True

    # Brokers and operator.

    def _of_brokers(self, controller: Controller) -> list[Command]:
        """Return registrations and heartbeats of the brokers that are not silent; some become silent, some restart."""
        for broker_id in BROKERS:
            if self._world.is_healed:
                self._silent.discard(broker_id)
            elif broker_id in self._silent:
                if self._rng.random() < 0.08:
                    self._silent.discard(broker_id)
                    self._processes[broker_id] += self._rng.random() < 0.5
            elif self._rng.random() < 0.05:
                self._silent.add(broker_id)
        commands: list[Command] = []
        for broker_id in BROKERS:
            broker = controller.image.broker(broker_id)
            incarnation = bytes([broker_id, *self._processes[broker_id].to_bytes(15, "big")])
            if broker_id in self._silent:
                # Its port refuses, and sometimes the controller notices that at once.
                if broker is not None and self._rng.random() < 0.3:
                    commands.append(FenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch))
            elif broker is None or broker.incarnation_id != incarnation:
                commands.append(
                    RegisterBroker(broker_id=broker_id, incarnation_id=incarnation, host=f"b{broker_id}", port=9640)
                )
            elif self._rng.random() < 0.5:
                offset = controller.image.next_offset
                commands.append(
                    Heartbeat(broker_id=broker_id, broker_epoch=broker.broker_epoch, metadata_offset=offset)
                )
        return commands

    def _of_leaders(self, controller: Controller) -> list[Command]:
        """Return proposals in which leaders take live replicas back into the ISR, or leave some of them out."""
        if self._rng.random() < (0.5 if self._world.is_healed else 0.75):
            return []
        image = controller.image
        fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
        commands: list[Command] = []
        for broker_id in sorted(fit - self._silent):
            proposals = tuple(
                self._proposal(topic, partition, fit)
                for topic in image.topics()
                for partition in topic.partitions
                if partition.leader_id == broker_id
            )
            broker = image.broker(broker_id)
            if proposals and broker is not None:
                commands.append(
                    AlterPartition(broker_id=broker_id, broker_epoch=broker.broker_epoch, proposals=proposals)
                )
        return commands

    def _proposal(self, topic: TopicImage, partition: PartitionImage, fit: set[int]) -> IsrProposal:
        # Of their own, so that topics that come and go take no turn from the others.
        rng = self._rng if topic.topic in TOPICS else self._staged_rng
        share = 1.0 if self._world.is_healed else 0.8
        isr = [
            (node_id, None)
            for node_id in partition.replicas
            if node_id == partition.leader_id or (node_id in fit and rng.random() < share)
        ]
        return IsrProposal(
            topic_id=topic.topic_id,
            partition=partition.partition,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple(isr),
        )

    def _operate(self, leadership: _Leadership, controller: Controller) -> None:
        """Create missing topics, and change configs."""
        missing = next((topic for topic in TOPICS if controller.image.topic_by_name(topic) is None), None)
        fit = [broker.broker_id for broker in controller.image.brokers() if broker.can_lead]
        if missing is not None:
            if len(fit) >= REPLICAS and self._leaderships.get(leadership.node.key) is leadership:
                self._append(leadership, controller, self._topic(missing, fit))
            return
        wanted = _HEALED if self._world.is_healed else _QUICK if self._is_quick else ()
        of_cluster = controller.image.configs_of(ConfigResource.CLUSTER, "")
        changes = tuple((name, value) for name, value in wanted if of_cluster.get(name) != value)
        if changes:
            self._execute(leadership, controller, _change(ConfigResource.CLUSTER, "", *changes))
        elif not self._world.is_healed and self._rng.random() < 0.15:
            self._execute(leadership, controller, self._some_change())
        if not self._world.is_healed and self._staged_rng.random() < STAGED_SHARE:
            command = self._of_staged(controller)
            if self._execute(leadership, controller, command):
                self._world.counts[f"staged topic: {type(command).__name__}"] += 1

    def _of_staged(self, controller: Controller) -> Command:
        """Return what happens next to the topic that has a staging topic."""
        topic = controller.image.topic_by_name(STAGED)
        if topic is None:
            return self._creation(STAGED, 2)
        staging = staging_topic(topic.topic_id)
        if controller.image.topic_by_name(staging) is None:
            return self._creation(staging, len(topic.partitions))
        kind = self._staged_rng.choices(("grow", "delete", "move", "alter"), (3, 1, 8, 3))[0]
        if kind == "grow" and len(topic.partitions) < STAGED_PARTITIONS_MAX:
            return CreatePartitions(topic=STAGED, partition_count=len(topic.partitions) + 1)
        if kind == "delete":
            return DeleteTopic(topic=STAGED)
        if kind == "alter":
            changes = [
                (MIN_INSYNC_REPLICAS, None),
                (MIN_INSYNC_REPLICAS, "2"),
                (FLUSH_POLICY, "none"),
                (FLUSH_POLICY, None),
            ]
            return _change(ConfigResource.TOPIC, STAGED, self._staged_rng.choice(changes))
        target = tuple(self._staged_rng.sample(BROKERS, self._staged_rng.randint(2, REPLICAS)))
        move = Reassignment(
            topic=STAGED,
            partition=self._staged_rng.randrange(len(topic.partitions)),
            replicas=None if self._staged_rng.random() < 0.3 else target,
        )
        return ReassignPartitions(reassignments=(move,))

    def _creation(self, topic: str, partition_count: int) -> CreateTopic:
        self._staged_ids += 1
        return CreateTopic(
            topic=topic,
            topic_id=self._staged_ids.to_bytes(16, "big"),
            partition_count=partition_count,
            replication_factor=REPLICAS,
            configs={},
            placement_seed=self._staged_rng.getrandbits(64),
        )

    def _topic(self, topic: str, fit: list[int]) -> list[MetadataRecord]:
        """Return the records of a topic with several replicas on random brokers."""
        topic_id = topic.encode().rjust(16, b"\0")
        records: list[MetadataRecord] = [TopicRecord(topic=topic, topic_id=topic_id)]
        for number in range(PARTITIONS):
            replicas = tuple(self._rng.sample(fit, REPLICAS))
            records.append(
                PartitionRecord(
                    topic_id=topic_id,
                    partition=number,
                    replicas=replicas,
                    isr=replicas,
                    leader_id=replicas[0],
                    leader_epoch=0,
                    partition_epoch=0,
                )
            )
        return records

    def _some_change(self) -> AlterConfigs:
        of_topic = self._rng.random() < 0.6
        if of_topic:
            change = self._rng.choice(
                [(UNCLEAN_ELECTION, "true"), (UNCLEAN_ELECTION, None), (MIN_INSYNC_REPLICAS, "2")]
            )
            return _change(ConfigResource.TOPIC, self._rng.choice(TOPICS), change)
        changes = [*_HEALED, (LEADER_REBALANCE, "false"), (UNCLEAN_ELECTION, "true"), (UNCLEAN_ELECTION, None)]
        change = self._rng.choice(changes)
        return _change(ConfigResource.CLUSTER, "", change)

    # The end of the run.

    def has_settled(self, node: SimNode) -> bool:
        """Return whether the leader's committed image is in its final state, without any fault."""
        if self._world.options.controller_every_ms is None:
            return True
        image = self._images.get(node.key)
        if image is None or len(image.topic_names) < len(TOPICS):
            return False
        partitions = [partition for topic in image.topics() for partition in topic.partitions]
        live = all(_can_lead(image, broker_id) for broker_id in BROKERS)
        # With all brokers alive, some in-sync replica leads; leaders take all others back in, then the first one leads again.
        return live and all(
            # A reassignment changes the order of the replicas, not that of the ones in sync.
            each.leader_id == each.replicas[0] and set(each.isr) == set(each.replicas)
            for each in partitions
        )


def _check_staging(image: MetadataImage) -> None:
    """Check that each staging topic fits its topic."""
    for staging in image.topics():
        topic_id = staged_topic_id(staging.topic)
        if topic_id is None:
            continue
        topic = image.topic_by_id(topic_id)
        fits = (
            topic is not None
            and all(staging.configs.get(name) == topic.configs.get(name) for name in FOLLOWED_CONFIGS)
            and [each.target_replicas for each in staging.partitions]
            == [each.target_replicas for each in topic.partitions]
        )
        require(fits, "a staging topic fits its topic", (staging, topic))


def _change(resource: ConfigResource, name: str, *changes: tuple[str, str | None]) -> AlterConfigs:
    return AlterConfigs(resources=(ResourceChanges(resource=resource, name=name, changes=changes),))


def _can_lead(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.can_lead


def _allows_unclean(image: MetadataImage, topic: TopicImage) -> bool:
    inherited = image.configs_of(ConfigResource.CLUSTER, "").get(UNCLEAN_ELECTION)
    return (topic.configs.get(UNCLEAN_ELECTION) or inherited) == "true"
