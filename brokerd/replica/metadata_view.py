# SPDX-License-Identifier: Apache-2.0
"""This broker's view of the metadata: whether it may lead, states of partitions as events of their cores, leaders. Pure.

Law: a process leads nothing before an image has its own incarnation as this broker, unfenced. Until then the metadata
may still name the process before it as leader, whose log had records that this one lost. The controller unfences a
broker only after it has taken away what the broker led.
Source: docs/replication.md section "Starts"; R13.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.failure import LeaderPlace
from brokerd.partition.events import BrokerState, PartitionChanged
from metaquorum.metadata.image import MetadataImage, PartitionImage, TopicImage
from metaquorum.metadata.isr import min_insync_replicas


class OwnBroker:
    """Whether this process may lead, from the images in the order of their offsets; only `look` writes it.

    A later fencing takes nothing back: the log is still the unfenced one, and the partitions say who leads instead.

    Args:
        node_id: this broker.
        incarnation_id: incarnation of this process.

    Attributes:
        node_id: as above.
        may_lead: True if it may lead the partitions that the last image gives it.
    """

    __slots__ = ("_incarnation_id", "_was_let_in", "may_lead", "node_id")

    def __init__(self, node_id: int, incarnation_id: bytes) -> None:
        self.node_id = node_id
        self._incarnation_id = incarnation_id
        self._was_let_in = False
        self.may_lead = False

    def look(self, image: MetadataImage) -> bool:
        """Look at an image; return True if this process may lead from now on, so that its partitions must be checked again."""
        could_lead = self.may_lead
        broker = image.brokers.get(self.node_id)
        is_registered = broker is not None and broker.incarnation_id == self._incarnation_id
        self._was_let_in = self._was_let_in or (broker is not None and is_registered and not broker.fenced)
        self.may_lead = is_registered and self._was_let_in
        return self.may_lead and not could_lead

    def seen(self, partition: PartitionImage) -> PartitionImage:
        """Return a partition as this process sees it: without a leader if that is this broker and it may not lead."""
        if partition.leader_id != self.node_id or self.may_lead:
            return partition
        return partition._replace(leader_id=None)


def partition_changed(image: MetadataImage, topic: TopicImage, partition: PartitionImage) -> PartitionChanged:
    """Return the state of a partition, with those brokers of its replicas that are registered."""
    states = (broker_state(image, node_id) for node_id in partition.replicas)
    return PartitionChanged(
        partition=partition,
        min_isr=min_insync_replicas(topic),
        brokers=tuple(state for state in states if state is not None),
    )


def broker_state(image: MetadataImage, node_id: int) -> BrokerState | None:
    """Return the state of a broker in the metadata; None: it is not registered."""
    broker = image.brokers.get(node_id)
    if broker is None:
        return None
    return BrokerState(node_id=node_id, broker_epoch=broker.broker_epoch, can_lead=broker.can_lead)


def leaderless_count(image: MetadataImage, topic_ids: Iterable[bytes], node_id: int) -> int:
    """Count the partitions of topics without a leader although a broker is in sync and could lead them."""
    topics = (image.topic_by_id(topic_id) for topic_id in topic_ids)
    return sum(
        partition.leader_id is None and node_id in partition.isr
        for topic in topics
        if topic is not None
        for partition in topic.partitions
    )


def leader_place(image: MetadataImage, own: OwnBroker, topic_id: bytes, partition: int) -> LeaderPlace | None:
    """Return the leader of a partition; None if there is none, or if this process is named as leader and may not lead yet."""
    topic = image.topic_by_id(topic_id)
    if topic is None or partition >= len(topic.partitions):
        return None
    state = own.seen(topic.partitions[partition])
    broker = None if state.leader_id is None else image.brokers.get(state.leader_id)
    if broker is None:
        return None
    return LeaderPlace(leader_id=broker.broker_id, leader_epoch=state.leader_epoch, host=broker.host, port=broker.port)
