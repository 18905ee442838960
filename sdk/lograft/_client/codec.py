# SPDX-License-Identifier: Apache-2.0
"""Converts protobuf messages about the cluster and failures of partitions to values of the SDK. Absent fields become None."""

from __future__ import annotations

from lograft._client.metadata import BrokerNode, ClusterState, PartitionState, TopicState
from lograft.errors import LograftError, OffsetOutOfRangeError, error_for
from lograft.v1 import errors_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode


def decode_broker(broker: metadata_pb2.Broker) -> BrokerNode:
    """Convert a broker."""
    return BrokerNode(
        broker_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack or None,
        fenced=broker.fenced,
    )


def decode_topic(topic: metadata_pb2.Topic) -> TopicState:
    """Convert a topic."""
    return TopicState(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=tuple(
            PartitionState(
                partition=part.partition,
                leader_id=part.leader_id if part.HasField("leader_id") else None,
                leader_epoch=part.leader_epoch,
                replicas=tuple(part.replicas),
                isr=tuple(part.isr),
                elr=tuple(part.eligible_leader_replicas),
                last_known_elr=tuple(part.last_known_eligible_leader_replicas),
                awaited=tuple((each.broker_id, tuple(each.log_directory_ids)) for each in part.awaited_replicas),
            )
            for part in topic.partitions
        ),
    )


def decode_cluster(response: metadata_pb2.GetClusterResponse, *, asked: frozenset[str]) -> ClusterState:
    """Convert a whole state of the cluster.

    Args:
        response: the broker's answer.
        asked: the topics of the request. A topic that the answer lacks no longer exists.
    """
    return ClusterState(
        metadata_offset=response.metadata_offset,
        cluster_id=response.cluster_id,
        controller_id=response.controller_id if response.HasField("controller_id") else None,
        brokers=tuple(map(decode_broker, response.brokers)),
        topics=tuple(map(decode_topic, response.topics)),
        has_all_brokers=True,
        covered_topics=asked,
    )


def decode_watch(response: metadata_pb2.WatchClusterResponse, *, watched: frozenset[str]) -> ClusterState:
    """Convert a state or a change from a watch on the topics `watched`."""
    return ClusterState(
        metadata_offset=response.metadata_offset,
        cluster_id=response.cluster_id,
        controller_id=response.controller_id if response.HasField("controller_id") else None,
        brokers=tuple(map(decode_broker, response.brokers)),
        topics=tuple(map(decode_topic, response.topics)),
        removed_broker_ids=tuple(response.removed_broker_ids),
        removed_topics=tuple(response.removed_topics),
        has_all_brokers=response.snapshot,
        covered_topics=watched if response.snapshot else frozenset(),
    )


def decode_error(error: errors_pb2.PartitionError) -> LograftError:
    """Convert the failure of one partition."""
    code = ErrorCode.from_number(error.code)
    result = error_for(code, error.message or code.name, retry_after_ms=error.retry_after_ms or None)
    if isinstance(result, OffsetOutOfRangeError) and error.HasField("readable_range"):
        result.log_start_offset = error.readable_range.log_start_offset
        result.high_watermark = error.readable_range.high_watermark
    return result
