# SPDX-License-Identifier: Apache-2.0
"""Addresses between servers, including IPv6."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2, metadata_pb2
from lograft.v1.errors_pb2 import LeaderHint

from brokerd.controller_client.controller_calls import hinted_address
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from brokerd.tests.support import WAIT_S, connected, running_broker
from metaquorum.process.settings import Address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("broker-1", "broker-1:9640"),
        ("10.0.0.7", "10.0.0.7:9640"),
        ("::1", "[::1]:9640"),
        ("fe80::7", "[fe80::7]:9640"),
    ],
)
def test_address_of_a_server_has_brackets_around_ipv6(host: str, address: str) -> None:
    """Without them the port could not be told from the last part of the address."""
    assert str(Address(host=host, port=9640)) == address
    assert hinted_address(LeaderHint(leader_id=1, leader_epoch=1, host=host, port=9640)) == address


@pytest.mark.parametrize("hint", [None, LeaderHint(leader_id=1, leader_epoch=1)])
def test_refusal_may_name_no_address(hint: LeaderHint | None) -> None:
    """The hint names no leader, or only its id."""
    assert hinted_address(hint) is None


def loopback() -> str:
    """Return the IPv6 loopback address, or the IPv4 one on a machine without IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return "127.0.0.1"
    return "::1"


async def test_leader_at_an_ipv6_address_is_followed(tmp_path: Path) -> None:
    """Records that a leader at [::1] accepts reach the follower at 127.0.0.1, and it stays in sync."""
    async with running_broker(tmp_path / "1") as first, connected(first) as client:
        second = BrokerServer(
            BrokerSettings(
                data_directory=tmp_path / "2",
                node_id=2,
                cluster_id=first.cluster_id,
                listen=Address(host=loopback(), port=0),
                quorum_addresses=(first.quorum_address or "",),
            )
        )
        await second.start()
        try:
            await second.wait_serving(timeout_ms=int(WAIT_S * 1000))
            # Without the follower the record would never be acknowledged.
            request = admin_pb2.CreateTopicRequest(
                topic="t", partition_count=2, replication_factor=2, configs={"min.insync.replicas": "2"}
            )
            created = await client.admin.CreateTopic(request, timeout=WAIT_S)
            async with connected(second) as other:
                known = metadata_pb2.GetClusterRequest(min_metadata_offset=created.metadata_offset)
                await other.metadata.GetCluster(known, timeout=WAIT_S)
            topic = second.observer.image.topic_by_name("t")
            assert topic is not None
            (led,) = [each.partition for each in topic.partitions if each.leader_id == 2]
            manager = first.replica_manager
            assert manager is not None
            replica = await manager.wait_open(topic.topic_id, led, timeout_ms=int(WAIT_S * 1000))
            assert replica is not None
            await client.append("t", [b"v"], partition=led)
            assert replica.log.log_end_offset == 1
        finally:
            await second.stop()
