# SPDX-License-Identifier: Apache-2.0
"""The admin calls about records of partitions: looking up offsets, and deleting records from the start of the log.

Both are calls of `LogService`. They may be repeated, so a lost answer is requested again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lograft._admin.by_partition import ask_by_partition
from lograft._admin.calls import AdminCalls
from lograft._client.codec import decode_error
from lograft._client.stubs import log_service
from lograft._consumer import offsets
from lograft.errors import UsageError
from lograft.types import DeletedRecords, OffsetAnswer, OffsetQuery, TopicPartition
from lograft.v1 import log_pb2

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

    async def ask(page: Sequence[log_pb2.RecordsBefore], timeout_ms: int) -> list[DeletedRecords]:
        request = log_pb2.DeleteRecordsRequest(cluster_id=calls.cluster.cluster_id, partitions=page)
        response = await calls.cluster.ask(
            lambda channel: log_service(channel).DeleteRecords, request, timeout_ms=timeout_ms
        )
        return [_deleted(result) for result in response.results]

    return await ask_by_partition(calls, wanted, ask, page_size=MAX_PARTITIONS)


def _check(where: TopicPartition, offset: object) -> None:
    if offset is None:
        return
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _MAX_OFFSET:
        raise UsageError(f"the offset of {where} is a whole number from 0, or None for all records, not {offset!r}")


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
