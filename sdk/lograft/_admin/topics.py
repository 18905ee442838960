# SPDX-License-Identifier: Apache-2.0
"""The admin calls about topics.

This module converts the caller's values to requests of a size that servers accept. It owns paging and the retry of temporary
refusals. It must not hold state.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from lograft._admin.calls import AdminCalls
from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_error, decode_topic
from lograft._client.metadata import TopicState
from lograft.errors import RetriableError, StaleMetadataWarning, UsageError
from lograft.types import AwaitedReplica, CreatedTopic, NewTopic, PartitionDescription, TopicDescription, TopicSummary
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

PAGE_TOPICS: Final = 1_000
"""Topics in one page of a list."""

MAX_TOPICS: Final = 1_000
"""Topics in one request."""

MAX_REQUESTS: Final = 2
"""Requests under way at a time. While the quorum commits the topics of one, the controller decides about those of the other."""

MAX_PARTITIONS: Final = 10_000
"""Partitions of all topics in one request. A topic with more partitions is sent alone, and the controller refuses it."""

RETRY_AFTER_MS: Final = 100
"""Milliseconds before temporarily refused topics are sent again, unless the server gives another time."""

_COUNT_CODES: Final = {
    "partition_count": ErrorCode.INVALID_PARTITION_COUNT,
    "replication_factor": ErrorCode.INVALID_REPLICATION_FACTOR,
}


async def create_topic(
    calls: AdminCalls,
    topic: str,
    *,
    partition_count: int = 1,
    replication_factor: int = 1,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> TopicDescription:
    """Create a topic. It can be used when this returns.

    Args:
        topic: 1 to 249 of the characters A-Z a-z 0-9 . _ - but neither "." nor "..".
        partition_count: number of partitions, at least 1.
        replication_factor: number of replicas of each partition, at least 1.
        configs: configs that differ from the defaults. With three replicas or more, `min.insync.replicas` is 2 unless the
            cluster's `default.min.insync.replicas` says otherwise.
        validate_only: check the request without changing anything.

    Raises:
        TopicAlreadyExistsError: a topic with this name exists.
        InvalidRequestError: a name, count or config is not valid.
        OutcomeUnknownError: the answer was lost. Describe the topic to find out.
        LograftError: the client could not reach a broker, or the broker not the controller.
    """
    request = admin_pb2.CreateTopicRequest(
        topic=topic_name(topic),
        partition_count=checked_count("partition_count", partition_count),
        replication_factor=checked_count("replication_factor", replication_factor),
        configs={name: str(value) for name, value in (configs or {}).items()},
        validate_only=validate_only,
    )
    response = await calls.ask(lambda stub: stub.CreateTopic, request, may_repeat=validate_only)
    if validate_only:
        return topic_description(decode_topic(response.topic), dict(response.configs), frozenset(response.configs))
    return await _describe(calls, topic, response.metadata_offset)


async def create_topics(
    calls: AdminCalls, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> list[CreatedTopic]:
    """Create many topics. Each topic has one result, in order, with an `error` if it was not created.

    This is much faster than one call for each topic. A refused topic does not stop the others.

    Args:
        topics: any number of topics with different names.
        validate_only: check the topics without creating them. Each topic is checked as if it were the only one.

    Raises:
        UsageError: an element is not a `NewTopic`, has a count below 1, or repeats a name.
        OutcomeUnknownError: the answer for up to 1,000 topics was lost. List the topics to find out.
        LograftError: the client could not reach a broker, or the broker not the controller.
    """
    _check(topics)
    results: dict[str, CreatedTopic] = {}
    deadline_ms = monotonic_ms() + calls.timeout_ms
    left = list(topics)
    while left:
        requests = (_request(some, validate_only=validate_only) for some in _slices(left))
        metadata_offset = 0
        async for response in _answers(calls, requests, validate_only=validate_only):
            results |= {each.topic: _created(each) for each in response.results}
            metadata_offset = max(metadata_offset, response.metadata_offset)
        if metadata_offset:
            # Read your writes: wait until a broker shows the new topics.
            names = frozenset((left[0].topic,))
            await calls.cluster.fetch(names, timeout_ms=calls.timeout_ms, min_metadata_offset=metadata_offset)
        passing = {name: result.error for name, result in results.items() if isinstance(result.error, RetriableError)}
        left = [each for each in left if each.topic in passing]
        pause_ms = max((error.retry_after_ms or RETRY_AFTER_MS for error in passing.values()), default=0)
        if monotonic_ms() + pause_ms >= deadline_ms:
            break
        if left:
            await asyncio.sleep(pause_ms / 1000)
    return [results[each.topic] for each in topics]


async def _answers(
    calls: AdminCalls, requests: Iterator[admin_pb2.CreateTopicsRequest], *, validate_only: bool
) -> AsyncIterator[admin_pb2.CreateTopicsResponse]:
    """Send requests, `MAX_REQUESTS` at a time, and yield the answers in order. A failure stops further requests."""
    under_way: deque[asyncio.Task[admin_pb2.CreateTopicsResponse]] = deque()
    try:
        while True:
            for request in islice(requests, MAX_REQUESTS - len(under_way)):
                call = calls.ask(
                    lambda stub: stub.CreateTopics,
                    request,
                    may_repeat=validate_only,
                )
                under_way.append(asyncio.create_task(call))
            if not under_way:
                return
            yield await under_way.popleft()
    except asyncio.CancelledError:
        for call in under_way:
            call.cancel()
        raise
    finally:
        # A request cannot be taken back once it is sent, and its topics are created. So wait for its end.
        await asyncio.gather(*under_way, return_exceptions=True)


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


def _request(topics: Sequence[NewTopic], *, validate_only: bool) -> admin_pb2.CreateTopicsRequest:
    return admin_pb2.CreateTopicsRequest(
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
    calls: AdminCalls, topic: str, partition_count: int, *, validate_only: bool = False
) -> TopicDescription:
    """Add partitions to a topic and describe it. From then on, keys may map to other partitions.

    Open producers use the new partitions within moments, as soon as they learn of them.

    Args:
        topic: topic name.
        partition_count: the new number of partitions, above the current one. Partitions cannot be removed.
        validate_only: check the request without changing anything.

    Raises:
        UnknownTopicError: the topic does not exist.
        InvalidRequestError: the count is not above the current one, or adds too many partitions for one request.
        RefusedError: the change would exceed a limit of the cluster.
        OutcomeUnknownError: the answer was lost. Describe the topic to find out.
    """
    request = admin_pb2.CreatePartitionsRequest(
        topic=topic_name(topic),
        partition_count=checked_int32("partition_count", partition_count),
        validate_only=validate_only,
    )
    response = await calls.ask(
        lambda stub: stub.CreatePartitions,
        request,
        may_repeat=validate_only,
    )
    if validate_only:
        return await describe_topic(calls, topic)
    return await _describe(calls, topic, response.metadata_offset)


async def delete_topic(calls: AdminCalls, topic: str) -> None:
    """Delete a topic and its records. Return when a broker shows the change.

    Raises:
        UnknownTopicError: the topic does not exist.
        OutcomeUnknownError: the answer was lost. Describe the topic to find out.
    """
    request = admin_pb2.DeleteTopicRequest(topic=topic_name(topic))
    response = await calls.ask(lambda stub: stub.DeleteTopic, request, may_repeat=False)
    # Read your writes: wait until a broker shows the deletion.
    await calls.cluster.fetch(
        frozenset((topic,)), timeout_ms=calls.timeout_ms, min_metadata_offset=response.metadata_offset
    )


async def list_topics(calls: AdminCalls, *, include_internal: bool = False) -> list[TopicSummary]:
    """List all topics, ordered by name.

    Args:
        calls: the client.
        include_internal: True lists the topics of the system, too.
    """
    found: list[TopicSummary] = []
    token = ""
    while True:
        request = admin_pb2.ListTopicsRequest(
            page_size=PAGE_TOPICS, page_token=token, include_internal=include_internal
        )
        response = await calls.ask(lambda stub: stub.ListTopics, request)
        _warn_without_leader(response.without_leader)
        found += map(_summary, response.topics)
        token = response.next_page_token
        if not token:
            return found


async def describe_topic(calls: AdminCalls, topic: str) -> TopicDescription:
    """Describe a topic with its partitions and configs.

    Raises:
        UnknownTopicError: the topic does not exist.
    """
    return await _describe(calls, topic, None)


async def _describe(calls: AdminCalls, topic: str, min_metadata_offset: int | None) -> TopicDescription:
    request = admin_pb2.DescribeTopicRequest(topic=topic_name(topic))
    if min_metadata_offset is not None:
        request.min_metadata_offset = min_metadata_offset
    response = await calls.ask(lambda stub: stub.DescribeTopic, request)
    _warn_without_leader(response.without_leader)
    configs = {entry.name: entry.value for entry in response.configs}
    overridden = frozenset(entry.name for entry in response.configs if entry.source == admin_pb2.CONFIG_SOURCE_TOPIC)
    return topic_description(decode_topic(response.topic), configs, overridden)


def topic_description(state: TopicState, configs: dict[str, str], overridden: frozenset[str]) -> TopicDescription:
    """Convert a topic and its configs to the caller's type."""
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
        is_internal=summary.is_internal,
    )


def _warn_without_leader(is_so: bool) -> None:
    if is_so:
        text = "the metadata quorum has no leader: a broker answered from its own image, which may be behind"
        warnings.warn(text, StaleMetadataWarning, stacklevel=2)


def topic_name(topic: object) -> str:
    """Return a topic name that can be sent.

    Raises:
        UsageError: the value is not a string.
    """
    if not isinstance(topic, str):
        raise UsageError(f"the name of a topic is text, not {topic!r}")
    return topic


def checked_count(name: str, value: object) -> int:
    """Return a count that can be sent.

    Raises:
        UsageError: the value is not a whole number of 32 bits, or is below 1.
    """
    if checked_int32(name, value) < 1:
        raise UsageError(f"{name} is at least 1, not {value}", code=_COUNT_CODES[name])
    return checked_int32(name, value)


def checked_int32(name: str, value: object) -> int:
    """Return a whole number that can be sent.

    Raises:
        UsageError: the value is not a whole number of 32 bits.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise UsageError(f"{name} is a whole number of 32 bits, not {value!r}")
    return value
