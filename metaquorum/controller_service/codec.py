# SPDX-License-Identifier: Apache-2.0
"""Topics and partitions as messages, for the answers of several modules.

Owns the translation; absent values become absent fields.
"""

from __future__ import annotations

from collections.abc import Sequence

from lograft.v1 import errors_pb2, metadata_pb2
from lograft.wire.status import cut_message

from metaquorum.controller.commands import Refusal
from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS
from metaquorum.metadata.awaited import unpack
from metaquorum.metadata.state import PartitionImage


def to_topic(topic: str, topic_id: bytes, partitions: Sequence[PartitionImage]) -> metadata_pb2.Topic:
    """Return a topic in the form that clients see."""
    return metadata_pb2.Topic(
        topic=topic,
        topic_id=topic_id,
        partitions=[to_partition(partition) for partition in partitions],
    )


def to_partition(partition: PartitionImage) -> metadata_pb2.Partition:
    """Return a partition in the form that clients see."""
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


def to_error(refusal: Refusal) -> errors_pb2.PartitionError:
    """Return the error of one refused partition; the call may still succeed for other partitions."""
    return errors_pb2.PartitionError(
        code=errors_pb2.ErrorCode.ValueType(int(refusal.code)),
        message=cut_message(refusal.message),
        retry_after_ms=RETRY_AFTER_MS if refusal.code.retriable else 0,
    )
