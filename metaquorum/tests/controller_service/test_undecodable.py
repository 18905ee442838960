# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no message, at every method that a voter serves over gRPC and to other servers: a typed refusal, no traceback."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
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

from metaquorum.controller_service import decoding
from metaquorum.controller_service.admin_grpc import SERVICE
from metaquorum.controller_service.admin_operations import REQUEST_TYPES
from metaquorum.net import service, sparse_log
from metaquorum.net.carrier import Carrier
from metaquorum.net.link import RefusedByPeerError
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import RefusalError, decode_refusal
from metaquorum.net.sparse_log import SparseLog
from metaquorum.tests.quorum_cluster import CLUSTER, QuorumCluster, quorum_cluster

NONSENSE = b"\xff\xff\xff\xff"
WAIT_MS = 30_000
STREAMS = (Method.FETCH_SNAPSHOT, Method.EXPORT_METADATA, Method.REPLICATE)
NOT_OF_VOTERS = tuple(method for method in Method if Method.REPLICATE <= method < Method.ADMIN)
"""What brokers ask one another."""

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
    """INVALID_ARGUMENT with a typed reason (gRPC itself answers UNKNOWN and logs a traceback); the voter keeps serving."""
    count = 0
    async with quorum_cluster(tmp_path, 1) as cluster:
        channel = cluster.channel(str(cluster.servers[1].admin_address))
        for method in methods():
            error = await call(channel, method)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, f"{method.full_name}: {error.details()}"
            assert parse_rpc_error(error).code is ErrorCode.INVALID_REQUEST, method.full_name
            count += 1
        await cluster.admin(1).DescribeQuorum(admin_pb2.DescribeQuorumRequest())
    assert count > 25
    assert not [record for record in caplog.records if record.exc_info or record.name.startswith("grpc")]
    assert any("undecodable_request" in record.message for record in caplog.records)


async def test_admin_port_serves_no_method_of_other_servers(tmp_path: Path) -> None:
    """Servers of older versions used gRPC; now they use another port and another protocol."""
    names = [*(method.name.title().replace("_", "") for method in Method), "FollowQuorum"]
    async with quorum_cluster(tmp_path, 1) as cluster:
        channel = cluster.channel(str(cluster.servers[1].admin_address))
        for service, name in product(("QuorumService", "ControllerService", "ReplicationService"), names):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/lograft.internal.v1.{service}/{name}")(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, f"{service}/{name}"


@asynccontextmanager
async def another_server() -> AsyncIterator[Peers]:
    """The connections of a server of the same cluster."""
    carrier = Carrier(cluster_id=CLUSTER, node_id=901)
    await carrier.start(None)
    try:
        yield carrier.peers
    finally:
        await carrier.close()


async def refusal_of(peers: Peers, address: str, method: Method, message: bytes = NONSENSE) -> RefusalError:
    """Send nonsense to a method of the carrier; return how the call ended."""
    try:
        if method in STREAMS:
            stream = await peers.open(address, method, message, window_bytes=1_000, timeout_ms=WAIT_MS)
            answer = await stream.read()
        else:
            answer = await peers.ask(address, method, message, timeout_ms=WAIT_MS)
    except RefusedByPeerError as error:
        return decode_refusal(error.failure)
    raise AssertionError(f"{method.name} took nonsense: {answer!r}")


async def test_every_method_of_other_servers_refuses_bytes_that_are_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """INVALID_REQUEST; the connection carries the next calls, and the voter keeps serving."""
    async with quorum_cluster(tmp_path, 1) as cluster, another_server() as peers:
        address = cluster.voters[1]
        for method in Method:
            refusal = await refusal_of(peers, address, method)
            assert refusal.code is ErrorCode.INVALID_REQUEST, f"{method.name}: {refusal}"
            is_served = method not in NOT_OF_VOTERS
            assert ("not a valid lograft." in refusal.message) == is_served, f"{method.name}: {refusal}"
        link = await peers.connected(address, timeout_ms=WAIT_MS)
        for name in REQUEST_TYPES:
            call = controller_pb2.AdminCall(method=name, request=NONSENSE)
            refusal = await refusal_of(peers, address, Method.ADMIN, call.SerializeToString())
            assert refusal.code is ErrorCode.INVALID_REQUEST, f"{name}: {refusal}"
            assert f"not a valid {name}Request" in refusal.message
        unknown = controller_pb2.AdminCall(method="DropEverything", request=b"")
        refusal = await refusal_of(peers, address, Method.ADMIN, unknown.SerializeToString())
        assert refusal.code is ErrorCode.INVALID_REQUEST
        assert await peers.connected(address, timeout_ms=WAIT_MS) is link
        assert link.open_count == 0
        probe = await cluster.quorum(1).probe(quorum_pb2.ProbeRequest(cluster_id=CLUSTER))
        assert probe.node_id == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert any("undecodable_request" in record.message for record in caplog.records)


async def test_log_has_a_line_a_second_at_most_of_what_other_servers_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests and streams together."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(sparse_log, "LOG_INTERVAL_S", 1e9)
    lines = SparseLog()
    monkeypatch.setattr(service, "_lines", lines)
    async with quorum_cluster(tmp_path, 1) as cluster, another_server() as peers:
        for _ in range(10):
            await refusal_of(peers, cluster.voters[1], Method.VOTE)
            await refusal_of(peers, cluster.voters[1], Method.FETCH_SNAPSHOT)
    written = [record.message for record in caplog.records if "undecodable_request" in record.message]
    assert len(written) == 1
    assert written[0].endswith("count=1")
    assert lines.note("undecodable_request", time.monotonic() + 2e9) == 20


async def test_log_has_a_line_a_second_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests come; the next line counts those without a line."""
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
