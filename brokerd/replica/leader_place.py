# SPDX-License-Identifier: Apache-2.0
"""Who leads a partition, as clients find it. Pure."""

from __future__ import annotations

from brokerd.failure import LeaderPlace
from brokerd.replica.partition_news import OwnBroker
from metaquorum.metadata.image import MetadataImage


def leader_place(image: MetadataImage, own: OwnBroker, topic_id: bytes, partition: int) -> LeaderPlace | None:
    """Return who leads a partition; None without one, without the partition, or where this process is named but may not lead yet."""
    topic = image.topic_by_id(topic_id)
    if topic is None or partition >= len(topic.partitions):
        return None
    state = own.seen(topic.partitions[partition])
    broker = None if state.leader_id is None else image.brokers.get(state.leader_id)
    if broker is None:
        return None
    return LeaderPlace(leader_id=broker.broker_id, leader_epoch=state.leader_epoch, host=broker.host, port=broker.port)
