# SPDX-License-Identifier: Apache-2.0
"""Requests of peers to a quorum node: translates protobuf to core messages for its target, and back.

    service = QuorumService(table)     # refuses with SHUTTING_DOWN until a target is attached
    service.attach(first_start)        # answers Probe only
    service.attach(quorum_node)        # answers everything
    service.detach()

Decides nothing, and owns no task except one for each snapshot that it sends. It answers an invalid message with
QUORUM_ERROR_INVALID_REQUEST; such a message never reaches the core.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

from google.protobuf.message import Message
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.codes import ErrorCode

from metaquorum.net.link import CallError, ServedCall, Stream
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError, ServiceTable
from metaquorum.raft.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchResponse,
    Request,
    UpdateVoterResponse,
    VoteResponse,
)
from metaquorum.raft_codec import quorum_codec as codec
from metaquorum.raft_codec.wire_fields import InvalidMessageError
from metaquorum.replica.driver import Answer, StoppedError

REQUEST_WINDOW_BYTES = 64 * 1024
"""Bytes that a replica which fetches a snapshot may send ahead; it sends none."""

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class QuorumTarget(Protocol):
    """The object that answers: a `QuorumNode`, or a `FirstStart` before there is one."""

    def take_request(self, request: Request, on_answer: Callable[[Answer | StoppedError], None]) -> None:
        """Pass a peer's request on. `on_answer` runs once, perhaps at once; StoppedError means that it will not run."""
        ...

    def handle_snapshot(self, request: pb.FetchSnapshotRequest) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        """Serve a snapshot. Raises StoppedError if this is impossible."""
        ...

    def handle_probe(self, request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Answer a peer's probe. Raises StoppedError if this is impossible."""
        ...


class QuorumService:
    """Passes requests of peers to its target.

    Args:
        table: table to which the service adds its methods.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._target: QuorumTarget | None = None
        table.add(Method.PROBE, pb.ProbeRequest, self._probe)
        table.add(Method.VOTE, pb.VoteRequest, self._asks(codec.decode_vote_request, _vote, pb.VoteResponse))
        table.add(
            Method.BEGIN_QUORUM_EPOCH,
            pb.BeginQuorumEpochRequest,
            self._asks(codec.decode_begin_request, _begun, pb.BeginQuorumEpochResponse),
        )
        table.add(
            Method.END_QUORUM_EPOCH,
            pb.EndQuorumEpochRequest,
            self._asks(codec.decode_end_request, _ended, pb.EndQuorumEpochResponse),
        )
        table.add(
            Method.FETCH_QUORUM,
            pb.FetchQuorumRequest,
            self._asks(codec.decode_fetch_request, _fetched, pb.FetchQuorumResponse),
        )
        table.add(
            Method.UPDATE_VOTER,
            pb.UpdateVoterRequest,
            self._asks(codec.decode_update_request, _updated, pb.UpdateVoterResponse),
        )
        table.add_stream(
            Method.FETCH_SNAPSHOT, pb.FetchSnapshotRequest, self._send_snapshot, window_bytes=REQUEST_WINDOW_BYTES
        )

    def attach(self, target: QuorumTarget) -> None:
        """Answer with `target` from here on."""
        self._target = target

    def detach(self) -> None:
        """Refuse every request from here on, as a stopping node does."""
        self._target = None

    def _probe(self, request: pb.ProbeRequest, call: ServedCall) -> None:
        try:
            if self._target is None:
                raise StoppedError("no node is attached")
            call.respond(self._target.handle_probe(request).SerializeToString())
        except StoppedError as error:
            # A ProbeResponse has no field for a refusal.
            raise RefusalError(ErrorCode.SHUTTING_DOWN, f"ask again: {error}") from error

    def _asks(
        self,
        decode: Callable[[RequestT], Request],
        encode: Callable[[Answer], Message],
        response_type: Callable[..., Message],
    ) -> Callable[[RequestT, ServedCall], None]:
        invalid = response_type(error=pb.QUORUM_ERROR_INVALID_REQUEST).SerializeToString()
        unavailable = response_type(error=pb.QUORUM_ERROR_UNAVAILABLE).SerializeToString()

        def serve(message: RequestT, call: ServedCall) -> None:
            def tell(answer: Answer | StoppedError) -> None:
                call.respond(unavailable if isinstance(answer, StoppedError) else encode(answer).SerializeToString())

            if self._target is None:
                call.respond(unavailable)
                return
            try:
                self._target.take_request(decode(message), tell)
            except InvalidMessageError:
                call.respond(invalid)
            except StoppedError:
                call.respond(unavailable)

        return serve

    async def _send_snapshot(self, request: pb.FetchSnapshotRequest, stream: Stream) -> None:
        try:
            if self._target is None:
                raise StoppedError("no node is attached")
            # Close an abandoned stream here, not at its garbage collection, because it counts against the limit of streams.
            async with aclosing(self._target.handle_snapshot(request)) as messages:
                async for message in messages:
                    await stream.write(message.SerializeToString())
        except InvalidMessageError:
            await stream.write(pb.FetchSnapshotResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST).SerializeToString())
        except StoppedError:
            await stream.write(pb.FetchSnapshotResponse(error=pb.QUORUM_ERROR_UNAVAILABLE).SerializeToString())
        except CallError:
            # The caller is gone, and may start again.
            return


def _vote(answer: Answer) -> pb.VoteResponse:
    assert isinstance(answer.response, VoteResponse), f"{answer.response} to a vote request"
    return codec.encode_vote_response(answer.response)


def _begun(answer: Answer) -> pb.BeginQuorumEpochResponse:
    assert isinstance(answer.response, BeginQuorumEpochResponse), f"{answer.response} to a begin request"
    return codec.encode_begin_response(answer.response)


def _ended(answer: Answer) -> pb.EndQuorumEpochResponse:
    assert isinstance(answer.response, EndQuorumEpochResponse), f"{answer.response} to an end request"
    return codec.encode_end_response(answer.response)


def _fetched(answer: Answer) -> pb.FetchQuorumResponse:
    assert isinstance(answer.response, FetchResponse), f"{answer.response} to a fetch request"
    return codec.encode_fetch_response(answer.response, answer.batches)


def _updated(answer: Answer) -> pb.UpdateVoterResponse:
    assert isinstance(answer.response, UpdateVoterResponse), f"{answer.response} to an update request"
    return codec.encode_update_response(answer.response)
