# SPDX-License-Identifier: Apache-2.0
"""LogService: the table of its methods.

The two bulk streams take and return bytes, so that `lograft.wire.frames` can split off the body of a batch without parsing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from lograft.v1 import log_pb2

from brokerd.api.calls import ServicerContext, bidirectional, raw_unary, serialized, unary
from brokerd.api.forward import ForwardedMethod, Forwarder
from brokerd.api.log_service.append import AppendCalls
from brokerd.api.log_service.delete_records import DeleteRecordsCalls
from brokerd.api.log_service.describe_producers import DescribeProducersCalls
from brokerd.api.log_service.fetch import FetchStream
from brokerd.api.log_service.init_producer import InitProducerCalls
from brokerd.api.log_service.list_offsets import ListOffsetsCalls
from brokerd.api.log_service.produce import ProduceStream
from brokerd.api.log_service.read import ReadCalls
from brokerd.api.parts import BrokerParts

SERVICE: Final = "lograft.v1.LogService"


class LogService:
    """LogService of one broker.

    Attributes:
        by_leader: the unary methods that only the leader of a partition can answer, by name. Other brokers may forward them.
    """

    def __init__(self, parts: BrokerParts, forwarder: Forwarder) -> None:
        self._parts = parts
        delete_records = DeleteRecordsCalls(parts, forwarder).delete_records
        describe_producers = DescribeProducersCalls(parts, forwarder).describe_producers
        list_offsets = ListOffsetsCalls(parts, forwarder).list_offsets
        self.by_leader: Mapping[str, ForwardedMethod] = {
            "Append": serialized(log_pb2.AppendRequest, AppendCalls(parts, forwarder).append),
            "Read": serialized(log_pb2.ReadRequest, ReadCalls(parts, forwarder).read),
            "ListOffsets": serialized(log_pb2.ListOffsetsRequest, list_offsets),
            "DeleteRecords": serialized(log_pb2.DeleteRecordsRequest, delete_records),
            "DescribeProducers": serialized(log_pb2.DescribeProducersRequest, describe_producers),
        }
        self._init_producer = InitProducerCalls(parts)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the method handlers for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Produce": bidirectional(self._produce),
                "Fetch": bidirectional(self._fetch),
                **{name: raw_unary(call) for name, call in self.by_leader.items()},
                "InitProducer": unary(log_pb2.InitProducerRequest, self._init_producer.init_producer),
            },
        )

    async def _produce(self, context: ServicerContext) -> None:
        await ProduceStream(self._parts, context).run()

    async def _fetch(self, context: ServicerContext) -> None:
        await FetchStream(self._parts, context).run()
