# SPDX-License-Identifier: Apache-2.0
"""LogService: one handler for each method; what they do is in one module each.

The two bulk streams take and give bytes, so that `lograft.wire.frames` can slice the body of a batch off unparsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from lograft.v1 import log_pb2

from brokerd.api.append import AppendCalls
from brokerd.api.calls import ServicerContext, bidirectional, check_cluster, left_ms, raw_unary, serialized, unary
from brokerd.api.delete_records import DeleteRecordsCalls
from brokerd.api.fetch_stream import FetchStream
from brokerd.api.forward import ForwardedMethod, Forwarder
from brokerd.api.list_offsets import ListOffsetsCalls
from brokerd.api.parts import BrokerParts
from brokerd.api.produce_stream import ProduceStream
from brokerd.api.read import ReadCalls
from brokerd.limits import IDENTITY_WAIT_MS

SERVICE: Final = "lograft.v1.LogService"


class LogService:
    """The service of one broker.

    Attributes:
        by_leader: the unary methods that only the leader of a partition can answer, by name; another broker may pass them on.
    """

    def __init__(self, parts: BrokerParts) -> None:
        forwarder = Forwarder(parts.peers, parts.observer)
        self._parts = parts
        delete_records = DeleteRecordsCalls(parts, forwarder).delete_records
        list_offsets = ListOffsetsCalls(parts, forwarder).list_offsets
        self.by_leader: Mapping[str, ForwardedMethod] = {
            "Append": serialized(log_pb2.AppendRequest, AppendCalls(parts, forwarder).append),
            "Read": serialized(log_pb2.ReadRequest, ReadCalls(parts, forwarder).read),
            "ListOffsets": serialized(log_pb2.ListOffsetsRequest, list_offsets),
            "DeleteRecords": serialized(log_pb2.DeleteRecordsRequest, delete_records),
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server needs."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Produce": bidirectional(self._produce),
                "Fetch": bidirectional(self._fetch),
                **{name: raw_unary(call) for name, call in self.by_leader.items()},
                "InitProducer": unary(log_pb2.InitProducerRequest, self._init_producer),
            },
        )

    async def _produce(self, context: ServicerContext) -> None:
        await ProduceStream(self._parts, context).run()

    async def _fetch(self, context: ServicerContext) -> None:
        await FetchStream(self._parts, context).run()

    async def _init_producer(
        self, request: log_pb2.InitProducerRequest, context: ServicerContext
    ) -> log_pb2.InitProducerResponse:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        timeout_ms = left_ms(context, at_most_ms=IDENTITY_WAIT_MS)
        producer_id = await self._parts.producer_ids.take(timeout_ms=timeout_ms)
        return log_pb2.InitProducerResponse(
            producer=log_pb2.ProducerIdentity(producer_id=producer_id, producer_epoch=0)
        )
