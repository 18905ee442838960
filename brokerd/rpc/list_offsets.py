# SPDX-License-Identifier: Apache-2.0
"""The ListOffsets call: offsets by position or by time, each from the leader of its partition.

Owns the split by leader and the order of the answers. One failed query does not fail the others.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.limits import BIND_WAIT_MS, FORWARD_WAIT_MS, MAX_OFFSET_QUERIES
from brokerd.rpc.calls import ServicerContext, check_cluster, left_ms, was_forwarded
from brokerd.rpc.forward import Forwarder
from brokerd.rpc.parts import BrokerParts
from brokerd.rpc.status import partition_error

METHOD: Final = "/lograft.v1.LogService/ListOffsets"

YIELD_QUERIES: Final = 64
"""Queries answered in one turn of the event loop; each may search an index on disk."""

Answers = dict[int, log_pb2.OffsetResult]


class ListOffsetsCalls:
    """The ListOffsets call of one broker."""

    def __init__(self, parts: BrokerParts, forwarder: Forwarder) -> None:
        self._parts = parts
        self._forwarder = forwarder

    async def list_offsets(
        self, request: log_pb2.ListOffsetsRequest, context: ServicerContext
    ) -> log_pb2.ListOffsetsResponse:
        """Serve one call.

        Raises:
            RefusedError: the request as a whole is refused.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        if len(request.queries) > MAX_OFFSET_QUERIES:
            message = f"{len(request.queries)} queries are more than {MAX_OFFSET_QUERIES}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        answers: Answers = {}
        local: list[int] = []
        remote: dict[LeaderPlace, list[int]] = {}
        locator = self._parts.locator
        for index, query in enumerate(request.queries):
            try:
                place = locator.leader(locator.topic(query.topic), query.partition)
            except RefusedError as error:
                answers[index] = _failed(query, error.failure)
                continue
            if locator.is_local(place):
                local.append(index)
            elif was_forwarded(context):
                message = f"broker {place.leader_id} leads {query.topic}-{query.partition}"
                failure = Failure(code=ErrorCode.NOT_LEADER, message=message, leader=place)
                answers[index] = _failed(query, failure)
            else:
                # Places of one broker differ in the leader epoch of each partition; one call goes to each broker.
                remote.setdefault(_broker_only(place), []).append(index)
        forwards = [self._forward(request, place, indexes, context) for place, indexes in remote.items()]
        for part in await asyncio.gather(self._answer_local(request, local, context), *forwards):
            answers |= part
        return log_pb2.ListOffsetsResponse(results=[answers[index] for index in range(len(request.queries))])

    async def _answer_local(
        self, request: log_pb2.ListOffsetsRequest, indexes: list[int], context: ServicerContext
    ) -> Answers:
        answers: Answers = {}
        for position, index in enumerate(indexes, start=1):
            query = request.queries[index]
            try:
                answers[index] = await self._answer(query, left_ms(context, at_most_ms=BIND_WAIT_MS))
            except RefusedError as error:
                answers[index] = _failed(query, error.failure)
            if position % YIELD_QUERIES == 0:
                await asyncio.sleep(0)
        return answers

    async def _answer(self, query: log_pb2.OffsetQuery, wait_ms: int) -> log_pb2.OffsetResult:
        replica = await self._parts.locator.local_leader(query.topic, query.partition, timeout_ms=wait_ms)
        result = log_pb2.OffsetResult(topic=query.topic, partition=query.partition, leader_epoch=replica.leader_epoch)
        if query.position == log_pb2.OFFSET_POSITION_EARLIEST:
            result.offset = replica.log_start_offset
        elif query.position == log_pb2.OFFSET_POSITION_LATEST:
            result.offset = replica.high_watermark
        elif query.position == log_pb2.OFFSET_POSITION_UNSPECIFIED and query.HasField("timestamp_ms"):
            found = replica.find_timestamp(query.timestamp_ms)
            if found is not None:
                result.offset = found.offset
                result.timestamp_ms = found.timestamp_ms
        else:
            message = "a query needs position EARLIEST (1) or LATEST (2), or no position and a timestamp_ms"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        return result

    async def _forward(
        self, request: log_pb2.ListOffsetsRequest, place: LeaderPlace, indexes: list[int], context: ServicerContext
    ) -> Answers:
        forwarded = log_pb2.ListOffsetsRequest(
            cluster_id=self._parts.cluster_id, queries=[request.queries[index] for index in indexes]
        )
        try:
            response = await self._forwarder.call(
                place,
                METHOD,
                forwarded,
                log_pb2.ListOffsetsResponse,
                timeout_ms=left_ms(context, at_most_ms=FORWARD_WAIT_MS),
                is_read_only=True,
            )
            if len(response.results) != len(indexes):
                message = f"broker {place.leader_id} answered {len(response.results)} of {len(indexes)} queries"
                raise refused(ErrorCode.INTERNAL, message)
        except RefusedError as error:
            return {index: _failed(request.queries[index], error.failure) for index in indexes}
        return dict(zip(indexes, response.results, strict=True))


def _broker_only(place: LeaderPlace) -> LeaderPlace:
    return LeaderPlace(leader_id=place.leader_id, leader_epoch=0, host=place.host, port=place.port)


def _failed(query: log_pb2.OffsetQuery, failure: Failure) -> log_pb2.OffsetResult:
    return log_pb2.OffsetResult(topic=query.topic, partition=query.partition, error=partition_error(failure))
