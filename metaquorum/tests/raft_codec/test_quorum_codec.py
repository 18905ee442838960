# SPDX-License-Identifier: Apache-2.0
"""Core messages survive encoding and decoding, and messages that no correct peer sends are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.batch import encode_batch

from metaquorum.raft.effects import LeaderChange, VotersChange
from metaquorum.raft.messages import (
    BatchSpan,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.types import EpochEnd, NodeId, Offset, QuorumEpoch, ReplicaKey
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.raft_codec import quorum_codec as codec
from metaquorum.raft_codec.control_codec import decode_control_batch, encode_control_record
from metaquorum.raft_codec.wire_fields import MAX_OFFSET, InvalidMessageError

NODE_IDS = st.integers(0, 2**31 - 1).map(NodeId)
EPOCHS = st.integers(0, 2**31 - 1).map(QuorumEpoch)
OFFSETS = st.integers(0, MAX_OFFSET).map(Offset)
KEYS = st.builds(ReplicaKey, node_id=NODE_IDS, directory_id=st.binary(min_size=16, max_size=16))
HOSTS = st.from_regex(r"[a-z0-9.-]{1,20}|\[[0-9a-f:]{2,20}\]", fullmatch=True)
ADDRESSES = st.builds(lambda host, port: f"{host}:{port}", HOSTS, st.integers(1, 65_535))
REFUSALS = st.none() | st.sampled_from(list(Refusal))
CLUSTERS = st.text(max_size=20)


@settings(deadline=None, derandomize=True)
@given(
    st.sampled_from([VoteRequest, PreVoteRequest]).flatmap(
        lambda kind: st.builds(
            kind,
            cluster_id=CLUSTERS,
            quorum_epoch=EPOCHS,
            candidate=KEYS,
            voter=KEYS,
            last_epoch=EPOCHS,
            log_end_offset=OFFSETS,
        )
    ),
    st.builds(
        VoteResponse,
        quorum_epoch=EPOCHS,
        leader_id=st.none() | NODE_IDS,
        granted=st.booleans(),
        refusal=REFUSALS,
        leader_address=st.none() | ADDRESSES,
    ),
)
def test_vote_round_trip(request_: VoteRequest | PreVoteRequest, response: VoteResponse) -> None:
    """Vote and pre-vote stay distinct; an absent leader stays absent."""
    assert codec.decode_vote_request(codec.encode_vote_request(request_)) == request_
    assert codec.decode_vote_response(codec.encode_vote_response(response)) == response


@settings(deadline=None, derandomize=True)
@given(
    st.builds(
        BeginQuorumEpochRequest,
        cluster_id=CLUSTERS,
        quorum_epoch=EPOCHS,
        leader_id=NODE_IDS,
        voter=KEYS,
        leader_address=ADDRESSES,
    ),
    st.builds(BeginQuorumEpochResponse, quorum_epoch=EPOCHS, leader_id=st.none() | NODE_IDS, refusal=REFUSALS),
    st.builds(
        EndQuorumEpochRequest,
        cluster_id=CLUSTERS,
        quorum_epoch=EPOCHS,
        leader_id=NODE_IDS,
        preferred_successors=st.lists(KEYS, max_size=5).map(tuple),
    ),
    st.builds(EndQuorumEpochResponse, quorum_epoch=EPOCHS, leader_id=st.none() | NODE_IDS, refusal=REFUSALS),
)
def test_begin_and_end_round_trip(
    begin: BeginQuorumEpochRequest,
    begun: BeginQuorumEpochResponse,
    end: EndQuorumEpochRequest,
    ended: EndQuorumEpochResponse,
) -> None:
    """Both requests and both answers."""
    assert codec.decode_begin_request(codec.encode_begin_request(begin)) == begin
    assert codec.decode_begin_response(codec.encode_begin_response(begun)) == begun
    assert codec.decode_end_request(codec.encode_end_request(end)) == end
    assert codec.decode_end_response(codec.encode_end_response(ended)) == ended


@settings(deadline=None, derandomize=True)
@given(
    st.builds(
        FetchRequest,
        cluster_id=CLUSTERS,
        quorum_epoch=EPOCHS,
        replica=KEYS,
        fetch_offset=OFFSETS,
        last_fetched_epoch=EPOCHS,
        high_watermark=st.none() | OFFSETS,
        max_bytes=st.integers(0, 2**31 - 1),
        max_wait_ms=st.integers(0, 2**31 - 1),
        replica_address=st.none() | ADDRESSES,
    ),
    st.builds(
        FetchResponse,
        quorum_epoch=EPOCHS,
        leader_id=st.none() | NODE_IDS,
        leader_address=st.none() | ADDRESSES,
        high_watermark=st.none() | OFFSETS,
        diverging=st.none() | st.builds(EpochEnd, epoch=EPOCHS, end_offset=OFFSETS),
        batches=st.none(),
        log_start_offset=OFFSETS,
        refusal=REFUSALS,
    ),
)
def test_fetch_round_trip(request_: FetchRequest, response: FetchResponse) -> None:
    """Offset 0 and no offset are not the same."""
    assert codec.decode_fetch_request(codec.encode_fetch_request(request_)) == request_
    assert codec.decode_fetch_response(codec.encode_fetch_response(response, b"")) == response


VOTERS = voter_set(
    [
        Voter(key=ReplicaKey(node_id=NodeId(number), directory_id=bytes([number] * 16)), address=f"h{number}:1")
        for number in (1, 2, 3)
    ]
)


def control_batch(content: LeaderChange | VotersChange, base_offset: int, epoch: int) -> bytes:
    """A control batch as a leader stores it."""
    return bytes(
        encode_batch([encode_control_record(content)], control=True, base_offset=base_offset, leader_epoch=epoch)
    )


def test_fetched_batches_show_spans_and_voter_sets() -> None:
    """The core learns offsets, epochs and voters of opaque batches."""
    data = (
        control_batch(LeaderChange(leader_id=NodeId(1), granting_voters=(NodeId(1), NodeId(3))), 0, 4)
        + control_batch(VotersChange(voters=VOTERS), 1, 4)
        + bytes(encode_batch([b"a", b"b"], base_offset=2, leader_epoch=5))
    )
    fetched = codec.decode_batches(data)
    assert fetched.data == data
    assert fetched.spans == tuple(
        BatchSpan(base_offset=Offset(base), next_offset=Offset(following), epoch=QuorumEpoch(epoch))
        for base, following, epoch in ((0, 1, 4), (1, 2, 4), (2, 4, 5))
    )
    assert fetched.voters == ((1, VOTERS),)


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_damaged_batches_are_refused(data: st.DataObject) -> None:
    """A flipped bit or a cut in fetched batches is an error, or shows in the offset or epoch that the core checks."""
    whole = control_batch(VotersChange(voters=VOTERS), 7, 4)
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(1, len(whole) - 1))]
    else:
        position = data.draw(st.integers(17, len(whole) - 1))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(InvalidMessageError):
        codec.decode_batches(bytes(damaged))


@pytest.mark.parametrize(
    "values",
    [[b"one", b"two"], [None], [b"\xff\xff"]],
)
def test_control_batch_without_exactly_one_control_record_is_refused(values: list[bytes | None]) -> None:
    """Only the quorum writes control batches, and it writes one record into each."""
    batch = encode_batch(values, control=True, leader_epoch=1)
    with pytest.raises(InvalidMessageError):
        codec.decode_batches(bytes(batch))


def test_control_record_of_a_later_version_is_passed_over() -> None:
    """An unknown kind says nothing about voters."""
    assert decode_control_batch(bytes(encode_batch([b""], control=True))) is None


def test_voters_record_with_a_node_twice_is_refused() -> None:
    """A voter set has each node id once."""
    from lograft.internal.v1 import metadata_record_pb2 as records_pb

    entry = records_pb.VoterEntry(node_id=1, directory_id=bytes(16), address="h:1")
    record = records_pb.QuorumControlRecord(voters=records_pb.VotersRecord(voters=[entry, entry]))
    with pytest.raises(InvalidMessageError, match="twice"):
        decode_control_batch(bytes(encode_batch([record.SerializeToString()], control=True)))


KEY = pb.ReplicaKey(node_id=1, directory_id=bytes(16))


@pytest.mark.parametrize(
    "message",
    [
        pb.VoteRequest(candidate=KEY, voter=pb.ReplicaKey(node_id=1, directory_id=b"short")),
        pb.VoteRequest(candidate=pb.ReplicaKey(node_id=-1, directory_id=bytes(16)), voter=KEY),
        pb.VoteRequest(candidate=KEY, voter=KEY, quorum_epoch=-1),
        pb.VoteRequest(candidate=KEY, voter=KEY, log_end_offset=-1),
        pb.BeginQuorumEpochRequest(voter=KEY),
        pb.EndQuorumEpochRequest(preferred_successors=[KEY] * 65),
        pb.FetchQuorumRequest(replica=KEY, max_bytes=-1),
        pb.FetchQuorumRequest(replica=KEY, max_wait_ms=-1),
        pb.FetchQuorumRequest(replica=KEY, high_watermark=-1),
    ],
    ids=lambda message: str(message).replace("\n", " ")[:60],
)
def test_request_with_a_field_out_of_range_is_refused(message: object) -> None:
    """The core never sees a negative offset or an id of the wrong size."""
    decode = {
        pb.VoteRequest: codec.decode_vote_request,
        pb.BeginQuorumEpochRequest: codec.decode_begin_request,
        pb.EndQuorumEpochRequest: codec.decode_end_request,
        pb.FetchQuorumRequest: codec.decode_fetch_request,
    }[type(message)]  # pyright: ignore
    with pytest.raises(InvalidMessageError):
        decode(message)


def test_unknown_refusal_of_a_newer_peer_is_unavailable() -> None:
    """Enum values of a later version are no yes."""
    message = pb.VoteResponse.FromString(b"\x08\x63\x20\x01")
    assert codec.decode_vote_response(message).refusal is Refusal.UNAVAILABLE


@settings(deadline=None, derandomize=True)
@given(
    st.builds(UpdateVoterRequest, cluster_id=CLUSTERS, quorum_epoch=EPOCHS, voter=KEYS, address=ADDRESSES),
    st.builds(UpdateVoterResponse, quorum_epoch=EPOCHS, leader_id=st.none() | NODE_IDS, refusal=REFUSALS),
)
def test_update_round_trip(request_: UpdateVoterRequest, response: UpdateVoterResponse) -> None:
    """The address that a voter reports arrives unchanged."""
    assert codec.decode_update_request(codec.encode_update_request(request_)) == request_
    assert codec.decode_update_response(codec.encode_update_response(response)) == response


IMPOSSIBLE_ADDRESSES = (
    "x" * 300,
    "x" * 256 + ":1",
    "h",
    ":1",
    "[]:1",
    "h:",
    "h:0",
    "h:65536",
    "h:-1",
    "h:1x",
    "h:\u0661",
    "h:000001",
    "a b:1",
    "a\n:1",
    "a\x00:1",
    "::1:1",
)


@pytest.mark.parametrize("address", ["", *IMPOSSIBLE_ADDRESSES])
def test_update_and_begin_with_an_impossible_address_are_refused(address: str) -> None:
    """A correct peer always sends an address, with a host of at most 255 characters and a port."""
    key = pb.ReplicaKey(node_id=1, directory_id=b"d" * 16)
    with pytest.raises(InvalidMessageError):
        codec.decode_update_request(pb.UpdateVoterRequest(voter=key, address=address))
    with pytest.raises(InvalidMessageError):
        codec.decode_begin_request(pb.BeginQuorumEpochRequest(voter=key, leader_address=address))


@pytest.mark.parametrize("address", IMPOSSIBLE_ADDRESSES)
def test_answer_with_an_impossible_address_of_the_leader_is_refused(address: str) -> None:
    """The receiver would dial that address, log it and pass it on."""
    with pytest.raises(InvalidMessageError, match="leader_address"):
        codec.decode_fetch_response(pb.FetchQuorumResponse(leader_id=1, leader_address=address))
    with pytest.raises(InvalidMessageError, match="leader_address"):
        codec.decode_vote_response(pb.VoteResponse(leader_id=1, leader_address=address))
    key = pb.ReplicaKey(node_id=1, directory_id=b"d" * 16)
    with pytest.raises(InvalidMessageError, match="replica_address"):
        codec.decode_fetch_request(pb.FetchQuorumRequest(replica=key, replica_address=address))


@pytest.mark.parametrize("address", ["h:1", "127.0.0.1:65535", "[::1]:9640", "x" * 255 + ":1"])
def test_answer_with_an_address_of_the_leader_is_taken(address: str) -> None:
    """Names, addresses of both kinds, and the longest one."""
    message = pb.FetchQuorumResponse(leader_id=1, leader_address=address)
    assert codec.decode_fetch_response(message).leader_address == address
