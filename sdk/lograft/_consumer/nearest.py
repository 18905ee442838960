# SPDX-License-Identifier: Apache-2.0
"""Chooses the broker from which a consumer reads a partition: the leader, or an in-sync follower in the consumer's rack.

Pure. Laws: without a leader there is no broker to read from, because followers serve no reads then. A follower is chosen only
if the leader is in another rack. The same state gives the same follower, and neighbouring partitions are spread over several
followers.
Source: KIP-392; docs/replication.md, "Reads from followers".
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from lograft._client.metadata import BrokerNode, ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlace:
    """The broker from which a partition is read.

    Attributes:
        broker_id: node id of the broker.
        address: host:port of the broker.
        leader_epoch: last known leader epoch of the partition.
        is_leader: False if the broker is a follower.
    """

    broker_id: int
    address: str
    leader_epoch: int
    is_leader: bool


def read_place(view: ClusterView, topic: str, partition: int, *, rack: str | None) -> ReadPlace | None:
    """Choose the broker from which to read a partition.

    Args:
        view: what the client knows about the cluster.
        topic: topic name.
        partition: partition, from 0.
        rack: rack of the consumer; None always chooses the leader.

    Returns:
        The broker; None while no leader is known.
    """
    leader = view.leader(topic, partition)
    if leader is None:
        return None
    follower = None if rack is None else _nearest_follower(view, topic, partition, leader.broker_id, rack)
    if follower is None:
        return ReadPlace(
            broker_id=leader.broker_id, address=leader.address, leader_epoch=leader.leader_epoch, is_leader=True
        )
    return ReadPlace(
        broker_id=follower.broker_id, address=follower.address, leader_epoch=leader.leader_epoch, is_leader=False
    )


def _nearest_follower(view: ClusterView, topic: str, partition: int, leader_id: int, rack: str) -> BrokerNode | None:
    near = [
        broker
        for broker in map(view.broker, sorted(view.in_sync(topic, partition)))
        if broker is not None and broker.rack == rack and (broker.broker_id == leader_id or not broker.fenced)
    ]
    if not near or any(broker.broker_id == leader_id for broker in near):
        return None
    return near[(crc32(topic.encode()) + partition) % len(near)]
