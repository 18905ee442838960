# SPDX-License-Identifier: Apache-2.0
"""ReplicationService: what other brokers ask of a leader. The stream gives and takes bytes; see `replicate_stream`."""

from __future__ import annotations

from typing import Final

import grpc

from brokerd.rpc.calls import ServicerContext, bidirectional
from brokerd.rpc.replicate_handshake import Leader
from brokerd.rpc.replicate_stream import ReplicateStream

SERVICE: Final = "lograft.internal.v1.ReplicationService"


class ReplicationService:
    """The service of one broker."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server needs."""
        return grpc.method_handlers_generic_handler(SERVICE, {"Replicate": bidirectional(self._replicate)})

    async def _replicate(self, context: ServicerContext) -> None:
        await ReplicateStream(self._leader, context).run()
