# SPDX-License-Identifier: Apache-2.0
"""One real quorum server on loopback: its services, refusals, restart and start-up failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from lograft.internal.v1 import controller_pb2, quorum_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from metaquorum.controller_service.admin_grpc import SERVICE
from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.topic_configs import TOPIC_CONFIGS
from metaquorum.net.methods import Method
from metaquorum.net.peers import NotSentError
from metaquorum.process.server import PortInUseError, QuorumServer
from metaquorum.process.settings import SettingsError
from metaquorum.replica.first_start import format_standalone
from metaquorum.testing.ports import free_ports
from metaquorum.tests.controller_world import view
from metaquorum.tests.quorum_cluster import (
    CLUSTER,
    HOST,
    BrokerStub,
    QuorumCluster,
    quorum_cluster,
    refused,
    registration,
    settings_for,
    until,
)
from storage.directory.data_directory import DataDirectory
from storage.errors import DirectoryLockedError, UnformattedDirectoryError, WrongClusterError, WrongNodeError
from storage.files.posix import PosixDisk


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    async with quorum_cluster(tmp_path, 1) as running:
        yield running


def create(topic: str, **fields: object) -> admin_pb2.CreateTopicRequest:
    """Return a request to create a topic."""
    return admin_pb2.CreateTopicRequest(**{"topic": topic, "partition_count": 1, **fields})


async def test_topics_are_created_listed_described_and_deleted(cluster: QuorumCluster) -> None:
    """The life of a topic through the real service, with offsets that let readers wait for it."""
    await BrokerStub(cluster, 7).join(1)
    admin = cluster.admin(1)
    created = await admin.CreateTopic(create("events", partition_count=3, configs={"segment.ms": "60000"}))
    assert [(p.partition, p.leader_id, list(p.replicas), list(p.isr)) for p in created.topic.partitions] == [
        (0, 7, [7], [7]),
        (1, 7, [7], [7]),
        (2, 7, [7], [7]),
    ]
    assert len(created.topic.topic_id) == 16
    assert created.metadata_offset > 0
    described = await admin.DescribeTopic(
        admin_pb2.DescribeTopicRequest(topic="events", min_metadata_offset=created.metadata_offset)
    )
    assert described.topic == created.topic
    assert described.metadata_offset >= created.metadata_offset
    configs = {entry.name: (entry.value, entry.source) for entry in described.configs}
    assert list(configs) == [each.name for each in TOPIC_CONFIGS.values() if ConfigResource.TOPIC in each.scopes]
    assert configs["segment.ms"] == ("60000", admin_pb2.CONFIG_SOURCE_TOPIC)
    assert configs["flush.policy"] == ("ack", admin_pb2.CONFIG_SOURCE_DEFAULT)
    listed = await admin.ListTopics(admin_pb2.ListTopicsRequest())
    assert [(t.topic, t.partition_count, t.replication_factor) for t in listed.topics] == [("events", 3, 1)]
    deleted = await admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="events"))
    assert deleted.topic_id == created.topic.topic_id
    assert deleted.metadata_offset > created.metadata_offset
    await refused(admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="events")), ErrorCode.UNKNOWN_TOPIC)
    again = await admin.CreateTopic(create("events"))
    assert again.topic.topic_id != created.topic.topic_id


async def test_partitions_are_added_checked_and_refused(cluster: QuorumCluster) -> None:
    """Partitions added through the real service: the answer has only the new ones, and a dry run changes nothing."""
    await BrokerStub(cluster, 7).join(1)
    admin = cluster.admin(1)
    await admin.CreateTopic(create("t"))
    request = admin_pb2.CreatePartitionsRequest(topic="t", partition_count=3)
    checked = await admin.CreatePartitions(
        admin_pb2.CreatePartitionsRequest(topic="t", partition_count=3, validate_only=True)
    )
    assert (checked.metadata_offset, len(checked.topic.partitions)) == (0, 2)
    grown = await admin.CreatePartitions(request)
    assert [partition.partition for partition in grown.topic.partitions] == [1, 2]
    described = await admin.DescribeTopic(
        admin_pb2.DescribeTopicRequest(topic="t", min_metadata_offset=grown.metadata_offset)
    )
    assert [partition.leader_id for partition in described.topic.partitions] == [7, 7, 7]
    await refused(admin.CreatePartitions(request), ErrorCode.INVALID_PARTITION_COUNT)
    await refused(
        admin.CreatePartitions(admin_pb2.CreatePartitionsRequest(topic="u", partition_count=3)),
        ErrorCode.UNKNOWN_TOPIC,
    )


async def test_validate_only_answers_and_creates_nothing(cluster: QuorumCluster) -> None:
    """A dry run has no metadata offset and leaves no topic."""
    await BrokerStub(cluster, 7).join(1)
    checked = await cluster.admin(1).CreateTopic(create("t", validate_only=True))
    assert checked.metadata_offset == 0
    assert len(checked.topic.partitions) == 1
    assert cluster.servers[1].image.topic_by_name("t") is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": ""}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topic": ".."}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topic": "x" * 250}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topic": "a/b"}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topic": "a\x00"}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topic": "t", "partition_count": -5}, ErrorCode.INVALID_PARTITION_COUNT),
        ({"topic": "t", "replication_factor": 3}, ErrorCode.BROKER_FENCED),
        ({"topic": "t", "replication_factor": 101}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"topic": "t", "configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"topic": "t", "cluster_id": "other"}, ErrorCode.WRONG_CLUSTER),
        ({"topic": "t"}, ErrorCode.BROKER_FENCED),
    ],
)
async def test_bad_creation_is_refused_with_its_code(
    cluster: QuorumCluster, fields: dict[str, object], code: ErrorCode
) -> None:
    """Every refusal of the core reaches the client as its typed status, and the server keeps serving."""
    admin = cluster.admin(1)
    await refused(admin.CreateTopic(admin_pb2.CreateTopicRequest(**fields)), code)
    assert (await admin.ListTopics(admin_pb2.ListTopicsRequest(cluster_id=CLUSTER))).topics == []


async def test_topics_are_listed_in_pages(cluster: QuorumCluster) -> None:
    """Pages are complete, in order, without repetition, and the last one has no token."""
    await BrokerStub(cluster, 7).join(1)
    admin = cluster.admin(1)
    for number in range(5):
        await admin.CreateTopic(create(f"t{number}"))
    pages: list[list[str]] = []
    token = ""
    while True:
        page = await admin.ListTopics(admin_pb2.ListTopicsRequest(page_size=2, page_token=token))
        pages.append([topic.topic for topic in page.topics])
        token = page.next_page_token
        if not token:
            break
    assert pages == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    for size in (-1, 10_001):
        await refused(admin.ListTopics(admin_pb2.ListTopicsRequest(page_size=size)), ErrorCode.INVALID_REQUEST)


async def test_read_that_waits_for_an_offset_gets_it_or_a_typed_error(cluster: QuorumCluster) -> None:
    """min_metadata_offset waits for that offset within the deadline."""
    await BrokerStub(cluster, 7).join(1)
    admin = cluster.admin(1)
    ahead = cluster.servers[1].image.metadata_offset + 1
    waiting = asyncio.ensure_future(
        admin.ListTopics(admin_pb2.ListTopicsRequest(min_metadata_offset=ahead), timeout=10)
    )
    await admin.CreateTopic(create("t"))
    assert [topic.topic for topic in (await waiting).topics] == ["t"]
    await refused(
        admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="t", min_metadata_offset=1 << 40), timeout=2),
        ErrorCode.METADATA_NOT_REACHED,
    )


async def test_quorum_is_described(cluster: QuorumCluster) -> None:
    """The leader describes itself as the only voter."""
    # Its first own record may still be on the way to the disk.
    await until(lambda: (cluster.servers[1].node.high_watermark or 0) >= 3, what="the controller's first record")
    described = await cluster.admin(1).DescribeQuorum(admin_pb2.DescribeQuorumRequest())
    assert (described.cluster_id, described.leader_id) == (CLUSTER, 1)
    assert described.quorum_epoch >= 1
    assert described.high_watermark >= 3
    assert [(v.node_id, v.directory_id, v.address) for v in described.voters] == [
        (1, (1).to_bytes(16, "big"), cluster.voters[1])
    ]
    assert not described.voters[0].HasField("last_fetch_age_ms")
    await refused(
        cluster.admin(1).DescribeQuorum(admin_pb2.DescribeQuorumRequest(cluster_id="x")), ErrorCode.WRONG_CLUSTER
    )


async def test_log_directories_are_a_matter_of_brokers(cluster: QuorumCluster) -> None:
    """A voter has none and names the brokers, also to another server."""
    admin = cluster.admin(1)
    for call in (
        admin.DescribeLogDirectories(admin_pb2.DescribeLogDirectoriesRequest()),
        admin.MoveReplica(admin_pb2.MoveReplicaRequest()),
        admin.DeleteUnknownPartitions(admin_pb2.DeleteUnknownPartitionsRequest()),
        cluster.client.ask(
            cluster.voters[1],
            Method.ADMIN,
            controller_pb2.AdminCall(method="MoveReplica"),
            controller_pb2.AdminAnswer,
        ),
    ):
        assert "belong to a broker" in (await refused(call, ErrorCode.INVALID_REQUEST)).message


async def test_broker_registers_beats_and_gets_producer_ids(cluster: QuorumCluster) -> None:
    """All calls of a broker to the controller, over a real connection."""
    broker = BrokerStub(cluster, 7)
    registered = await broker.register(1)
    assert (registered.heartbeat_interval_ms, registered.session_timeout_ms) == (500, 3_000)
    behind = await broker.beat(1, metadata_offset=0)
    assert (behind.fenced, behind.caught_up) == (True, False)
    ready = await broker.beat(1)
    assert (ready.fenced, ready.caught_up) == (False, True)
    request = controller_pb2.AllocateProducerIdsRequest(
        cluster_id=CLUSTER, broker_id=7, broker_epoch=registered.broker_epoch
    )
    blocks = [await cluster.controllers(1).allocate_producer_ids(request) for _ in range(2)]
    assert [(block.first_producer_id, block.count) for block in blocks] == [(1, 1000), (1001, 1000)]
    again = await broker.register(1)
    assert again.broker_epoch == registered.broker_epoch
    leaving = await broker.beat(1, want_shutdown=True)
    assert leaving.should_shutdown


async def test_bad_requests_of_brokers_are_refused_with_their_codes(cluster: QuorumCluster) -> None:
    """Wrong cluster, malformed registration, stale epoch, duplicate, negative offset: each has its code."""
    controllers = cluster.controllers(1)
    broker = BrokerStub(cluster, 7)
    epoch = await broker.join(1)
    for cluster_id in ("", "other"):
        request = registration(8)
        request.cluster_id = cluster_id
        await refused(controllers.register(request), ErrorCode.WRONG_CLUSTER)
    request = registration(8)
    request.incarnation_id = b"short"
    await refused(controllers.register(request), ErrorCode.INVALID_REQUEST)
    request = registration(8)
    request.ClearField("feature_level")
    await refused(controllers.register(request), ErrorCode.INVALID_REQUEST)
    await refused(controllers.register(registration(7, process=99)), ErrorCode.DUPLICATE_BROKER)
    stale = controller_pb2.AllocateProducerIdsRequest(cluster_id=CLUSTER, broker_id=7, broker_epoch=epoch + 1)
    await refused(controllers.allocate_producer_ids(stale), ErrorCode.STALE_BROKER_EPOCH)
    await refused(broker.beat(1, metadata_offset=-1), ErrorCode.INVALID_REQUEST)
    broker.broker_epoch = epoch + 1
    await refused(broker.beat(1), ErrorCode.STALE_BROKER_EPOCH)
    unknown = BrokerStub(cluster, 55)
    await refused(unknown.beat(1), ErrorCode.BROKER_FENCED)
    assert not cluster.servers[1].image.brokers[7].fenced


async def test_fault_of_the_server_is_internal_and_does_not_leak(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception becomes INTERNAL without details, at once or on a stream, over gRPC or to a broker; the log has them."""

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(cluster.servers[1].host, "submit", fail)
    status = await refused(cluster.admin(1).CreateTopic(create("t")), ErrorCode.INTERNAL)
    assert "secret" not in status.message
    status = await refused(BrokerStub(cluster, 7).beat(1), ErrorCode.INTERNAL)
    assert "secret" not in status.message
    monkeypatch.setattr(cluster.servers[1].host, "wait_for_everything", fail)
    status = await refused(
        cluster.admin(1).ExportMetadata(admin_pb2.ExportMetadataRequest()).read(), ErrorCode.INTERNAL
    )
    assert "secret" not in status.message
    failed = [record for record in caplog.records if "event=call_failed" in record.getMessage()]
    assert len(failed) == 3
    assert all(record.exc_info is not None for record in failed)


async def test_health_and_reflection_are_served(cluster: QuorumCluster) -> None:
    """Standard tools find the services and their state."""
    channel = cluster.channel(str(cluster.servers[1].admin_address))
    checks = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        answer = await checks.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = {service.name async for answer in call for service in answer.list_services_response.service}
    assert names >= {SERVICE, "grpc.health.v1.Health"}


async def test_restart_serves_everything_from_the_image_and_replays_only_the_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a stop the image on disk is at the committed offset, and the same cluster is served again."""
    async with quorum_cluster(tmp_path, 1) as cluster:
        await BrokerStub(cluster, 7).join(1)
        for number in range(5):
            await cluster.admin(1).CreateTopic(create(f"t{number}", partition_count=4))
        before = view(cluster.servers[1].image)
        offset = cluster.servers[1].image.metadata_offset
        await cluster.stop(1)
        with caplog.at_level(logging.INFO):
            await cluster.start(1)
        assert f"event=image_open metadata_offset={offset}" in caplog.text
        await cluster.active()
        assert view(cluster.servers[1].image) == before
        listed = await cluster.admin(1).ListTopics(admin_pb2.ListTopicsRequest(), wait_for_ready=True)
        assert len(listed.topics) == 5


async def test_lost_image_is_rebuilt_from_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The image is never the truth: damaged, it is thrown away and the log rebuilds it."""
    async with quorum_cluster(tmp_path, 1) as cluster:
        await BrokerStub(cluster, 7).join(1)
        await cluster.admin(1).CreateTopic(create("t", partition_count=4))
        before = view(cluster.servers[1].image)
        await cluster.stop(1)
        for path in (cluster.path(1) / "metadata" / "image").glob("MANIFEST-*"):
            path.write_bytes(b"damage")
        with caplog.at_level(logging.WARNING):
            await cluster.start(1)
        assert "event=image_unreadable" in caplog.text
        await cluster.active()
        assert view(cluster.servers[1].image) == before


async def test_stopping_server_refuses_and_closes_its_port(cluster: QuorumCluster) -> None:
    """After a stop the port is closed, and a second stop is harmless."""
    server, admin = cluster.servers[1], cluster.admin(1)
    await cluster.stop(1)
    await server.stop()
    with pytest.raises(NotSentError) as not_sent:
        await cluster.quorum(1).probe(quorum_pb2.ProbeRequest())
    assert not_sent.value.is_refused
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.ListTopics(admin_pb2.ListTopicsRequest(), timeout=5)
    assert parse_rpc_error(caught.value).grpc_code is grpc.StatusCode.UNAVAILABLE


async def test_port_in_use_is_a_clear_error_and_leaves_the_directory_free(
    cluster: QuorumCluster, tmp_path: Path
) -> None:
    """A second server on the port says so, and releases its data directory."""
    other = tmp_path / "other"
    format_standalone(other, node_id=2, cluster_id=CLUSTER, address=cluster.voters[1])
    with pytest.raises(PortInUseError, match=f"cannot listen on {cluster.voters[1]}"):
        await QuorumServer(settings_for(2, cluster.ports[1], {}), other).start()
    DataDirectory.open(PosixDisk(), str(other), cluster_id=CLUSTER, node_id=2).close()


async def test_directory_in_use_or_of_another_is_refused(cluster: QuorumCluster, tmp_path: Path) -> None:
    """Locked, unformatted, another cluster's, another node's: each is its own error, before a port is bound."""
    (port,) = free_ports(1)
    with pytest.raises(DirectoryLockedError):
        await QuorumServer(settings_for(1, port, {}), cluster.path(1)).start()
    with pytest.raises(UnformattedDirectoryError):
        await QuorumServer(settings_for(1, port, {}), tmp_path / "nothing").start()
    format_standalone(tmp_path / "c", node_id=1, cluster_id="elsewhere", address=f"{HOST}:{port}")
    with pytest.raises(WrongClusterError):
        await QuorumServer(settings_for(1, port, {}), tmp_path / "c").start()
    format_standalone(tmp_path / "n", node_id=5, cluster_id=CLUSTER, address=f"{HOST}:{port}")
    with pytest.raises(WrongNodeError):
        await QuorumServer(settings_for(1, port, {}), tmp_path / "n").start()


async def test_opened_directory_may_be_given_and_stays_the_callers(tmp_path: Path) -> None:
    """Combined mode: the broker opens the directory once for both, and it is still open after the server's stop."""
    format_standalone(tmp_path / "d", node_id=1, cluster_id=CLUSTER, address=f"{HOST}:1")
    directory = DataDirectory.open(PosixDisk(), str(tmp_path / "d"), cluster_id=CLUSTER, node_id=1)
    server = QuorumServer(settings_for(1, 0, {}), directory)
    await server.start()
    assert server.address.port != 0
    assert server.data_directory is directory
    await until(lambda: server.host.is_active, what="an active controller")
    await server.stop()
    with pytest.raises(DirectoryLockedError):
        DataDirectory.open(PosixDisk(), str(tmp_path / "d"))
    directory.close()


def test_settings_that_cannot_work_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    """Plaintext on a reachable address needs the flag; the check comes before any file or port is opened."""
    settings = settings_for(1, 9641, {})
    with pytest.raises(SettingsError, match="cluster id"):
        QuorumServer(type(settings)(node_id=1, cluster_id="", listen=settings.listen), tmp_path)
