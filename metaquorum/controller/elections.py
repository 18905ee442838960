# SPDX-License-Identifier: Apache-2.0
"""Who leads a partition, and the sweep that keeps it so.

Owns the election rule for one partition and the slices in which it is applied to all. Law: only a broker that is in the
in-sync replicas and may lead is elected; the in-sync replicas are never emptied, because they are the only ones that
are known to have everything acknowledged.
Source: Kafka's PartitionChangeBuilder, election "online"; `docs/controller.md` section "Elections".
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Done, SweepPartitions
from metaquorum.controller.limits import MAX_SWEEP_PARTITIONS, MAX_SWEEP_RECORDS
from metaquorum.controller.records import LeaderChange, MetadataRecord, PartitionChangeRecord
from metaquorum.controller.state import PartitionImage, TopicImage

CanLead = Callable[[int], bool]


def elect(replicas: tuple[int, ...], isr: tuple[int, ...], leader_id: int | None, can_lead: CanLead) -> int | None:
    """Return the leader: the present one while it is fit, else the first fit in-sync replica, or None."""
    if leader_id is not None and leader_id in isr and can_lead(leader_id):
        return leader_id
    for node_id in replicas:
        if node_id in isr and can_lead(node_id):
            return node_id
    return None


def partition_change(topic_id: bytes, partition: PartitionImage, can_lead: CanLead) -> PartitionChangeRecord | None:
    """Return the change that a partition needs now, or None.

    Brokers that may not lead leave the in-sync replicas as long as one stays; then the leader is elected. When none can
    lead, all stay: nothing is appended without a leader, so each of them keeps having everything acknowledged.
    """
    isr = tuple(node_id for node_id in partition.isr if can_lead(node_id)) or partition.isr
    leader_id = elect(partition.replicas, isr, partition.leader_id, can_lead)
    leader_changes = leader_id != partition.leader_id
    isr_changes = isr != partition.isr
    if not leader_changes and not isr_changes:
        return None
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition=partition.partition,
        leader=LeaderChange(leader_id=leader_id) if leader_changes else None,
        isr=isr if isr_changes else None,
    )


def sweep(image: AppendedImage, command: SweepPartitions) -> Decision:
    """Decide one slice of a sweep; `then` of the decision is the next slice, or None at the end."""
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    records: list[MetadataRecord] = []
    seen = 0
    last_name = command.after_topic
    for topic in image.topics(after=command.after_topic):
        if records and len(records) + len(topic.partitions) > MAX_SWEEP_RECORDS:
            return _slice(records, last_name)
        if seen >= MAX_SWEEP_PARTITIONS:
            return _slice(records, last_name)
        records.extend(_topic_changes(topic, fit))
        seen += len(topic.partitions)
        last_name = topic.topic
    return Decision(response=Done(), records=tuple(records))


def _slice(records: list[MetadataRecord], last_name: str | None) -> Decision:
    return Decision(response=Done(), records=tuple(records), then=SweepPartitions(after_topic=last_name))


def _topic_changes(topic: TopicImage, fit: set[int]) -> list[MetadataRecord]:
    changes = (partition_change(topic.topic_id, partition, fit.__contains__) for partition in topic.partitions)
    return [change for change in changes if change is not None]
