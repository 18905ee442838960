# SPDX-License-Identifier: Apache-2.0
"""The admin call about producers: which ones the leaders of partitions remember.

It is a call of `LogService`. This module splits it into requests and retries single partitions within the deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lograft._admin.by_partition import NamedPartitions, ask_by_partition
from lograft._admin.calls import AdminCalls
from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_error
from lograft._client.stubs import log_service
from lograft.types import PartitionProducers, RememberedProducer, TopicPartition
from lograft.v1 import log_pb2

PAGE_PARTITIONS: Final = 100
"""Partitions in one request."""


async def describe_producers(calls: AdminCalls, partitions: Sequence[TopicPartition | str]) -> list[PartitionProducers]:
    """Describe the producers that the leaders of partitions remember, to recognise batches that were sent again.

    Args:
        partitions: partitions; a name alone stands for all partitions of the topic.

    Returns:
        One entry for each partition, by topic and partition, with an `error` if it failed.

    Raises:
        UnknownTopicError: a topic that is named without a partition does not exist.
        UsageError: something is neither a topic name nor a partition.
        LograftError: the call as a whole failed.
    """
    deadline_ms = monotonic_ms() + calls.timeout_ms
    named = await NamedPartitions.of(calls, partitions)

    async def ask(page: Sequence[TopicPartition], timeout_ms: int) -> list[PartitionProducers]:
        request = log_pb2.DescribeProducersRequest(
            cluster_id=calls.cluster.cluster_id,
            partitions=[log_pb2.ProducersOfPartition(topic=each.topic, partition=each.partition) for each in page],
        )
        response = await calls.cluster.ask(
            lambda channel: log_service(channel).DescribeProducers, request, timeout_ms=timeout_ms
        )
        return [_described(result) for result in response.results]

    return await ask_by_partition(calls.until(deadline_ms), named.partitions, ask, page_size=PAGE_PARTITIONS)


def _described(message: log_pb2.DescribedProducers) -> PartitionProducers:
    return PartitionProducers(
        topic=message.topic,
        partition=message.partition,
        producers=tuple(map(_producer, message.producers)),
        producer_count=message.producer_count,
        error=decode_error(message.error) if message.HasField("error") else None,
    )


def _producer(message: log_pb2.RememberedProducer) -> RememberedProducer:
    return RememberedProducer(
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        last_sequence=message.last_sequence if message.HasField("last_sequence") else None,
        last_base_offset=message.last_base_offset if message.HasField("last_base_offset") else None,
        last_append_ms=message.last_append_ms if message.HasField("last_append_ms") else None,
        open_transaction_offset=message.open_transaction_offset
        if message.HasField("open_transaction_offset")
        else None,
    )
