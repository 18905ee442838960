# SPDX-License-Identifier: Apache-2.0
"""Staging topics: what ties the staging topic of an ingest to the topic that it belongs to.

Owns their creation, and which of their configs follow the topic. Growth and deletion (`topics.py`), reassignment (`reassignment.py`)
and changes of configs (`configs.py`) ask here for the staging topic, and change it in the decision that changes the topic. Law: a
staging topic exists only beside its topic, with as many partitions, and with its `min.insync.replicas` and `flush.policy`. While
nothing is being moved, each partition has the replicas of the topic's, in the same order.

So a staging topic needs no sweep and no repair: it cannot differ between two decisions.
Source: `docs/ingest.md` section "Staging"; `docs/controller.md` section "Staging topics".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_BATCH_BYTES

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import CreateTopic, Refusal
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata import topic_names
from metaquorum.metadata.isr import changed_isr, min_insync_replicas
from metaquorum.metadata.state import PartitionImage, TopicImage
from metaquorum.metadata.topic_configs import (
    CLEANUP_POLICY,
    FLUSH_POLICY,
    MAX_MESSAGE_BYTES,
    MIN_INSYNC_REPLICAS,
    CleanupPolicy,
)

FOLLOWED_CONFIGS: Final = (FLUSH_POLICY, MIN_INSYNC_REPLICAS)
"""Configs that a staging topic has from its topic, so that what is staged lasts as what is published."""

FIXED_CONFIGS: Final[Mapping[str, str]] = {
    CLEANUP_POLICY: CleanupPolicy.DELETE.value,
    MAX_MESSAGE_BYTES: str(MAX_BATCH_BYTES),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
"""Configs of every staging topic. Only garbage collection removes staged records. What may be staged is for the topic to judge."""


def staging_of(image: AppendedImage, topic: TopicImage) -> TopicImage | None:
    """Return the staging topic of a topic, or None."""
    return image.topic_by_name(topic_names.staging_topic(topic.topic_id))


def topic_of(image: AppendedImage, name: str) -> TopicImage | None:
    """Return the topic that a topic of this name belongs to; None: it is no staging topic, or there is no such topic."""
    topic_id = topic_names.staged_topic_id(name)
    return None if topic_id is None else image.topic_by_id(topic_id)


def staged_topic(image: AppendedImage, settings: ControllerSettings, command: CreateTopic) -> TopicImage | Refusal:
    """Return the topic to which a new staging topic shall belong, or the refusal.

    UNKNOWN_TOPIC and INVALID_PARTITION_COUNT say that the caller's metadata is not that of the controller: it asks again with newer
    metadata. The other codes last.
    """
    topic_id = topic_names.staged_topic_id(command.topic)
    if topic_id is None:
        return Refusal(
            code=ErrorCode.INVALID_TOPIC_NAME,
            message=f"{command.topic[:60]!a}: the id of a topic, in lower-case hex, follows {topic_names.STAGING_PREFIX}",
        )
    topic = image.topic_by_id(topic_id)
    if topic is None:
        return Refusal(code=ErrorCode.UNKNOWN_TOPIC, message=f"there is no topic with id {topic_id.hex()}")
    if topic_names.is_internal(topic.topic):
        return Refusal(
            code=ErrorCode.INVALID_TOPIC_NAME,
            message=f"{topic.topic} belongs to the system, and nothing is staged for it",
        )
    count = len(topic.partitions)
    if max(1, command.partition_count) != count:
        return Refusal(
            code=ErrorCode.INVALID_PARTITION_COUNT,
            message=f"topic {topic.topic} has {count} partitions, and so has its staging topic, not {command.partition_count}",
        )
    if count > settings.max_request_partitions:
        return Refusal(
            code=ErrorCode.LIMIT_EXCEEDED,
            message=f"topic {topic.topic} has {count} partitions; a topic can get a staging topic while it has at most "
            f"{settings.max_request_partitions}",
        )
    return topic


def first_configs(topic: TopicImage, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the configs of a new staging topic. What a request wants counts only where neither topic nor rule says otherwise."""
    free = {name: value for name, value in wanted.items() if name not in FOLLOWED_CONFIGS}
    followed = {name: topic.configs[name] for name in FOLLOWED_CONFIGS if name in topic.configs}
    return {**free, **FIXED_CONFIGS, **followed}


def config_problem(image: AppendedImage, staging: TopicImage, name: str) -> str | None:
    """Return why a config of a staging topic cannot be changed, or None if it can."""
    if name in FIXED_CONFIGS:
        return f"{name} of a staging topic stays {FIXED_CONFIGS[name]}"
    if name in FOLLOWED_CONFIGS:
        owner = topic_of(image, staging.topic)
        return f"{name} of a staging topic is that of its topic: change {'that' if owner is None else owner.topic}"
    return None


def change_problem(image: AppendedImage, name: str) -> str | None:
    """Return why a topic of this name is not grown, deleted or reassigned by itself; None if it is, or does not exist."""
    if topic_names.staged_topic_id(name) is None or image.topic_by_name(name) is None:
        return None
    owner = topic_of(image, name)
    return f"{name} is a staging topic and goes along with its topic: change {'that' if owner is None else owner.topic}"


def place(
    image: AppendedImage, settings: ControllerSettings, topic: TopicImage
) -> tuple[PartitionImage, ...] | Refusal:
    """Return the partitions of a new staging topic: each on the replicas of the topic's partition, with the same preferred leader.

    Where a reassignment is under way, these are the replicas that it leads to: there is nothing to copy yet. The first replica that may
    lead leads, whatever leads the topic's partition, and only those that may lead are in sync.
    """
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    min_isr = min_insync_replicas(topic)
    partitions: list[PartitionImage] = []
    added: Counter[int] = Counter()
    for partition in topic.partitions:
        replicas = partition.target_replicas
        in_sync = tuple(node_id for node_id in replicas if node_id in fit)
        if not in_sync:
            return Refusal(
                code=ErrorCode.BROKER_FENCED,
                message=f"{topic.topic} partition {partition.partition}: none of its replicas {list(replicas[:20])} is active; "
                "start one of them, or wait until it is ready",
            )
        added.update(replicas)
        # Nothing is committed yet, so every replica has all of it, as if all had been in sync until now.
        new = PartitionImage(partition.partition, replicas, replicas, in_sync[0], 0, 0)
        state = changed_isr(new, in_sync, min_isr=min_isr)
        partitions.append(PartitionImage(partition.partition, replicas, state.isr, in_sync[0], 0, 0, state.elr))
    have = image.counts.replicas
    full = [
        node_id for node_id, more in sorted(added.items()) if have.get(node_id, 0) + more > settings.max_broker_replicas
    ]
    if full:
        return Refusal(
            code=ErrorCode.LIMIT_EXCEEDED,
            message=f"brokers {full[:20]} would have more than {settings.max_broker_replicas} replicas; delete topics",
        )
    return tuple(partitions)
