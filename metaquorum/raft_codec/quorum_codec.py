# SPDX-License-Identifier: Apache-2.0
"""Messages of the Raft core to protobuf and back.

Owns the checks of messages from peers: sizes, signs, whole batches with a correct CRC. After them the core may trust the form of a
message, but not its claims. Only this module turns sentinels of the wire (empty string, absent field) into None.
Source: `proto/lograft/internal/v1/quorum.proto`.
"""

from __future__ import annotations

from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.batch import check_crc, iter_batches
from lograft.wire.errors import WireError

from metaquorum.raft.effects import VotersChange
from metaquorum.raft.messages import (
    BatchSpan,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchedBatches,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.types import EpochEnd, LevelRange, Offset, SnapshotId
from metaquorum.raft.voters import VoterSet
from metaquorum.raft_codec.control_codec import decode_control_batch
from metaquorum.raft_codec.wire_fields import (
    InvalidMessageError,
    check,
    from_replica_key,
    to_address,
    to_address_or_none,
    to_epoch,
    to_node_id,
    to_offset,
    to_replica_key,
)

MAX_SUCCESSORS = 64
"""Largest number of successors in one EndQuorumEpoch. A quorum with more voters would commit too slowly to be useful."""

_REFUSALS: dict[Refusal, pb.QuorumError.ValueType] = {
    Refusal.WRONG_CLUSTER: pb.QUORUM_ERROR_WRONG_CLUSTER,
    Refusal.FENCED_EPOCH: pb.QUORUM_ERROR_FENCED_EPOCH,
    Refusal.UNKNOWN_EPOCH: pb.QUORUM_ERROR_UNKNOWN_EPOCH,
    Refusal.NOT_LEADER: pb.QUORUM_ERROR_NOT_LEADER,
    Refusal.INVALID_VOTER_KEY: pb.QUORUM_ERROR_INVALID_VOTER_KEY,
    Refusal.INVALID_REQUEST: pb.QUORUM_ERROR_INVALID_REQUEST,
    Refusal.SNAPSHOT_NOT_FOUND: pb.QUORUM_ERROR_SNAPSHOT_NOT_FOUND,
    Refusal.UNAVAILABLE: pb.QUORUM_ERROR_UNAVAILABLE,
}
_REFUSAL_OF: dict[int, Refusal] = {number: refusal for refusal, number in _REFUSALS.items()}


def _to_error(refusal: Refusal | None) -> pb.QuorumError.ValueType:
    return pb.QUORUM_ERROR_UNSPECIFIED if refusal is None else _REFUSALS[refusal]


def _refusal(number: int) -> Refusal | None:
    if number == pb.QUORUM_ERROR_UNSPECIFIED:
        return None
    # A newer peer may refuse for a reason that this version does not know.
    return _REFUSAL_OF.get(number, Refusal.UNAVAILABLE)


def refusal_error(refusal: Refusal) -> pb.QuorumError.ValueType:
    """Return a refusal as its protobuf value."""
    return _REFUSALS[refusal]


def encode_vote_request(request: VoteRequest | PreVoteRequest) -> pb.VoteRequest:
    """Return a vote or pre-vote request as a protobuf message; both share one message type."""
    return pb.VoteRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        candidate=from_replica_key(request.candidate),
        voter=from_replica_key(request.voter),
        last_epoch=request.last_epoch,
        log_end_offset=request.log_end_offset,
        pre_vote=isinstance(request, PreVoteRequest),
    )


def decode_vote_request(message: pb.VoteRequest) -> VoteRequest | PreVoteRequest:
    """Return the vote or pre-vote request; raise InvalidMessageError if a field is out of range."""
    kind = PreVoteRequest if message.pre_vote else VoteRequest
    return kind(
        cluster_id=message.cluster_id,
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        candidate=to_replica_key(message.candidate, "candidate"),
        voter=to_replica_key(message.voter, "voter"),
        last_epoch=to_epoch(message.last_epoch, "last_epoch"),
        log_end_offset=to_offset(message.log_end_offset, "log_end_offset"),
    )


def encode_vote_response(response: VoteResponse) -> pb.VoteResponse:
    """Return the response as a protobuf message."""
    return pb.VoteResponse(
        error=_to_error(response.refusal),
        quorum_epoch=response.quorum_epoch,
        leader_id=response.leader_id,
        leader_address=response.leader_address or "",
        granted=response.granted,
    )


def decode_vote_response(message: pb.VoteResponse) -> VoteResponse:
    """Return the response; raise InvalidMessageError if a field is out of range."""
    return VoteResponse(
        refusal=_refusal(message.error),
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=to_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
        leader_address=to_address_or_none(message.leader_address, "leader_address"),
        granted=message.granted,
    )


def encode_begin_request(request: BeginQuorumEpochRequest) -> pb.BeginQuorumEpochRequest:
    """Return the request as a protobuf message."""
    return pb.BeginQuorumEpochRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        leader_id=request.leader_id,
        voter=from_replica_key(request.voter),
        leader_address=request.leader_address,
    )


def decode_begin_request(message: pb.BeginQuorumEpochRequest) -> BeginQuorumEpochRequest:
    """Return the request; raise InvalidMessageError if a field is out of range."""
    return BeginQuorumEpochRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=to_node_id(message.leader_id, "leader_id"),
        voter=to_replica_key(message.voter, "voter"),
        leader_address=to_address(message.leader_address, "leader_address"),
    )


def encode_begin_response(response: BeginQuorumEpochResponse) -> pb.BeginQuorumEpochResponse:
    """Return the response as a protobuf message."""
    return pb.BeginQuorumEpochResponse(
        error=_to_error(response.refusal), quorum_epoch=response.quorum_epoch, leader_id=response.leader_id
    )


def decode_begin_response(message: pb.BeginQuorumEpochResponse) -> BeginQuorumEpochResponse:
    """Return the response; raise InvalidMessageError if a field is out of range."""
    return BeginQuorumEpochResponse(
        refusal=_refusal(message.error),
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=to_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
    )


def encode_end_request(request: EndQuorumEpochRequest) -> pb.EndQuorumEpochRequest:
    """Return the request as a protobuf message."""
    return pb.EndQuorumEpochRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        leader_id=request.leader_id,
        preferred_successors=[from_replica_key(key) for key in request.preferred_successors],
    )


def decode_end_request(message: pb.EndQuorumEpochRequest) -> EndQuorumEpochRequest:
    """Return the request; raise InvalidMessageError if a field is out of range."""
    check(len(message.preferred_successors) <= MAX_SUCCESSORS, f"more than {MAX_SUCCESSORS} preferred_successors")
    return EndQuorumEpochRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=to_node_id(message.leader_id, "leader_id"),
        preferred_successors=tuple(to_replica_key(key, "preferred_successors") for key in message.preferred_successors),
    )


def encode_end_response(response: EndQuorumEpochResponse) -> pb.EndQuorumEpochResponse:
    """Return the response as a protobuf message."""
    return pb.EndQuorumEpochResponse(
        error=_to_error(response.refusal), quorum_epoch=response.quorum_epoch, leader_id=response.leader_id
    )


def decode_end_response(message: pb.EndQuorumEpochResponse) -> EndQuorumEpochResponse:
    """Return the response; raise InvalidMessageError if a field is out of range."""
    return EndQuorumEpochResponse(
        refusal=_refusal(message.error),
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=to_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
    )


def encode_update_request(request: UpdateVoterRequest) -> pb.UpdateVoterRequest:
    """Return the request as a protobuf message."""
    return pb.UpdateVoterRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        voter=from_replica_key(request.voter),
        address=request.address,
    )


def decode_update_request(message: pb.UpdateVoterRequest) -> UpdateVoterRequest:
    """Return the request; raise InvalidMessageError if a field is out of range."""
    return UpdateVoterRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        voter=to_replica_key(message.voter, "voter"),
        address=to_address(message.address, "address"),
    )


def encode_update_response(response: UpdateVoterResponse) -> pb.UpdateVoterResponse:
    """Return the response as a protobuf message."""
    return pb.UpdateVoterResponse(
        error=_to_error(response.refusal), quorum_epoch=response.quorum_epoch, leader_id=response.leader_id
    )


def decode_update_response(message: pb.UpdateVoterResponse) -> UpdateVoterResponse:
    """Return the response; raise InvalidMessageError if a field is out of range."""
    return UpdateVoterResponse(
        refusal=_refusal(message.error),
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=to_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
    )


def encode_fetch_request(request: FetchRequest) -> pb.FetchQuorumRequest:
    """Return the request as a protobuf message."""
    return pb.FetchQuorumRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        replica=from_replica_key(request.replica),
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        high_watermark=request.high_watermark,
        max_bytes=request.max_bytes,
        max_wait_ms=request.max_wait_ms,
        replica_address=request.replica_address or "",
        read_round=request.read_round,
        min_feature_level=request.levels.min_level,
        max_feature_level=request.levels.max_level,
    )


def decode_fetch_request(message: pb.FetchQuorumRequest) -> FetchRequest:
    """Return the request; raise InvalidMessageError if a field is out of range."""
    check(message.max_bytes >= 0, "max_bytes must not be negative")
    check(message.max_wait_ms >= 0, "max_wait_ms must not be negative")
    check(message.read_round >= 0, "read_round must not be negative")
    levels = LevelRange(min_level=message.min_feature_level or 1, max_level=message.max_feature_level or 1)
    check(0 < levels.min_level <= levels.max_level, "max_feature_level must not be below min_feature_level")
    has_high_watermark = message.HasField("high_watermark")
    return FetchRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        replica=to_replica_key(message.replica, "replica"),
        fetch_offset=to_offset(message.fetch_offset, "fetch_offset"),
        last_fetched_epoch=to_epoch(message.last_fetched_epoch, "last_fetched_epoch"),
        high_watermark=to_offset(message.high_watermark, "high_watermark") if has_high_watermark else None,
        max_bytes=message.max_bytes,
        max_wait_ms=message.max_wait_ms,
        replica_address=to_address_or_none(message.replica_address, "replica_address"),
        read_round=message.read_round,
        levels=levels,
    )


def encode_fetch_response(response: FetchResponse, batches: bytes) -> pb.FetchQuorumResponse:
    """Return the response as a protobuf message, with the batches that the log store has read."""
    diverging = response.diverging
    return pb.FetchQuorumResponse(
        error=_to_error(response.refusal),
        quorum_epoch=response.quorum_epoch,
        leader_id=response.leader_id,
        leader_address=response.leader_address or "",
        high_watermark=response.high_watermark,
        diverging=None
        if diverging is None
        else pb.DivergingEpoch(epoch=diverging.epoch, end_offset=diverging.end_offset),
        log_start_offset=response.log_start_offset,
        read_round=response.read_round,
        snapshot=None if response.snapshot is None else encode_snapshot_id(response.snapshot),
        batches=batches,
    )


def decode_fetch_response(message: pb.FetchQuorumResponse) -> FetchResponse:
    """Return the response; raise InvalidMessageError if a field is out of range or a batch is incomplete or damaged."""
    diverging = None
    if message.HasField("diverging"):
        diverging = EpochEnd(
            epoch=to_epoch(message.diverging.epoch, "diverging.epoch"),
            end_offset=to_offset(message.diverging.end_offset, "diverging.end_offset"),
        )
    check(message.read_round >= 0, "read_round must not be negative")
    has_high_watermark = message.HasField("high_watermark")
    return FetchResponse(
        refusal=_refusal(message.error),
        quorum_epoch=to_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=to_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
        leader_address=to_address_or_none(message.leader_address, "leader_address"),
        high_watermark=to_offset(message.high_watermark, "high_watermark") if has_high_watermark else None,
        diverging=diverging,
        log_start_offset=to_offset(message.log_start_offset, "log_start_offset"),
        snapshot=decode_snapshot_id(message.snapshot) if message.HasField("snapshot") else None,
        batches=decode_batches(message.batches) if message.batches else None,
        read_round=message.read_round,
    )


def encode_snapshot_id(snapshot: SnapshotId) -> pb.SnapshotId:
    """Return the snapshot id as a protobuf message."""
    return pb.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch)


def decode_snapshot_id(message: pb.SnapshotId) -> SnapshotId:
    """Return the snapshot id; raise InvalidMessageError if a field is out of range."""
    return SnapshotId(
        end_offset=to_offset(message.end_offset, "snapshot.end_offset"), epoch=to_epoch(message.epoch, "snapshot.epoch")
    )


def decode_batches(data: bytes) -> FetchedBatches:
    """Check fetched batches, and extract what the core must know of them.

    Raises:
        InvalidMessageError: a batch is incomplete, damaged, or not one of a metadata log.
    """
    spans: list[BatchSpan] = []
    voters: list[tuple[Offset, VoterSet]] = []
    view = memoryview(data)
    try:
        for position, header in iter_batches(view):
            batch = view[position : position + header.size_bytes]
            check_crc(batch, header)
            spans.append(
                BatchSpan(
                    base_offset=to_offset(header.base_offset, "base_offset"),
                    next_offset=Offset(header.next_offset),
                    epoch=to_epoch(header.leader_epoch, "leader_epoch"),
                )
            )
            if header.is_control:
                change = decode_control_batch(batch)
                if isinstance(change, VotersChange):
                    voters.append((Offset(header.base_offset), change.voters))
    except WireError as error:
        raise InvalidMessageError(f"batches: {error}") from error
    return FetchedBatches(data=data, spans=tuple(spans), voters=tuple(voters))
