# SPDX-License-Identifier: Apache-2.0
"""What servers ask of each other, by number. A number is never used for anything else: it is part of the protocol (docs/net.md)."""

from __future__ import annotations

from enum import IntEnum


class Method(IntEnum):
    """A request, or a stream where it says so."""

    PROBE = 1
    VOTE = 2
    BEGIN_QUORUM_EPOCH = 3
    END_QUORUM_EPOCH = 4
    FETCH_QUORUM = 5
    UPDATE_VOTER = 6
    FETCH_SNAPSHOT = 7
    """A stream: pieces of a snapshot from its server."""

    REGISTER_BROKER = 16
    HEARTBEAT = 17
    ALLOCATE_PRODUCER_IDS = 18
    ALTER_PARTITION = 19
    RESIGN_LEADERSHIP = 20

    REPLICATE = 32
    """A stream: a follower's subscriptions and acknowledgements, its leader's batches."""
    FETCH_RANGE = 33
    FORWARDED_CALL = 34
    """A request of the public `LogService`, which names its method."""

    ADMIN = 48
    """A request of the public `AdminService`, which names its method."""
    EXPORT_METADATA = 49
    """A stream: the lines of an export."""
