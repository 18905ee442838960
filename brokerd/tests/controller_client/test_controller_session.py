# SPDX-License-Identifier: Apache-2.0
"""A broker without contact to the controller for a session: what it knows about that, and what it then refuses to say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2, log_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from brokerd.controller_client import lifecycle as lifecycle_module
from brokerd.controller_client.lifecycle import BrokerIdentity, BrokerLifecycle, BrokerState, ControllerSession
from brokerd.process.server import BrokerServer
from brokerd.tests.controller_client.scripted_controller import calls_to
from brokerd.tests.support import WAIT_S, connected
from brokerd.tests.three_brokers import append_to_all, three_brokers
from metaquorum.metadata.loader import MetadataLoader

LATEST = log_pb2.OFFSET_POSITION_LATEST
EARLIEST = log_pb2.OFFSET_POSITION_EARLIEST


def test_session_is_looked_at_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was paused notices at once, not only at its next check. The callbacks wait for that check."""
    now_s, told = 100.0, list[str]()
    monkeypatch.setattr(lifecycle_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    session = ControllerSession(MetadataLoader())
    session.on_lost(lambda: told.append("lost"))
    session.begin(asked_s=now_s, timeout_ms=1_000)
    session.look()
    assert not session.is_lost
    now_s += 1.1
    assert session.is_lost
    assert not told
    session.look()
    session.look()
    assert told == ["lost"]
    session.renew(asked_s=now_s, metadata_offset=0)
    assert not session.is_lost
    session.look()
    assert told == ["lost"]


async def test_an_answer_counts_from_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is paused while a heartbeat is answered. When it continues, the answer proves nothing about the present."""
    now_s = 100.0
    monkeypatch.setattr(lifecycle_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    identity = BrokerIdentity(cluster_id="c", broker_id=1, rack="", log_directory_ids=())
    observer = MetadataLoader()
    async with calls_to(observer=observer) as calls:
        lifecycle: Any = BrokerLifecycle(identity, observer, calls, on_state=lambda _: None)
        lifecycle._state = BrokerState(broker_epoch=7, is_fenced=False, may_stop=False)
        takes_s = 0.1

        async def exchange(*_: object, **__: object) -> controller_pb2.HeartbeatResponse:
            nonlocal now_s
            now_s += takes_s
            return controller_pb2.HeartbeatResponse()

        monkeypatch.setattr(lifecycle, "_exchange", exchange)
        now_s += 10.0
        assert lifecycle.session.is_lost
        assert await lifecycle._beat_once()
        assert not lifecycle.session.is_lost
        takes_s = 10.0
        assert await lifecycle._beat_once()
        assert lifecycle.session.is_lost


async def test_a_session_that_was_lost_is_so_until_it_has_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller answers before the broker has applied the new leaders, so an answer alone does not make its metadata current."""
    now_s = 100.0
    monkeypatch.setattr(lifecycle_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    observer: Any = SimpleNamespace(metadata_offset=50)
    identity = BrokerIdentity(cluster_id="c", broker_id=1, rack="", log_directory_ids=())
    async with calls_to() as calls:
        lifecycle: Any = BrokerLifecycle(identity, observer, calls, on_state=lambda _: None)
        lifecycle._state = BrokerState(broker_epoch=7, is_fenced=False, may_stop=False)
        committed = 51

        async def exchange(*_: object, **__: object) -> controller_pb2.HeartbeatResponse:
            return controller_pb2.HeartbeatResponse(metadata_offset=committed)

        monkeypatch.setattr(lifecycle, "_exchange", exchange)
        assert await lifecycle._beat_once()
        assert not lifecycle.session.is_lost, "news on their way are nothing new"
        now_s += 10.0
        committed = 60
        assert await lifecycle._beat_once()
        assert lifecycle.session.is_lost
        committed = 70
        observer.metadata_offset = 59
        assert await lifecycle._beat_once()
        assert lifecycle.session.is_lost
        observer.metadata_offset = 60
        assert not lifecycle.session.is_lost


async def ask(server: BrokerServer, topic: str, position: Any) -> log_pb2.OffsetResult:
    """Ask the leader of partition 0 of a topic for an offset."""
    async with connected(server) as client:
        query = log_pb2.OffsetQuery(topic=topic, partition=0, position=position)
        response = await client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]), timeout=WAIT_S)
    return response.results[0]


async def test_an_isolated_leader_does_not_say_where_its_partition_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may lead the partition by now. It reports its start, and the end of a partition that only it has. Later it reports all."""
    async with three_brokers(tmp_path) as cluster:
        async with connected(cluster.brokers[1]) as client:
            await cluster.create_topic(client)
            await append_to_all(client, b"one")
            request = admin_pb2.CreateTopicRequest(topic="alone", partition_count=1, replication_factor=1)
            created = await client.admin.CreateTopic(request, timeout=WAIT_S)
        (alone,) = created.topic.partitions
        leader_id = cluster.partition(0).leader_id
        assert leader_id is not None
        server = cluster.brokers[leader_id]
        with monkeypatch.context() as patch:
            patch.setattr(ControllerSession, "is_lost", True)
            refused = await ask(server, "t", LATEST)
            assert refused.error.code == int(ErrorCode.OFFSET_NOT_AVAILABLE), refused
            assert "session" in refused.error.message
            assert refused.error.retry_after_ms > 0
            assert (await ask(server, "t", EARLIEST)).offset == 0
            assert not (await ask(cluster.brokers[alone.leader_id], "alone", LATEST)).HasField("error")
            async with connected(server) as client:
                watch = client.metadata.WatchCluster(metadata_pb2.WatchClusterRequest())
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await watch.read()
                assert parse_rpc_error(failure.value).code is ErrorCode.BROKER_FENCED
        assert (await ask(server, "t", LATEST)).offset == 1
