# SPDX-License-Identifier: Apache-2.0
"""Protocol messages to and from the values of the SDK.

Owns the translation of metadata, offsets and errors; absent fields become None here. Must not call anybody.
"""

from __future__ import annotations

from lograft._client.metadata import BrokerNode, ClusterState, PartitionState, TopicState
from lograft.errors import LograftError, OffsetOutOfRangeError, error_for
from lograft.types import (
    Acks,
    AwaitedReplica,
    BrokerDescription,
    DeletedRecords,
    Durability,
    MetadataSnapshotDescription,
    OffsetAnswer,
    OffsetQuery,
    PartitionDescription,
    Position,
    QuorumDescription,
    QuorumReplicaDescription,
    TopicDescription,
    TopicPartition,
    TopicSummary,
)
from lograft.v1 import admin_pb2, errors_pb2, log_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode

ACKS = {
    Acks.ALL: log_pb2.ACKS_ALL,
    Acks.LEADER: log_pb2.ACKS_LEADER,
    Acks.NONE: log_pb2.ACKS_NONE,
}
_POSITIONS = {
    Position.EARLIEST: log_pb2.OFFSET_POSITION_EARLIEST,
    Position.LATEST: log_pb2.OFFSET_POSITION_LATEST,
}


def decode_durability(number: int) -> Durability:
    """Convert a durability off the wire; one that this version does not know becomes UNKNOWN."""
    try:
        return Durability(number)
    except ValueError:
        return Durability.UNKNOWN


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
    """Convert a whole state.

    Args:
        response: the broker's answer.
        asked: topics that were asked for: those that are missing are gone.
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
    """Convert a state or a change of a watch over the topics `watched`."""
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


def describe_broker(broker: BrokerNode) -> BrokerDescription:
    """Convert a broker for the user."""
    return BrokerDescription(
        broker_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack, fenced=broker.fenced
    )


def describe_topic(state: TopicState, configs: dict[str, str], overridden: frozenset[str]) -> TopicDescription:
    """Convert a topic and its configs for the user."""
    return TopicDescription(
        topic=state.topic,
        topic_id=state.topic_id,
        partitions=tuple(
            PartitionDescription(
                partition=part.partition,
                leader_id=part.leader_id,
                leader_epoch=part.leader_epoch,
                replicas=part.replicas,
                isr=part.isr,
                eligible_leader_replicas=part.elr,
                last_known_eligible_leader_replicas=part.last_known_elr,
                awaited_replicas=tuple(
                    AwaitedReplica(broker_id=broker_id, log_directory_ids=directory_ids)
                    for broker_id, directory_ids in part.awaited
                ),
            )
            for part in state.partitions
        ),
        configs=configs,
        overridden=overridden,
    )


def decode_summary(summary: admin_pb2.TopicSummary) -> TopicSummary:
    """Convert a topic of a list."""
    return TopicSummary(
        topic=summary.topic,
        topic_id=summary.topic_id,
        partition_count=summary.partition_count,
        replication_factor=summary.replication_factor,
    )


def _decode_replica(replica: admin_pb2.QuorumReplica) -> QuorumReplicaDescription:
    return QuorumReplicaDescription(
        node_id=replica.node_id,
        directory_id=replica.directory_id or None,
        address=replica.address or None,
        log_end_offset=replica.log_end_offset if replica.HasField("log_end_offset") else None,
        last_fetch_age_ms=replica.last_fetch_age_ms if replica.HasField("last_fetch_age_ms") else None,
        last_caught_up_age_ms=replica.last_caught_up_age_ms if replica.HasField("last_caught_up_age_ms") else None,
    )


def decode_quorum(response: admin_pb2.DescribeQuorumResponse) -> QuorumDescription:
    """Convert the quorum's state."""
    return QuorumDescription(
        cluster_id=response.cluster_id,
        leader_id=response.leader_id if response.HasField("leader_id") else None,
        quorum_epoch=response.quorum_epoch,
        high_watermark=response.high_watermark if response.HasField("high_watermark") else None,
        voters=tuple(map(_decode_replica, response.voters)),
        observers=tuple(map(_decode_replica, response.observers)),
        log_start_offset=response.log_start_offset,
        latest_snapshot=MetadataSnapshotDescription(
            end_offset=response.latest_snapshot.end_offset, quorum_epoch=response.latest_snapshot.quorum_epoch
        )
        if response.HasField("latest_snapshot")
        else None,
    )


def encode_offset_query(query: OffsetQuery) -> log_pb2.OffsetQuery:
    """Convert a query."""
    message = log_pb2.OffsetQuery(topic=query.topic, partition=query.partition)
    if query.position is not None:
        message.position = _POSITIONS[query.position]
    if query.timestamp_ms is not None:
        message.timestamp_ms = query.timestamp_ms
    return message


def decode_offset_result(result: log_pb2.OffsetResult) -> OffsetAnswer:
    """Convert the answer to one query."""
    return OffsetAnswer(
        topic=result.topic,
        partition=result.partition,
        offset=result.offset if result.HasField("offset") else None,
        timestamp_ms=result.timestamp_ms if result.HasField("timestamp_ms") else None,
        error=decode_error(result.error) if result.HasField("error") else None,
    )


def encode_records_before(where: TopicPartition, before_offset: int | None) -> log_pb2.RecordsBefore:
    """Convert what is to be removed; None: up to the high watermark, -1 on the wire."""
    offset = -1 if before_offset is None else before_offset
    return log_pb2.RecordsBefore(topic=where.topic, partition=where.partition, before_offset=offset)


def decode_deleted(result: log_pb2.DeletedRecords) -> DeletedRecords:
    """Convert the answer for one partition."""
    return DeletedRecords(
        topic=result.topic,
        partition=result.partition,
        log_start_offset=result.log_start_offset if result.HasField("log_start_offset") else None,
        error=decode_error(result.error) if result.HasField("error") else None,
    )
