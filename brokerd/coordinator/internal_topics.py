# SPDX-License-Identifier: Apache-2.0
"""Internal topics of coordinators: which partition a key belongs to, and how a topic is made on first use. Pure.

Who makes it: the broker that gets the first command and whose metadata has no such topic asks the controller to create it, as an
administrator would. Two brokers may ask at once, so TOPIC_ALREADY_EXISTS is success. NOT_ENOUGH_BROKERS is passed on: the client
tries again.
Source: `docs/coordinator.md` section "Internal topics"; Kafka, offsets.topic.replication.factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lograft.wire.checksum import crc32c
from lograft.wire.limits import DEFAULT_MAX_MESSAGE_BYTES

MAX_REPLICATION_FACTOR: Final = 3
"""Replicas of an internal topic in a cluster that has as many brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """A compacted topic that holds the state of coordinators.

    Attributes:
        name: its name.
        partition_count: number of partitions, which never changes: it decides which coordinator a key has.
        segment_bytes: `segment.bytes`: the active segment is not compacted, so it bounds loading without a snapshot.
        min_compaction_lag_ms: `min.compaction.lag.ms`: leaves time to make a snapshot before the cleaner comes.
    """

    name: str
    partition_count: int
    segment_bytes: int = 64 * 1024 * 1024
    min_compaction_lag_ms: int = 60_000

    def partition_of(self, key: str) -> int:
        """Return the partition that coordinates a key, such as a group id."""
        return crc32c(key.encode()) % self.partition_count


GROUPS: Final = InternalTopic(name="__groups", partition_count=32)
"""Groups and their offsets."""

INGESTS: Final = InternalTopic(name="__ingests", partition_count=32)
"""Ingests, their attempts and decisions. Partition numbers are part of producer ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What to ask the controller for."""

    topic: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]


def creation_plan(topic: InternalTopic, *, broker_count: int) -> TopicPlan:
    """Return how an internal topic is made.

    Args:
        topic: the topic.
        broker_count: number of registered brokers, fenced ones included: one that is down for a moment must not leave the topic with a
            replica too few.
    """
    factor = max(1, min(MAX_REPLICATION_FACTOR, broker_count))
    return TopicPlan(
        topic=topic.name,
        partition_count=topic.partition_count,
        replication_factor=factor,
        configs={
            "cleanup.policy": "compact",
            "flush.policy": "ack",
            # Set, so that a smaller value of the cluster does not hold.
            "max.message.bytes": str(DEFAULT_MAX_MESSAGE_BYTES),
            "min.compaction.lag.ms": str(topic.min_compaction_lag_ms),
            "min.insync.replicas": str(max(1, factor - 1)),
            "segment.bytes": str(topic.segment_bytes),
        },
    )
