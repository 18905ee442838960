# SPDX-License-Identifier: Apache-2.0
"""ListOffsets for the consumers and the admin client.

This module owns the splitting into requests and the retry of single partitions within the deadline. It must not interpret the
results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_error
from lograft._client.stubs import log_service
from lograft.errors import RetriableError, UsageError
from lograft.types import OffsetAnswer, OffsetQuery, Position
from lograft.v1 import log_pb2

if TYPE_CHECKING:
    from lograft._client.cluster import Cluster

MAX_QUERIES: Final = 10_000
"""Queries in one request."""

_POSITIONS: Final = {
    Position.EARLIEST: log_pb2.OFFSET_POSITION_EARLIEST,
    Position.LATEST: log_pb2.OFFSET_POSITION_LATEST,
}


async def list_offsets(cluster: Cluster, queries: Sequence[OffsetQuery], *, timeout_ms: int) -> list[OffsetAnswer]:
    """Look up offsets, and return one answer for each query, in order.

    A partition without a leader is asked again until the time is up. A partition that fails for good, or until then, has an
    `error` in its answer.

    Raises:
        UsageError: a query has neither or both of position and timestamp.
        LograftError: the call as a whole failed.
    """
    for query in queries:
        if (query.position is None) == (query.timestamp_ms is None):
            raise UsageError(f"an OffsetQuery has either position or timestamp_ms: {query}")
    deadline_ms = monotonic_ms() + timeout_ms
    backoff = cluster.backoff()
    answers: dict[int, OffsetAnswer] = {}
    left: list[int] = list(range(len(queries)))
    while left:
        for start in range(0, len(left), MAX_QUERIES):
            indexes = left[start : start + MAX_QUERIES]
            page = [queries[index] for index in indexes]
            found = await _ask(cluster, page, max(1, deadline_ms - monotonic_ms()))
            answers.update(zip(indexes, found, strict=True))
        left = [index for index in left if isinstance(answers[index].error, RetriableError)]
        left_ms = deadline_ms - monotonic_ms()
        if left and left_ms <= 0:
            break
        if left:
            await asyncio.sleep(min(backoff.next_delay_ms(), left_ms) / 1000)
    return [answers[index] for index in range(len(queries))]


async def _ask(cluster: Cluster, queries: Sequence[OffsetQuery], timeout_ms: int) -> list[OffsetAnswer]:
    request = log_pb2.ListOffsetsRequest(cluster_id=cluster.cluster_id, queries=[_query(query) for query in queries])
    response = await cluster.ask(lambda channel: log_service(channel).ListOffsets, request, timeout_ms=timeout_ms)
    return [_answer(result) for result in response.results]


async def find_offsets(cluster: Cluster, queries: Sequence[OffsetQuery], *, timeout_ms: int) -> list[int | None]:
    """Look up offsets and raise the first failure. An offset is None when no record has the timestamp or a later one.

    Raises:
        LograftError: a partition or the call failed.
    """
    found: list[int | None] = []
    for answer in await list_offsets(cluster, queries, timeout_ms=timeout_ms):
        if answer.error is not None:
            raise answer.error
        found.append(answer.offset)
    return found


def _query(query: OffsetQuery) -> log_pb2.OffsetQuery:
    message = log_pb2.OffsetQuery(topic=query.topic, partition=query.partition)
    if query.position is not None:
        message.position = _POSITIONS[query.position]
    if query.timestamp_ms is not None:
        message.timestamp_ms = query.timestamp_ms
    return message


def _answer(result: log_pb2.OffsetResult) -> OffsetAnswer:
    return OffsetAnswer(
        topic=result.topic,
        partition=result.partition,
        offset=result.offset if result.HasField("offset") else None,
        timestamp_ms=result.timestamp_ms if result.HasField("timestamp_ms") else None,
        error=decode_error(result.error) if result.HasField("error") else None,
    )
