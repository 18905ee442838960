# SPDX-License-Identifier: Apache-2.0
"""Decisions about topics: creation and deletion.

Owns the checks of a request and the records that a topic is made of. Law: a topic with its partitions and configs is
one batch of records, so that it exists whole or not at all.
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode

from metaquorum.controller import topic_configs, topic_names
from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import CreateTopic, Decision, DeleteTopic, TopicCreated, TopicDeleted, refuse
from metaquorum.controller.limits import DEFAULT_REPLICATION_FACTOR, ControllerSettings
from metaquorum.controller.placement import place
from metaquorum.controller.records import (
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.controller.state import PartitionImage

FIRST_EPOCH = 0
"""Leader and partition epoch of a new partition."""


def create(image: AppendedImage, settings: ControllerSettings, command: CreateTopic) -> Decision:
    """Decide about a new topic."""
    refusal = _name_problem(image, command) or _size_problem(image, settings, command)
    if refusal is not None:
        return refusal
    config_problem = topic_configs.problem(command.configs)
    if config_problem is not None:
        return refuse(ErrorCode.INVALID_CONFIG, config_problem)
    usable = [broker.broker_id for broker in image.brokers() if broker.can_lead]
    factor = command.replication_factor or DEFAULT_REPLICATION_FACTOR
    if len(usable) < factor:
        return refuse(
            ErrorCode.NOT_ENOUGH_BROKERS,
            f"{factor} usable broker(s) needed, {len(usable)} present; start a broker, or wait until it is ready",
        )
    placed = place(command.partition_count or 1, factor, usable, image.counts.replicas)
    partitions = tuple(
        PartitionImage(number, replicas, replicas, replicas[0], FIRST_EPOCH, FIRST_EPOCH)
        for number, replicas in enumerate(placed)
    )
    return Decision(
        response=TopicCreated(topic=command.topic, topic_id=command.topic_id, partitions=partitions),
        records=() if command.validate_only else _topic_records(command, partitions),
    )


def _name_problem(image: AppendedImage, command: CreateTopic) -> Decision | None:
    problem = topic_names.problem(command.topic)
    if problem is not None:
        return refuse(ErrorCode.INVALID_TOPIC_NAME, problem)
    if image.topic_by_name(command.topic) is not None:
        return refuse(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {command.topic} exists")
    assert image.topic_by_id(command.topic_id) is None, f"topic id {command.topic_id.hex()} was drawn twice"
    return None


def _size_problem(image: AppendedImage, settings: ControllerSettings, command: CreateTopic) -> Decision | None:
    if not 0 <= command.partition_count <= settings.max_request_partitions:
        return refuse(
            ErrorCode.INVALID_PARTITION_COUNT,
            f"the partition count must be from 1 to {settings.max_request_partitions}, not {command.partition_count}",
        )
    if command.replication_factor < 0:
        return refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor must be from 1 on, not {command.replication_factor}",
        )
    if command.replication_factor > 1:
        return refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {command.replication_factor}: replication is not offered yet, use 1",
        )
    if image.topic_count >= settings.max_topics:
        return refuse(ErrorCode.LIMIT_EXCEEDED, f"the cluster has {image.topic_count} topics, its limit")
    if image.counts.partitions + max(1, command.partition_count) > settings.max_partitions:
        return refuse(
            ErrorCode.LIMIT_EXCEEDED,
            f"the cluster has {image.counts.partitions} partitions and may have {settings.max_partitions}",
        )
    return None


def _topic_records(command: CreateTopic, partitions: tuple[PartitionImage, ...]) -> tuple[MetadataRecord, ...]:
    records: list[MetadataRecord] = [TopicRecord(topic=command.topic, topic_id=command.topic_id)]
    records.extend(
        ConfigRecord(
            resource=ConfigResource.TOPIC,
            resource_name=command.topic_id.hex(),
            name=name,
            value=command.configs[name],
        )
        for name in sorted(command.configs)
    )
    records.extend(
        PartitionRecord(
            topic_id=command.topic_id,
            partition=partition.partition,
            replicas=partition.replicas,
            isr=partition.isr,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
        )
        for partition in partitions
    )
    return tuple(records)


def delete(image: AppendedImage, command: DeleteTopic) -> Decision:
    """Decide about the deletion of a topic."""
    topic = image.topic_by_name(command.topic)
    if topic is None:
        return refuse(ErrorCode.UNKNOWN_TOPIC, f"there is no topic {command.topic[:250]!r}")
    return Decision(
        response=TopicDeleted(topic_id=topic.topic_id), records=(RemoveTopicRecord(topic_id=topic.topic_id),)
    )
