# SPDX-License-Identifier: Apache-2.0
"""How in-sync replicas and eligible leader replicas (ELR) of a partition change together.

Owns the rules of KIP-966 for one partition, as pure functions. Why they hold: the high watermark does not advance while fewer
replicas than `min.insync.replicas` are in sync. So a replica that leaves the ISR in that time still has everything committed, and may
lead. It may no longer lead once enough other replicas have continued without it.

Law: every member of the ISR or of the ELR has every committed record. The ISR is never empty: when no replica can lead, the last ones
stay in it, where Kafka moves them to the ELR; the set of possible leaders is the same. Those of the last ones whose log directory is
gone are *awaited* (`awaited.py`): they had everything, but they cannot lead.
Source: KIP-966; `docs/controller.md` section "Elections".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from metaquorum.metadata.awaited import Packed
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage, TopicImage, example
from metaquorum.metadata.topic_configs import MIN_INSYNC_REPLICAS, TOPIC_CONFIGS


@dataclass(frozen=True, slots=True)
class IsrState:
    """The replicas of a partition that have its committed records.

    Attributes:
        isr: the in-sync replicas.
        elr: the eligible leader replicas.
        last_known_elr: replicas that left `isr` or `elr` by an unclean shutdown.
        awaited: those of `isr` whose log directory is gone, packed.
    """

    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    awaited: Packed = ()


def min_insync_replicas(topic: TopicImage) -> int:
    """Return the topic's `min.insync.replicas`; see `needed_in_sync` for what one partition needs."""
    return int(topic.configs.get(MIN_INSYNC_REPLICAS, TOPIC_CONFIGS[MIN_INSYNC_REPLICAS].default))


def needed_in_sync(partition: PartitionImage, min_isr: int) -> int:
    """Return how many replicas must be in sync before a record is committed.

    A partition with fewer replicas than `min.insync.replicas` needs all of them. Replicas that a reassignment adds do not count,
    because they would stop commits until they have caught up.
    """
    return min(min_isr, len(partition.replicas) - len(partition.adding))


def changed_isr(
    partition: PartitionImage,
    isr: tuple[int, ...],
    *,
    min_isr: int,
    lost: Collection[int] = (),
    awaited: Packed | None = None,
) -> IsrState:
    """Return the state of a partition whose in-sync replicas become `isr`; all of them have everything committed.

    Args:
        partition: the partition before the change.
        isr: its new in-sync replicas.
        min_isr: the topic's `min.insync.replicas`.
        lost: replicas that may have lost records; they do not become eligible leader replicas.
        awaited: those of `isr` whose log directory is gone, packed; None: unchanged.
    """
    awaited = partition.awaited if awaited is None else awaited
    if len(isr) >= needed_in_sync(partition, min_isr):
        return IsrState(isr, awaited=awaited)
    held = {*partition.isr, *partition.elr}
    elr = tuple(node_id for node_id in partition.replicas if node_id in held and node_id not in {*isr, *lost})
    known = {*partition.last_known_elr, *held.intersection(lost)}
    last_known = tuple(node_id for node_id in partition.replicas if node_id in known and node_id not in {*isr, *elr})
    return IsrState(isr, elr, last_known, awaited)


def change_record(
    topic_id: bytes, partition: PartitionImage, state: IsrState, leader_id: int | None
) -> PartitionChangeRecord | None:
    """Return the record that gives a partition this state and leader; None if it has them already."""
    leader_changes = leader_id != partition.leader_id
    record = PartitionChangeRecord(
        topic_id=topic_id,
        partition=partition.partition,
        leader=LeaderChange(leader_id=leader_id) if leader_changes else None,
        isr=state.isr if state.isr != partition.isr else None,
        elr=state.elr if state.elr != partition.elr else None,
        last_known_elr=state.last_known_elr if state.last_known_elr != partition.last_known_elr else None,
        awaited=state.awaited if state.awaited != partition.awaited else None,
    )
    changes = (record.leader, record.isr, record.elr, record.last_known_elr, record.awaited)
    return None if all(each is None for each in changes) else record


def cleared_elr(topic: TopicImage, min_isr: int) -> list[PartitionChangeRecord]:
    """Return the partition changes that a topic needs together with a new `min.insync.replicas`.

    Where the high watermark can advance again, replicas outside the ISR fall behind and leave the ELR. Equal members need equal
    changes, so the time depends on the number of blocks, and not of partitions, where nothing changes.
    """

    @cache
    def choose(members: bytes) -> PartitionChangeRecord | None:
        partition = example(members)
        return change_record(
            b"", partition, changed_isr(partition, partition.isr, min_isr=min_isr), partition.leader_id
        )

    found = topic.partitions.chosen(0, len(topic.partitions), choose)
    return [change.addressed(topic.topic_id, number) for number, change in found]
