# SPDX-License-Identifier: Apache-2.0
"""Failed calls: status details that every language reads, through real servers of both gRPC stacks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from lograft.v1.errors_pb2 import LeaderHint, ReadableRange
from lograft.v1.log_pb2 import AppendedRange, AppendResponse
from lograft.wire import rpc_details
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_STATUS_MESSAGE_BYTES, MAX_STATUS_METADATA_BYTES
from lograft.wire.rpc_details import Detail
from lograft.wire.status import DETAILS_KEY, STATUS_CODES, RemoteStatus, RichStatus, abort_status, parse_rpc_error
from tests.wire.batches import examples, texts

METHOD = "/test.Service/Call"
APPENDED = AppendResponse(ranges=[AppendedRange(partition=3, base_offset=9, record_indexes=[0, 2])])


def call_sync(status: RichStatus) -> RemoteStatus:
    """Abort a call with a status on the blocking stack and read it with its client."""

    def handle(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort_with_status(status)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([_handlers(handle)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(METHOD)(b"", timeout=10)
        return parse_rpc_error(caught.value)
    finally:
        server.stop(None).wait(10)


async def call_aio(status: RichStatus) -> RemoteStatus:
    """Abort a call with a status on the asyncio stack and read it with its client."""

    async def handle(_: bytes, context: Any) -> bytes:
        await context.abort_with_status(status)
        raise AssertionError("abort_with_status returned")

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([_handlers(handle)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError) as caught:
                await channel.unary_unary(METHOD)(b"", timeout=10)
        return parse_rpc_error(caught.value)
    finally:
        await server.stop(None)


def _handlers(handle: Callable[..., Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler("test.Service", {"Call": grpc.unary_unary_rpc_method_handler(handle)})


FULL = abort_status(
    ErrorCode.NOT_LEADER,
    "broker 2 leads: größer als 1",
    metadata={"topic": "t", "partition": "3"},
    retry_after_ms=1500,
    leader=LeaderHint(leader_id=2, leader_epoch=7, host="h", port=9640),
    readable_range=ReadableRange(log_start_offset=1, high_watermark=5),
    extra_detail=APPENDED,
)


def assert_full(remote: RemoteStatus) -> None:
    """Assert that everything in FULL arrived."""
    assert remote.code is ErrorCode.NOT_LEADER
    assert remote.grpc_code is grpc.StatusCode.UNAVAILABLE
    assert remote.message == "broker 2 leads: größer als 1"
    assert remote.metadata == {"topic": "t", "partition": "3"}
    assert remote.retry_after_ms == 1500
    assert remote.leader == LeaderHint(leader_id=2, leader_epoch=7, host="h", port=9640)
    assert remote.readable_range == ReadableRange(log_start_offset=1, high_watermark=5)
    assert remote.append_response == APPENDED


async def test_status_arrives_whole_on_both_stacks() -> None:
    """Code, text and every detail pass a real server and client."""
    assert_full(call_sync(FULL))
    assert_full(await call_aio(FULL))


async def test_status_without_details_arrives() -> None:
    """Code and text alone are enough."""
    remote = await call_aio(abort_status(ErrorCode.UNKNOWN_TOPIC, "no topic 't'"))
    assert remote == RemoteStatus(
        code=ErrorCode.UNKNOWN_TOPIC, grpc_code=grpc.StatusCode.NOT_FOUND, message="no topic 't'", metadata={}
    )


async def test_a_huge_status_still_arrives() -> None:
    """Details that no peer would accept are left out by name, the text is cut, and the call fails with its code."""
    huge = AppendResponse(ranges=[AppendedRange(record_indexes=range(50_000))])
    status = abort_status(
        ErrorCode.STORAGE_FAILED,
        "é" * 50_000,
        retry_after_ms=3,
        leader=LeaderHint(host="x" * 9_000),
        extra_detail=huge,
    )
    for remote in (call_sync(status), await call_aio(status)):
        assert remote.code is ErrorCode.STORAGE_FAILED
        assert remote.message == "é" * (MAX_STATUS_MESSAGE_BYTES // 2)
        assert remote.retry_after_ms == 3
        assert remote.append_response is remote.leader is None
        assert remote.metadata == {"details_left_out": "lograft.v1.LeaderHint, lograft.v1.AppendResponse"}
    status = abort_status(ErrorCode.INTERNAL, "m", metadata={"a": "x" * 9_000}, retry_after_ms=4, extra_detail=huge)
    remote = await call_aio(status)
    assert remote.metadata == {"details_left_out": "metadata, lograft.v1.AppendResponse"}
    assert remote.retry_after_ms == 4


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_makes_a_status_and_comes_back(code: ErrorCode) -> None:
    """The packed google.rpc.Status agrees with the call's status, and has the reason, as the official classes see it."""
    status = abort_status(code, "text")
    packed = status_pb2.Status.FromString(packed_of(status))
    assert (packed.code, packed.message) == (STATUS_CODES[code].value[0], "text")
    info = error_details_pb2.ErrorInfo()
    assert packed.details[0].Unpack(info)
    assert (info.reason, info.domain) == (code.name, "lograft")
    assert parse_rpc_error(failed(status.code, "text", packed_of(status))).code is code


def test_official_classes_read_our_details() -> None:
    """A client in any language unpacks the details with the published messages."""
    packed = status_pb2.Status.FromString(packed_of(FULL))
    info, retry, leader = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), LeaderHint()
    assert packed.details[0].Unpack(info)
    assert dict(info.metadata) == {"topic": "t", "partition": "3"}
    assert packed.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert packed.details[2].Unpack(leader)
    assert leader.port == 9640


def packed_of(status: RichStatus) -> bytes:
    """Return the packed status from the trailers."""
    ((key, value),) = status.trailing_metadata
    assert key == DETAILS_KEY
    assert isinstance(value, bytes)
    return value


def failed(code: grpc.StatusCode, details: str | None, packed: bytes | None) -> grpc.RpcError:
    """Return the error that a client would raise."""
    trailers = grpc.aio.Metadata(("x-other", "text"))
    if packed is not None:
        trailers.add(DETAILS_KEY, packed)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


def packed_status(*details: Any) -> bytes:
    """Pack details with the official classes."""
    status = status_pb2.Status(code=5, message="m")
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status.SerializeToString()


def test_failures_of_transport_have_no_code() -> None:
    """A failure without an answer of a Lograft server has none of Lograft's reasons."""
    foreign = packed_status(error_details_pb2.ErrorInfo(reason="NOT_LEADER", domain="example.org", metadata={"a": "b"}))
    for error in (
        failed(grpc.StatusCode.UNAVAILABLE, None, None),
        failed(grpc.StatusCode.UNAVAILABLE, "", foreign),
        failed(grpc.StatusCode.UNAVAILABLE, "", b"\xff\xff"),
        grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, None, None),
    ):
        expected = RemoteStatus(code=None, grpc_code=grpc.StatusCode.UNAVAILABLE, message="", metadata={})
        assert parse_rpc_error(error) == expected


def test_details_of_others_are_read() -> None:
    """Details that the official classes packed are found among unknown ones."""
    packed = packed_status(
        error_details_pb2.DebugInfo(detail="d"),
        error_details_pb2.RetryInfo(),
        error_details_pb2.ErrorInfo(reason="FROM_THE_FUTURE", domain="lograft"),
        ReadableRange(high_watermark=3),
    )
    remote = parse_rpc_error(failed(grpc.StatusCode.ABORTED, "m", packed))
    assert (remote.code, remote.retry_after_ms) == (ErrorCode.INTERNAL, 0)
    assert remote.readable_range == ReadableRange(high_watermark=3)


@pytest.mark.parametrize(
    "type_name", [rpc_details.ERROR_INFO_TYPE, rpc_details.RETRY_INFO_TYPE, "lograft.v1.LeaderHint"]
)
def test_broken_details_count_as_absent(type_name: str) -> None:
    """A detail that cannot be read does not hide the failure."""
    packed = rpc_details.encode_status(14, "m", [Detail(type_name, b"\x0a\x7f")])
    remote = parse_rpc_error(failed(grpc.StatusCode.UNAVAILABLE, "m", packed))
    assert (remote.code, remote.leader, remote.retry_after_ms) == (None, None, None)


@examples(200)
@given(
    st.integers(0, 2**31 - 1),
    texts,
    st.dictionaries(texts, texts, max_size=3),
    st.integers(0, 10**12),
    st.binary(max_size=200),
)
def test_messages_round_trip_with_the_official_classes(
    code: int, text: str, metadata: dict[str, str], retry_after_ms: int, value: bytes
) -> None:
    """Both ways, the hand-written messages and the published classes have the same meaning."""
    status = rpc_details.encode_status(code, text, [Detail("a.B", value), Detail("c.D", b"")])
    official = status_pb2.Status.FromString(status)
    assert (official.code, official.message) == (code, text)
    assert [(detail.type_url, detail.value) for detail in official.details] == [
        ("type.googleapis.com/a.B", value),
        ("type.googleapis.com/c.D", b""),
    ]
    decoded = rpc_details.decode_status(official.SerializeToString())
    assert decoded == (code, text, [Detail("a.B", value), Detail("c.D", b"")])
    info = error_details_pb2.ErrorInfo.FromString(rpc_details.encode_error_info(text, "domain", metadata))
    assert (info.reason, info.domain, dict(info.metadata)) == (text, "domain", metadata)
    assert rpc_details.decode_error_info(info.SerializeToString()) == (text, "domain", metadata)
    retry = error_details_pb2.RetryInfo.FromString(rpc_details.encode_retry_info(retry_after_ms))
    assert retry.retry_delay.ToMilliseconds() == retry_after_ms
    assert rpc_details.decode_retry_info(retry.SerializeToString()) == retry_after_ms


@examples(500)
@given(st.binary(max_size=60))
def test_decoding_never_raises_anything_else(data: bytes) -> None:
    """For any bytes of a peer, the details are read or a ValueError is raised. parse_rpc_error never fails."""
    for decode in (rpc_details.decode_status, rpc_details.decode_error_info, rpc_details.decode_retry_info):
        with suppress(ValueError):
            decode(data)
    wrapped = rpc_details.encode_status(
        14, "m", [Detail(name, data) for name in (rpc_details.ERROR_INFO_TYPE, rpc_details.RETRY_INFO_TYPE)]
    )
    parse_rpc_error(failed(grpc.StatusCode.UNAVAILABLE, "m", data))
    parse_rpc_error(failed(grpc.StatusCode.UNAVAILABLE, "m", wrapped))


def test_fields_of_unexpected_kinds_are_skipped() -> None:
    """Unknown fields, fixed-size fields and known numbers with another wire type cause no error."""
    odd = bytes.fromhex("0a00 1007 1805 2d01020304 310102030405060708 08057a0161")
    assert rpc_details.decode_status(odd) == (5, "", [])
    assert rpc_details.decode_error_info(bytes.fromhex("0805 1805")) == ("", "", {})
    assert rpc_details.decode_retry_info(bytes.fromhex("0805 0a050a0161 1001 1001")) == 0
    any_with_number = bytes.fromhex("1a04 1005 1005")
    assert rpc_details.decode_status(any_with_number).details == [("", b"")]
    for broken in ("0b", "0a05", "0a", "08", "ffffffffff"):
        with pytest.raises(ValueError, match=r"cut off|wire type|more than"):
            rpc_details.decode_status(bytes.fromhex(broken))


def trailer_bytes(status: RichStatus) -> int:
    """Return the size of a status's trailers as HTTP/2 counts it: 32 bytes a field, binary in base64, text in %XX."""
    text = sum(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in status.details.encode())
    packed = -(-len(packed_of(status)) * 4 // 3)
    fields = {":status": 3, "content-type": 16, "grpc-status": 2, "grpc-message": text, DETAILS_KEY: packed}
    return sum(len(name) + size + 32 for name, size in fields.items())


@examples(200)
@given(
    st.sampled_from(["m", "é", "%", "\n", "\N{SNOWMAN}", "\N{GRINNING FACE}", "\ud800"]),
    st.integers(0, 3_000),
    st.integers(0, 3_000),
    st.integers(0, 3_000),
    st.integers(0, 1_000),
)
def test_trailers_stay_below_what_every_peer_takes(
    character: str, characters: int, fact_bytes: int, host_bytes: int, indexes: int
) -> None:
    """For any text and details: above the limit, gRPC's own peers sometimes refuse trailers."""
    status = abort_status(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        character * characters,
        metadata={"k": "v" * fact_bytes},
        retry_after_ms=2**31,
        leader=LeaderHint(host="h" * host_bytes),
        readable_range=ReadableRange(log_start_offset=2**62, high_watermark=2**62),
        extra_detail=AppendResponse(ranges=[AppendedRange(record_indexes=range(indexes))]),
    )
    assert trailer_bytes(status) <= MAX_STATUS_METADATA_BYTES
    assert len(status.details.encode()) <= MAX_STATUS_MESSAGE_BYTES
