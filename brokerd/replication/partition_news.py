# SPDX-License-Identifier: Apache-2.0
"""What the metadata says about partitions and their brokers, as events of their cores. Pure translation."""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.partition.events import BrokerState, PartitionChanged
from metaquorum.controller.image import MetadataImage, PartitionImage, TopicImage
from metaquorum.controller.isr import min_insync_replicas


def partition_changed(image: MetadataImage, topic: TopicImage, partition: PartitionImage) -> PartitionChanged:
    """Return the state of a partition, with the brokers of its replicas as far as they are registered."""
    states = (broker_state(image, node_id) for node_id in partition.replicas)
    return PartitionChanged(
        partition=partition,
        min_isr=min_insync_replicas(topic),
        brokers=tuple(state for state in states if state is not None),
    )


def broker_state(image: MetadataImage, node_id: int) -> BrokerState | None:
    """Return how the metadata has a broker; None: not registered."""
    broker = image.brokers.get(node_id)
    if broker is None:
        return None
    return BrokerState(node_id=node_id, broker_epoch=broker.broker_epoch, can_lead=broker.can_lead)


def leaderless_count(image: MetadataImage, topic_ids: Iterable[bytes], node_id: int) -> int:
    """Count the partitions of topics that have no leader although a broker is in sync and could lead them."""
    topics = (image.topic_by_id(topic_id) for topic_id in topic_ids)
    return sum(
        partition.leader_id is None and node_id in partition.isr
        for topic in topics
        if topic is not None
        for partition in topic.partitions
    )
