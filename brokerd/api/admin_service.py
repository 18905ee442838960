# SPDX-License-Identifier: Apache-2.0
"""AdminService on a broker: passes requests on to the active controller, answers those about its own log directories.

Owns the read-your-writes of a change: it answers once this broker has applied it, so that the client's next question to
the same broker sees it; and one attempt of ExportMetadata: a client whose export broke, or met no controller, asks again
from the start. Must not understand more of a request or an answer than that. What a broker answers itself is in
`log_directory_calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import (
    ServicerContext,
    abort,
    abort_internal,
    check_cluster,
    left_ms,
    raw_unary,
    unary,
    undecodable,
)
from brokerd.api.log_directory_calls import LogDirectoryCalls
from brokerd.controller_client.controller_calls import ControllerCalls, ControllerRefusedError
from brokerd.failure import RefusedError, refused
from brokerd.limits import FORWARD_WAIT_MS
from metaquorum.controller_service import topic_answers
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.methods import Method

_ImageQuestion = admin_pb2.ListTopicsRequest | admin_pb2.DescribeTopicRequest
_ImageAnswer = admin_pb2.ListTopicsResponse | admin_pb2.DescribeTopicResponse

SERVICE: Final = "lograft.v1.AdminService"

APPLY_WAIT_MS: Final = 2_000
"""Most milliseconds that the answer to a change waits for this broker to apply it."""

MAX_EXPORT_MS: Final = 600_000
"""Longest time of one export, in milliseconds."""

EXPORT_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes of an export that the controller may send ahead of the client."""

EXPORT_RETRY_MS: Final = 100
"""Advice to a client whose export met no controller."""

READ_METHODS: Final = (
    "ListTopics",
    "DescribeTopic",
    "DescribeConfigs",
    "DescribeFeatureLevel",
    "DescribeQuorum",
    "ListPartitionReassignments",
    "DescribeBrokers",
)

IMAGE_WAIT_MS: Final = 3_000
"""Milliseconds that a question waits for a controller before this broker answers it from its own image, if it can."""

IMAGE_ANSWERS: Final[dict[str, tuple[type[_ImageQuestion], Callable[[MetadataImage, Any], _ImageAnswer]]]] = {
    "ListTopics": (admin_pb2.ListTopicsRequest, topic_answers.list_topics),
    "DescribeTopic": (admin_pb2.DescribeTopicRequest, topic_answers.describe_topic),
}
"""Questions that a broker can answer while the quorum has no leader; the answer says that it did."""

CHANGE_METHODS: Final[dict[str, Callable[[bytes], int]]] = {
    "CreateTopic": lambda data: admin_pb2.CreateTopicResponse.FromString(data).metadata_offset,
    "CreateTopics": lambda data: admin_pb2.CreateTopicsResponse.FromString(data).metadata_offset,
    "CreatePartitions": lambda data: admin_pb2.CreatePartitionsResponse.FromString(data).metadata_offset,
    "AlterConfigs": lambda data: admin_pb2.AlterConfigsResponse.FromString(data).metadata_offset,
    "UpdateFeatureLevel": lambda data: admin_pb2.UpdateFeatureLevelResponse.FromString(data).metadata_offset,
    "DeleteTopic": lambda data: admin_pb2.DeleteTopicResponse.FromString(data).metadata_offset,
    "ElectLeaders": lambda data: admin_pb2.ElectLeadersResponse.FromString(data).metadata_offset,
    "AlterPartitionReassignments": lambda data: (
        admin_pb2.AlterPartitionReassignmentsResponse.FromString(data).metadata_offset
    ),
    "RemoveBroker": lambda data: admin_pb2.RemoveBrokerResponse.FromString(data).metadata_offset,
    "AddVoter": lambda data: admin_pb2.AddVoterResponse.FromString(data).metadata_offset,
    "RemoveVoter": lambda data: admin_pb2.RemoveVoterResponse.FromString(data).metadata_offset,
    # The leader is no part of the image, so there is nothing to wait for.
    "TransferLeadership": lambda data: 0,
}
"""Methods that change something, each with the way to the metadata offset in its answer."""


class AdminService:
    """The service of one broker."""

    def __init__(
        self, calls: ControllerCalls, observer: MetadataLoader, log_directories: LogDirectoryCalls, *, cluster_id: str
    ) -> None:
        self._cluster_id = cluster_id
        self._calls = calls
        self._observer = observer
        self._log_directories = log_directories

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server needs."""
        methods = {name: raw_unary(self._behaviour(name)) for name in (*READ_METHODS, *CHANGE_METHODS)}
        own = self._log_directories
        methods["DescribeLogDirectories"] = unary(admin_pb2.DescribeLogDirectoriesRequest, own.describe)
        methods["DeleteUnknownPartitions"] = unary(admin_pb2.DeleteUnknownPartitionsRequest, own.delete_unknown)
        methods["ExportMetadata"] = export_handler(self._calls)
        methods["MoveReplica"] = unary(admin_pb2.MoveReplicaRequest, own.move)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _behaviour(self, name: str) -> Callable[[bytes, ServicerContext], Coroutine[None, None, bytes]]:
        read_offset = CHANGE_METHODS.get(name)
        is_answered_alone = name in IMAGE_ANSWERS
        most_ms = IMAGE_WAIT_MS if is_answered_alone else FORWARD_WAIT_MS

        async def forward(request: bytes, context: ServicerContext) -> bytes:
            try:
                answer = await self._calls.call(
                    Method.ADMIN,
                    pb.AdminCall(method=name, request=request).SerializeToString(),
                    timeout_ms=left_ms(context, at_most_ms=most_ms),
                    is_read_only=read_offset is None,
                )
            except ControllerRefusedError:
                raise
            except RefusedError as error:
                if not is_answered_alone or error.failure.code is not ErrorCode.QUORUM_UNAVAILABLE:
                    raise
                return self._answer_alone(name, request, error)
            response = pb.AdminAnswer.FromString(answer).response
            if read_offset is not None:
                # Not reached in time: the change is made all the same, and the answer says at which offset.
                wait_ms = left_ms(context, at_most_ms=APPLY_WAIT_MS)
                await self._observer.wait_for(read_offset(response), timeout_ms=wait_ms)
            return response

        return forward

    def _answer_alone(self, name: str, data: bytes, refusal: RefusedError) -> bytes:
        """Answer from the image of this broker; raises the refusal where the request asks for something newer."""
        request_type, answer = IMAGE_ANSWERS[name]
        image = self._observer.image
        try:
            request = request_type.FromString(data)
            check_cluster(request.cluster_id, self._cluster_id)
            if request.min_metadata_offset > image.metadata_offset:
                raise refusal
            response = answer(image, request)
        except CommandError as error:
            raise refused(error.code, error.message) from error
        except DecodeError:
            raise undecodable() from None
        response.without_leader = True
        return response.SerializeToString()


def export_handler(calls: ControllerCalls) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of ExportMetadata, which passes the stream of the active controller on."""

    async def forward(request: bytes, context: ServicerContext) -> None:
        try:
            async with asyncio.timeout(left_ms(context, at_most_ms=MAX_EXPORT_MS) / 1000):
                await _pass_export_on(calls, request, context)
        except RefusedError as error:
            await abort(context, error)
        except TimeoutError:
            await abort(context, refused(ErrorCode.TIMED_OUT, f"the export took more than {MAX_EXPORT_MS} ms"))
        except Exception as error:
            await abort_internal(context, error)

    return grpc.unary_stream_rpc_method_handler(forward)


async def _pass_export_on(calls: ControllerCalls, request: bytes, context: ServicerContext) -> None:
    messages = calls.stream(
        Method.EXPORT_METADATA,
        request,
        window_bytes=EXPORT_WINDOW_BYTES,
        timeout_ms=left_ms(context, at_most_ms=MAX_EXPORT_MS),
    )
    try:
        async with aclosing(messages):
            async for message in messages:
                await context.write(message)
    except ControllerRefusedError:
        raise
    except RefusedError as error:
        message = "no active controller was met; try again"
        raise refused(ErrorCode.QUORUM_UNAVAILABLE, message, retry_after_ms=EXPORT_RETRY_MS) from error
