# SPDX-License-Identifier: Apache-2.0
"""AlterPartition: a leader proposes in-sync replicas, or any replica reports that its own log is lost, or found again.

Owns the fences; `lost_replicas.py` decides about lost and found logs. The controller accepts or refuses each partition of a request
separately. Law: a proposal changes only the state for which it was made (leader epoch and partition epoch). It must come from the
process that leads the partition (broker epoch), and it names replicas whose processes are still those that the leader saw (their
broker epochs). A replica reports only about itself.
Source: KIP-497, KIP-841, KIP-903, KIP-966; `docs/controller.md` section "AlterPartition".
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import AlterPartition, Decision, IsrProposal, PartitionsAltered, Refusal
from metaquorum.controller.led_partitions import call_problem, find, not_leading
from metaquorum.controller.lost_replicas import with_found, without_lost
from metaquorum.controller.reassignment import completed, record_of
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.isr import changed_isr, min_insync_replicas
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.state import PartitionImage, TopicImage


def alter_partition(image: AppendedImage, settings: ControllerSettings, command: AlterPartition) -> Decision:
    """Decide about the proposals of one broker."""
    refusal = call_problem(image, settings, command.broker_id, command.broker_epoch, command.proposals)
    if refusal is not None:
        return Decision(response=refusal)
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    records: list[MetadataRecord] = []
    results: list[PartitionImage | Refusal] = []
    for proposal in command.proposals:
        found = find(image, proposal)
        if isinstance(found, Refusal):
            results.append(found)
            continue
        topic, before = found
        result = _epoch_problem(before, proposal)
        if result is None and proposal.found_directory_id is not None:
            result = with_found(image, topic, before, command.broker_id, proposal, fit.__contains__)
        elif result is None and proposal.is_lost:
            result = without_lost(image, topic, before, command.broker_id, proposal, fit.__contains__)
        elif result is None:
            result = _alter(image, topic, before, command.broker_id, proposal)
        if isinstance(result, PartitionImage) and result != before:
            done = completed(topic, result, fit.__contains__)
            # A lost leader and a completed reassignment in one step raise the leader epoch only once.
            result = done._replace(leader_epoch=min(done.leader_epoch, before.leader_epoch + 1))
            records.append(record_of(topic.topic_id, before, result))
        results.append(result)
    return Decision(response=PartitionsAltered(results=tuple(results)), records=tuple(records))


def _alter(
    image: AppendedImage, topic: TopicImage, partition: PartitionImage, broker_id: int, proposal: IsrProposal
) -> PartitionImage | Refusal:
    """Return the partition with the proposed ISR, equal to `partition` if nothing changes; or the refusal."""
    refusal = _proposal_problem(partition, broker_id, proposal) or _member_problem(image, proposal)
    if refusal is not None:
        return refusal
    proposed = {node_id for node_id, _ in proposal.isr}
    if proposed == set(partition.isr):
        return partition
    isr = tuple(node_id for node_id in partition.replicas if node_id in proposed)
    state = changed_isr(partition, isr, min_isr=min_insync_replicas(topic))
    return partition._replace(
        isr=state.isr,
        elr=state.elr,
        last_known_elr=state.last_known_elr,
        partition_epoch=partition.partition_epoch + 1,
    )


def _epoch_problem(partition: PartitionImage, proposal: IsrProposal) -> Refusal | None:
    own, named = (partition.leader_epoch, partition.partition_epoch), (proposal.leader_epoch, proposal.partition_epoch)
    if named[0] > own[0] or named[1] > own[1]:
        # The broker knows more than this controller, so a newer controller must exist.
        return Refusal(
            code=ErrorCode.NOT_CONTROLLER,
            message=f"leader epoch {named[0]} and partition epoch {named[1]} are ahead of {own[0]} and {own[1]} here; "
            "ask the active controller",
        )
    if named != own:
        return Refusal(
            code=ErrorCode.FENCED_EPOCH,
            message=f"leader epoch {named[0]} and partition epoch {named[1]} are over, {own[0]} and {own[1]} hold; "
            "wait for the metadata and propose again",
        )
    return None


def _proposal_problem(partition: PartitionImage, broker_id: int, proposal: IsrProposal) -> Refusal | None:
    node_ids = [node_id for node_id, _ in proposal.isr]
    rules = (
        (partition.leader_id == broker_id, not_leading(partition, broker_id)),
        (len(set(node_ids)) == len(node_ids), "a replica is named twice"),
        (broker_id in node_ids, "the leader is always in sync with itself"),
        (set(node_ids) <= set(partition.replicas), f"its replicas are {list(partition.replicas)}"),
    )
    for holds, message in rules:
        if not holds:
            return Refusal(
                code=ErrorCode.INVALID_REQUEST,
                message=f"partition {proposal.partition}, in-sync {node_ids[:20]}: {message}",
            )
    return None


def _member_problem(image: AppendedImage, proposal: IsrProposal) -> Refusal | None:
    for node_id, broker_epoch in proposal.isr:
        member = image.broker(node_id)
        if member is None or not member.can_lead:
            return Refusal(
                code=ErrorCode.BROKER_FENCED,
                message=f"replica {node_id} is fenced, leaving or not registered: leave it out of the in-sync replicas",
            )
        if broker_epoch is not None and broker_epoch != member.broker_epoch:
            return Refusal(
                code=ErrorCode.STALE_BROKER_EPOCH,
                message=f"replica {node_id} was seen with broker epoch {broker_epoch} and has {member.broker_epoch} now: "
                "what it had may be gone, wait until it has caught up again",
            )
    return None
