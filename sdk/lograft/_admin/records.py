# SPDX-License-Identifier: Apache-2.0
"""The admin calls about records of partitions: looking up offsets, and deleting records from the start of the log.

Both are calls of `LogService`. This module splits DeleteRecords into requests and retries single partitions within the
deadline. The calls may be repeated, so a lost answer is requested again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lograft._admin.calls import AdminCalls
from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_error
from lograft._consumer import offsets
from lograft.errors import RetriableError, UsageError
from lograft.types import DeletedRecords, OffsetAnswer, OffsetQuery, TopicPartition
from lograft.v1 import log_pb2

if TYPE_CHECKING:
    from lograft._client.cluster import Cluster

MAX_PARTITIONS: Final = 10_000
"""Partitions in one request."""

_MAX_OFFSET: Final = 2**63 - 1


async def list_offsets(calls: AdminCalls, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
    """Look up offsets by position or time. Each query has one answer, in order, with an `error` if it failed."""
    return await offsets.list_offsets(calls.cluster, queries, timeout_ms=calls.timeout_ms)


async def delete_records(calls: AdminCalls, before: Mapping[TopicPartition, int | None]) -> list[DeletedRecords]:
    """Delete all records below an offset for good, in each of some partitions. Each partition has one result, in order.

    Args:
        before: for each partition, the first offset to keep, at most the high watermark; None deletes all readable records.

    Raises:
        UsageError: an offset is not a whole number of at least 0.
        LograftError: the call as a whole failed; it may be repeated. A refused partition has an `error` in its result.
    """
    for where, offset in before.items():
        _check(where, offset)
    wanted = [_records_before(TopicPartition(*where), offset) for where, offset in before.items()]
    deadline_ms = monotonic_ms() + calls.timeout_ms
    backoff = calls.cluster.backoff()
    results: dict[int, DeletedRecords] = {}
    left: list[int] = list(range(len(wanted)))
    while left:
        for start in range(0, len(left), MAX_PARTITIONS):
            indexes = left[start : start + MAX_PARTITIONS]
            page = [wanted[index] for index in indexes]
            results.update(
                zip(indexes, await _ask(calls.cluster, page, max(1, deadline_ms - monotonic_ms())), strict=True)
            )
        left = [index for index in left if isinstance(results[index].error, RetriableError)]
        left_ms = deadline_ms - monotonic_ms()
        if left and left_ms <= 0:
            break
        if left:
            await asyncio.sleep(min(backoff.next_delay_ms(), left_ms) / 1000)
    return [results[index] for index in range(len(wanted))]


def _check(where: TopicPartition, offset: object) -> None:
    if offset is None:
        return
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _MAX_OFFSET:
        raise UsageError(f"the offset of {where} is a whole number from 0, or None for all records, not {offset!r}")


async def _ask(cluster: Cluster, partitions: Sequence[log_pb2.RecordsBefore], timeout_ms: int) -> list[DeletedRecords]:
    # Loaded with the first call, because gRPC comes with it.
    from lograft.v1.log_pb2_grpc import LogServiceStub

    request = log_pb2.DeleteRecordsRequest(cluster_id=cluster.cluster_id, partitions=partitions)
    response = await cluster.ask(lambda channel: LogServiceStub(channel).DeleteRecords, request, timeout_ms=timeout_ms)
    return [_deleted(result) for result in response.results]


def _records_before(where: TopicPartition, before_offset: int | None) -> log_pb2.RecordsBefore:
    """Return the request for a partition. None stands for the high watermark, which is -1 on the wire."""
    offset = -1 if before_offset is None else before_offset
    return log_pb2.RecordsBefore(topic=where.topic, partition=where.partition, before_offset=offset)


def _deleted(result: log_pb2.DeletedRecords) -> DeletedRecords:
    return DeletedRecords(
        topic=result.topic,
        partition=result.partition,
        log_start_offset=result.log_start_offset if result.HasField("log_start_offset") else None,
        error=decode_error(result.error) if result.HasField("error") else None,
    )
