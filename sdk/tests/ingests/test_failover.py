# SPDX-License-Identifier: Apache-2.0
"""Transactions on three real nodes, of which one is killed."""

from __future__ import annotations

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition
from lograft.testing import ProcessCluster

PARTITIONS = 3
TRANSACTIONS = 30


@pytest.mark.process
def test_a_killed_leader_costs_no_record_and_doubles_none() -> None:
    """A transaction is on its way when the leader of a partition is killed. It and all others are published once."""
    tps = [TopicPartition("orders", number) for number in range(PARTITIONS)]
    with ProcessCluster() as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("orders", partition_count=PARTITIONS, replication_factor=3)
        with Producer(cluster.bootstrap) as producer:
            for number in range(TRANSACTIONS):
                with producer.transaction("app") as transaction:
                    transaction.send("orders", b"%d" % number, partition=0)
                    if number == TRANSACTIONS // 3:
                        cluster.kill_leader("orders", 0)
                    for tp in tps[1:]:
                        transaction.send("orders", b"%d" % number, partition=tp.partition)
                assert transaction.result is not None
                assert transaction.result.records == PARTITIONS
        got: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign(tps)
            ends = consumer.end_offsets(tps)
            while any(consumer.position(tp) < ends[tp] for tp in tps):
                for record in consumer.poll(timeout_ms=200):
                    got[record.partition].append(record.value)
    wanted = [b"%d" % number for number in range(TRANSACTIONS)]
    assert got == dict.fromkeys(range(PARTITIONS), wanted)
