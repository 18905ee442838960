# SPDX-License-Identifier: Apache-2.0
"""The calls about topics, for the admin clients.

Owns turning what the user names into requests of a size that servers take, pages, and trying again what was refused for the moment.
Must not hold state.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.codec import decode_error, decode_topic
from lograft._client.metadata import TopicState
from lograft.errors import RetriableError, StaleMetadataWarning, UsageError
from lograft.types import AwaitedReplica, CreatedTopic, NewTopic, PartitionDescription, TopicDescription, TopicSummary
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub
from lograft.wire.codes import ErrorCode

PAGE_TOPICS: Final = 1_000
"""Topics of one page of a list."""

MAX_TOPICS: Final = 1_000
"""Topics of one request."""

MAX_REQUESTS: Final = 2
"""Requests under way at a time: while the quorum commits topics of one, the controller decides about those of the other."""

MAX_PARTITIONS: Final = 10_000
"""Partitions of all topics of one request; a topic with more is sent alone, and refused."""

RETRY_AFTER_MS: Final = 100
"""Milliseconds until topics that were refused for the moment are sent again, unless the server says otherwise."""

_COUNT_CODES: Final = {
    "partition_count": ErrorCode.INVALID_PARTITION_COUNT,
    "replication_factor": ErrorCode.INVALID_REPLICATION_FACTOR,
}


async def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    partition_count: int,
    replication_factor: int,
    configs: Mapping[str, str] | None,
    validate_only: bool,
    timeout_ms: int,
) -> TopicDescription:
    """Create a topic and wait until the answering broker shows it."""
    request = admin_pb2.CreateTopicRequest(
        cluster_id=cluster.cluster_id,
        topic=topic_name(topic),
        partition_count=checked_count("partition_count", partition_count),
        replication_factor=checked_count("replication_factor", replication_factor),
        configs={name: str(value) for name, value in (configs or {}).items()},
        validate_only=validate_only,
    )
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).CreateTopic, request, timeout_ms=timeout_ms, may_repeat=validate_only
    )
    if validate_only:
        return topic_description(decode_topic(response.topic), dict(response.configs), frozenset(response.configs))
    return await describe_topic(cluster, topic, timeout_ms=timeout_ms, min_metadata_offset=response.metadata_offset)


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool, timeout_ms: int
) -> list[CreatedTopic]:
    """Create topics; one result for each, in order. Waits until the answering broker shows them.

    Raises:
        UsageError: something is no `NewTopic`, has a count below 1, or a name stands twice.
        LograftError: a request as a whole failed; topics of requests before it, and of the one beside it, were created.
    """
    _check(topics)
    results: dict[str, CreatedTopic] = {}
    deadline_ms = monotonic_ms() + timeout_ms
    left = list(topics)
    while left:
        requests = (_request(cluster.cluster_id, some, validate_only=validate_only) for some in _slices(left))
        metadata_offset = 0
        async for response in _answers(cluster, requests, validate_only=validate_only, timeout_ms=timeout_ms):
            results |= {each.topic: _created(each) for each in response.results}
            metadata_offset = max(metadata_offset, response.metadata_offset)
        if metadata_offset:
            # Read your writes: the broker that is asked next shows them, too.
            names = frozenset((left[0].topic,))
            await cluster.fetch(names, timeout_ms=timeout_ms, min_metadata_offset=metadata_offset)
        passing = {name: result.error for name, result in results.items() if isinstance(result.error, RetriableError)}
        left = [each for each in left if each.topic in passing]
        pause_ms = max((error.retry_after_ms or RETRY_AFTER_MS for error in passing.values()), default=0)
        if monotonic_ms() + pause_ms >= deadline_ms:
            break
        if left:
            await asyncio.sleep(pause_ms / 1000)
    return [results[each.topic] for each in topics]


async def _answers(
    cluster: Cluster, requests: Iterator[admin_pb2.CreateTopicsRequest], *, validate_only: bool, timeout_ms: int
) -> AsyncIterator[admin_pb2.CreateTopicsResponse]:
    """Send requests, `MAX_REQUESTS` at a time; give the answers in order. After a failure no more are sent."""
    calls: deque[asyncio.Task[admin_pb2.CreateTopicsResponse]] = deque()
    try:
        while True:
            for request in islice(requests, MAX_REQUESTS - len(calls)):
                call = cluster.ask(
                    lambda channel: AdminServiceStub(channel).CreateTopics,
                    request,
                    timeout_ms=timeout_ms,
                    may_repeat=validate_only,
                )
                calls.append(asyncio.create_task(call))
            if not calls:
                return
            yield await calls.popleft()
    except asyncio.CancelledError:
        for call in calls:
            call.cancel()
        raise
    finally:
        # What was sent is not taken back: its topics are created, so its end is waited for.
        await asyncio.gather(*calls, return_exceptions=True)


def _check(topics: Sequence[NewTopic]) -> None:
    seen: set[str] = set()
    for each in topics:
        if not isinstance(each, NewTopic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"name a topic as NewTopic('orders'), not {each!r}")
        topic_name(each.topic)
        checked_count("partition_count", each.partition_count)
        checked_count("replication_factor", each.replication_factor)
        if each.topic in seen:
            raise UsageError(f"topic {each.topic!r} is named twice")
        seen.add(each.topic)


def _slices(topics: Sequence[NewTopic]) -> Iterator[list[NewTopic]]:
    some: list[NewTopic] = []
    partitions = 0
    for each in topics:
        if some and (len(some) == MAX_TOPICS or partitions + each.partition_count > MAX_PARTITIONS):
            yield some
            some, partitions = [], 0
        some.append(each)
        partitions += each.partition_count
    if some:
        yield some


def _request(cluster_id: str, topics: Sequence[NewTopic], *, validate_only: bool) -> admin_pb2.CreateTopicsRequest:
    return admin_pb2.CreateTopicsRequest(
        cluster_id=cluster_id,
        topics=[
            admin_pb2.NewTopic(
                topic=each.topic,
                partition_count=each.partition_count,
                replication_factor=each.replication_factor,
                configs={name: str(value) for name, value in each.configs.items()},
            )
            for each in topics
        ],
        validate_only=validate_only,
    )


def _created(result: admin_pb2.TopicCreation) -> CreatedTopic:
    if result.HasField("error"):
        return CreatedTopic(topic=result.topic, error=decode_error(result.error))
    return CreatedTopic(
        topic=result.topic,
        topic_id=result.topic_id,
        partition_count=result.partition_count,
        replication_factor=result.replication_factor,
    )


async def create_partitions(
    cluster: Cluster, topic: str, partition_count: int, *, validate_only: bool, timeout_ms: int
) -> TopicDescription:
    """Add partitions to a topic and wait until the answering broker shows them."""
    request = admin_pb2.CreatePartitionsRequest(
        cluster_id=cluster.cluster_id,
        topic=topic_name(topic),
        partition_count=checked_int32("partition_count", partition_count),
        validate_only=validate_only,
    )
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).CreatePartitions,
        request,
        timeout_ms=timeout_ms,
        may_repeat=validate_only,
    )
    if validate_only:
        return await describe_topic(cluster, topic, timeout_ms=timeout_ms)
    return await describe_topic(cluster, topic, timeout_ms=timeout_ms, min_metadata_offset=response.metadata_offset)


async def delete_topic(cluster: Cluster, topic: str, *, timeout_ms: int) -> None:
    """Delete a topic."""
    request = admin_pb2.DeleteTopicRequest(cluster_id=cluster.cluster_id, topic=topic_name(topic))
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).DeleteTopic, request, timeout_ms=timeout_ms, may_repeat=False
    )
    # Read your writes: wait until the broker that was asked shows it, too.
    await cluster.fetch(frozenset((topic,)), timeout_ms=timeout_ms, min_metadata_offset=response.metadata_offset)


async def list_topics(cluster: Cluster, *, timeout_ms: int) -> list[TopicSummary]:
    """List all topics by name."""
    found: list[TopicSummary] = []
    token = ""
    while True:
        request = admin_pb2.ListTopicsRequest(cluster_id=cluster.cluster_id, page_size=PAGE_TOPICS, page_token=token)
        response = await _list_page(cluster, request, timeout_ms)
        _warn_without_leader(response.without_leader)
        found += map(_summary, response.topics)
        token = response.next_page_token
        if not token:
            return found


async def _list_page(
    cluster: Cluster, request: admin_pb2.ListTopicsRequest, timeout_ms: int
) -> admin_pb2.ListTopicsResponse:
    return await cluster.ask(lambda channel: AdminServiceStub(channel).ListTopics, request, timeout_ms=timeout_ms)


async def describe_topic(
    cluster: Cluster, topic: str, *, timeout_ms: int, min_metadata_offset: int | None = None
) -> TopicDescription:
    """Describe a topic with its configs."""
    request = admin_pb2.DescribeTopicRequest(cluster_id=cluster.cluster_id, topic=topic_name(topic))
    if min_metadata_offset is not None:
        request.min_metadata_offset = min_metadata_offset
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).DescribeTopic, request, timeout_ms=timeout_ms
    )
    _warn_without_leader(response.without_leader)
    configs = {entry.name: entry.value for entry in response.configs}
    overridden = frozenset(entry.name for entry in response.configs if entry.source == admin_pb2.CONFIG_SOURCE_TOPIC)
    return topic_description(decode_topic(response.topic), configs, overridden)


def topic_description(state: TopicState, configs: dict[str, str], overridden: frozenset[str]) -> TopicDescription:
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


def _summary(summary: admin_pb2.TopicSummary) -> TopicSummary:
    return TopicSummary(
        topic=summary.topic,
        topic_id=summary.topic_id,
        partition_count=summary.partition_count,
        replication_factor=summary.replication_factor,
    )


def _warn_without_leader(is_so: bool) -> None:
    if is_so:
        text = "the metadata quorum has no leader: a broker answered from its own image, which may be behind"
        warnings.warn(text, StaleMetadataWarning, stacklevel=2)


def topic_name(topic: object) -> str:
    """Return a name that can be sent.

    Raises:
        UsageError: it is no text.
    """
    if not isinstance(topic, str):
        raise UsageError(f"the name of a topic is text, not {topic!r}")
    return topic


def checked_count(name: str, value: object) -> int:
    """Return a count from 1 that can be sent.

    Raises:
        UsageError: it is none.
    """
    if checked_int32(name, value) < 1:
        raise UsageError(f"{name} is at least 1, not {value}", code=_COUNT_CODES[name])
    return checked_int32(name, value)


def checked_int32(name: str, value: object) -> int:
    """Return a whole number that can be sent.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise UsageError(f"{name} is a whole number of 32 bits, not {value!r}")
    return value
