# SPDX-License-Identifier: Apache-2.0
"""The numbers of the methods between servers. They are part of the protocol (docs/net.md), so a number is never reused."""

from __future__ import annotations

from enum import IntEnum


class Method(IntEnum):
    """A method: a request, or a stream where its docstring says so."""

    PROBE = 1
    VOTE = 2
    BEGIN_QUORUM_EPOCH = 3
    END_QUORUM_EPOCH = 4
    FETCH_QUORUM = 5
    UPDATE_VOTER = 6
    FETCH_SNAPSHOT = 7
    """A stream: the pieces of a snapshot, from the server to the caller."""

    REGISTER_BROKER = 16
    HEARTBEAT = 17
    ALLOCATE_PRODUCER_IDS = 18
    ALTER_PARTITION = 19
    RESIGN_LEADERSHIP = 20

    REPLICATE = 32
    """A stream: subscriptions and acknowledgements from the follower, batches from the leader."""
    FETCH_RANGE = 33
    FORWARDED_CALL = 34
    """Carries a request of the public `LogService` and names its method."""
    PUBLISH_PART = 35
    CHECK_STAGED = 36
    FIND_LIVE_ATTEMPTS = 37
    DECIDE_OUTCOME = 38
    FIND_PUBLISHED = 39

    PREPARE_OFFSETS = 40
    RESOLVE_OFFSETS = 41

    ADMIN = 48
    """Carries a request of the public `AdminService` and names its method."""
    EXPORT_METADATA = 49
    """A stream: the lines of an export."""
