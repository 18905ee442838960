# SPDX-License-Identifier: Apache-2.0
"""Control records of the metadata log to bytes and back.

Owns the checks of their content. A record of a kind that only a later version knows decodes to None; the caller decides whether it
matters.
Source: `proto/lograft/internal/v1/metadata_record.proto`.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from lograft.internal.v1 import metadata_record_pb2 as records_pb
from lograft.wire.batch import RecordBatch

from metaquorum.raft.effects import LeaderChange, VotersChange
from metaquorum.raft.types import ReplicaKey
from metaquorum.raft.voters import Voter, VoterSet, voter_set
from metaquorum.raft_codec.wire_fields import DIRECTORY_ID_BYTES, InvalidMessageError, check, to_node_id


def encode_control_record(content: LeaderChange | VotersChange) -> bytes:
    """Return the value of the only record of a control batch."""
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
    """Return the control record of a control batch; None for a kind that only a later version knows.

    Raises:
        InvalidMessageError: the batch does not hold exactly one valid control record.
        WireError: its payload is damaged.
    """
    values = RecordBatch(batch, verify_crc=False).values()
    check(len(values) == 1 and values[0] is not None, "a control batch of the quorum has one record")
    return decode_control_record(values[0] or b"")


def decode_control_record(value: bytes) -> LeaderChange | VotersChange | None:
    """Return the control record that the bytes encode; None for a kind that only a later version knows.

    Raises:
        InvalidMessageError: the bytes are no control record.
    """
    record = records_pb.QuorumControlRecord()
    try:
        record.ParseFromString(value)
    except DecodeError as error:
        raise InvalidMessageError(f"control record: {error}") from error
    match record.WhichOneof("record"):
        case "leader_change":
            change = record.leader_change
            granting = tuple(to_node_id(node_id, "granting_voters") for node_id in change.granting_voters)
            return LeaderChange(leader_id=to_node_id(change.leader_id, "leader_id"), granting_voters=granting)
        case "voters":
            return VotersChange(voters=_decode_voters(record.voters))
        case _:
            return None


def _decode_voters(message: records_pb.VotersRecord) -> VoterSet:
    voters: list[Voter] = []
    for entry in message.voters:
        check(len(entry.directory_id) == DIRECTORY_ID_BYTES, "voters.directory_id must have 16 bytes")
        key = ReplicaKey(node_id=to_node_id(entry.node_id, "voters.node_id"), directory_id=entry.directory_id)
        voters.append(Voter(key=key, address=entry.address))
    ids = [voter.key.node_id for voter in voters]
    check(len(ids) == len(set(ids)), f"voters: a node id is there twice: {ids}")
    return voter_set(voters)
