# SPDX-License-Identifier: Apache-2.0
"""Bulk frames: the same bytes as the generated messages, and the same meaning for every byte string."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from lograft.v1 import log_pb2
from lograft.wire import frame_layout, frames
from lograft.wire.frames import (
    FetchFrame,
    ProduceFrame,
    decode_fetch_response,
    decode_produce_request,
    encode_fetch_frame,
    encode_produce_frame,
    serialize_fetch_response,
    serialize_produce_request,
)
from tests.wire.batches import edits, examples, mutate

routes = st.integers(0, 2**31 - 1)
numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
bodies = st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=300))


def contents(message: Any) -> Any:
    """Return the contents of a frame or a generated message in one form."""
    if isinstance(message, (ProduceFrame, FetchFrame)):
        return (*message[:-1], bytes(message.body))
    kind = message.WhichOneof("message")
    if kind == "batch":
        return (message.batch.route, message.batch.batch_number, message.batch.body)
    if kind == "chunk":
        chunk = message.chunk
        return (chunk.route, chunk.next_offset, chunk.high_watermark, chunk.body)
    return message


def assert_agrees(decode: Any, message_type: Any, data: bytes) -> None:
    """Assert that the hand-written decoder gives the generated one's result, including errors."""
    try:
        expected = message_type.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode(data)
        return
    assert contents(decode(data)) == contents(expected)


@examples(200)
@given(routes, numbers, numbers, bodies)
def test_frames_are_the_generated_messages(route: int, number: int, watermark: int, body: bytes) -> None:
    """Encoding gives the bytes of the generated encoder. Decoding them gives the frame, sliced."""
    batch = log_pb2.ProduceRequest(batch=log_pb2.ProduceBatch(route=route, batch_number=number, body=body))
    data = encode_produce_frame(route, number, body)
    assert data == batch.SerializeToString() == serialize_produce_request(batch)
    assert data == serialize_produce_request(ProduceFrame(route, number, memoryview(body)))
    assert contents(decode_produce_request(data)) == (route, number, body)
    chunk = log_pb2.FetchResponse(
        chunk=log_pb2.FetchChunk(route=route, next_offset=number, high_watermark=watermark, body=body)
    )
    data = encode_fetch_frame(route, number, watermark, bytearray(body))
    assert data == chunk.SerializeToString() == serialize_fetch_response(chunk)
    assert data == serialize_fetch_response(FetchFrame(route, number, watermark, body))
    assert contents(decode_fetch_response(data)) == (route, number, watermark, body)


def test_the_body_is_sliced_not_copied() -> None:
    """The usual layout is taken apart by hand, so the body refers to the message."""
    data = encode_produce_frame(1, 2, bytes(300_000))
    frame = decode_produce_request(data)
    assert isinstance(frame, ProduceFrame)
    assert isinstance(frame.body, memoryview)
    assert frame.body.obj is data
    data = encode_fetch_frame(1, 2, 3, bytes(300_000))
    chunk = decode_fetch_response(data)
    assert isinstance(chunk, FetchFrame)
    assert isinstance(chunk.body, memoryview)
    assert chunk.body.obj is data


def test_other_messages_come_as_generated_ones() -> None:
    """The generated code decodes everything that is no batch and no chunk."""
    requests = [
        log_pb2.ProduceRequest(),
        log_pb2.ProduceRequest(open=log_pb2.ProduceOpen(cluster_id="c", formats=[16])),
        log_pb2.ProduceRequest(bind=log_pb2.ProduceBind(routes=[log_pb2.ProduceRoute(route=1, topic="t")])),
    ]
    for request in requests:
        assert decode_produce_request(request.SerializeToString()) == request
    responses = [
        log_pb2.FetchResponse(),
        log_pb2.FetchResponse(opened=log_pb2.FetchOpened(cluster_id="c")),
        log_pb2.FetchResponse(mark=log_pb2.FetchMark(route=1, caught_up=True)),
        log_pb2.FetchResponse(go_away=log_pb2.GoAway(message="bye")),
    ]
    for response in responses:
        assert decode_fetch_response(response.SerializeToString()) == response


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("1a04 7a01 61 0801"),  # body before route
        bytes.fromhex("1a05 0801 0802 7a00"),  # route twice, not the whole message
        bytes.fromhex("1a06 0801 0802 7a00"),  # route twice
        bytes.fromhex("1a06 1001 0802 7a00"),  # descending
        bytes.fromhex("1a04 1801 7a00"),  # unknown field
        bytes.fromhex("1a05 0d01000000"),  # route with another wire type
        bytes.fromhex("1a00"),
        bytes.fromhex("1a02 0801"),  # no body
        bytes.fromhex("1a0d 08ffffffffffffffffff01 7a00"),  # route -1
        bytes.fromhex("1a08 08ffffffff0f 7a00"),  # route that does not fit int32
        bytes.fromhex("1a04 8088 0001"),
        bytes.fromhex("1a8280808000 0801"),  # overlong length
        bytes.fromhex("1a828080808000 0801"),
        bytes.fromhex("1a02 0801 1a03 7a0162"),  # two parts of one batch, to be merged
        bytes.fromhex("1a02 7a00 0a00"),  # a batch, then an open
        bytes.fromhex("1a"),
        b"",
        bytes.fromhex("1a03 7a05 61"),
        bytes.fromhex("1a03 0801 7a"),
        bytes.fromhex("1a02 7a01 61"),
    ],
    ids=bytes.hex,
)
def test_odd_layouts_mean_what_the_generated_parser_says(data: bytes) -> None:
    """The generated parser decodes layouts that are unusual or broken."""
    assert_agrees(decode_produce_request, log_pb2.ProduceRequest, data)
    assert_agrees(decode_fetch_response, log_pb2.FetchResponse, data.replace(b"\x1a", b"\x12", 1))


@examples(400)
@given(routes, numbers, bodies, edits)
def test_mutated_frames_agree(route: int, number: int, body: bytes, changes: list[tuple[int, int, bytes]]) -> None:
    """For every mutation of a frame, both decoders agree."""
    front = [(position % 24, length, replacement) for position, length, replacement in changes]
    for where in (changes, front):
        data = mutate(encode_produce_frame(route, number, body), where)
        assert_agrees(decode_produce_request, log_pb2.ProduceRequest, data)
        data = mutate(encode_fetch_frame(route, number, number, body), where)
        assert_agrees(decode_fetch_response, log_pb2.FetchResponse, data)


def varint(number: int, padding: int = 0) -> bytes:
    """Encode a number, made longer by empty groups."""
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F)
    groups += [0] * padding
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


PARTS = st.one_of(
    st.builds(
        lambda tag, number, padding: tag + varint(number, padding),
        st.sampled_from([b"\x08", b"\x10", b"\x18", b"\x20", b"\x78"]),
        st.one_of(st.integers(0, 300), st.sampled_from([2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])),
        st.integers(0, 4),
    ),
    st.builds(
        lambda data, padding: b"\x7a" + varint(len(data), padding) + data, st.binary(max_size=4), st.integers(0, 6)
    ),
    st.sampled_from([b"\x0d\0\0\0\0", b"\x7d\0\0\0\0", b"\x7b\x7c", b"\x07", b"\xf8\x00\x01"]),
)


@examples(400)
@given(
    st.lists(PARTS, max_size=5), st.integers(0, 5), st.sampled_from([b"", b"\x1a\0", b"\x0a\0", b"\x12\0", b"\x08\1"])
)
def test_built_layouts_agree(parts: list[bytes], padding: int, tail: bytes) -> None:
    """For fields in any order, number and encoding, both decoders agree."""
    inner = b"".join(parts)
    for tag, decode, message_type in (
        (b"\x1a", decode_produce_request, log_pb2.ProduceRequest),
        (b"\x12", decode_fetch_response, log_pb2.FetchResponse),
    ):
        assert_agrees(decode, message_type, tag + varint(len(inner), padding) + inner + tail)
        assert_agrees(decode, message_type, tail + tag + varint(len(inner), padding) + inner)


def test_frame_tags_are_those_of_the_proto() -> None:
    """The constants written by hand are the field numbers of log.proto."""
    request = log_pb2.ProduceRequest.DESCRIPTOR.fields_by_name
    response = log_pb2.FetchResponse.DESCRIPTOR.fields_by_name
    assert frames._PRODUCE_BATCH_TAG[0] == request["batch"].number << 3 | 2
    assert frames._FETCH_CHUNK_TAG[0] == response["chunk"].number << 3 | 2
    for message, names in (
        (log_pb2.ProduceBatch, ["route", "batch_number"]),
        (log_pb2.FetchChunk, ["route", "next_offset", "high_watermark"]),
    ):
        fields = message.DESCRIPTOR.fields_by_name
        assert [frame_layout._NUMBER_TAGS[fields[name].number][0] for name in names] == [
            fields[name].number << 3 for name in names
        ]
        assert frame_layout._BODY_TAG[0] == fields["body"].number << 3 | 2
        assert set(fields) == {*names, "body"}
