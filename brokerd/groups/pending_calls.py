# SPDX-License-Identifier: Apache-2.0
"""Calls about pending offsets between the coordinator of an ingest and that of a group: both ends of the hop.

    calls = PendingOffsetsCalls(coordinators, peers, observer, node_id=1)     # at the coordinator of the ingest
    await calls.prepare(PrepareOffsets(...), timeout_ms=...)

    service = PendingOffsetsService(table)                                    # at every broker
    service.attach(coordinators)

Owns the way to the broker that coordinates a group, and the meaning of a broken call: both calls may be repeated, so a lost answer
is no unknown outcome. It does not repeat them, and does not look into offsets.
Source: `docs/ingest.md` section "Offsets of a group".
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message
from lograft.internal.v1 import pending_offsets_pb2 as pb
from lograft.v1 import errors_pb2, ingest_pb2
from lograft.wire.codes import ErrorCode

from brokerd.addresses import internal_address
from brokerd.coordinator.internal_topics import GROUPS
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.groups.answers import Refused
from brokerd.groups.commands import OffsetCommit, PrepareOffsets, ResolveOffsets
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.limits import PENDING_CALL_MS
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.link import CallError, RefusedByPeerError, ServedCall, UnansweredError
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import RefusalError, ServiceTable, decode_refusal

CALL_RETRY_MS: Final = 250
"""Milliseconds after which a call that did not reach the coordinator should be repeated."""


# The coordinator of the ingest.


class PendingOffsetsCalls:
    """Asks the coordinators of groups, here or at other brokers. Belongs to one event loop.

    Args:
        coordinators: the group coordinators of this broker, which also know who coordinates a group.
        peers: connections of this process to other servers.
        observer: the metadata of this broker.
        node_id: this broker.
    """

    def __init__(
        self, coordinators: GroupCoordinators, peers: Peers, observer: MetadataLoader, *, node_id: int
    ) -> None:
        self._coordinators = coordinators
        self._peers = peers
        self._observer = observer
        self._node_id = node_id

    async def prepare(self, command: PrepareOffsets, *, timeout_ms: int = PENDING_CALL_MS) -> None:
        """Return once the offsets are pending at their group.

        Args:
            command: the offsets, and the round of the ingest with which they go.
            timeout_ms: milliseconds for the whole call.

        Raises:
            RefusedError: the group's refusal, nothing is pending then; NOT_COORDINATOR, COORDINATOR_LOADING, OVERLOADED, the call
                was not carried out; TIMED_OUT, it may have been. After these repeat it.
        """
        await self._call(Method.PREPARE_OFFSETS, command, _prepare_request(command), timeout_ms)

    async def resolve(self, command: ResolveOffsets, *, timeout_ms: int = PENDING_CALL_MS) -> None:
        """Return once the group knows what became of its pending offsets. Raises as `prepare`."""
        request = pb.ResolveOffsetsRequest(
            group_id=command.group_id,
            ingest_id=command.ingest_id,
            ingest_epoch=command.ingest_epoch,
            round=command.round,
            is_committed=command.is_committed,
            offsets_digest=command.offsets_digest,
        )
        await self._call(Method.RESOLVE_OFFSETS, command, request, timeout_ms)

    async def _call(
        self, method: Method, command: PrepareOffsets | ResolveOffsets, request: Message, timeout_ms: int
    ) -> None:
        place = self._coordinators.leader_place(GROUPS.partition_of(command.group_id))
        if place is None or place.leader_id == self._node_id:
            # Without a place the coordinators here make the topic, or say that nobody leads.
            await _carry_out(self._coordinators, command, size_bytes=request.ByteSize(), timeout_ms=timeout_ms)
            return
        address = internal_address(self._observer.image, place.leader_id)
        if address is None:
            raise _not_reached(place, "it has no internal address")
        try:
            await self._peers.ask(
                str(address), method, request.SerializeToString(), timeout_ms=timeout_ms, node_id=place.leader_id
            )
        except RefusedByPeerError as error:
            raise RefusedError(_failure_of(decode_refusal(error.failure))) from error
        except UnansweredError as error:
            raise _unanswered(f"broker {place.leader_id}: {error}") from error
        except CallError as error:
            raise _not_reached(place, str(error)) from error


def _prepare_request(command: PrepareOffsets) -> pb.PrepareOffsetsRequest:
    offsets = [
        ingest_pb2.IngestOffset(
            topic_id=each.topic_id,
            partition=each.partition,
            offset=each.offset,
            leader_epoch=None if each.leader_epoch < 0 else each.leader_epoch,
            metadata=each.metadata,
        )
        for each in command.offsets
    ]
    return pb.PrepareOffsetsRequest(
        ingest_id=command.ingest_id,
        ingest_epoch=command.ingest_epoch,
        round=command.round,
        offsets=ingest_pb2.IngestOffsets(
            group_id=command.group_id,
            member_id=command.member_id,
            member_epoch=command.member_epoch,
            instance_id=command.instance_id or "",
            commit_number=command.commit_number,
            offsets=offsets,
        ),
        offsets_digest=command.offsets_digest,
    )


def _not_reached(place: LeaderPlace, reason: str) -> RefusedError:
    message = f"broker {place.leader_id} coordinates the group and cannot be reached from here: {reason}"
    return refused(ErrorCode.COORDINATOR_LOADING, message, retry_after_ms=CALL_RETRY_MS)


def _unanswered(reason: str) -> RefusedError:
    message = f"the coordinator of the group gave no answer: {reason}; the call may be repeated"
    return refused(ErrorCode.TIMED_OUT, message, retry_after_ms=CALL_RETRY_MS)


def _failure_of(refusal: RefusalError) -> Failure:
    hint = refusal.leader
    leader = None
    if hint is not None:
        leader = LeaderPlace(leader_id=hint.leader_id, leader_epoch=hint.leader_epoch, host=hint.host, port=hint.port)
    return Failure(code=refusal.code, message=refusal.message, retry_after_ms=refusal.retry_after_ms, leader=leader)


# The coordinator of the group.


class PendingOffsetsService:
    """Answers the coordinators of ingests. Refuses before `attach`.

    Args:
        table: the table of carrier methods to which it adds itself.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._coordinators: GroupCoordinators | None = None
        table.add_waiting(Method.PREPARE_OFFSETS, pb.PrepareOffsetsRequest, self._prepare)
        table.add_waiting(Method.RESOLVE_OFFSETS, pb.ResolveOffsetsRequest, self._resolve)

    def attach(self, coordinators: GroupCoordinators) -> None:
        """Answer with these coordinators from now on."""
        self._coordinators = coordinators

    async def _prepare(self, request: pb.PrepareOffsetsRequest, served: ServedCall) -> pb.PrepareOffsetsResponse:
        sent = request.offsets
        offsets = tuple(
            OffsetCommit(
                topic_id=each.topic_id,
                partition=each.partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch if each.HasField("leader_epoch") else -1,
                metadata=each.metadata,
            )
            for each in sent.offsets
        )
        command = PrepareOffsets(
            group_id=sent.group_id,
            ingest_id=request.ingest_id,
            ingest_epoch=request.ingest_epoch,
            round=request.round,
            offsets=offsets,
            member_id=sent.member_id,
            member_epoch=sent.member_epoch,
            instance_id=sent.instance_id or None,
            commit_number=sent.commit_number,
            offsets_digest=request.offsets_digest,
        )
        await self._serve(command, request.ByteSize(), served)
        return pb.PrepareOffsetsResponse()

    async def _resolve(self, request: pb.ResolveOffsetsRequest, served: ServedCall) -> pb.ResolveOffsetsResponse:
        command = ResolveOffsets(
            group_id=request.group_id,
            ingest_id=request.ingest_id,
            ingest_epoch=request.ingest_epoch,
            round=request.round,
            is_committed=request.is_committed,
            offsets_digest=request.offsets_digest,
        )
        await self._serve(command, request.ByteSize(), served)
        return pb.ResolveOffsetsResponse()

    async def _serve(self, command: PrepareOffsets | ResolveOffsets, size_bytes: int, served: ServedCall) -> None:
        if self._coordinators is None:
            message = "this broker is starting"
            raise RefusalError(ErrorCode.COORDINATOR_LOADING, message, retry_after_ms=CALL_RETRY_MS)
        try:
            await _carry_out(self._coordinators, command, size_bytes=size_bytes, timeout_ms=served.timeout_ms)
        except RefusedError as error:
            raise _refusal(error.failure) from error


async def _carry_out(
    coordinators: GroupCoordinators, command: PrepareOffsets | ResolveOffsets, *, size_bytes: int, timeout_ms: int
) -> None:
    """Carry out a command at the coordinator here.

    Raises:
        RefusedError: what the core or the coordinators refuse.
    """
    try:
        outcome = await coordinators.submit(command.group_id, command, size_bytes=size_bytes, timeout_ms=timeout_ms)
    except RefusedError as error:
        if error.failure.code is ErrorCode.OUTCOME_UNKNOWN:
            raise _unanswered(error.failure.message) from error
        raise
    if isinstance(outcome, Refused):
        code = ErrorCode.from_reason(outcome.code.value)
        raise refused(code, outcome.message, retry_after_ms=outcome.retry_after_ms)


def _refusal(failure: Failure) -> RefusalError:
    place = failure.leader
    leader = None
    if place is not None:
        leader = errors_pb2.LeaderHint(
            leader_id=place.leader_id, leader_epoch=place.leader_epoch, host=place.host, port=place.port
        )
    return RefusalError(failure.code, failure.message, retry_after_ms=failure.retry_after_ms, leader=leader)
