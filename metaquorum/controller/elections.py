# SPDX-License-Identifier: Apache-2.0
"""Who leads a partition, and the sweep that keeps it so.

Owns the election rule for one partition and the slices in which it is applied to all. Law: only a broker that is in the
in-sync replicas and may lead is elected; the in-sync replicas are never emptied, because they are the only ones that
are known to have everything acknowledged. A broker that stopped uncleanly may have lost what it had not flushed: before it may
lead again it leaves them, except where records are acknowledged only when flushed, or where it is the last one.
Source: Kafka's PartitionChangeBuilder, election "online"; KIP-966; `docs/controller.md` section "Elections".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Done, SweepPartitions
from metaquorum.controller.configs import settings_of
from metaquorum.controller.limits import MAX_SWEEP_PARTITIONS, MAX_SWEEP_RECORDS
from metaquorum.controller.records import BrokerChangeRecord, LeaderChange, MetadataRecord, PartitionChangeRecord
from metaquorum.controller.state import PartitionImage, TopicImage
from metaquorum.controller.topic_configs import FlushPolicy

CanLead = Callable[[int], bool]


def elect(replicas: tuple[int, ...], isr: tuple[int, ...], leader_id: int | None, can_lead: CanLead) -> int | None:
    """Return the leader: the present one while it is fit, else the first fit in-sync replica, or None."""
    if leader_id is not None and leader_id in isr and can_lead(leader_id):
        return leader_id
    for node_id in replicas:
        if node_id in isr and can_lead(node_id):
            return node_id
    return None


def partition_change(
    topic_id: bytes, partition: PartitionImage, can_lead: CanLead, lossy: Sequence[int] = ()
) -> PartitionChangeRecord | None:
    """Return the change that a partition needs now, or None.

    Brokers that may have lost records (`lossy`, in the order in which they came back) leave the in-sync replicas one after
    the other as long as another one stays. So do brokers that may not lead, as long as one stays that may; then the leader is
    elected. When none can lead, all stay: nothing is appended without a leader, so each of them keeps having everything
    acknowledged.
    """
    in_sync = partition.isr
    for lost_id in lossy:
        in_sync = tuple(node_id for node_id in in_sync if node_id != lost_id) or in_sync
    isr = tuple(node_id for node_id in in_sync if can_lead(node_id)) or in_sync
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
    """Decide one slice of a sweep; `then` of the decision is the next slice, or None at the end.

    A sweep that saw an unclean broker from its start on declares it clean at its end.
    """
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    unclean = sorted((broker for broker in image.brokers() if broker.unclean), key=lambda broker: broker.broker_epoch)
    if command.after_topic is None:
        command = SweepPartitions(unclean=tuple(broker.broker_epoch for broker in unclean))
    lossy = [broker.broker_id for broker in unclean]
    records: list[MetadataRecord] = []
    seen = 0
    last_name = command.after_topic
    for topic in image.topics(after=command.after_topic):
        if records and len(records) + len(topic.partitions) > MAX_SWEEP_RECORDS:
            return _slice(command, records, last_name)
        if seen >= MAX_SWEEP_PARTITIONS:
            return _slice(command, records, last_name)
        records.extend(_topic_changes(image, topic, fit, lossy))
        seen += len(topic.partitions)
        last_name = topic.topic
    records.extend(
        BrokerChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, unclean=False)
        for broker in unclean
        if broker.broker_epoch in command.unclean
    )
    # They were fenced all the while; from here on a heartbeat may unfence them.
    return Decision(response=Done(), records=tuple(records))


def _slice(command: SweepPartitions, records: list[MetadataRecord], last_name: str | None) -> Decision:
    following = SweepPartitions(after_topic=last_name, unclean=command.unclean)
    return Decision(response=Done(), records=tuple(records), then=following)


def _topic_changes(
    image: AppendedImage, topic: TopicImage, fit: set[int], lossy: Sequence[int]
) -> list[MetadataRecord]:
    if lossy:
        # What a broker acknowledges under `ack` was flushed, so that it has everything that it is known to have.
        lossy = [
            broker_id
            for broker_id in lossy
            if settings_of(image, topic.configs, broker_id).flush_policy is not FlushPolicy.ACK
        ]
    changes = (partition_change(topic.topic_id, partition, fit.__contains__, lossy) for partition in topic.partitions)
    return [change for change in changes if change is not None]
