# SPDX-License-Identifier: Apache-2.0
"""Common checks of a broker's calls about partitions: AlterPartition and ResignLeadership.

Owns the checks of such a call as a whole, and the look-up of a named partition. Does not know what the call wants.
Source: `docs/controller.md` sections "AlterPartition" and "ResignLeadership".
"""

from __future__ import annotations

from collections.abc import Sequence

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.brokers import registered
from metaquorum.controller.commands import IsrProposal, LedPartition, Refusal
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.state import PartitionImage, TopicImage

Named = IsrProposal | LedPartition
"""A part of a call that names a partition by topic id and number."""


def call_problem(
    image: AppendedImage, settings: ControllerSettings, broker_id: int, broker_epoch: int, named: Sequence[Named]
) -> Refusal | None:
    """Return why the whole call is refused (wrong registration, bad number of partitions, one named twice), or None."""
    broker = registered(image, broker_id, broker_epoch)
    if isinstance(broker, Refusal):
        return broker
    if not 1 <= len(named) <= settings.max_altered_partitions:
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"a request has 1 to {settings.max_altered_partitions} partitions, this one has {len(named)}",
        )
    if len({(each.topic_id, each.partition) for each in named}) < len(named):
        return Refusal(code=ErrorCode.INVALID_REQUEST, message="a partition is named twice")
    return None


def find(image: AppendedImage, named: Named) -> tuple[TopicImage, PartitionImage] | Refusal:
    """Return the named topic and partition, or the refusal if one of them does not exist."""
    topic = image.topic_by_id(named.topic_id)
    if topic is None:
        return Refusal(code=ErrorCode.UNKNOWN_TOPIC, message=f"there is no topic with the id {named.topic_id.hex()}")
    if not 0 <= named.partition < len(topic.partitions):
        return Refusal(
            code=ErrorCode.UNKNOWN_PARTITION, message=f"topic {topic.topic} has no partition {named.partition}"
        )
    return topic, topic.partitions[named.partition]


def not_leading(partition: PartitionImage, broker_id: int) -> str:
    """Return the message for a broker that does not lead a partition."""
    if partition.leader_id is None:
        return f"broker {broker_id} does not lead it; it has no leader"
    return f"broker {broker_id} does not lead it, broker {partition.leader_id} does"
