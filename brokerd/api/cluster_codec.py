# SPDX-License-Identifier: Apache-2.0
"""Metadata images -> protobuf, as clients see the cluster. Pure translation."""

from __future__ import annotations

from lograft.v1 import metadata_pb2

from metaquorum.controller_service.codec import to_partition
from metaquorum.metadata.image import BrokerImage, TopicImage


def broker_message(broker: BrokerImage) -> metadata_pb2.Broker:
    """Turn a broker into the message."""
    return metadata_pb2.Broker(
        broker_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack or "",
        fenced=not broker.can_lead,
        broker_epoch=broker.broker_epoch,
        offline_log_directory_ids=broker.offline_log_directory_ids,
    )


def topic_message(topic: TopicImage) -> metadata_pb2.Topic:
    """Turn a topic into the message, with all its partitions."""
    return metadata_pb2.Topic(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=[to_partition(partition) for partition in topic.partitions],
    )
