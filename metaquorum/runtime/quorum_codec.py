# SPDX-License-Identifier: Apache-2.0
"""Core messages to protobuf and back, and control records to bytes and back.

Owns the checks of what comes from a peer: sizes, signs, whole batches with a right CRC. After them the core may trust
shapes, not claims. Sentinels of the wire (empty string, absent field) become None here and nowhere else.
Source: `proto/lograft/internal/v1/quorum.proto`, `metadata_record.proto`.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from lograft.internal.v1 import metadata_record_pb2 as records_pb
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.batch import RecordBatch, check_crc, iter_batches
from lograft.wire.errors import WireError

from metaquorum.raft.effects import LeaderChange, VotersChange
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
from metaquorum.raft.types import EpochEnd, NodeId, Offset, QuorumEpoch, ReplicaKey, SnapshotId
from metaquorum.raft.voters import Voter, VoterSet, voter_set

DIRECTORY_ID_BYTES = 16
MAX_SUCCESSORS = 64
"""Most successors in one EndQuorumEpoch; more voters than this make no quorum that commits in useful time."""

MAX_ADDRESS_CHARACTERS = 300
"""Longest address of a voter: a host name has at most 253 characters."""

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


class InvalidMessageError(Exception):
    """A peer sent a message that no correct peer sends; the text names the field."""


def _check(condition: bool, text: str) -> None:
    if not condition:
        raise InvalidMessageError(text)


def _key(message: pb.ReplicaKey, field: str) -> ReplicaKey:
    _check(len(message.directory_id) == DIRECTORY_ID_BYTES, f"{field}.directory_id must have 16 bytes")
    return ReplicaKey(node_id=_node_id(message.node_id, field), directory_id=message.directory_id)


def _to_key(key: ReplicaKey) -> pb.ReplicaKey:
    return pb.ReplicaKey(node_id=key.node_id, directory_id=key.directory_id)


def _node_id(number: int, field: str) -> NodeId:
    _check(number >= 0, f"{field}: node ids start at 0, not {number}")
    return NodeId(number)


def _epoch(number: int, field: str) -> QuorumEpoch:
    _check(number >= 0, f"{field}: epochs start at 0, not {number}")
    return QuorumEpoch(number)


def _offset(number: int, field: str) -> Offset:
    _check(number >= 0, f"{field}: offsets start at 0, not {number}")
    return Offset(number)


def _to_error(refusal: Refusal | None) -> pb.QuorumError.ValueType:
    return pb.QUORUM_ERROR_UNSPECIFIED if refusal is None else _REFUSALS[refusal]


def _refusal(number: int) -> Refusal | None:
    if number == pb.QUORUM_ERROR_UNSPECIFIED:
        return None
    # A newer peer may refuse for a reason that this version does not know.
    return _REFUSAL_OF.get(number, Refusal.UNAVAILABLE)


def refusal_error(refusal: Refusal) -> pb.QuorumError.ValueType:
    """Core to wire."""
    return _REFUSALS[refusal]


def encode_vote_request(request: VoteRequest | PreVoteRequest) -> pb.VoteRequest:
    """Both kinds share one message on the wire."""
    return pb.VoteRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        candidate=_to_key(request.candidate),
        voter=_to_key(request.voter),
        last_epoch=request.last_epoch,
        log_end_offset=request.log_end_offset,
        pre_vote=isinstance(request, PreVoteRequest),
    )


def decode_vote_request(message: pb.VoteRequest) -> VoteRequest | PreVoteRequest:
    """Raises InvalidMessageError for a field out of range."""
    kind = PreVoteRequest if message.pre_vote else VoteRequest
    return kind(
        cluster_id=message.cluster_id,
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        candidate=_key(message.candidate, "candidate"),
        voter=_key(message.voter, "voter"),
        last_epoch=_epoch(message.last_epoch, "last_epoch"),
        log_end_offset=_offset(message.log_end_offset, "log_end_offset"),
    )


def encode_vote_response(response: VoteResponse) -> pb.VoteResponse:
    """Core to wire."""
    return pb.VoteResponse(
        error=_to_error(response.refusal),
        quorum_epoch=response.quorum_epoch,
        leader_id=response.leader_id,
        granted=response.granted,
    )


def decode_vote_response(message: pb.VoteResponse) -> VoteResponse:
    """Raises InvalidMessageError for a field out of range."""
    return VoteResponse(
        refusal=_refusal(message.error),
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
        granted=message.granted,
    )


def encode_begin_request(request: BeginQuorumEpochRequest) -> pb.BeginQuorumEpochRequest:
    """Core to wire."""
    return pb.BeginQuorumEpochRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        leader_id=request.leader_id,
        voter=_to_key(request.voter),
        leader_address=request.leader_address,
    )


def decode_begin_request(message: pb.BeginQuorumEpochRequest) -> BeginQuorumEpochRequest:
    """Raises InvalidMessageError for a field out of range."""
    _check(message.leader_address != "", "leader_address must be set")
    return BeginQuorumEpochRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=_node_id(message.leader_id, "leader_id"),
        voter=_key(message.voter, "voter"),
        leader_address=message.leader_address,
    )


def encode_begin_response(response: BeginQuorumEpochResponse) -> pb.BeginQuorumEpochResponse:
    """Core to wire."""
    return pb.BeginQuorumEpochResponse(
        error=_to_error(response.refusal), quorum_epoch=response.quorum_epoch, leader_id=response.leader_id
    )


def decode_begin_response(message: pb.BeginQuorumEpochResponse) -> BeginQuorumEpochResponse:
    """Raises InvalidMessageError for a field out of range."""
    return BeginQuorumEpochResponse(
        refusal=_refusal(message.error),
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
    )


def encode_end_request(request: EndQuorumEpochRequest) -> pb.EndQuorumEpochRequest:
    """Core to wire."""
    return pb.EndQuorumEpochRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        leader_id=request.leader_id,
        preferred_successors=[_to_key(key) for key in request.preferred_successors],
    )


def decode_end_request(message: pb.EndQuorumEpochRequest) -> EndQuorumEpochRequest:
    """Raises InvalidMessageError for a field out of range."""
    _check(len(message.preferred_successors) <= MAX_SUCCESSORS, f"more than {MAX_SUCCESSORS} preferred_successors")
    return EndQuorumEpochRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=_node_id(message.leader_id, "leader_id"),
        preferred_successors=tuple(_key(key, "preferred_successors") for key in message.preferred_successors),
    )


def encode_end_response(response: EndQuorumEpochResponse) -> pb.EndQuorumEpochResponse:
    """Core to wire."""
    return pb.EndQuorumEpochResponse(
        error=_to_error(response.refusal), quorum_epoch=response.quorum_epoch, leader_id=response.leader_id
    )


def decode_end_response(message: pb.EndQuorumEpochResponse) -> EndQuorumEpochResponse:
    """Raises InvalidMessageError for a field out of range."""
    return EndQuorumEpochResponse(
        refusal=_refusal(message.error),
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
    )


def encode_update_request(request: UpdateVoterRequest) -> pb.UpdateVoterRequest:
    """Core to wire."""
    return pb.UpdateVoterRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        voter=_to_key(request.voter),
        address=request.address,
    )


def decode_update_request(message: pb.UpdateVoterRequest) -> UpdateVoterRequest:
    """Raises InvalidMessageError for a field out of range."""
    _check(0 < len(message.address) <= MAX_ADDRESS_CHARACTERS, f"address of {len(message.address)} characters")
    return UpdateVoterRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        voter=_key(message.voter, "voter"),
        address=message.address,
    )


def encode_update_response(response: UpdateVoterResponse) -> pb.UpdateVoterResponse:
    """Core to wire."""
    return pb.UpdateVoterResponse(
        error=_to_error(response.refusal), quorum_epoch=response.quorum_epoch, leader_id=response.leader_id
    )


def decode_update_response(message: pb.UpdateVoterResponse) -> UpdateVoterResponse:
    """Raises InvalidMessageError for a field out of range."""
    return UpdateVoterResponse(
        refusal=_refusal(message.error),
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
    )


def encode_fetch_request(request: FetchRequest) -> pb.FetchQuorumRequest:
    """Core to wire."""
    return pb.FetchQuorumRequest(
        cluster_id=request.cluster_id,
        quorum_epoch=request.quorum_epoch,
        replica=_to_key(request.replica),
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        high_watermark=request.high_watermark,
        max_bytes=request.max_bytes,
        max_wait_ms=request.max_wait_ms,
        replica_address=request.replica_address or "",
        read_round=request.read_round,
    )


def decode_fetch_request(message: pb.FetchQuorumRequest) -> FetchRequest:
    """Raises InvalidMessageError for a field out of range."""
    _check(message.max_bytes >= 0, "max_bytes must not be negative")
    _check(message.max_wait_ms >= 0, "max_wait_ms must not be negative")
    _check(message.read_round >= 0, "read_round must not be negative")
    has_high_watermark = message.HasField("high_watermark")
    return FetchRequest(
        cluster_id=message.cluster_id,
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        replica=_key(message.replica, "replica"),
        fetch_offset=_offset(message.fetch_offset, "fetch_offset"),
        last_fetched_epoch=_epoch(message.last_fetched_epoch, "last_fetched_epoch"),
        high_watermark=_offset(message.high_watermark, "high_watermark") if has_high_watermark else None,
        max_bytes=message.max_bytes,
        max_wait_ms=message.max_wait_ms,
        replica_address=message.replica_address or None,
        read_round=message.read_round,
    )


def encode_fetch_response(response: FetchResponse, batches: bytes) -> pb.FetchQuorumResponse:
    """Core to wire, with the bytes that the log store has read."""
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
    """Raises InvalidMessageError for a field out of range or a batch that is not whole and right."""
    diverging = None
    if message.HasField("diverging"):
        diverging = EpochEnd(
            epoch=_epoch(message.diverging.epoch, "diverging.epoch"),
            end_offset=_offset(message.diverging.end_offset, "diverging.end_offset"),
        )
    _check(message.read_round >= 0, "read_round must not be negative")
    has_high_watermark = message.HasField("high_watermark")
    return FetchResponse(
        refusal=_refusal(message.error),
        quorum_epoch=_epoch(message.quorum_epoch, "quorum_epoch"),
        leader_id=_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None,
        leader_address=message.leader_address or None,
        high_watermark=_offset(message.high_watermark, "high_watermark") if has_high_watermark else None,
        diverging=diverging,
        log_start_offset=_offset(message.log_start_offset, "log_start_offset"),
        snapshot=decode_snapshot_id(message.snapshot) if message.HasField("snapshot") else None,
        batches=decode_batches(message.batches) if message.batches else None,
        read_round=message.read_round,
    )


def encode_snapshot_id(snapshot: SnapshotId) -> pb.SnapshotId:
    """Core to wire."""
    return pb.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch)


def decode_snapshot_id(message: pb.SnapshotId) -> SnapshotId:
    """Raises InvalidMessageError for a field out of range."""
    return SnapshotId(
        end_offset=_offset(message.end_offset, "snapshot.end_offset"), epoch=_epoch(message.epoch, "snapshot.epoch")
    )


def decode_epoch(number: int) -> QuorumEpoch:
    """Raises InvalidMessageError for a negative epoch."""
    return _epoch(number, "quorum_epoch")


def decode_replica_key(message: pb.ReplicaKey) -> ReplicaKey:
    """Raises InvalidMessageError for a field out of range."""
    return _key(message, "replica")


def encode_replica_key(key: ReplicaKey) -> pb.ReplicaKey:
    """Core to wire."""
    return _to_key(key)


def decode_batches(data: bytes) -> FetchedBatches:
    """Check fetched batches and read from them what the core must know.

    Raises:
        InvalidMessageError: a batch is cut off, damaged, or not one of a metadata log.
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
                    base_offset=_offset(header.base_offset, "base_offset"),
                    next_offset=Offset(header.next_offset),
                    epoch=_epoch(header.leader_epoch, "leader_epoch"),
                )
            )
            if header.is_control:
                change = decode_control_batch(batch)
                if isinstance(change, VotersChange):
                    voters.append((Offset(header.base_offset), change.voters))
    except WireError as error:
        raise InvalidMessageError(f"batches: {error}") from error
    return FetchedBatches(data=data, spans=tuple(spans), voters=tuple(voters))


def encode_control_record(content: LeaderChange | VotersChange) -> bytes:
    """The value of the only record of a control batch."""
    match content:
        case LeaderChange(leader_id=leader_id, granting_voters=granting):
            change = records_pb.LeaderChangeRecord(leader_id=leader_id, granting_voters=granting)
            return records_pb.QuorumControlRecord(leader_change=change).SerializeToString(deterministic=True)
        case VotersChange(voters=voters):
            entries = [
                records_pb.VoterEntry(
                    node_id=voter.key.node_id, directory_id=voter.key.directory_id, address=voter.address
                )
                for voter in voters.voters
            ]
            record = records_pb.QuorumControlRecord(voters=records_pb.VotersRecord(voters=entries))
            return record.SerializeToString(deterministic=True)


def decode_control_batch(batch: bytes | memoryview) -> LeaderChange | VotersChange | None:
    """Read a control batch of the metadata log; None for a kind of a later version.

    Raises:
        InvalidMessageError: it does not hold exactly one control record.
        WireError: its payload is damaged.
    """
    values = RecordBatch(batch, verify_crc=False).values()
    _check(len(values) == 1 and values[0] is not None, "a control batch of the quorum has one record")
    return decode_control_record(values[0] or b"")


def decode_control_record(value: bytes) -> LeaderChange | VotersChange | None:
    """Read a control record; None for a kind of a later version.

    Raises:
        InvalidMessageError: it is none.
    """
    record = records_pb.QuorumControlRecord()
    try:
        record.ParseFromString(value)
    except DecodeError as error:
        raise InvalidMessageError(f"control record: {error}") from error
    match record.WhichOneof("record"):
        case "leader_change":
            change = record.leader_change
            granting = tuple(_node_id(node_id, "granting_voters") for node_id in change.granting_voters)
            return LeaderChange(leader_id=_node_id(change.leader_id, "leader_id"), granting_voters=granting)
        case "voters":
            return VotersChange(voters=_decode_voters(record.voters))
        case _:
            return None


def _decode_voters(message: records_pb.VotersRecord) -> VoterSet:
    voters: list[Voter] = []
    for entry in message.voters:
        _check(len(entry.directory_id) == DIRECTORY_ID_BYTES, "voters.directory_id must have 16 bytes")
        key = ReplicaKey(node_id=_node_id(entry.node_id, "voters.node_id"), directory_id=entry.directory_id)
        voters.append(Voter(key=key, address=entry.address))
    ids = [voter.key.node_id for voter in voters]
    _check(len(ids) == len(set(ids)), f"voters: a node id is there twice: {ids}")
    return voter_set(voters)
