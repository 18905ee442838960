# SPDX-License-Identifier: Apache-2.0
"""Passes a call on to the broker that leads a partition: one hop, never more.

Owns the meaning of a call that broke. Must not choose the broker.
Law: a call that appends is sent once; when its answer is lost, the caller is told OUTCOME_UNKNOWN.
"""

from __future__ import annotations

from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from brokerd.api.calls import CallFailedError
from brokerd.api.forwarded import forwarded_mark
from brokerd.api.status import remote_failure
from brokerd.controller_client.peer_channels import PeerChannels, is_ready_within, peer_address, unary_method
from brokerd.failure import LeaderPlace, RefusedError, refused
from metaquorum.metadata.loader import MetadataLoader

CONNECT_MS: Final = 1_000
"""Milliseconds that a forwarded call waits for the connection."""

ResponseT = TypeVar("ResponseT", bound=Message)


class Forwarder:
    """Calls to other brokers over shared channels."""

    def __init__(self, peers: PeerChannels, observer: MetadataLoader) -> None:
        self._peers = peers
        self._observer = observer

    async def call(
        self,
        place: LeaderPlace,
        method: str,
        request: Message,
        response_type: type[ResponseT],
        *,
        timeout_ms: int,
        is_read_only: bool,
    ) -> ResponseT:
        """Send a request to the broker at `place` and return its answer.

        Raises:
            RefusedError: what that broker refused; LEADER_NOT_AVAILABLE, it cannot be reached and got nothing;
                OUTCOME_UNKNOWN or TIMED_OUT, the answer did not come.
        """
        async with self._peers.use(peer_address(place.host, place.port)) as channel:
            if not await is_ready_within(channel, min(CONNECT_MS, timeout_ms)):
                raise _not_reached(place)
            try:
                mark = forwarded_mark(self._observer.metadata_offset)
                answer = await unary_method(channel, method)(
                    request.SerializeToString(), timeout=timeout_ms / 1000, metadata=mark
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and parse_rpc_error(error).code is None:
                    self._peers.give_up(peer_address(place.host, place.port), channel)
                raise _translate(error, place, is_read_only) from error
        try:
            return response_type.FromString(answer)
        except DecodeError as error:
            raise refused(ErrorCode.INTERNAL, f"broker {place.leader_id} answered with bytes of no use") from error


def _translate(error: grpc.aio.AioRpcError, place: LeaderPlace, is_read_only: bool) -> RefusedError:
    status = parse_rpc_error(error)
    if status.code is not None:
        failure = remote_failure(status)
        if status.append_response is not None:
            return CallFailedError(failure, status.append_response)
        return RefusedError(failure)
    if not is_read_only:
        message = f"the answer of broker {place.leader_id} was lost: the records may or may not have been appended"
        return refused(ErrorCode.OUTCOME_UNKNOWN, message)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return refused(ErrorCode.TIMED_OUT, f"broker {place.leader_id} did not answer in time")
    return _not_reached(place)


def _not_reached(place: LeaderPlace) -> RefusedError:
    address = peer_address(place.host, place.port)
    message = f"broker {place.leader_id} leads the partition and cannot be reached at {address}"
    return refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=250)
