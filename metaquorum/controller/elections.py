# SPDX-License-Identifier: Apache-2.0
"""The leader of each partition, and the sweeps that elect it.

Owns the election rules for one partition, and their application to all. Law: only a broker that may lead and has everything committed
is elected (it is in the ISR or in the ELR, `isr.py`), unless the topic allows unclean elections (`unclean.leader.election.enable`). A
broker may have lost unflushed records by an unclean shutdown. Before it may lead again it leaves both sets, except where records are
acknowledged only when flushed, and where it is the last one. A broker that comes back without a log directory may have lost flushed
records, too: it leaves everywhere; where it is the last one, it leads nothing until the directory is back (`awaited.py`).
Source: Kafka's PartitionChangeBuilder; KIP-966; `docs/controller.md` section "Elections".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Done, Refusal, SweepCursor, SweepPartitions
from metaquorum.controller.configs import ack_since, settings_of
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller.walks import Choose, SliceBounds, walk
from metaquorum.metadata.awaited import AwaitedReplica, Packed, awaited_brokers, pack, unpack
from metaquorum.metadata.isr import IsrState, change_record, changed_isr, min_insync_replicas
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    ConfigResource,
    LeaderChange,
    PartitionChangeRecord,
)
from metaquorum.metadata.state import BrokerImage, PartitionImage, TopicImage, example
from metaquorum.metadata.topic_configs import TOPIC_CONFIGS, TRUE, UNCLEAN_ELECTION, FlushPolicy

CanLead = Callable[[int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """Rules for elections from a topic's configs.

    Attributes:
        min_isr: `min.insync.replicas`.
        unclean: True if a replica that lacks committed records may lead when no other can.
    """

    min_isr: int = 1
    unclean: bool = False


DEFAULT_RULES: Final = ElectionRules()
"""Rules of a topic without configs."""


def rules_of(image: AppendedImage, topic: TopicImage) -> ElectionRules:
    """Return the election rules of a topic."""
    own = topic.configs.get(UNCLEAN_ELECTION)
    inherited = image.configs_of(ConfigResource.CLUSTER, "").get(UNCLEAN_ELECTION)
    unclean = own or inherited or TOPIC_CONFIGS[UNCLEAN_ELECTION].default
    return ElectionRules(min_isr=min_insync_replicas(topic), unclean=unclean == TRUE)


@dataclass(frozen=True, slots=True)
class Lossy:
    """A broker that may have lost records. If it lacks a log directory: the directories that it had before; else none."""

    broker_id: int
    replaced_directory_ids: tuple[bytes, ...] = ()


def elect(replicas: tuple[int, ...], isr: tuple[int, ...], leader_id: int | None, can_lead: CanLead) -> int | None:
    """Return the current leader if it may lead and is in sync, else the first such replica, or None."""
    if leader_id is not None and leader_id in isr and can_lead(leader_id):
        return leader_id
    return _first(replicas, lambda node_id: node_id in isr and can_lead(node_id))


def partition_change(
    topic_id: bytes,
    partition: PartitionImage,
    can_lead: CanLead,
    lossy: Sequence[Lossy] = (),
    rules: ElectionRules = DEFAULT_RULES,
) -> PartitionChangeRecord | None:
    """Return the change that a partition needs now, or None.

    Lossy brokers leave the ISR and the ELR: those that lack a log directory first, then in the order in which they came back. The
    last one stays; if it lacks a log directory, it leads nothing, and the partition awaits that directory.

    Brokers that may not lead leave the ISR as long as another member that may lead stays; else an eligible leader replica takes over.
    If none of them may lead, all stay: nothing is appended without a leader, so each still has everything acknowledged. Only then,
    and only if unclean elections are allowed, another replica leads.
    """
    if not lossy and partition.leader_id is not None and all(map(can_lead, partition.isr)):
        return None
    isr, elr, lost = partition.isr, partition.elr, ()
    if lossy:
        isr, elr, lost = _without_lossy(partition, tuple(each.broker_id for each in lossy))
    awaited = _awaited(partition, isr, lossy)
    gone = awaited_brokers(awaited)

    def can_lead_whole(node_id: int) -> bool:
        return node_id not in gone and can_lead(node_id)

    fit = tuple(node_id for node_id in isr if can_lead_whole(node_id))
    if not fit:
        heir = _first(partition.replicas, lambda node_id: node_id in elr and can_lead(node_id))
        fit = isr if heir is None else (heir,)
    leader_id = elect(partition.replicas, fit, partition.leader_id, can_lead_whole)
    if leader_id is None and rules.unclean:
        # Last known eligible replicas probably have the most records, and replicas being added the fewest. A replica whose directory
        # is gone has none.
        settled = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding)
        heir = _first((*partition.last_known_elr, *settled, *partition.adding), can_lead_whole)
        heir = _first(gone, can_lead) if heir is None else heir
        if heir is not None:
            return change_record(topic_id, partition, IsrState((heir,)), heir)
    # The new leader has everything committed, so no directory is awaited any more.
    awaited = () if leader_id is not None else awaited
    state = changed_isr(partition, fit, min_isr=rules.min_isr, lost=lost, awaited=awaited)
    return change_record(topic_id, partition, state, leader_id)


def _without_lossy(
    partition: PartitionImage, lossy: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the ISR, the ELR, and the replicas that leave them because they may lack records."""
    lost = tuple(node_id for node_id in lossy if node_id in partition.isr or node_id in partition.elr)
    isr = tuple(node_id for node_id in partition.isr if node_id not in lost)
    elr = tuple(node_id for node_id in partition.elr if node_id not in lost)
    if isr:
        return isr, elr, lost
    if elr:
        # There is no leader, and each of them has everything committed.
        return elr, (), lost
    last = next(node_id for node_id in reversed(lost) if node_id in partition.isr)
    return (last,), (), tuple(node_id for node_id in lost if node_id != last)


def _awaited(partition: PartitionImage, isr: tuple[int, ...], lossy: Sequence[Lossy]) -> Packed:
    """Return those of the new in-sync replicas whose log directory is gone, packed.

    A replica that is already awaited keeps its directories: a later loss does not change where its records are.
    """
    known = {each.broker_id: each for each in unpack(partition.awaited) if each.broker_id in isr}
    for each in lossy:
        if each.replaced_directory_ids and each.broker_id in isr and each.broker_id not in known:
            known[each.broker_id] = AwaitedReplica(each.broker_id, each.replaced_directory_ids)
    return pack(known[node_id] for node_id in isr if node_id in known)


def preferred_change(topic_id: bytes, partition: PartitionImage, can_lead: CanLead) -> PartitionChangeRecord | None:
    """Return the change that makes the first replica the leader.

    Returns None if there is no leader, or if the first replica leads already, is not in sync or may not lead.
    """
    preferred = partition.replicas[0]
    if partition.leader_id in (None, preferred) or preferred not in partition.isr or not can_lead(preferred):
        return None
    return PartitionChangeRecord(
        topic_id=topic_id, partition=partition.partition, leader=LeaderChange(leader_id=preferred)
    )


def after_election(partition: PartitionImage, change: PartitionChangeRecord) -> PartitionImage:
    """Return the partition after a change that gives it another leader."""
    assert change.leader is not None, f"an election without a leader: {change}"
    return partition._replace(
        leader_id=change.leader.leader_id,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        isr=partition.isr if change.isr is None else change.isr,
        elr=partition.elr if change.elr is None else change.elr,
        last_known_elr=partition.last_known_elr if change.last_known_elr is None else change.last_known_elr,
        awaited=partition.awaited if change.awaited is None else change.awaited,
    )


def not_available(topic: TopicImage, partition: PartitionImage, reason: str) -> Refusal:
    """Return the refusal of an election without a candidate; `reason` says why, and what to do."""
    return Refusal(
        code=ErrorCode.LEADER_NOT_AVAILABLE, message=f"{topic.topic} partition {partition.partition}: {reason}"
    )


def _first(node_ids: Sequence[int], holds: CanLead) -> int | None:
    return next((node_id for node_id in node_ids if holds(node_id)), None)


def sweep(image: AppendedImage, settings: ControllerSettings, command: SweepPartitions) -> Decision:
    """Decide one slice of a sweep; `then` of the decision is the next slice, or None at the end.

    A sweep that saw an unclean broker at its start marks it as clean at its end.
    """
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    unclean = sorted((broker for broker in image.brokers() if broker.unclean), key=lambda broker: broker.broker_epoch)
    if command.cursor == SweepCursor():
        command = SweepPartitions(unclean=tuple(broker.broker_epoch for broker in unclean))
    # If all may lack records, the last one stays: preferably one that has all its directories.
    lossy = sorted(unclean, key=lambda broker: not broker.lost_directories)

    @cache
    def needed(rules: ElectionRules, lacking: tuple[Lossy, ...]) -> Choose:
        @cache
        def choose(members: bytes) -> PartitionChangeRecord | None:
            return partition_change(b"", example(members), fit.__contains__, lacking, rules)

        return choose

    def choose_in(topic: TopicImage) -> Choose:
        return needed(rules_of(image, topic), _lossy_for(image, topic, lossy))

    bounds = SliceBounds(records=settings.max_sweep_records, partitions=settings.max_sweep_partitions)
    records, cursor = walk(image, command.cursor, bounds, choose_in)
    if cursor is not None:
        return Decision(response=Done(), records=tuple(records), then=replace(command, cursor=cursor))
    records.extend(
        BrokerChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, unclean=False)
        for broker in unclean
        if broker.broker_epoch in command.unclean
    )
    # These brokers were fenced during the sweep; from here on a heartbeat may unfence them.
    return Decision(response=Done(), records=tuple(records))


def _lossy_for(image: AppendedImage, topic: TopicImage, lossy: Sequence[BrokerImage]) -> tuple[Lossy, ...]:
    """Return the brokers that may lack records of a topic.

    Under `ack` a broker flushes records, to its directories, before it acknowledges them. So it lacks none if the policy has been
    `ack` since before the stopped process registered: its start flushed everything older.
    """
    return tuple(
        Lossy(broker.broker_id, broker.replaced_log_directory_ids)
        for broker in lossy
        if broker.lost_directories
        or settings_of(image, topic.configs, broker.broker_id).flush_policy is not FlushPolicy.ACK
        or broker.replaced_broker_epoch < ack_since(image, topic, broker.broker_id)
    )
