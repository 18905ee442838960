# SPDX-License-Identifier: Apache-2.0
"""The messages of a stream between brokers as bytes: each comes back as it was, and batches are those of the generated code."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.partition.stream_messages import (
    Accepted,
    Acks,
    Batches,
    Credit,
    Diverged,
    Ended,
    FollowerMessage,
    GoAway,
    Heartbeat,
    LeaderMessage,
    Marks,
    Open,
    Opened,
    RouteAck,
    RouteMark,
    Subscription,
    Subscriptions,
    Unsubscriptions,
)
from brokerd.replication import stream_codec
from brokerd.replication.stream_codec import (
    ROUTE_ERRORS,
    decode_request,
    decode_response,
    encode_batches,
    encode_request,
    encode_response,
)

FIELDS = ["route", "base_offset", "leader_epoch", "high_watermark", "log_start_offset", "traffic"]
offsets = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
epochs = st.integers(0, 2**31 - 1)
bodies = st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=300))
edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4)


def contents(message: LeaderMessage | Batches | None) -> object:
    """Return a decoded message in a form that can be compared."""
    return (*message[:-1], bytes(message.body)) if isinstance(message, Batches) else message


def expected_contents(data: bytes) -> object:
    """Return the same from the generated parser. For messages other than batches the code is the same."""
    response = pb.ReplicateResponse.FromString(data)
    if response.WhichOneof("part") != "batches":
        return decode_response(response.SerializeToString())
    batches = response.batches
    numbers = [getattr(batches, name) for name in FIELDS[:-1]]
    return (*numbers, batches.traffic == pb.REPLICA_TRAFFIC_IN_SYNC, batches.batches)


def assert_agrees(data: bytes) -> None:
    """Assert that the hand-written decoder and the generated one give the same result, errors included."""
    try:
        expected = expected_contents(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_response(data)
        return
    assert contents(decode_response(data)) == expected


def mutate(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Replace some pieces of the bytes by others."""
    changed = bytearray(data)
    for position, length, replacement in changes:
        start = position % (len(changed) + 1)
        changed[start : start + length] = replacement
    return bytes(changed)


@settings(max_examples=200, deadline=None)
@given(offsets, offsets, epochs, offsets, offsets, st.booleans(), bodies)
def test_a_frame_is_the_generated_message(
    route: int, base: int, epoch: int, watermark: int, start: int, is_in_sync: bool, body: bytes
) -> None:
    """Encoding gives the bytes of the generated encoder, and decoding them gives the frame."""
    traffic = pb.REPLICA_TRAFFIC_IN_SYNC if is_in_sync else pb.REPLICA_TRAFFIC_CATCH_UP
    expected = pb.ReplicateResponse(
        batches=pb.ReplicaBatches(
            route=route,
            base_offset=base,
            leader_epoch=epoch,
            high_watermark=watermark,
            log_start_offset=start,
            traffic=traffic,
            batches=body,
        )
    )
    data = encode_batches(Batches(route, base, epoch, watermark, start, is_in_sync, memoryview(body)))
    assert data == expected.SerializeToString()
    assert contents(decode_response(data)) == (route, base, epoch, watermark, start, is_in_sync, body)


def test_the_batches_are_sliced_not_copied() -> None:
    """The usual layout is taken apart by hand: the batches refer to the message."""
    data = encode_batches(Batches(1, 2**40, 3, 2**40, 5, True, bytearray(300_000)))
    frame = decode_response(data)
    assert isinstance(frame, Batches)
    assert isinstance(frame.body, memoryview)
    assert frame.body.obj is data


@pytest.mark.parametrize(
    "message",
    [
        Open(
            cluster_id="c",
            follower_id=2,
            broker_epoch=2**40,
            incarnation_id=b"i" * 16,
            leader_id=1,
            formats=(2, 16),
            credit=Credit(5, 6),
        ),
        Subscriptions(
            tuple(
                Subscription(
                    route=route,
                    topic_id=b"t" * 16,
                    partition=3,
                    session=2**63 - 1,
                    leader_epoch=4,
                    log_end_offset=2**40,
                    flushed_offset=5,
                    last_epoch=last_epoch,
                )
                for route, last_epoch in ((0, None), (1, 0), (2, 7))
            )
        ),
        Unsubscriptions((0, 2**40)),
        Acks((RouteAck(1, 2**40, 3), RouteAck(0, 0, 0))),
        Credit(2**40, 0),
        Heartbeat(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_a_follower_says_comes_back(message: FollowerMessage) -> None:
    """The leader decodes what the follower encoded."""
    assert decode_request(encode_request(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Opened(broker_epoch=2**40, idle_ms=1, silence_ms=2, lag_max_ms=3),
        Accepted(route=1, high_watermark=2**40, log_start_offset=3),
        Diverged(route=1, leader_end=EpochEnd(None, 5)),
        Diverged(route=1, leader_end=EpochEnd(0, 2**40)),
        *(Ended(route=1, error=error, log_start_offset=4, message="why") for error in ROUTE_ERRORS),
        Marks((RouteMark(1, 2**40, 3), RouteMark(0, 0, 0))),
        GoAway(2_000),
        Heartbeat(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_a_leader_says_comes_back(message: LeaderMessage) -> None:
    """The follower decodes what the leader encoded."""
    assert decode_response(encode_response(message)) == message


@pytest.mark.parametrize(
    "request_",
    [b"\xff\xff\xff", b"", pb.ReplicateRequest(fetch_range=pb.FetchRangeRequest()).SerializeToString()],
    ids=["no message", "nothing", "not used any more"],
)
def test_what_no_follower_says_is_refused(request_: bytes) -> None:
    """The follower gets an error code."""
    with pytest.raises(RefusedError) as refusal:
        decode_request(request_)
    assert refusal.value.failure.code is ErrorCode.INVALID_REQUEST


def test_what_a_newer_leader_says_is_passed_over() -> None:
    """A message without a known part is none. An end with an unknown reason makes the follower wait."""
    assert decode_response(b"") is None
    assert decode_response(pb.ReplicateResponse(range=pb.FetchRangeResponse()).SerializeToString()) is None
    unknown = pb.RouteEnded(route=1, error=pb.RouteError.ValueType(99), message="new")
    ended = decode_response(pb.ReplicateResponse(ended=unknown).SerializeToString())
    assert ended == Ended(route=1, error=SubscriptionError.OVERLOADED, log_start_offset=0, message="new")


def test_every_reason_of_a_leader_has_its_name() -> None:
    """The names on the wire are those of the core. Only the two reasons that occur in followers are missing."""
    missing = set(SubscriptionError) - set(ROUTE_ERRORS)
    assert missing == {SubscriptionError.BAD_BATCHES, SubscriptionError.STREAM_LOST}
    names = {error: pb.RouteError.Name(number) for error, number in ROUTE_ERRORS.items()}
    assert names == {error: f"ROUTE_ERROR_{error.name}" for error in names}
    assert len(names) == len(pb.RouteError.keys()) - 1


@settings(max_examples=400, deadline=None)
@given(offsets, offsets, epochs, st.booleans(), bodies, edits)
def test_mutated_frames_agree(
    route: int, base: int, epoch: int, is_in_sync: bool, body: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    """For every mutation of a frame, both decoders give the same result."""
    front = [(position % 40, length, replacement) for position, length, replacement in changes]
    data = encode_batches(Batches(route, base, epoch, base, 0, is_in_sync, body))
    for where in (changes, front):
        assert_agrees(mutate(data, where))


def varint(number: int, padding: int = 0) -> bytes:
    """Encode a number, made longer by empty groups."""
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F)
    groups += [0] * padding
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


PARTS = st.one_of(
    st.builds(
        lambda field, number, padding: bytes([field << 3]) + varint(number, padding),
        st.sampled_from([1, 2, 3, 4, 5, 6, 7, 15]),
        st.one_of(st.integers(0, 3), st.sampled_from([2**31 - 1, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1])),
        st.integers(0, 4),
    ),
    st.builds(
        lambda data, padding: b"\x7a" + varint(len(data), padding) + data, st.binary(max_size=4), st.integers(0, 6)
    ),
    st.sampled_from([b"\x0d\0\0\0\0", b"\x7d\0\0\0\0", b"\x7b\x7c", b"\x07", b"\xf8\x00\x01"]),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(PARTS, max_size=7), st.integers(0, 5), st.sampled_from([b"", b"\x7a\0", b"\x0a\0", b"\x32\0", b"\x08\1"])
)
def test_built_layouts_agree(parts: list[bytes], padding: int, tail: bytes) -> None:
    """For fields in any order, number and encoding, both decoders give the same result."""
    inner = b"".join(parts)
    message = b"\x7a" + varint(len(inner), padding) + inner
    assert_agrees(message + tail)
    assert_agrees(tail + message)


@pytest.mark.parametrize("traffic", [0, 1, 2, 3])
def test_any_class_but_in_sync_counts_as_catching_up(traffic: int) -> None:
    """A class that this version does not know spends catch-up credit, in either decoder."""
    inner = b"\x08\x01" + (b"\x30" + varint(traffic) if traffic else b"") + b"\x7a\x01x"
    for data in (b"\x7a" + varint(len(inner)) + inner, b"\x7a" + varint(len(inner), 4) + inner):
        frame = decode_response(data)
        assert isinstance(frame, Batches)
        assert frame.is_in_sync is (traffic == 1)


def test_the_tags_are_those_of_the_proto() -> None:
    """The constants written by hand are the field numbers of replication.proto."""
    fields = pb.ReplicaBatches.DESCRIPTOR.fields_by_name
    outer = pb.ReplicateResponse.DESCRIPTOR.fields_by_name["batches"]
    assert stream_codec._BATCHES_TAG[0] == outer.number << 3 | 2
    assert [fields[name].number for name in FIELDS] == list(range(1, stream_codec._NUMBER_FIELDS + 1))
    int32 = {pb.ReplicaBatches.DESCRIPTOR.fields_by_name[name].type for name in ("leader_epoch", "traffic")}
    assert int32 == {fields["leader_epoch"].TYPE_INT32, fields["traffic"].TYPE_ENUM}
    assert (fields["leader_epoch"].number, fields["traffic"].number) == stream_codec._INT32_FIELDS
    assert fields["batches"].number == 15
    assert set(fields) == {*FIELDS, "batches"}
