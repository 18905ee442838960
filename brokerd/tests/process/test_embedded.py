# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster: from any thread, with clean ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from brokerd.embedded import EmbeddedCluster
from brokerd.errors import AddressInUseError, BrokerError
from brokerd.tests.process.programs import append_and_read
from brokerd.tests.support import WAIT_S


def test_serves_blocking_clients_and_leaves_nothing_behind() -> None:
    """A cluster in a temporary directory serves at once; after the end its threads and its directory are gone."""
    before = set(threading.enumerate())
    with EmbeddedCluster() as cluster:
        assert append_and_read(cluster.bootstrap, b"a") == [b"a"]
        assert cluster._temporary is not None
        directory = Path(cluster._temporary.name)
        assert directory.exists()
    assert not directory.exists()
    # The threads of grpcio belong to grpcio, so they may stay.
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in left if name.startswith("lograft")]
    with pytest.raises(BrokerError, match="not running"):
        assert cluster.bootstrap


def test_kept_directory_keeps_its_records(tmp_path: Path) -> None:
    """With a kept directory the next cluster continues where the last one stopped."""
    for number in range(2):
        with EmbeddedCluster(tmp_path / "data") as cluster:
            assert append_and_read(cluster.bootstrap, b"%d" % number) == [b"0", b"1"][: number + 1]


async def test_works_beside_a_running_event_loop() -> None:
    """It is started and used from a thread while the caller's own loop runs. Two clusters do not know each other."""

    def run() -> list[bytes]:
        with EmbeddedCluster() as first, EmbeddedCluster() as second:
            assert first.bootstrap != second.bootstrap
            return append_and_read(first.bootstrap, b"1") + append_and_read(second.bootstrap, b"2")

    assert await asyncio.to_thread(run) == [b"1", b"2"]


def test_failed_start_raises_and_can_be_followed_by_another(tmp_path: Path) -> None:
    """A taken port is an error in the caller's thread, and nothing of the failed start remains."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster = EmbeddedCluster(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(AddressInUseError):
            cluster.start()
        cluster.stop()
    with pytest.raises(BrokerError, match="starts once"):
        cluster.start()
    with EmbeddedCluster(tmp_path) as again:
        assert append_and_read(again.bootstrap, b"x") == [b"x"]


def test_health_says_serving_for_every_service() -> None:
    """The standard health service answers for the process and for each service; reflection names them all."""
    services = {
        "lograft.v1.LogService",
        "lograft.v1.MetadataService",
        "lograft.v1.AdminService",
        "lograft.v1.GroupService",
        "lograft.v1.IngestService",
    }
    with EmbeddedCluster() as cluster, grpc.insecure_channel(cluster.bootstrap) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", *services):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="unknown"), timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in services),
        ]
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, *files = reflection.ServerReflectionInfo(iter(requests), timeout=WAIT_S)
        assert services <= {service.name for service in listed.list_services_response.service}
        assert all(each.file_descriptor_response.file_descriptor_proto for each in files)
