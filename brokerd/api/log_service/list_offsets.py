# SPDX-License-Identifier: Apache-2.0
"""The ListOffsets call: finds offsets by position or by time, each at the leader of its partition.

Owns the meaning of a query. A failed query does not fail the others.
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
from brokerd.failure import Failure, LeaderPlace, refused
from brokerd.limits import BIND_WAIT_MS, FORWARD_WAIT_MS, MAX_OFFSET_QUERIES
from brokerd.replica.replica import Replica

METHOD: Final = "ListOffsets"
"""Name of the method in the service."""

END_RETRY_MS: Final = 50
"""`retry_after_ms` while the leader is new: it needs one acknowledgement of the in-sync replicas."""

OUT_OF_TOUCH_RETRY_MS: Final = 200
"""`retry_after_ms` while the leader has no contact to the controller. Soon it follows, or has contact again."""


class ListOffsetsCalls:
    """The ListOffsets call of one broker."""

    def __init__(self, parts: BrokerParts, forwarder: Forwarder) -> None:
        self._parts = parts
        self._forwarder = forwarder

    async def list_offsets(
        self, request: log_pb2.ListOffsetsRequest, context: CallContext
    ) -> log_pb2.ListOffsetsResponse:
        """Serve one ListOffsets.

        Raises:
            RefusedError: the request as a whole is refused.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        if len(request.queries) > MAX_OFFSET_QUERIES:
            message = f"{len(request.queries)} queries are more than {MAX_OFFSET_QUERIES}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        queries = request.queries

        async def answer(index: int) -> log_pb2.OffsetResult:
            return await self._answer(queries[index], left_ms(context, at_most_ms=BIND_WAIT_MS))

        async def forward(place: LeaderPlace, indexes: list[int]) -> Sequence[log_pb2.OffsetResult]:
            forwarded = log_pb2.ListOffsetsRequest(
                cluster_id=self._parts.cluster_id, queries=[queries[index] for index in indexes]
            )
            response = await self._forwarder.call(
                place,
                METHOD,
                forwarded,
                log_pb2.ListOffsetsResponse,
                timeout_ms=left_ms(context, at_most_ms=FORWARD_WAIT_MS),
                is_read_only=True,
            )
            return response.results

        def failed(index: int, failure: Failure) -> log_pb2.OffsetResult:
            query = queries[index]
            return log_pb2.OffsetResult(topic=query.topic, partition=query.partition, error=partition_error(failure))

        asked_for = [(query.topic, query.partition) for query in queries]
        results = await answer_by_leader(
            asked_for,
            locator=self._parts.locator,
            was_forwarded=await was_forwarded(context, self._parts, asked_for),
            answer=answer,
            forward=forward,
            failed=failed,
        )
        return log_pb2.ListOffsetsResponse(results=results)

    async def _answer(self, query: log_pb2.OffsetQuery, wait_ms: int) -> log_pb2.OffsetResult:
        replica = await self._parts.locator.local_leader(query.topic, query.partition, timeout_ms=wait_ms)
        result = log_pb2.OffsetResult(topic=query.topic, partition=query.partition, leader_epoch=replica.leader_epoch)
        if query.position == log_pb2.OFFSET_POSITION_EARLIEST:
            result.offset = replica.log_start_offset
        elif query.position == log_pb2.OFFSET_POSITION_LATEST:
            self._check_end(replica)
            result.offset = replica.high_watermark
        elif query.position == log_pb2.OFFSET_POSITION_UNSPECIFIED and query.HasField("timestamp_ms"):
            found = replica.find_timestamp(query.timestamp_ms)
            if found is None:
                self._check_end(replica)
            else:
                result.offset = found.offset
                result.timestamp_ms = found.timestamp_ms
        else:
            message = "a query needs position EARLIEST (1) or LATEST (2), or no position and a timestamp_ms"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        return result

    def _check_end(self, replica: Replica) -> None:
        """Refuse to say where the readable records end if another broker may lead by now, or if this leader is new.

        Raises:
            RefusedError: OFFSET_NOT_AVAILABLE.
        """
        if replica.leads_several and self._parts.session.is_lost:
            message = (
                f"this broker has not heard from the controller for a session, others may lead {replica}: ask again"
            )
            raise refused(ErrorCode.OFFSET_NOT_AVAILABLE, message, retry_after_ms=OUT_OF_TOUCH_RETRY_MS)
        check_end_known(replica)


def check_end_known(replica: Replica) -> None:
    """Refuse to say where the readable records end while a new leader does not know it.

    Raises:
        RefusedError: OFFSET_NOT_AVAILABLE.
    """
    if not replica.is_end_known:
        message = f"the leader of {replica} is new and does not know yet what was committed before it: ask again"
        raise refused(ErrorCode.OFFSET_NOT_AVAILABLE, message, retry_after_ms=END_RETRY_MS)
