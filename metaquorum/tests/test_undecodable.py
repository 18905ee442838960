# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no message, at every method of every service that a voter serves: a typed refusal, and no traceback."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from lograft.internal.v1 import controller_pb2, quorum_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from metaquorum.net import sparse_log
from metaquorum.net.sparse_log import SparseLog
from metaquorum.rpc import decoding
from metaquorum.rpc.admin_front import SERVICE
from metaquorum.tests.quorum_cluster import QuorumCluster, quorum_cluster

NONSENSE = b"\xff\xff\xff\xff"
FILES = (admin_pb2, controller_pb2, quorum_pb2, health_pb2, reflection_pb2)


def methods() -> Iterator[MethodDescriptor]:
    """Every method of the services that a voter serves by gRPC."""
    for name in (SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"):
        yield from Default().FindServiceByName(name).methods


async def call(channel: grpc.aio.Channel, method: MethodDescriptor) -> grpc.aio.AioRpcError:
    """Send nonsense to a method; return how the call ended."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming:
            stream = channel.stream_stream(path)()
            await stream.write(NONSENSE)
            while await stream.read() is not grpc.aio.EOF:
                pass
        elif method.server_streaming:
            async for _ in channel.unary_stream(path)(NONSENSE):
                pass
        else:
            await channel.unary_unary(path)(NONSENSE)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"{path} took nonsense")


async def test_every_method_refuses_bytes_that_are_no_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """INVALID_ARGUMENT with a typed reason, where grpc says UNKNOWN and logs a traceback; the voter serves on."""
    count = 0
    async with quorum_cluster(tmp_path, 1) as cluster:
        channel = cluster.channel(str(cluster.servers[1].admin_address))
        for method in methods():
            error = await call(channel, method)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, f"{method.full_name}: {error.details()}"
            assert parse_rpc_error(error).code is ErrorCode.INVALID_REQUEST, method.full_name
            count += 1
        await cluster.admin(1).DescribeQuorum(admin_pb2.DescribeQuorumRequest())
    assert count > 30
    assert not [record for record in caplog.records if record.exc_info or record.name.startswith("grpc")]
    assert any("undecodable_request" in record.message for record in caplog.records)


async def test_log_has_a_line_a_second_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come; the next line says how many had none."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(sparse_log, "LOG_INTERVAL_S", 1e9)
    lines = SparseLog()
    monkeypatch.setattr(decoding, "_lines", lines)

    async def send(cluster: QuorumCluster) -> None:
        vote = Default().FindServiceByName(SERVICE).methods[0]
        for _ in range(20):
            await call(cluster.channel(str(cluster.servers[1].admin_address)), vote)

    async with quorum_cluster(tmp_path, 1) as cluster:
        await send(cluster)
    written = [record.message for record in caplog.records if "undecodable_request" in record.message]
    assert len(written) == 1
    assert written[0].endswith("count=1")
    assert lines.note("undecodable_request", time.monotonic() + 2e9) == 20
