# SPDX-License-Identifier: Apache-2.0
"""A broker says that the log of its replica of a partition does not work any more, or lies where it was: who leads then.

Owns these decisions for one partition. The epochs of the proposal were checked before: `alter_partition.py` does it for every kind.
Laws
    The replica leaves the in-sync and the eligible leader replicas in one change with the election, so that no image shows it as
    out of sync and leading. It comes back as every follower does: by catching up, which a log that does not work cannot.
    Another replica leads only if it has everything committed, unless the topic allows otherwise. Where there is none, nothing
    changes: this replica is the only one that may have everything, and a repaired directory brings it back.
    A replica that is awaited is no longer once its log was found in a directory that is awaited, and in no other: the log that a
    broker has elsewhere may be an older copy, or an empty one.
Source: KIP-858, "Broker"; KIP-966; `docs/controller.md` section "Lost replicas".
"""

from __future__ import annotations

from dataclasses import replace

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import IsrProposal, Refusal
from metaquorum.controller.elections import CanLead, Lossy, after_election, not_available, partition_change, rules_of
from metaquorum.metadata.awaited import awaited_directories, without
from metaquorum.metadata.records import PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage, TopicImage


def without_lost(
    image: AppendedImage,
    topic: TopicImage,
    partition: PartitionImage,
    broker_id: int,
    proposal: IsrProposal,
    can_lead: CanLead,
) -> PartitionImage | Refusal:
    """Return the partition without a lost replica, equal to what it is if nothing changes; or the refusal."""
    if proposal.isr or broker_id not in partition.replicas:
        reason = "names in-sync replicas too" if proposal.isr else f"replicas are {list(partition.replicas)}"
        message = f"partition {proposal.partition}, lost by broker {broker_id}: {reason}"
        return Refusal(code=ErrorCode.INVALID_REQUEST, message=message)
    if broker_id not in partition.isr and broker_id not in partition.elr:
        return partition

    def others(node_id: int) -> bool:
        return node_id != broker_id and can_lead(node_id)

    change = partition_change(topic.topic_id, partition, others, (Lossy(broker_id),), rules_of(image, topic))
    isr = partition.isr if change is None or change.isr is None else change.isr
    if change is None or broker_id in isr:
        # The last one stays in sync, whatever became of its log.
        return not_available(
            topic,
            partition,
            f"no replica but the lost one of broker {broker_id} has everything committed: repair its log directory and start "
            "the broker again, or elect another replica uncleanly and lose what it lacks",
        )
    return _changed(partition, change)


def with_found(
    image: AppendedImage,
    topic: TopicImage,
    partition: PartitionImage,
    broker_id: int,
    proposal: IsrProposal,
    can_lead: CanLead,
) -> PartitionImage | Refusal:
    """Return the partition once an awaited replica's log was found, equal to what it is if it is not awaited; or the refusal."""
    awaited = awaited_directories(partition.awaited, broker_id)
    if not awaited:
        return partition
    assert proposal.found_directory_id is not None, f"no directory in {proposal}"
    if proposal.isr or proposal.is_lost or proposal.found_directory_id not in awaited:
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"partition {proposal.partition} of broker {broker_id}, found in {proposal.found_directory_id.hex()}: the log "
            f"is awaited in {', '.join(each.hex() for each in awaited)}",
        )
    found = replace(partition, awaited=without(partition.awaited, broker_id))
    change = partition_change(topic.topic_id, found, can_lead, rules=rules_of(image, topic))
    if change is None:
        return replace(found, partition_epoch=partition.partition_epoch + 1)
    return _changed(found, change)


def _changed(partition: PartitionImage, change: PartitionChangeRecord) -> PartitionImage:
    if change.leader is not None:
        return after_election(partition, change)
    return replace(
        partition,
        partition_epoch=partition.partition_epoch + 1,
        isr=partition.isr if change.isr is None else change.isr,
        elr=partition.elr if change.elr is None else change.elr,
        last_known_elr=partition.last_known_elr if change.last_known_elr is None else change.last_known_elr,
        awaited=partition.awaited if change.awaited is None else change.awaited,
    )
