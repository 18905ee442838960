# SPDX-License-Identifier: Apache-2.0
"""Metrics of broker processes: of a combined node, which votes, and of a broker that observes its quorum."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2, group_pb2, ingest_pb2

from brokerd.limits import MIN_BUDGET_BYTES
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from brokerd.process.standalone import standalone_settings
from brokerd.tests.api.group_clients import Member, coordinator_of, make_topic, settle
from brokerd.tests.ingests.ingest_clients import Ingest, clients_of
from brokerd.tests.process.programs import started
from brokerd.tests.support import connected, refusal
from metaquorum.process.settings import Address, SettingsError
from metaquorum.replica.first_start import format_standalone
from metaquorum.testing.ports import free_ports
from metaquorum.tests.metrics_scrape import role_of, scrape
from metaquorum.tests.quorum_cluster import HOST

START_S = 60.0
"""Seconds that a process may take to start and to find its quorum."""


def scraped(place: str, role: str) -> Mapping[str, float]:
    """Scrape until the node has the role and knows the commit."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            found = scrape(place)
        except OSError:
            found = {}
        if "lograft_quorum_high_watermark_offset" in found and role_of(found) == role:
            return found
        assert time.monotonic() < deadline, f"no {role} at {place} after {START_S} s: {found}"


@pytest.mark.process
def test_combined_node_and_broker_show_their_quorum_node(tmp_path: Path) -> None:
    """The combined node leads a quorum of one. The other node follows it without a vote, and is counted as an observer."""
    quorum, first, second, voter_metrics, broker_metrics = (f"{HOST}:{port}" for port in free_ports(5))
    format_standalone(tmp_path / "1", node_id=1, cluster_id="c", address=quorum)
    combined = ("run", "--data-dir", str(tmp_path / "1"), "--node-id", "1", "--combined", "--quorum-listen", quorum)
    broker = ("run", "--data-dir", str(tmp_path / "2"), "--node-id", "2", "--cluster-id", "c", "--quorum", quorum)
    with started(*combined, "--listen", first, "--metrics-listen", voter_metrics):
        scraped(voter_metrics, "leader")
        with started(*broker, "--listen", second, "--metrics-listen", broker_metrics):
            observer = scraped(broker_metrics, "follower")
            leader = scraped(voter_metrics, "leader")
        for budget in ("fetch_buffer", "inflate"):
            labels = f'{{budget="{budget}"}}'
            assert leader[f"lograft_broker_memory_limit_bytes{labels}"] >= MIN_BUDGET_BYTES
            assert leader[f"lograft_broker_memory_held_bytes{labels}"] == 0
            assert leader[f"lograft_broker_memory_waiters{labels}"] == 0
        assert (leader["lograft_quorum_voters"], leader["lograft_quorum_observers"]) == (1, 1)
        assert (observer["lograft_quorum_is_voter"], leader["lograft_quorum_is_voter"]) == (0, 1)
        assert observer["lograft_quorum_leader_id"] == leader["lograft_quorum_leader_id"] == 1
        assert observer["lograft_quorum_fetched_records_total"] > 0


async def test_unknown_partitions_are_counted_in_each_log_directory(tmp_path: Path) -> None:
    """Stray partitions take space that belongs to no replica, until an operator deletes them."""
    port = free_ports(1)[0]
    own, second = tmp_path / "own", tmp_path / "second"
    settings = standalone_settings(own, port=0, more_data_directories=(second,))
    settings = dataclasses.replace(settings, metrics_listen=Address(host=HOST, port=port))
    for is_first in (True, False):
        server = BrokerServer(settings)
        await server.start()
        try:
            await server.wait_serving(timeout_ms=int(START_S * 1000))
            assert await unknown(port, own) == ((0, 0) if is_first else (2, 200))
            assert await unknown(port, second) == ((0, 0) if is_first else (1, 100))
            if not is_first:
                async with connected(server) as client:
                    await client.admin.DeleteUnknownPartitions(
                        admin_pb2.DeleteUnknownPartitionsRequest(), timeout=START_S
                    )
                assert await unknown(port, own) == await unknown(port, second) == (0, 0)
        finally:
            await server.stop()
        for number, place in enumerate((own, own, second)):
            stranger = place / "partitions" / f"{number:032x}-0"
            stranger.mkdir()
            (stranger / "00000000000000000000.log").write_bytes(bytes(100))


async def unknown(port: int, directory: Path) -> tuple[float, float]:
    """Scrape the number and the bytes of stray partitions in a log directory."""
    found = await asyncio.to_thread(scrape, f"{HOST}:{port}")
    labels = f'{{directory="{directory}"}}'
    count, size_bytes = (f"lograft_broker_unknown_{name}{labels}" for name in ("partitions", "partition_bytes"))
    return found[count], found[size_bytes]


async def test_groups_are_counted(tmp_path: Path) -> None:
    """Groups by state, members, offsets, loadings, and commands by result."""
    port = free_ports(1)[0]
    settings = dataclasses.replace(standalone_settings(tmp_path, port=0), metrics_listen=Address(host=HOST, port=port))
    server = BrokerServer(settings)
    await server.start()
    try:
        await server.wait_serving(timeout_ms=int(START_S * 1000))
        async with connected(server) as client:
            await make_topic(client, "t", 2)
            await coordinator_of(client, "g")
            member = Member("g", "m", ["t"])
            await settle(client, [member], [2])
            await client.groups.CommitOffsets(group_pb2.CommitOffsetsRequest(commitment=member.commitment(1)))
            stranger = group_pb2.MemberBeat(group_id="g", member_id="x", member_epoch=1)
            await refusal(client.groups.Heartbeat(group_pb2.HeartbeatRequest(beat=stranger)))
            assert server.groups is not None
            await server.groups.look()
        found = await asyncio.to_thread(scrape, f"{HOST}:{port}")
    finally:
        await server.stop()
    prefix = "lograft_broker_group_"
    assert found[f'{prefix}groups{{state="Stable"}}'] == 1
    assert found[f'{prefix}groups{{state="Empty"}}'] == 0
    assert (found[f"{prefix}members"], found[f"{prefix}offsets"], found[f"{prefix}coordinators"]) == (1, 2, 32)
    assert found[f"{prefix}loads_total"] == 32
    assert found[f"{prefix}assignments_total"] >= 1
    assert found[f'{prefix}commands_total{{command="CommitOffsets",result="ok"}}'] == 1
    assert found[f'{prefix}commands_total{{command="Beat",result="UNKNOWN_MEMBER"}}'] == 1


async def test_ingests_are_counted(tmp_path: Path) -> None:
    """Ingests by state, attempts, what is staged, publications, and commands by result."""
    port = free_ports(1)[0]
    settings = dataclasses.replace(standalone_settings(tmp_path, port=0), metrics_listen=Address(host=HOST, port=port))
    server = BrokerServer(settings)
    await server.start()
    try:
        await server.wait_serving(timeout_ms=int(START_S * 1000))
        async with connected(server) as client, clients_of(server) as clients:
            await make_topic(client, "t", 2)
            done, lasting = Ingest(clients, "done"), Ingest(clients, "lasting")
            for ingest in (done, lasting):
                await ingest.open("t")
            attempt = await done.attempt(0)
            for partition in range(2):
                await attempt.stage("t", partition, b"x")
            await done.commit(await attempt.seal())
            await lasting.staged(0, "t", 0, b"y")
            await clients.refused(
                "none", "TouchIngest", ingest_pb2.TouchIngestRequest(ingest_id="none", ingest_epoch=1)
            )
            assert server.ingests is not None
            await server.ingests.look()
        found = await asyncio.to_thread(scrape, f"{HOST}:{port}")
    finally:
        await server.stop()
    prefix = "lograft_broker_ingest_"
    assert found[f'{prefix}ingests{{state="committed"}}'] == 1
    assert found[f'{prefix}ingests{{state="open"}}'] == 1
    assert found[f'{prefix}ingests{{state="decided"}}'] == 0
    assert found[f"{prefix}coordinators"] == 32
    assert found[f"{prefix}attempts"] >= 1
    assert found[f"{prefix}staged_bytes"] > 0
    assert (found[f"{prefix}published_parts_total"], found[f"{prefix}completed_decisions_total"]) == (2, 1)
    assert found[f"{prefix}expired_ingests_total"] == 0
    assert found[f"{prefix}lost_records_total"] == 0
    assert found[f'{prefix}commands_total{{command="DecideCommit",result="ok"}}'] == 1
    assert found[f'{prefix}commands_total{{command="TouchIngest",result="INGEST_NOT_FOUND"}}'] == 1


def test_metrics_of_a_broker_for_other_machines_are_asked_for(tmp_path: Path) -> None:
    """The same flag as for the other listeners."""
    with pytest.raises(SettingsError, match=r"--metrics-listen 0\.0\.0\.0:1"):
        BrokerSettings(
            data_directory=tmp_path,
            node_id=1,
            listen=Address(host=HOST, port=0),
            quorum_addresses=("127.0.0.1:1",),
            metrics_listen=Address(host="0.0.0.0", port=1),
        )
