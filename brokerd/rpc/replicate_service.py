# SPDX-License-Identifier: Apache-2.0
"""ReplicationService: what other brokers ask of this one. The stream gives and takes bytes; see `replicate_stream`."""

from __future__ import annotations

from typing import Final

import grpc
from lograft.internal.v1 import replication_pb2 as pb

from brokerd.rpc.calls import ServicerContext, bidirectional, unary
from brokerd.rpc.fetch_range import FetchRangeCalls
from brokerd.rpc.replicate_handshake import Leader
from brokerd.rpc.replicate_stream import ReplicateStream

SERVICE: Final = "lograft.internal.v1.ReplicationService"


class ReplicationService:
    """The service of one broker."""

    def __init__(self, leader: Leader, ranges: FetchRangeCalls) -> None:
        self._leader = leader
        self._ranges = ranges

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server needs."""
        methods = {
            "Replicate": bidirectional(self._replicate),
            "FetchRange": unary(pb.FetchRangeRequest, self._ranges.fetch_range),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _replicate(self, context: ServicerContext) -> None:
        await ReplicateStream(self._leader, context).run()
