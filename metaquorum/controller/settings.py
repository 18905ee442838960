# SPDX-License-Identifier: Apache-2.0
"""Every limit and time of the controller, with unit and default, as one value that the process passes in."""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.records import FEATURE_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Limits and times of the controller. A request beyond a limit is refused; long work continues in its next slice.

    Attributes:
        heartbeat_interval_ms: time between two heartbeats of a broker.
        session_timeout_ms: time without a heartbeat after which a broker is fenced.
        broker_arrival_ms: for this long after a leadership began, or a new broker registered, more brokers may be about to register,
            so a lack of brokers counts as temporary. 0: all brokers of the cluster are there.
        max_request_partitions: partitions that one request may create.
        max_partitions: partitions in the cluster.
        max_broker_replicas: replicas of one broker; new replicas beyond it are refused.
        max_topics: topics in the cluster.
        max_brokers: registered brokers.
        max_feature_level: highest feature level that this version knows.
        default_replication_factor: replicas of a partition if the request names no number.
        max_host_characters: longest host name of a broker (the limit of DNS).
        max_rack_characters: longest rack name of a broker.
        max_log_directories: log directories of one broker.
        producer_id_block: producer ids in one block.
        max_sweep_records: records of one slice of long work: less than 20 ms to decide, encode and replay, some 20 KiB, and with 100
            replicas less than 1 MiB.
        max_sweep_partitions: partitions examined in one slice of long work; about 10 ms.
        max_walk_records: records of one slice of periodic work, such as the return of leaders. Half of `max_sweep_records`, because
            no caller waits for it.
        max_walk_partitions: partitions examined in one slice of periodic work.
        max_walk_topics: topics examined in one slice of periodic work; less than 10 ms.
        max_altered_partitions: partitions of one AlterPartition or ResignLeadership request.
        max_expired_brokers: brokers that one decision fences for missed heartbeats; the next tick takes more.
        max_configured_groups: groups for which configs are set; such a group need not exist, so that only this bounds them.
        max_config_changes: config changes of one request; with the longest values about 600 KiB of records.
        max_reassigned_partitions: reassignments of one request.
        max_listed_reassignments: reassignments on one page of a list; a page also ends after `max_sweep_partitions` partitions.
        max_elected_partitions: partitions of one request for elections.
        max_leader_lookups: partitions examined in one request to even out leaders; about 50 ms. Beyond it, leaders stay as uneven as
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
    max_configured_groups: int = 10_000
    max_config_changes: int = 500
    max_reassigned_partitions: int = 500
    max_listed_reassignments: int = 1_000
    max_elected_partitions: int = 500
    max_leader_lookups: int = 200_000
