# SPDX-License-Identifier: Apache-2.0
"""Where the replicas of new partitions go.

Owns the rule only. Replicas go round robin over the usable brokers, those with the fewest replicas first, so that
within a topic the numbers differ by at most one, and over many topics the difference goes to those that have least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def place(
    partition_count: int, replication_factor: int, usable: Sequence[int], replica_counts: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Return the replicas of each partition; the first of each is its preferred leader.

    Args:
        partition_count: number of partitions, from 1.
        replication_factor: replicas of each, from 1, at most the number of usable brokers.
        usable: node ids of the brokers that may get replicas, without repetition.
        replica_counts: replicas that brokers have already, by node id; absent means none.

    Source: Kafka's StripedReplicaPlacer, without racks and with the load in place of its random start.
    """
    assert 1 <= replication_factor <= len(usable), f"{replication_factor} replicas on {len(usable)} brokers"
    order = sorted(usable, key=lambda node_id: (replica_counts.get(node_id, 0), node_id))
    count = len(order)
    placed: list[tuple[int, ...]] = []
    for partition in range(partition_count):
        # Each round over the brokers shifts the followers by one more, so that the partitions of a lost leader
        # spread over all others.
        shift = 1 + (partition // count) % max(1, count - 1)
        first = partition % count
        followers = ((first + shift + step) % count for step in range(count) if (shift + step) % count)
        chosen = [order[first], *(order[index] for index in followers)]
        placed.append(tuple(chosen[:replication_factor]))
    return placed
