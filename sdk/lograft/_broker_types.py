# SPDX-License-Identifier: Apache-2.0
"""What operators see of brokers; public as `lograft.types`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class BrokerState(Enum):
    """State of a registered broker."""

    UNKNOWN = "unknown"
    """A state that this version does not know."""
    REGISTERED = "registered"
    """It is heard of and may not lead: it catches up, or asks to be fenced, or its unclean stop is being dealt with."""
    ACTIVE = "active"
    """It may lead."""
    SHUTTING_DOWN = "shutting down"
    """It leaves in an orderly way, and waits for other leaders of its partitions."""
    FENCED = "fenced"
    """It has stopped, or nothing is heard of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """A broker as the active controller knows it.

    Attributes:
        broker_id: node id.
        state: whether it may lead, and why not.
        host: host name or address that clients use.
        port: TCP port that clients use.
        rack: rack, or None.
        broker_epoch: epoch of its registration.
        incarnation_id: random id of its process, 16 bytes.
        log_directory_ids: ids of its log directories, 16 bytes each.
        offline_log_directory_ids: those of them that have failed.
        min_feature_level: lowest feature level that it can run at, inclusive.
        max_feature_level: highest feature level that it can run at, inclusive.
        replica_count: replicas that it has.
        leader_count: partitions that it leads.
        unclean: True after a stop that was not orderly, until it has left the in-sync replicas where it may lack records.
        last_heard_age_ms: milliseconds since it was last heard of, or since the controller took over; None: not known.
        metadata_offset: metadata offset (exclusive) that it last said to have applied; None: not known.
    """

    broker_id: int
    state: BrokerState
    host: str
    port: int
    rack: str | None
    broker_epoch: int
    incarnation_id: bytes
    log_directory_ids: tuple[bytes, ...]
    offline_log_directory_ids: tuple[bytes, ...]
    min_feature_level: int
    max_feature_level: int
    replica_count: int
    leader_count: int
    unclean: bool
    last_heard_age_ms: int | None
    metadata_offset: int | None
