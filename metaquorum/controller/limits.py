# SPDX-License-Identifier: Apache-2.0
"""Every limit and time of the controller, by name and unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_TOPIC_NAME_CHARACTERS: Final = 249
"""Longest topic name."""

MAX_HOST_CHARACTERS: Final = 255
"""Longest host name of a broker (the limit of DNS)."""

MAX_RACK_CHARACTERS: Final = 249
"""Longest rack name of a broker."""

MAX_LOG_DIRECTORIES: Final = 256
"""Most log directories of one broker."""

MAX_NODE_ID: Final = 2**31 - 1
"""Highest node id."""

PRODUCER_ID_BLOCK: Final = 1_000
"""Producer ids in one block."""

MAX_PRODUCER_ID: Final = 2**63 - 1
"""Highest producer id; the batch header keeps it as a signed 64-bit integer."""

MAX_SWEEP_RECORDS: Final = 500
"""Records of one slice of a long work: less than 20 ms to decide, encode and replay, some 20 KiB, and with 100 replicas less than
1 MiB."""

MAX_SWEEP_PARTITIONS: Final = 10_000
"""Partitions looked at in one slice of a long work; about 10 ms."""

MAX_WALK_RECORDS: Final = 250
"""Records of one slice of a periodic work, such as leaders that move back. Half of `MAX_SWEEP_RECORDS`: nobody waits for it."""

MAX_WALK_PARTITIONS: Final = 10_000
"""Partitions looked at in one slice of a periodic work."""

MAX_WALK_TOPICS: Final = 1_000
"""Topics looked at in one slice of a periodic work; less than 10 ms."""

MAX_ALTERED_PARTITIONS: Final = 2_000
"""Partitions of one request of a leader: one that proposes in-sync replicas, or gives up leaderships."""

MAX_EXPIRED_BROKERS: Final = 100
"""Brokers fenced in one decision for missed heartbeats; the next tick takes more."""

MAX_CONFIG_CHANGES: Final = 500
"""Config changes of one request; with the longest values about 600 KiB of records."""

MAX_DESCRIBED_RESOURCES: Final = 1_000
"""Resources of one request that describes configs."""

MAX_REASSIGNED_PARTITIONS: Final = 500
"""Reassignments of one request."""

MAX_LISTED_REASSIGNMENTS: Final = 1_000
"""Reassignments on one page of a list; a page also ends after `MAX_SWEEP_PARTITIONS` partitions looked at."""

MAX_CREATED_TOPICS: Final = 1_000
"""Topics that one request creates."""

MAX_LISTED_TOPICS: Final = 1_000
"""Topics that one request for a list of reassignments may name."""

MAX_ELECTED_PARTITIONS: Final = 500
"""Partitions of one request for elections."""

MAX_LEADER_LOOKUPS: Final = 200_000
"""Partitions looked at in one request to even out leaders; about 50 ms. Beyond it they stay as even as they are."""

FEATURE_NAME: Final = "lograft.level"
"""Name of the one feature whose level says which records and messages the cluster may use."""

FEATURE_LEVEL: Final = 1
"""Level that a new cluster starts with, and the only one that this version knows."""

DEFAULT_REPLICATION_FACTOR: Final = 1
"""Replicas of a partition when the request names no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of the controller.

    Attributes:
        heartbeat_interval_ms: time between two heartbeats of a broker.
        session_timeout_ms: time without a heartbeat after which a broker is fenced.
        broker_arrival_ms: so long after a leadership began, or a broker registered that it did not know, more brokers may be on
            their way: want of them is for now. 0: a cluster whose brokers are all there.
        max_request_partitions: most partitions that one request may create.
        max_partitions: most partitions in the cluster.
        max_broker_replicas: most replicas of one broker; new ones that would pass it are refused.
        max_topics: most topics in the cluster.
        max_brokers: most registered brokers.
        max_feature_level: highest feature level that this version knows.
    """

    heartbeat_interval_ms: int = 500
    session_timeout_ms: int = 3_000
    broker_arrival_ms: int = 10_000
    max_request_partitions: int = 10_000
    max_partitions: int = 2_000_000
    max_broker_replicas: int = 200_000
    max_topics: int = 1_000_000
    max_brokers: int = 10_000
    max_feature_level: int = FEATURE_LEVEL
