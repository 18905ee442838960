# SPDX-License-Identifier: Apache-2.0
"""Why something is sent to a follower. On the wire there are two classes, for the credits; the leader tells moves apart as well.

Source: docs/replication.md, "Credits" and "Rates".
"""

from __future__ import annotations

from enum import IntEnum


class Traffic(IntEnum):
    """What a route is for; the numbers count from 0 without a gap."""

    IN_SYNC = 0
    """The follower is in sync: never held back by a rate."""
    CATCH_UP = 1
    """The follower is out of sync."""
    MOVING = 2
    """The follower is out of sync, and a reassignment adds it: credit and rate of catch-up, and the rate of moves besides."""
