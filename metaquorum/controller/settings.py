# SPDX-License-Identifier: Apache-2.0
"""Every limit and time of the controller, by name and unit, with its default: one value, which the process hands in."""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.records import FEATURE_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of the controller. What a request has more of than its limit is refused; a work goes on in its next slice.

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
        default_replication_factor: replicas of a partition when the request names no number.
        max_host_characters: longest host name of a broker (the limit of DNS).
        max_rack_characters: longest rack name of a broker.
        max_log_directories: most log directories of one broker.
        producer_id_block: producer ids in one block.
        max_sweep_records: records of one slice of a long work: less than 20 ms to decide, encode and replay, some 20 KiB, and with
            100 replicas less than 1 MiB.
        max_sweep_partitions: partitions looked at in one slice of a long work; about 10 ms.
        max_walk_records: records of one slice of a periodic work, such as leaders that move back. Half of `max_sweep_records`:
            nothing waits for it.
        max_walk_partitions: partitions looked at in one slice of a periodic work.
        max_walk_topics: topics looked at in one slice of a periodic work; less than 10 ms.
        max_altered_partitions: partitions of one request of a leader: one that proposes in-sync replicas, or gives up leaderships.
        max_expired_brokers: brokers fenced in one decision for missed heartbeats; the next tick takes more.
        max_config_changes: config changes of one request; with the longest values about 600 KiB of records.
        max_reassigned_partitions: reassignments of one request.
        max_listed_reassignments: reassignments on one page of a list; a page also ends after `max_sweep_partitions` partitions.
        max_elected_partitions: partitions of one request for elections.
        max_leader_lookups: partitions looked at in one request to even out leaders; about 50 ms. Beyond it they stay as even as
            they are.
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
    default_replication_factor: int = 1
    max_host_characters: int = 255
    max_rack_characters: int = 249
    max_log_directories: int = 256
    producer_id_block: int = 1_000
    max_sweep_records: int = 500
    max_sweep_partitions: int = 10_000
    max_walk_records: int = 250
    max_walk_partitions: int = 10_000
    max_walk_topics: int = 1_000
    max_altered_partitions: int = 2_000
    max_expired_brokers: int = 100
    max_config_changes: int = 500
    max_reassigned_partitions: int = 500
    max_listed_reassignments: int = 1_000
    max_elected_partitions: int = 500
    max_leader_lookups: int = 200_000
