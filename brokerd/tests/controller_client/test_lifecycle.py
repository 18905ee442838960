# SPDX-License-Identifier: Apache-2.0
"""The life of a broker in the cluster, against a real controller: stale registrations, outages, failures."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from lograft import aio
from lograft.errors import LograftError, RetriableError
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2, log_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from brokerd.api.health import LIVENESS
from brokerd.controller_client.lifecycle import BrokerLifecycle
from brokerd.errors import BrokerFailedError, RegistrationRefusedError
from brokerd.process.event_loop import new_event_loop
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings, CombinedSettings
from brokerd.process.standalone import standalone_settings
from brokerd.tests.support import (
    WAIT_S,
    Client,
    ProduceStream,
    connected,
    leaders,
    refusal,
    running_broker,
    second_broker,
)
from metaquorum.controller.commands import Command, RegisterBroker
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller_service.commit_waiters import CommandError, Outcome
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.process.settings import Address
from metaquorum.testing.peer_client import ControllerCalls, PeerClient
from metaquorum.testing.ports import free_port
from storage.errors import DiskFailedError


async def watch_until(
    client: Client, holds: Callable[[metadata_pb2.Broker], bool], broker_id: int
) -> metadata_pb2.Broker:
    """Follow the cluster until a broker is as wanted. Like a client, watch again if a broker without contact ends the watch."""
    async with asyncio.timeout(WAIT_S):
        while True:
            watch = client.metadata.WatchCluster(metadata_pb2.WatchClusterRequest(topics=["none"]))
            try:
                async for response in watch:
                    for broker in response.brokers:
                        if broker.broker_id == broker_id and holds(broker):
                            watch.cancel()
                            return broker
            except grpc.aio.AioRpcError as error:
                if parse_rpc_error(error).code is not ErrorCode.BROKER_FENCED:
                    raise
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("held", ["_run", "set_ready"], ids=["not registered", "fenced"])
async def test_topic_waits_for_a_broker_that_is_not_let_in_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    """The port is open before the controller has unfenced the broker. The refusal is temporary, and the admin client waits."""
    leave = asyncio.Event()
    run, set_ready = getattr(BrokerLifecycle, "_run"), BrokerLifecycle.set_ready  # noqa: B009 (private)

    async def run_later(self: BrokerLifecycle) -> None:
        await leave.wait()
        await run(self)

    def set_ready_later(self: BrokerLifecycle) -> None:
        waiting.append(asyncio.ensure_future(_then(leave, lambda: set_ready(self))))

    waiting: list[asyncio.Future[None]] = []
    monkeypatch.setattr(BrokerLifecycle, held, run_later if held == "_run" else set_ready_later)
    server = BrokerServer(standalone_settings(tmp_path, port=0))
    try:
        await server.start()
        address = str(server.address)
        async with connected(server) as client, aio.Admin(address) as admin:
            await admin.describe_quorum()  # once it has a leader
            assert (await refusal(client.create_topic("t"))).code is ErrorCode.BROKER_FENCED
            async with aio.Admin(address, request_timeout_ms=300) as hasty:
                with pytest.raises(RetriableError, match=r"1 usable broker\(s\) needed, 0 present"):
                    await hasty.create_topic("t")
            creation = asyncio.create_task(admin.create_topic("t"))
            assert (await refusal(client.create_topic("t"))).code is ErrorCode.BROKER_FENCED
            leave.set()
            assert (await creation).partition_count == 1
    finally:
        leave.set()
        await asyncio.gather(*waiting)
        await server.stop()


async def test_topic_of_more_replicas_than_brokers_waits_for_those_that_still_register(tmp_path: Path) -> None:
    """Brokers join a cluster one after the other. A client that asks for more replicas than there will be gets its answer in time."""
    settings = standalone_settings(tmp_path / "1", port=0)
    assert settings.combined is not None
    combined = dataclasses.replace(settings.combined, controller=ControllerSettings())
    first = BrokerServer(dataclasses.replace(settings, combined=combined))
    await first.start()
    try:
        await first.wait_serving(timeout_ms=int(WAIT_S * 1000))
        async with aio.Admin(str(first.address)) as admin:
            async with aio.Admin(str(first.address), request_timeout_ms=300) as hasty:
                with pytest.raises(RetriableError, match=r"2 usable broker\(s\) needed, 1 present \(1 registered\)"):
                    await hasty.create_topic("t", replication_factor=2)
            creation = asyncio.create_task(admin.create_topic("t", replication_factor=2))
            async with second_broker(first, tmp_path / "2"):
                created = await creation
            assert sorted(created.partitions[0].replicas) == [1, 2]
    finally:
        await first.stop()


async def test_cluster_of_one_refuses_more_replicas_at_once(tmp_path: Path) -> None:
    """No other broker can join, so there is nothing to wait for."""
    async with running_broker(tmp_path) as server, aio.Admin(str(server.address)) as admin:
        with pytest.raises(LograftError) as caught:
            await admin.create_topic("t", replication_factor=2)
        assert (caught.value.code, caught.value.code.retriable) == (ErrorCode.NOT_ENOUGH_BROKERS, False)


async def _then(event: asyncio.Event, work: Callable[[], None]) -> None:
    await event.wait()
    work()


async def test_replaced_registration_is_noticed_and_renewed(tmp_path: Path) -> None:
    """A broker whose id another process has registered registers again and serves under a higher epoch."""
    async with (
        running_broker(tmp_path / "1") as first,
        second_broker(first, tmp_path / "2") as second,
        connected(first) as client,
        PeerClient(first.cluster_id) as stranger_process,
    ):
        controller = ControllerCalls(stranger_process, first.quorum_address or "")
        old = await watch_until(client, lambda broker: not broker.fenced, 2)
        beat = controller_pb2.HeartbeatRequest(
            cluster_id=first.cluster_id, broker_id=2, broker_epoch=old.broker_epoch, want_fence=True
        )
        assert (await controller.heartbeat(beat)).fenced
        stranger = controller_pb2.RegisterBrokerRequest(
            cluster_id=first.cluster_id,
            broker_id=2,
            incarnation_id=b"s" * 16,
            host="127.0.0.1",
            port=1,
            feature_level=controller_pb2.FeatureRange(min_level=1, max_level=1),
        )
        taken = await controller.register(stranger)
        back = await watch_until(
            client, lambda broker: broker.broker_epoch > taken.broker_epoch and not broker.fenced, 2
        )
        assert f"{back.host}:{back.port}" == str(second.address)


async def test_second_live_process_of_an_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a broker lives, no other process gets its id. The second process ends with an error that names the id."""
    monkeypatch.setattr("brokerd.controller_client.lifecycle.DUPLICATE_WAIT_MS", 200)
    async with running_broker(tmp_path / "1") as first, second_broker(first, tmp_path / "2") as second:
        settings = BrokerSettings(
            data_directory=tmp_path / "3",
            node_id=2,
            cluster_id=first.cluster_id,
            listen=Address(host="127.0.0.1", port=0),
            quorum_addresses=(first.quorum_address or "",),
        )
        third = BrokerServer(settings)
        await third.start()
        try:
            with pytest.raises(RegistrationRefusedError, match="broker 2"):
                await third.wait_serving(timeout_ms=int(WAIT_S * 1000))
        finally:
            await third.stop()
        assert second.is_serving


async def test_registration_of_unknown_outcome_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quorum leader may step down during a registration. The process asks again under the same incarnation id."""
    submit = ControllerHost.submit
    asked: list[bytes] = []

    async def lose_the_first(host: ControllerHost, command: Command, *, timeout_ms: int) -> Outcome:
        if isinstance(command, RegisterBroker):
            asked.append(command.incarnation_id)
            if len(asked) == 1:
                await submit(host, command, timeout_ms=timeout_ms)
                raise CommandError(ErrorCode.OUTCOME_UNKNOWN, "the leadership ended before the change was confirmed")
        return await submit(host, command, timeout_ms=timeout_ms)

    monkeypatch.setattr(ControllerHost, "submit", lose_the_first)
    async with running_broker(tmp_path) as broker:
        assert broker.is_serving
    first, again = asked
    assert first == again


@pytest.fixture
def fixed_settings(tmp_path: Path) -> BrokerSettings:
    """Settings of a cluster of one whose quorum is found at the same port after a restart."""
    listen = Address(host="127.0.0.1", port=free_port())
    return dataclasses.replace(
        standalone_settings(tmp_path / "1", port=0), combined=CombinedSettings(quorum_listen=listen)
    )


async def test_broker_outlives_an_outage_of_the_quorum(fixed_settings: BrokerSettings, tmp_path: Path) -> None:
    """Without a controller its partitions keep working, changes are refused in time, and everything recovers with the controller."""
    first = BrokerServer(fixed_settings)
    await first.start()
    await first.wait_serving(timeout_ms=int(WAIT_S * 1000))
    async with second_broker(first, tmp_path / "2") as second, connected(second) as client:
        await client.create_topic("t", 4)
        partition = next(number for number, leader in (await leaders(client)).items() if leader == 2)
        stream = ProduceStream(client)
        await stream.open(("t", partition))
        await first.stop()
        await stream.produce([b"without a quorum"])
        await stream.receipts(1)
        request = metadata_pb2.GetClusterRequest(topics=["t"])
        assert len((await client.metadata.GetCluster(request)).topics) == 1
        listed = await client.admin.ListTopics(admin_pb2.ListTopicsRequest(), timeout=2)
        assert listed.without_leader
        assert [topic.topic for topic in listed.topics] == ["t"]
        status = await refusal(client.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="v"), timeout=2))
        assert status.code is ErrorCode.QUORUM_UNAVAILABLE

        again = BrokerServer(fixed_settings)
        await again.start()
        try:
            await again.wait_serving(timeout_ms=int(WAIT_S * 1000))
            await watch_until(client, lambda broker: not broker.fenced, 1)
            await client.create_topic("u")
            read = await client.read("t", partition)
            assert [record.value for record in read.records] == [b"without a quorum"]
        finally:
            await again.stop()


async def test_producer_ids_without_a_quorum_are_refused_in_time(
    fixed_settings: BrokerSettings, tmp_path: Path
) -> None:
    """A handshake that needs a new block ends with a typed error when the quorum is gone."""
    first = BrokerServer(fixed_settings)
    await first.start()
    await first.wait_serving(timeout_ms=int(WAIT_S * 1000))
    async with second_broker(first, tmp_path / "2") as second, connected(second) as client:
        await first.stop()
        status = await refusal(client.log.InitProducer(log_pb2.InitProducerRequest(), timeout=2))
        assert status.code is ErrorCode.QUORUM_UNAVAILABLE


async def test_failed_log_directory_ends_the_broker(tmp_path: Path) -> None:
    """When the log directory fails, the broker reports it, and its process is told to stop."""
    async with running_broker(tmp_path) as server:
        assert server.replica_manager is not None
        directory = server.replica_manager.directories.first
        server.replica_manager.note_disk_failure(directory, DiskFailedError("/data/x.log", "sync failed"))
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(BrokerFailedError, match="sync failed"):
                await server.wait_failed()


async def test_health_follows_the_registration(tmp_path: Path) -> None:
    """Liveness is there from the start; the services are SERVING only while the controller lets the broker serve."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        health = health_pb2_grpc.HealthStub(client.channel)

        async def status(name: str) -> int:
            return (await health.Check(health_pb2.HealthCheckRequest(service=name))).status

        serving = health_pb2.HealthCheckResponse.SERVING
        assert [await status(name) for name in ("", LIVENESS, "lograft.v1.LogService")] == [serving] * 3
        watch = health.Watch(health_pb2.HealthCheckRequest(service="lograft.v1.LogService"))
        assert (await watch.read()).status == serving
        stopping = asyncio.create_task(server.stop())
        async with asyncio.timeout(WAIT_S):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await stopping


def test_event_loop_is_quiet_about_a_wakeup_that_another_loop_took(caplog: pytest.LogCaptureFixture) -> None:
    """The harmless race of several loops over one socket of grpcio is not logged; everything else is."""
    loop = new_event_loop()
    try:
        message = "Exception in callback PollerCompletionQueue._handle_events()"
        loop.call_exception_handler({"message": message, "exception": BlockingIOError(11, "again")})
        assert not caplog.records
        loop.call_exception_handler({"message": "Exception in callback other()", "exception": BlockingIOError(11)})
        assert len(caplog.records) == 1
    finally:
        loop.close()
