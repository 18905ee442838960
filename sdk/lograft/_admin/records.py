# SPDX-License-Identifier: Apache-2.0
"""DeleteRecords for the admin clients.

Owns pages and the retry of single partitions within the deadline. The call may be repeated, so that a lost answer is asked for
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.codec import decode_error
from lograft.errors import RetriableError, UsageError
from lograft.types import DeletedRecords, TopicPartition
from lograft.v1 import log_pb2
from lograft.v1.log_pb2_grpc import LogServiceStub

MAX_PARTITIONS: Final = 10_000
"""Partitions of one call."""

_MAX_OFFSET: Final = 2**63 - 1


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int | None], *, timeout_ms: int
) -> list[DeletedRecords]:
    """Remove records; one result for each partition, in order.

    Partitions that have no leader for a moment are asked again until the time is up; what fails for good, or to the
    end, has an `error` in its result.

    Raises:
        UsageError: an offset is no whole number from 0.
        LograftError: the call as a whole failed.
    """
    for where, offset in before.items():
        _check(where, offset)
    wanted = [_records_before(TopicPartition(*where), offset) for where, offset in before.items()]
    deadline_ms = monotonic_ms() + timeout_ms
    backoff = cluster.backoff()
    results: dict[int, DeletedRecords] = {}
    left: list[int] = list(range(len(wanted)))
    while left:
        for start in range(0, len(left), MAX_PARTITIONS):
            indexes = left[start : start + MAX_PARTITIONS]
            page = [wanted[index] for index in indexes]
            results.update(zip(indexes, await _ask(cluster, page, max(1, deadline_ms - monotonic_ms())), strict=True))
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
    request = log_pb2.DeleteRecordsRequest(cluster_id=cluster.cluster_id, partitions=partitions)
    response = await cluster.ask(lambda channel: LogServiceStub(channel).DeleteRecords, request, timeout_ms=timeout_ms)
    return [_deleted(result) for result in response.results]


def _records_before(where: TopicPartition, before_offset: int | None) -> log_pb2.RecordsBefore:
    """None: up to the high watermark, -1 on the wire."""
    offset = -1 if before_offset is None else before_offset
    return log_pb2.RecordsBefore(topic=where.topic, partition=where.partition, before_offset=offset)


def _deleted(result: log_pb2.DeletedRecords) -> DeletedRecords:
    return DeletedRecords(
        topic=result.topic,
        partition=result.partition,
        log_start_offset=result.log_start_offset if result.HasField("log_start_offset") else None,
        error=decode_error(result.error) if result.HasField("error") else None,
    )
