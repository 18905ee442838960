# SPDX-License-Identifier: Apache-2.0
"""The DescribeProducers call: which producers the leader of a partition remembers, to recognise batches that were sent again.

Owns the choice of the producers that an answer has room for. A refused partition does not fail the others.
Source: KIP-664 (DescribeProducers).
"""

from __future__ import annotations

import asyncio
import heapq
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
from brokerd.limits import BIND_WAIT_MS, FORWARD_WAIT_MS, MAX_DESCRIBED_PRODUCERS, MAX_PRODUCER_PARTITIONS
from storage.log.producers import SEQUENCE_MASK, ProducerState, ProducerWindows

METHOD: Final = "DescribeProducers"
"""Name of the method in the service."""


class DescribeProducersCalls:
    """The DescribeProducers call of one broker."""

    def __init__(self, parts: BrokerParts, forwarder: Forwarder) -> None:
        self._parts = parts
        self._forwarder = forwarder

    async def describe_producers(
        self, request: log_pb2.DescribeProducersRequest, context: CallContext
    ) -> log_pb2.DescribeProducersResponse:
        """Serve one DescribeProducers.

        Raises:
            RefusedError: the request as a whole is refused.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        wanted = request.partitions
        if len(wanted) > MAX_PRODUCER_PARTITIONS:
            raise refused(
                ErrorCode.INVALID_REQUEST, f"{len(wanted)} partitions are more than {MAX_PRODUCER_PARTITIONS}"
            )

        async def answer(index: int) -> log_pb2.DescribedProducers:
            return await self._describe(wanted[index], left_ms(context, at_most_ms=BIND_WAIT_MS))

        async def forward(place: LeaderPlace, indexes: list[int]) -> Sequence[log_pb2.DescribedProducers]:
            forwarded = log_pb2.DescribeProducersRequest(
                cluster_id=self._parts.cluster_id, partitions=[wanted[index] for index in indexes]
            )
            response = await self._forwarder.call(
                place,
                METHOD,
                forwarded,
                log_pb2.DescribeProducersResponse,
                timeout_ms=left_ms(context, at_most_ms=FORWARD_WAIT_MS),
                is_read_only=True,
            )
            return response.results

        def failed(index: int, failure: Failure) -> log_pb2.DescribedProducers:
            asked = wanted[index]
            error = partition_error(failure)
            return log_pb2.DescribedProducers(topic=asked.topic, partition=asked.partition, error=error)

        asked_for = [(asked.topic, asked.partition) for asked in wanted]
        results = await answer_by_leader(
            asked_for,
            locator=self._parts.locator,
            was_forwarded=await was_forwarded(context, self._parts, asked_for),
            answer=answer,
            forward=forward,
            failed=failed,
        )
        return log_pb2.DescribeProducersResponse(results=results)

    async def _describe(self, asked: log_pb2.ProducersOfPartition, wait_ms: int) -> log_pb2.DescribedProducers:
        replica = await self._parts.locator.local_leader(asked.topic, asked.partition, timeout_ms=wait_ms)
        windows = replica.log.producers
        result = log_pb2.DescribedProducers(
            topic=asked.topic,
            partition=asked.partition,
            producers=remembered(windows, at_most=MAX_DESCRIBED_PRODUCERS),
            producer_count=len(windows),
        )
        # A log may remember 100,000 producers, and the choice takes some 30 ms then.
        await asyncio.sleep(0)
        return result


def remembered(windows: ProducerWindows, *, at_most: int) -> list[log_pb2.RememberedProducer]:
    """Return the producers that appended last, ascending by id."""
    newest = heapq.nlargest(at_most, windows.states(), key=lambda each: each[1].last_base_offset)
    opened = dict(windows.transactions.open_transactions()) if windows.has_transactions else {}
    return [_message(producer_id, state, opened.get(producer_id)) for producer_id, state in sorted(newest)]


def _message(producer_id: int, state: ProducerState, opened_at: int | None) -> log_pb2.RememberedProducer:
    message = log_pb2.RememberedProducer(producer_id=producer_id, producer_epoch=state.producer_epoch)
    if state.last_base_offset >= 0:
        message.last_base_offset = state.last_base_offset
        message.last_sequence = (state.next_sequence - 1) & SEQUENCE_MASK
    if state.last_append_ms:
        message.last_append_ms = state.last_append_ms
    if opened_at is not None:
        message.open_transaction_offset = opened_at
    return message
