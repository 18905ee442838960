# SPDX-License-Identifier: Apache-2.0
"""Many topics in one call, for the admin clients.

Owns turning what the user names into requests of a size that servers take, and trying again what was refused for the moment. Must not
hold state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from lograft._client.cluster import Attempt, Cluster, now_ms
from lograft._client.codec import decode_error
from lograft.errors import RetriableError, UsageError
from lograft.types import CreatedTopic, NewTopic
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub
from lograft.wire.codes import ErrorCode

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
    deadline_ms = now_ms() + timeout_ms
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
        if now_ms() + pause_ms >= deadline_ms:
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
                call = cluster.call(_work(request), timeout_ms=timeout_ms, may_repeat=validate_only)
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


def _work(request: admin_pb2.CreateTopicsRequest) -> Callable[[Attempt], Awaitable[admin_pb2.CreateTopicsResponse]]:
    async def work(attempt: Attempt) -> admin_pb2.CreateTopicsResponse:
        return await attempt.answer(AdminServiceStub(attempt.channel).CreateTopics(request, timeout=attempt.timeout_s))

    return work


def _created(result: admin_pb2.TopicCreation) -> CreatedTopic:
    if result.HasField("error"):
        return CreatedTopic(topic=result.topic, error=decode_error(result.error))
    return CreatedTopic(
        topic=result.topic,
        topic_id=result.topic_id,
        partition_count=result.partition_count,
        replication_factor=result.replication_factor,
    )


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
