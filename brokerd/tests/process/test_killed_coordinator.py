# SPDX-License-Identifier: Apache-2.0
"""A coordinator is killed: the next one has every answered commit, and members with their ids and epochs."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import ExitStack
from pathlib import Path

import grpc.aio
import pytest
from lograft.v1 import group_pb2 as pb

from brokerd.tests.api.group_clients import Member, coordinator_of, fetch_offsets, make_topic, settle
from brokerd.tests.process.programs import started
from brokerd.tests.support import Client
from metaquorum.replica.first_start import format_standalone
from metaquorum.testing.ports import free_ports
from metaquorum.tests.quorum_cluster import HOST

LONG_S = 90.0
"""Seconds for starts of processes and for elections."""


@pytest.mark.slow
@pytest.mark.process
async def test_killed_coordinator_loses_nothing_that_it_answered(tmp_path: Path) -> None:
    """Members commit while the coordinator gets SIGKILL; the next one has each answered offset."""
    quorum, *public = (f"{HOST}:{port}" for port in free_ports(4))
    format_standalone(tmp_path / "1", node_id=1, cluster_id="c", address=quorum)
    places = dict(enumerate(public, start=1))
    with ExitStack() as stack:
        processes: dict[int, subprocess.Popen[str]] = {}
        for node_id, place in places.items():
            role = ("--combined", "--quorum-listen", quorum) if node_id == 1 else ("--quorum", quorum)
            common = ("run", "--data-dir", str(tmp_path / str(node_id)), "--node-id", str(node_id), "--listen", place)
            identity = () if node_id == 1 else ("--cluster-id", "c")
            processes[node_id] = stack.enter_context(started(*common, *identity, *role))
        clients = {node_id: Client(place) for node_id, place in places.items()}
        async with asyncio.timeout(LONG_S):
            for client in clients.values():
                await client.channel.channel_ready()
            topic_id = await three_replicas(clients[1])
            group_id, killed = await group_not_at(clients[1], 1)
            first, second = Member(group_id, "m1", ["t"]), Member(group_id, "m2", ["t"])
            await settle(clients[killed], [first, second], [2, 2])
            answered: dict[tuple[bytes, int], int] = {}
            for offset in range(100, 3_000, 100):
                for member in (first, second):
                    request = pb.CommitOffsetsRequest(commitment=member.commitment(offset))
                    if offset == 2_000:
                        processes[killed].kill()
                    try:
                        committed = await clients[killed].groups.CommitOffsets(request, timeout=5)
                    except grpc.aio.AioRpcError:
                        continue
                    assert not any(each.HasField("error") for each in committed.outcomes)
                    answered |= {(each.topic_id, each.partition): each.offset for each in request.commitment.offsets}
            assert all(offset >= 1_900 for offset in answered.values())
            before = [(each.epoch, each.owned) for each in (first, second)]
            while (found := await coordinator_of(clients[1], group_id)).broker_id == killed:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            there = clients[found.broker_id]
            for member in (first, second):
                await member.call(there)
            assert [(each.epoch, each.owned) for each in (first, second)] == before
            stored = await fetch_offsets(there, group_id)
            # What was sent and not answered may be there as well.
            assert stored.keys() == answered.keys() == {(topic_id, number) for number in range(4)}
            assert all((stored[key] or 0) >= offset for key, offset in answered.items())
        for client in clients.values():
            await client.channel.close()


async def three_replicas(client: Client) -> bytes:
    """Create topic `t` as soon as all brokers are there."""
    while True:
        try:
            return await make_topic(client, "t", 4, replication_factor=3)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.2)


async def group_not_at(client: Client, node_id: int) -> tuple[str, int]:
    """Return a group that another broker coordinates, and that broker."""
    for number in range(200):
        found = await coordinator_of(client, f"g{number}")
        if found.broker_id != node_id:
            return f"g{number}", found.broker_id
    raise AssertionError("one broker coordinates everything")
