# SPDX-License-Identifier: Apache-2.0
"""Core types to public protobuf messages.

Owns the translation of images and quorum states; absent values become absent fields.
"""

from __future__ import annotations

from collections.abc import Sequence

from lograft.v1 import admin_pb2, metadata_pb2

from metaquorum.controller.commands import Refusal
from metaquorum.controller.configs import ConfigSource, describe
from metaquorum.controller.limits import FEATURE_LEVEL, FEATURE_NAME
from metaquorum.metadata.awaited import unpack
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.state import PartitionImage, TopicImage
from metaquorum.raft.types import SnapshotId
from metaquorum.replica.quorum_node import QuorumStatus, ReplicaStatus

CONFIG_SOURCES = {
    ConfigSource.DEFAULT: admin_pb2.CONFIG_SOURCE_DEFAULT,
    ConfigSource.TOPIC: admin_pb2.CONFIG_SOURCE_TOPIC,
    ConfigSource.BROKER: admin_pb2.CONFIG_SOURCE_BROKER,
    ConfigSource.CLUSTER: admin_pb2.CONFIG_SOURCE_CLUSTER,
}


def to_topic(topic: str, topic_id: bytes, partitions: Sequence[PartitionImage]) -> metadata_pb2.Topic:
    """Return a topic as clients see it."""
    return metadata_pb2.Topic(
        topic=topic,
        topic_id=topic_id,
        partitions=[to_partition(partition) for partition in partitions],
    )


def to_partition(partition: PartitionImage) -> metadata_pb2.Partition:
    """Return a partition as clients see it."""
    return metadata_pb2.Partition(
        partition=partition.partition,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_eligible_leader_replicas=partition.last_known_elr,
        awaited_replicas=[
            metadata_pb2.AwaitedReplica(broker_id=each.broker_id, log_directory_ids=each.directory_ids)
            for each in unpack(partition.awaited)
        ],
    )


def to_summary(topic: TopicImage) -> admin_pb2.TopicSummary:
    """Return a topic as a list shows it."""
    return admin_pb2.TopicSummary(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partition_count=len(topic.partitions),
        replication_factor=topic.replication_factor,
    )


def to_configs(image: MetadataImage, topic: TopicImage) -> list[admin_pb2.ConfigEntry]:
    """Return all configs of a topic, ascending by name, with where each value comes from."""
    values = describe(image, ConfigResource.TOPIC, topic.topic, None)
    assert not isinstance(values, Refusal), f"{topic.topic} is in the image and refused: {values}"
    return [
        admin_pb2.ConfigEntry(name=each.definition.name, value=each.value, source=CONFIG_SOURCES[each.source])
        for each in values
    ]


def to_feature_level(image: MetadataImage, *, controller_max_level: int) -> admin_pb2.DescribeFeatureLevelResponse:
    """Return the feature level and the levels that brokers can run at."""
    return admin_pb2.DescribeFeatureLevelResponse(
        level=image.features.get(FEATURE_NAME, FEATURE_LEVEL),
        controller_max_level=controller_max_level,
        brokers=[
            admin_pb2.BrokerFeatureLevels(
                broker_id=broker.broker_id, min_level=broker.min_feature_level, max_level=broker.max_feature_level
            )
            for _, broker in sorted(image.brokers.items())
        ],
        metadata_offset=image.metadata_offset,
    )


def to_quorum(
    status: QuorumStatus, *, cluster_id: str, log_start_offset: int, snapshot: SnapshotId | None
) -> admin_pb2.DescribeQuorumResponse:
    """Return the state of the quorum as its leader sees it, with the start of its log and its newest snapshot."""
    return admin_pb2.DescribeQuorumResponse(
        cluster_id=cluster_id,
        leader_id=status.leader.leader_id,
        quorum_epoch=status.leader.quorum_epoch,
        high_watermark=status.high_watermark,
        voters=[_to_replica(voter, status) for voter in status.voters],
        observers=[_to_replica(observer, status) for observer in status.observers],
        log_start_offset=log_start_offset,
        latest_snapshot=None
        if snapshot is None
        else admin_pb2.MetadataSnapshot(end_offset=snapshot.end_offset, quorum_epoch=snapshot.epoch),
    )


def _to_replica(replica: ReplicaStatus, status: QuorumStatus) -> admin_pb2.QuorumReplica:
    leads = replica.node_id == status.leader.leader_id
    return admin_pb2.QuorumReplica(
        node_id=replica.node_id,
        directory_id=replica.directory_id,
        address=replica.address or "",
        log_end_offset=replica.log_end_offset,
        last_fetch_age_ms=None if leads else replica.last_fetch_age_ms,
        last_caught_up_age_ms=replica.last_caught_up_age_ms,
    )
