# SPDX-License-Identifier: Apache-2.0
"""GroupService: the table of its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from lograft.v1 import group_pb2 as pb

from brokerd.api.calls import ServicerContext, bidirectional, raw_unary, serialized, unary
from brokerd.api.forward import ForwardedMethod, Forwarder
from brokerd.api.group_service.calls import LIST_METHOD, GroupCalls
from brokerd.api.group_service.stream import GroupStream, StreamCounts
from brokerd.api.parts import BrokerParts
from brokerd.groups.coordinators import GroupCoordinators

SERVICE: Final = "lograft.v1.GroupService"


class GroupService:
    """GroupService of one broker.

    Attributes:
        forwarded: the unary methods that brokers ask each other for, by name.
    """

    def __init__(self, parts: BrokerParts, coordinators: GroupCoordinators, forwarder: Forwarder) -> None:
        self._parts = parts
        self._coordinators = coordinators
        self._calls = GroupCalls(parts, coordinators, forwarder)
        self._counts = StreamCounts()
        self.forwarded: Mapping[str, ForwardedMethod] = {
            LIST_METHOD: serialized(pb.ListGroupsRequest, self._calls.list_groups)
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the method handlers for a gRPC server."""
        calls = self._calls
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "FindCoordinator": unary(pb.FindCoordinatorRequest, calls.find_coordinator),
                "Groups": bidirectional(self._groups),
                "Heartbeat": unary(pb.HeartbeatRequest, calls.heartbeat),
                "CommitOffsets": unary(pb.CommitOffsetsRequest, calls.commit_offsets),
                "FetchOffsets": unary(pb.FetchOffsetsRequest, calls.fetch_offsets),
                **{name: raw_unary(call) for name, call in self.forwarded.items()},
                "DescribeGroup": unary(pb.DescribeGroupRequest, calls.describe_group),
                "DeleteGroup": unary(pb.DeleteGroupRequest, calls.delete_group),
                "AlterOffsets": unary(pb.AlterOffsetsRequest, calls.alter_offsets),
                "DeleteOffsets": unary(pb.DeleteOffsetsRequest, calls.delete_offsets),
            },
        )

    async def _groups(self, context: ServicerContext) -> None:
        await GroupStream(self._parts, self._coordinators, self._calls, self._counts, context).run()
