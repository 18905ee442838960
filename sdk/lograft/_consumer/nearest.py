# SPDX-License-Identifier: Apache-2.0
"""Which broker a consumer reads a partition from: its leader, or a follower in sync of the consumer's own rack.

Pure. Laws: without a leader there is no place, as followers serve nobody then; a follower is chosen only where the leader is
in another rack; the same state gives the same follower, and neighbouring partitions take turns among several.
Source: KIP-392; docs/replication.md, "Reads from followers".
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from lograft._client.metadata import BrokerNode, ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlace:
    """Where a partition is read.

    Attributes:
        broker_id: the broker.
        address: its host:port.
        leader_epoch: of the partition, as far as is known.
        is_leader: False where a follower is asked.
    """

    broker_id: int
    address: str
    leader_epoch: int
    is_leader: bool


def read_place(view: ClusterView, topic: str, partition: int, *, rack: str | None) -> ReadPlace | None:
    """Choose where to read a partition.

    Args:
        view: what is known of the cluster.
        topic: topic name.
        partition: partition, from 0.
        rack: where the consumer is; None: only leaders are asked.

    Returns:
        None while no leader is known.
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
