# SPDX-License-Identifier: Apache-2.0
"""The DeleteRecords call: moves the log starts of partitions, each at the leader of its partition.

Owns the check of the request. A refused partition does not fail the others. The call may be repeated: it succeeds if the log start is
already there.
Source: KIP-107.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import CallContext, check_cluster, left_ms
from brokerd.api.forward import Forwarder, was_forwarded
from brokerd.api.log_service.by_leader import answer_by_leader
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.clock import wall_ms
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.limits import BIND_WAIT_MS, FORWARD_WAIT_MS, MAX_OFFSET_QUERIES
from brokerd.replica.refusals import client_text
from storage.errors import DiskFullError, OffsetOutOfRangeError, StorageError

METHOD: Final = "DeleteRecords"
"""Name of the method in the service."""

ALL_READABLE: Final = -1
"""`before_offset` in a request that means the high watermark."""

FULL_RETRY_MS: Final = 1_000
"""`retry_after_ms` for a client if the disk has no space to store the log start."""


class DeleteRecordsCalls:
    """The DeleteRecords call of one broker."""

    def __init__(self, parts: BrokerParts, forwarder: Forwarder) -> None:
        self._parts = parts
        self._forwarder = forwarder

    async def delete_records(
        self, request: log_pb2.DeleteRecordsRequest, context: CallContext
    ) -> log_pb2.DeleteRecordsResponse:
        """Serve one DeleteRecords.

        Raises:
            RefusedError: the request as a whole is refused.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        wanted = request.partitions
        if len(wanted) > MAX_OFFSET_QUERIES:
            raise refused(ErrorCode.INVALID_REQUEST, f"{len(wanted)} partitions are more than {MAX_OFFSET_QUERIES}")

        async def answer(index: int) -> log_pb2.DeletedRecords:
            return await self._delete(wanted[index], left_ms(context, at_most_ms=BIND_WAIT_MS))

        async def forward(place: LeaderPlace, indexes: list[int]) -> Sequence[log_pb2.DeletedRecords]:
            forwarded = log_pb2.DeleteRecordsRequest(
                cluster_id=self._parts.cluster_id, partitions=[wanted[index] for index in indexes]
            )
            response = await self._forwarder.call(
                place,
                METHOD,
                forwarded,
                log_pb2.DeleteRecordsResponse,
                timeout_ms=left_ms(context, at_most_ms=FORWARD_WAIT_MS),
                # The call may be repeated, so a lost answer is no unknown outcome.
                is_read_only=True,
            )
            return response.results

        def failed(index: int, failure: Failure) -> log_pb2.DeletedRecords:
            asked = wanted[index]
            return log_pb2.DeletedRecords(topic=asked.topic, partition=asked.partition, error=partition_error(failure))

        asked_for = [(asked.topic, asked.partition) for asked in wanted]
        results = await answer_by_leader(
            asked_for,
            locator=self._parts.locator,
            was_forwarded=await was_forwarded(context, self._parts, asked_for),
            answer=answer,
            forward=forward,
            failed=failed,
        )
        return log_pb2.DeleteRecordsResponse(results=results)

    async def _delete(self, asked: log_pb2.RecordsBefore, wait_ms: int) -> log_pb2.DeletedRecords:
        if asked.before_offset < ALL_READABLE:
            message = f"before_offset is an offset from 0, or {ALL_READABLE} for the high watermark"
            raise refused(ErrorCode.INVALID_REQUEST, f"{message}, not {asked.before_offset}")
        self._parts.locator.refuse_internal(asked.topic)
        replica = await self._parts.locator.local_leader(asked.topic, asked.partition, timeout_ms=wait_ms)
        before_offset = None if asked.before_offset == ALL_READABLE else asked.before_offset
        try:
            log_start_offset = await replica.delete_before(before_offset, wall_ms())
        except OffsetOutOfRangeError as error:
            raise RefusedError(replica.out_of_range(asked.before_offset)) from error
        except StorageError as error:
            retry_after_ms = FULL_RETRY_MS if isinstance(error, DiskFullError) else 0
            failure = Failure(code=error.code, message=client_text(error), retry_after_ms=retry_after_ms)
            raise RefusedError(failure) from error
        return log_pb2.DeletedRecords(topic=asked.topic, partition=asked.partition, log_start_offset=log_start_offset)
