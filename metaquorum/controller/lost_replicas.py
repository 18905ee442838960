# SPDX-License-Identifier: Apache-2.0
"""Decisions about offline replicas: a broker reports that the log of its own replica does not work, or was found again.

Owns these decisions for one partition. `alter_partition.py` has checked the epochs of the proposal before. Laws:

* The replica leaves the ISR and the ELR in the same change as the election, so no image shows a leader that is out of sync. It comes
  back like any follower, by catching up, which a log that does not work cannot do.
* Another replica leads only if it has everything committed, unless the topic allows unclean elections. If there is none, nothing
  changes: this replica is the only one that may have everything, and a repaired directory brings it back.
* A replica is no longer awaited once its log is found in an awaited directory. Any other directory is refused: the log there may be an
  older copy, or empty.

Source: KIP-858, "Broker"; KIP-966; `docs/controller.md` section "Lost replicas".
"""

from __future__ import annotations

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
    """Return the partition without a lost replica, equal to `partition` if nothing changes; or the refusal."""
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
        # The last replica stays in sync, whatever happened to its log.
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
    """Return the partition after an awaited log was found, equal to `partition` if it is not awaited; or the refusal."""
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
    found = partition._replace(awaited=without(partition.awaited, broker_id))
    change = partition_change(topic.topic_id, found, can_lead, rules=rules_of(image, topic))
    if change is None:
        return found._replace(partition_epoch=partition.partition_epoch + 1)
    return _changed(found, change)


def _changed(partition: PartitionImage, change: PartitionChangeRecord) -> PartitionImage:
    if change.leader is not None:
        return after_election(partition, change)
    return partition._replace(
        partition_epoch=partition.partition_epoch + 1,
        isr=partition.isr if change.isr is None else change.isr,
        elr=partition.elr if change.elr is None else change.elr,
        last_known_elr=partition.last_known_elr if change.last_known_elr is None else change.last_known_elr,
        awaited=partition.awaited if change.awaited is None else change.awaited,
    )
