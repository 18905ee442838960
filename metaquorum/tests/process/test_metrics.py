# SPDX-License-Identifier: Apache-2.0
"""Metrics of real quorum servers in this process, over HTTP."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2

from metaquorum.process.metrics_listener import MetricsListener
from metaquorum.process.server import PortInUseError, QuorumServer
from metaquorum.process.settings import Address, QuorumServerSettings, SettingsError
from metaquorum.replica.quorum_metrics import QuorumSample
from metaquorum.tests.metrics_scrape import ScrapeRefusedError, role_of, scrape, scrape_text
from metaquorum.tests.quorum_cluster import HOST, BrokerStub, QuorumCluster, settings_for, until

METRICS = Address(host=HOST, port=0)


class MeteredCluster(QuorumCluster):
    """Voters that serve metrics."""

    async def start(self, node_id: int) -> QuorumServer:
        await self.client.open()
        settings = settings_for(node_id, self.ports[node_id], self.voters)
        server = QuorumServer(replace(settings, metrics_listen=METRICS), self.path(node_id))
        await server.start()
        self.servers[node_id] = server
        return server

    async def scrape(self, node_id: int) -> Mapping[str, float]:
        """Scrape one of them, from another thread than the one that it runs on."""
        return await asyncio.to_thread(scrape, str(self.servers[node_id].metrics_address))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MeteredCluster]:
    """Three voters with an active controller."""
    made = MeteredCluster(tmp_path, 3)
    try:
        await asyncio.gather(*(made.start(node_id) for node_id in made.voters))
        await made.active()
        yield made
    finally:
        await made.close()


async def create(cluster: QuorumCluster, topic: str) -> int:
    """Create a topic; the metadata offset at which it is visible."""
    request = admin_pb2.CreateTopicRequest(topic=topic, partition_count=1)
    return (await cluster.admin(await cluster.active()).CreateTopic(request)).metadata_offset


async def test_metrics_show_the_state_of_the_quorum(cluster: MeteredCluster) -> None:
    """Leader and followers: each with its own role, log and counters; names have units, and each metric has a help text."""
    leader = await cluster.active()
    await BrokerStub(cluster, 7).join(leader)
    before = await cluster.scrape(leader)
    offset = await create(cluster, "counted")
    after = await cluster.scrape(leader)
    prefix = "lograft_quorum_"
    status = cluster.servers[leader].node.status()
    assert role_of(after) == "leader"
    assert after[f'{prefix}info{{cluster_id="test-cluster",node_id="{leader}"}}'] == 1
    assert after[f"{prefix}leader_id"] == after[f"{prefix}voted_id"] == leader
    assert after[f"{prefix}epoch"] == after[f"{prefix}log_end_epoch"] == status.leader.quorum_epoch
    assert after[f"{prefix}high_watermark_offset"] >= offset
    assert after[f"{prefix}log_end_offset"] >= after[f"{prefix}high_watermark_offset"]
    assert after[f"{prefix}log_start_offset"] == 0
    assert (after[f"{prefix}voters"], after[f"{prefix}is_voter"], after[f"{prefix}observers"]) == (3, 1, 0)
    assert (after[f"{prefix}uncommitted_bytes"], after[f"{prefix}uncommitted_voter_change"]) == (0, 0)
    assert after[f"{prefix}appended_records_total"] > before[f"{prefix}appended_records_total"]
    assert after[f"{prefix}commit_latency_seconds_count"] > before[f"{prefix}commit_latency_seconds_count"]
    assert after[f"{prefix}commit_latency_max_seconds"] >= after[f"{prefix}commit_latency_avg_seconds"] > 0
    assert after[f"{prefix}elections_total"] == after[f"{prefix}election_latency_seconds_count"] >= 1
    assert 0 <= after[f"{prefix}loop_idle_ratio"] <= 1
    assert after[f"{prefix}loop_busy_seconds_total"] > 0
    assert f"{prefix}loop_idle_ratio" not in before, "the first scrape has nothing to compare with"
    assert after["process_resident_memory_bytes"] > 0
    follower = next(node_id for node_id in cluster.voters if node_id != leader)
    followed = await cluster.scrape(follower)
    async with asyncio.timeout(20):
        # The other follower may have committed it with the leader.
        while followed[f"{prefix}log_end_offset"] < offset:
            followed = await cluster.scrape(follower)
    assert (role_of(followed), followed[f"{prefix}leader_id"]) == ("follower", leader)
    assert followed[f"{prefix}fetched_records_total"] > 0
    assert f"{prefix}observers" not in followed


async def test_metrics_are_served_during_an_election(cluster: MeteredCluster) -> None:
    """The remaining node shows that it knows no leader, then the next leader, the election and its duration."""
    leader = await cluster.active()
    others = [node_id for node_id in cluster.voters if node_id != leader]
    before = {node_id: await cluster.scrape(node_id) for node_id in others}
    await cluster.servers[leader].node.abandon()
    seen: list[Mapping[str, float]] = []

    async def elected() -> bool:
        found = {node_id: await cluster.scrape(node_id) for node_id in others}
        seen.extend(found.values())
        roles = sorted(role_of(each) for each in found.values())
        return roles == ["follower", "leader"] and all(
            found[node_id]["lograft_quorum_elections_total"] > before[node_id]["lograft_quorum_elections_total"]
            for node_id in others
        )

    async with asyncio.timeout(20):
        while not await elected():
            pass
    last = seen[-1]
    assert last["lograft_quorum_epoch"] > before[others[0]]["lograft_quorum_epoch"]
    assert last["lograft_quorum_leader_id"] in others
    assert last["lograft_quorum_election_latency_seconds_sum"] > 0
    assert last["lograft_quorum_election_latency_max_seconds"] > 0
    assert len(seen) > 2, "several scrapes were answered meanwhile"


async def test_other_paths_and_methods_are_refused(cluster: MeteredCluster) -> None:
    """A refusal says where the metrics are."""
    address = str(cluster.servers[1].metrics_address)
    with pytest.raises(ScrapeRefusedError, match="404: the metrics are at /metrics"):
        await asyncio.to_thread(scrape_text, address, "/other")
    reader, writer = await asyncio.open_connection(HOST, int(address.rpartition(":")[2]))
    writer.write(b"POST /metrics HTTP/1.0\r\n\r\n")
    assert b"405" in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_taken_address_is_told(cluster: MeteredCluster, tmp_path: Path) -> None:
    """The server does not start without its metrics."""
    taken = cluster.servers[1].metrics_address
    assert taken is not None
    await cluster.stop(2)
    settings = replace(settings_for(2, cluster.ports[2], cluster.voters), metrics_listen=taken)
    with pytest.raises(PortInUseError, match="choose another --metrics-listen"):
        await QuorumServer(settings, cluster.path(2)).start()
    assert (await cluster.scrape(1))["lograft_quorum_voters"] == 3


async def test_stopped_server_serves_no_metrics(cluster: MeteredCluster) -> None:
    """The listener is closed with the server."""
    address = str(cluster.servers[3].metrics_address)
    await cluster.stop(3)
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(scrape, address)


async def test_node_that_has_not_started_shows_only_its_process() -> None:
    """A scrape whose loop is busy fails with 503 instead of hanging."""
    loop = asyncio.get_running_loop()
    is_held = False

    def take() -> QuorumSample | None:
        if is_held:
            raise TimeoutError("held up")
        assert asyncio.get_running_loop() is loop, "state is read where it lives"
        return None

    listener = MetricsListener(take)
    address = listener.open(METRICS)
    try:
        found = await asyncio.to_thread(scrape, str(address))
        assert not [name for name in found if name.startswith("lograft_")]
        assert found["process_cpu_seconds_total"] > 0
        is_held = True
        with pytest.raises(ScrapeRefusedError, match="503: the event loop is busy"):
            await asyncio.to_thread(scrape, str(address))
    finally:
        await listener.close()
        await listener.close()


def test_metrics_for_other_machines_are_asked_for() -> None:
    """Plain HTTP on an address that other machines can reach needs the same flag as the other listeners."""
    settings = QuorumServerSettings(
        node_id=1,
        cluster_id="c",
        listen=Address(host="127.0.0.1", port=0),
        metrics_listen=Address(host="0.0.0.0", port=9642),
    )
    with pytest.raises(SettingsError, match="--metrics-listen"):
        settings.check()
    replace(settings, insecure_plaintext=True).check()


async def test_server_without_the_setting_serves_none(tmp_path: Path) -> None:
    """Off unless set."""
    cluster = QuorumCluster(tmp_path, 1)
    try:
        server = await cluster.start(1)
        assert server.metrics_address is None
        await until(lambda: server.host.is_active, what="the controller")
    finally:
        await cluster.close()
