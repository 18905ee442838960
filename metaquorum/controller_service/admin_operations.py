# SPDX-License-Identifier: Apache-2.0
"""The table of admin operations: one row for each RPC of `lograft.v1.AdminService`.

Owns the kind of each RPC. Brokers and controllers, over gRPC and the carrier, serve the operations of this table, and take the
message types of an RPC from its descriptor. A new operation needs a row here, and its command and codec in the module of its subject;
the SDK and the command line have rows of their own (ADR 20). Only the active controller answers; other nodes refuse with
NOT_CONTROLLER and a leader hint.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from google.protobuf.message import Message
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    Done,
    LeadersElected,
    PartitionsAltered,
    PartitionsCreated,
    TopicCreated,
    TopicDeleted,
)
from metaquorum.controller_service import brokers, configs, features, partitions, quorum, topics
from metaquorum.controller_service.calls import check_cluster
from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS, CommandError
from metaquorum.controller_service.operation import Call, Change, Export, Member, OfBroker, Operation, Query, plain
from metaquorum.metadata.export import MetadataExports, TooManyExportsError

OPERATIONS: Final[Mapping[str, Operation]] = {
    "CreateTopic": Change(topics.create, TopicCreated, topics.created),
    "CreateTopics": Call(topics.create_topics, changes=True),
    "CreatePartitions": Change(topics.grow, PartitionsCreated, topics.grown),
    "DeleteTopic": Change(topics.delete, TopicDeleted, topics.deleted),
    "ListTopics": Query(topics.list_topics),
    "DescribeTopic": Query(topics.describe_topic),
    "AlterConfigs": Change(configs.alter, Done, plain(admin_pb2.AlterConfigsResponse)),
    "DescribeConfigs": Query(configs.describe_configs),
    "DescribeFeatureLevel": Call(features.describe, changes=False),
    "UpdateFeatureLevel": Change(features.update, Done, plain(admin_pb2.UpdateFeatureLevelResponse)),
    "ElectLeaders": Change(partitions.elect, LeadersElected, partitions.elected),
    "AlterPartitionReassignments": Change(partitions.reassign, PartitionsAltered, partitions.reassigned),
    "ListPartitionReassignments": Call(partitions.list_ongoing, changes=False),
    "DescribeBrokers": Call(brokers.describe, changes=False),
    "RemoveBroker": Change(brokers.remove, Done, plain(admin_pb2.RemoveBrokerResponse)),
    "DescribeQuorum": Call(quorum.describe, changes=False),
    "AddVoter": Call(quorum.add_voter, changes=True),
    "RemoveVoter": Call(quorum.remove_voter, changes=True),
    "TransferLeadership": Call(quorum.transfer_leadership, changes=True),
    "DescribeLogDirectories": OfBroker(),
    "MoveReplica": OfBroker(),
    "DeleteUnknownPartitions": OfBroker(),
    "ExportMetadata": Export(),
}

SERVICE: Final = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]


def _message(name: str) -> type[Message]:
    return getattr(admin_pb2, name)


REQUEST_TYPES: Final[Mapping[str, type[Message]]] = {
    method.name: _message(method.input_type.name)
    for method in SERVICE.methods
    if not isinstance(OPERATIONS[method.name], Export)
}
"""Request type of each method that has one answer."""

RESPONSE_TYPES: Final[Mapping[str, type[Message]]] = {
    method.name: _message(method.output_type.name) for method in SERVICE.methods if method.name in REQUEST_TYPES
}
"""Response type of each of these methods."""


class AdminOperations:
    """Carries out admin operations at the active controller, independent of the transport.

    Args:
        member: this quorum member.
        exports: makes exports of the metadata.
    """

    def __init__(self, member: Member, exports: MetadataExports) -> None:
        self._member = member
        self._exports = exports

    async def answer(self, method: str, request: Message, timeout_ms: int) -> Message:
        """Carry out a method of `REQUEST_TYPES` and return its response.

        Raises:
            CommandError: the controller refuses.
        """
        operation = OPERATIONS[method]
        assert not isinstance(operation, Export), f"{method} is a stream"
        if isinstance(operation, OfBroker):
            message = "log directories belong to a broker: ask it at its own address"
            raise CommandError(ErrorCode.INVALID_REQUEST, message)
        self._check(request)
        return await operation.carry_out(request, self._member, timeout_ms)

    async def export_metadata(
        self, request: admin_pb2.ExportMetadataRequest, timeout_ms: int
    ) -> AsyncGenerator[admin_pb2.ExportMetadataResponse]:
        """Export the current metadata, in pieces.

        Raises:
            CommandError: the controller refuses.
        """
        self._check(request)
        await self._member.host.wait_for_everything(timeout_ms=timeout_ms)
        try:
            async with aclosing(self._exports.pieces()) as pieces:
                async for lines in pieces:
                    yield admin_pb2.ExportMetadataResponse(lines=lines)
        except TooManyExportsError as error:
            raise CommandError(ErrorCode.OVERLOADED, str(error), retry_after_ms=RETRY_AFTER_MS) from error

    def _check(self, request: Message) -> None:
        cluster_id: str = cast("Any", request).cluster_id
        check_cluster(cluster_id, self._member.node.cluster_id, required=False)
        self._member.host.require_active()
