# SPDX-License-Identifier: Apache-2.0
"""ResignLeadership: a broker resigns the leadership of partitions that it should not serve for now.

Owns the fences, and the choice of the next leader. Each partition of a request is decided separately. Law: the leadership moves from
the broker that has it, in the epoch that it names, to a replica that is in sync; nothing else changes. Only if no such replica may
lead, and the broker accepts it, an eligible replica takes over, by the rules of its election. The broker stays in sync, or becomes
eligible: it has counted and acknowledged everything, and it gets unreadable records back from the others.
Source: `docs/controller.md` section "ResignLeadership".
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Heard, LeadershipResigned, LedPartition, Refusal, ResignLeadership
from metaquorum.controller.elections import CanLead, after_election, elect, not_available, rules_of
from metaquorum.controller.led_partitions import call_problem, find, not_leading
from metaquorum.controller.sessions import Sessions
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.isr import change_record, changed_isr
from metaquorum.metadata.records import LeaderChange, MetadataRecord, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage, TopicImage


def resign_leadership(
    image: AppendedImage, sessions: Sessions, settings: ControllerSettings, command: ResignLeadership
) -> Decision:
    """Decide about the partitions that one broker resigns."""
    refusal = call_problem(image, settings, command.broker_id, command.broker_epoch, command.partitions)
    if refusal is not None:
        return Decision(response=refusal)
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    roomy = {broker_id for broker_id in fit if sessions.has_room(broker_id)}
    records: list[MetadataRecord] = []
    results: list[PartitionImage | Refusal] = []
    for led in command.partitions:
        found = find(image, led)
        if isinstance(found, Refusal):
            results.append(found)
            continue
        topic, partition = found
        can_lead = (roomy if led.needs_room else fit).__contains__
        change = _fence(partition, command.broker_id, led) or _move(image, topic, partition, led, can_lead)
        if isinstance(change, Refusal):
            results.append(change)
            continue
        records.append(change)
        results.append(after_election(partition, change))
    heard: Heard | None = None
    if any(led.needs_room for led in command.partitions):
        # Before its next heartbeat reports it: a preferred election must not return the leadership in between.
        offset = sessions.metadata_offset(command.broker_id)
        heard = Heard(
            broker_id=command.broker_id, broker_epoch=command.broker_epoch, metadata_offset=offset, lacks_room=True
        )
    return Decision(response=LeadershipResigned(results=tuple(results)), records=tuple(records), heard=heard)


def _fence(partition: PartitionImage, broker_id: int, led: LedPartition) -> Refusal | None:
    own, named = partition.leader_epoch, led.leader_epoch
    if named > own:
        # The broker knows more than this controller, so a newer controller must exist.
        return Refusal(
            code=ErrorCode.NOT_CONTROLLER,
            message=f"leader epoch {named} is ahead of {own} here; ask the active controller",
        )
    if named < own:
        # A repeated call, whose first answer was lost, gets this refusal.
        return Refusal(
            code=ErrorCode.FENCED_EPOCH,
            message=f"leader epoch {named} is over, {own} holds; wait for the metadata and look who leads",
        )
    if partition.leader_id != broker_id:
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"partition {led.partition}: {not_leading(partition, broker_id)}",
        )
    return None


def _move(
    image: AppendedImage, topic: TopicImage, partition: PartitionImage, led: LedPartition, can_lead: CanLead
) -> PartitionChangeRecord | Refusal:
    """Return the change that makes another replica the leader, or the refusal."""
    others = tuple(node_id for node_id in partition.isr if node_id != partition.leader_id)
    # In replica order, like every election: replicas that a reassignment removes come last.
    heir = elect(partition.replicas, others, None, can_lead)
    if heir is not None:
        return PartitionChangeRecord(
            topic_id=topic.topic_id, partition=partition.partition, leader=LeaderChange(leader_id=heir)
        )
    heir = elect(partition.replicas, partition.elr, None, can_lead) if led.allow_eligible else None
    if heir is None:
        room = " with room" if led.needs_room else ""
        eligible = "" if led.allow_eligible else " (which will not do)"
        return not_available(
            topic,
            partition,
            f"of its replicas {list(partition.replicas)}, in sync {list(partition.isr)}, eligible {list(partition.elr)}{eligible}, no "
            f"other one{room} may lead: broker {partition.leader_id} goes on; ask again when another one is in sync and active",
        )
    # The new leader is alone in sync, as after every election of an eligible replica; the replicas that were in sync become eligible.
    state = changed_isr(partition, (heir,), min_isr=rules_of(image, topic).min_isr)
    change = change_record(topic.topic_id, partition, state, heir)
    assert change is not None, f"broker {heir} led already: {partition}"
    return change
