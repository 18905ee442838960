# SPDX-License-Identifier: Apache-2.0
"""DescribeBrokers and RemoveBroker through the real service: states, counts, pages, refusals."""

from __future__ import annotations

from pathlib import Path

from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import FenceBroker
from metaquorum.controller.settings import ControllerSettings
from metaquorum.tests.quorum_cluster import BrokerStub, QuorumCluster, quorum_cluster, refused, until

WAIT_MS = 10_000
SHORT = ControllerSettings(session_timeout_ms=300)
LONG = ControllerSettings(session_timeout_ms=600_000)


async def states(cluster: QuorumCluster) -> dict[int, int]:
    """Return the state of every broker by id."""
    described = await cluster.admin(1).DescribeBrokers(admin_pb2.DescribeBrokersRequest())
    return {each.broker_id: each.state for each in described.brokers}


def _lasts(cluster: QuorumCluster, broker_id: int) -> bool:
    host = cluster.servers[1].host
    session = host.session_of(host.image.brokers[broker_id])
    return session is not None and session.lasts


async def test_states_counts_and_pages_of_brokers(tmp_path: Path) -> None:
    """Registered, active or shutting down, as the controller decides; each with the counts of partitions that it leads and hosts."""
    async with quorum_cluster(tmp_path, 1, controller=LONG) as cluster:
        admin = cluster.admin(1)
        leaving, active, starting, gone = (BrokerStub(cluster, number) for number in (5, 6, 7, 8))
        epoch = await leaving.join(1)
        await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="t", partition_count=3))
        await active.join(1)
        await starting.register(1)
        await gone.join(1)
        assert not (await leaving.beat(1, want_shutdown=True)).should_shutdown
        await gone.beat(1, want_shutdown=True)
        assert await states(cluster) == {
            5: admin_pb2.BROKER_STATE_SHUTTING_DOWN,
            6: admin_pb2.BROKER_STATE_ACTIVE,
            7: admin_pb2.BROKER_STATE_REGISTERED,
            # The broker may stop now, and its last heartbeat is recent.
            8: admin_pb2.BROKER_STATE_REGISTERED,
        }
        described = await admin.DescribeBrokers(admin_pb2.DescribeBrokersRequest(broker_ids=[5, 99, 7, 5]))
        first, second = described.brokers
        assert (first.broker_id, first.broker_epoch, first.replica_count) == (5, epoch, 3)
        assert (first.incarnation_id, list(first.log_directory_ids)) == ((5).to_bytes(16, "big"), [bytes(16)])
        assert (first.min_feature_level, first.max_feature_level, first.unclean) == (1, 1, False)
        assert (first.metadata_offset > epoch, second.metadata_offset) == (True, 0)
        assert 0 <= first.last_heard_age_ms < 600_000
        assert described.metadata_offset >= epoch
        seen: list[int] = []
        token = ""
        while True:
            page = await admin.DescribeBrokers(admin_pb2.DescribeBrokersRequest(page_size=3, page_token=token))
            seen += [each.broker_id for each in page.brokers]
            token = page.next_page_token
            if not token:
                break
        assert seen == [5, 6, 7, 8]
        for bad in (
            admin_pb2.DescribeBrokersRequest(page_size=-1),
            admin_pb2.DescribeBrokersRequest(page_size=1_001),
            admin_pb2.DescribeBrokersRequest(broker_ids=[1] * 1_001),
            admin_pb2.DescribeBrokersRequest(page_token="x"),
        ):
            await refused(admin.DescribeBrokers(bad), ErrorCode.INVALID_REQUEST)


async def test_broker_is_removed_when_it_is_gone_and_hosts_nothing(tmp_path: Path) -> None:
    """A live broker, one with replicas and an unknown one are refused with the reason; a removal also holds for the next controller."""
    async with quorum_cluster(tmp_path, 1, controller=SHORT) as cluster:
        admin = cluster.admin(1)
        await BrokerStub(cluster, 7).join(1)
        await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="t", partition_count=2))
        image = cluster.servers[1].image
        await until(lambda: image.brokers[7].fenced, what="the session to end")
        await until(lambda: not _lasts(cluster, 7), what="nothing to be heard of it")
        assert await states(cluster) == {7: admin_pb2.BROKER_STATE_FENCED}
        request = admin_pb2.RemoveBrokerRequest(broker_id=7)
        hosting = await refused(admin.RemoveBroker(request), ErrorCode.INVALID_REQUEST)
        assert "has 2 replicas (t:0, t:1, ...)" in hosting.message
        await admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"))
        checked = await admin.RemoveBroker(admin_pb2.RemoveBrokerRequest(broker_id=7, validate_only=True))
        assert (checked.metadata_offset, list(image.brokers)) == (0, [7])
        removed = await admin.RemoveBroker(request)
        assert removed.metadata_offset == image.metadata_offset
        assert list(image.brokers) == []
        unknown = await refused(admin.RemoveBroker(request), ErrorCode.INVALID_REQUEST)
        assert "no broker 7 is registered" in unknown.message
        await cluster.stop(1)
        await cluster.start(1)
        await cluster.active()
        assert await states(cluster) == {}
        # The id is free: another process may have it.
        await BrokerStub(cluster, 7).join(1)


async def test_broker_that_may_live_is_not_removed(tmp_path: Path) -> None:
    """It is active, or fenced with a recent heartbeat."""
    async with quorum_cluster(tmp_path, 1, controller=LONG) as cluster:
        epoch = await BrokerStub(cluster, 7).join(1)
        request = admin_pb2.RemoveBrokerRequest(broker_id=7)
        active = await refused(cluster.admin(1).RemoveBroker(request), ErrorCode.INVALID_REQUEST)
        assert "stop it first" in active.message
        await cluster.servers[1].host.submit(FenceBroker(broker_id=7, broker_epoch=epoch), timeout_ms=WAIT_MS)
        fenced = await refused(cluster.admin(1).RemoveBroker(request), ErrorCode.INVALID_REQUEST)
        assert "may live" in fenced.message
        assert list(cluster.servers[1].image.brokers) == [7]
