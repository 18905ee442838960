# SPDX-License-Identifier: Apache-2.0
"""The bulk frame between brokers: byte for byte the generated message, and the same meaning for every byte string."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.internal.v1 import replication_pb2 as pb

from brokerd.replication import batches_frame
from brokerd.replication.batches_frame import BatchesFrame, decode_replicate_response, encode_batches_frame

FIELDS = ["route", "base_offset", "leader_epoch", "high_watermark", "log_start_offset", "traffic"]
offsets = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
epochs = st.integers(0, 2**31 - 1)
bodies = st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=300))
edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4)


def contents(message: Any) -> Any:
    """Give what a frame or a generated message says, in one form."""
    if isinstance(message, BatchesFrame):
        return (*message[:-1], bytes(message.body))
    if message.WhichOneof("part") != "batches":
        return message
    batches = message.batches
    numbers = [getattr(batches, name) for name in FIELDS[:-1]]
    return (*numbers, batches.traffic == pb.REPLICA_TRAFFIC_IN_SYNC, batches.batches)


def assert_agrees(data: bytes) -> None:
    """Assert that the hand-written decoder gives what the generated one gives, errors included."""
    try:
        expected = pb.ReplicateResponse.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_replicate_response(data)
        return
    assert contents(decode_replicate_response(data)) == contents(expected)


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
    data = encode_batches_frame(route, base, epoch, watermark, start, is_in_sync, memoryview(body))
    assert data == expected.SerializeToString()
    assert contents(decode_replicate_response(data)) == (route, base, epoch, watermark, start, is_in_sync, body)


def test_the_batches_are_sliced_not_copied() -> None:
    """The usual layout is taken apart by hand: the batches refer to the message."""
    data = encode_batches_frame(1, 2**40, 3, 2**40, 5, True, bytearray(300_000))
    frame = decode_replicate_response(data)
    assert isinstance(frame, BatchesFrame)
    assert isinstance(frame.body, memoryview)
    assert frame.body.obj is data


def test_other_messages_come_as_generated_ones() -> None:
    """Whatever is no batches is left to the generated code."""
    for message in (
        pb.ReplicateResponse(),
        pb.ReplicateResponse(opened=pb.ReplicateOpened(broker_epoch=5)),
        pb.ReplicateResponse(accepted=pb.SubscriptionAccepted(route=1)),
        pb.ReplicateResponse(marks=pb.LeaderMarks(marks=[pb.LeaderMark(route=1, high_watermark=2)])),
        pb.ReplicateResponse(heartbeat=pb.LeaderHeartbeat()),
    ):
        assert decode_replicate_response(message.SerializeToString()) == message


@settings(max_examples=400, deadline=None)
@given(offsets, offsets, epochs, st.booleans(), bodies, edits)
def test_mutated_frames_agree(
    route: int, base: int, epoch: int, is_in_sync: bool, body: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    """For every mutation of a frame, both decoders say the same."""
    front = [(position % 40, length, replacement) for position, length, replacement in changes]
    data = encode_batches_frame(route, base, epoch, base, 0, is_in_sync, body)
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
    """For fields in any order, number and encoding, both decoders say the same."""
    inner = b"".join(parts)
    message = b"\x7a" + varint(len(inner), padding) + inner
    assert_agrees(message + tail)
    assert_agrees(tail + message)


@pytest.mark.parametrize("traffic", [0, 1, 2, 3])
def test_any_class_but_in_sync_counts_as_catching_up(traffic: int) -> None:
    """A class that this version does not know spends the credit of the others, in either decoder."""
    inner = b"\x08\x01" + (b"\x30" + varint(traffic) if traffic else b"") + b"\x7a\x01x"
    for data in (b"\x7a" + varint(len(inner)) + inner, b"\x7a" + varint(len(inner), 4) + inner):
        frame = decode_replicate_response(data)
        assert isinstance(frame, BatchesFrame)
        assert frame.is_in_sync is (traffic == 1)


def test_the_tags_are_those_of_the_proto() -> None:
    """The constants written by hand are the field numbers of replication.proto."""
    fields = pb.ReplicaBatches.DESCRIPTOR.fields_by_name
    outer = pb.ReplicateResponse.DESCRIPTOR.fields_by_name["batches"]
    assert batches_frame._BATCHES_TAG[0] == outer.number << 3 | 2
    assert [fields[name].number for name in FIELDS] == list(range(1, batches_frame._NUMBER_FIELDS + 1))
    int32 = {pb.ReplicaBatches.DESCRIPTOR.fields_by_name[name].type for name in ("leader_epoch", "traffic")}
    assert int32 == {fields["leader_epoch"].TYPE_INT32, fields["traffic"].TYPE_ENUM}
    assert (fields["leader_epoch"].number, fields["traffic"].number) == batches_frame._INT32_FIELDS
    assert fields["batches"].number == 15
    assert set(fields) == {*FIELDS, "batches"}
