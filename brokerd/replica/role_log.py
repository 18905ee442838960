# SPDX-License-Identifier: Apache-2.0
"""Log lines about roles: one line for each change while there are few, and one line with counts when there are many.

Owns which of both is written. When a broker starts, stops or loses its neighbour, tens of thousands of roles change
within seconds. A line for each cost more than the changes, and no reader can follow them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from metaquorum.metadata.image import PartitionImage

logger = logging.getLogger(__name__)

MAX_ROLE_LINES: Final = 10
"""Changes of roles that get their own line within `ROLE_LOG_INTERVAL_MS`; the others are counted."""

ROLE_LOG_INTERVAL_MS: Final = 1_000
"""Milliseconds from the first change to the line with counts."""


class RoleLog:
    """Writes the log lines about roles. Belongs to one event loop; all replicas of a broker share one object."""

    def __init__(self) -> None:
        self._seen = 0
        self._led = self._followed = self._leaderless = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, replica: object, partition: PartitionImage, *, is_leader: bool, log_end_offset: int) -> None:
        """Note that the role of a replica has changed.

        Args:
            replica: its text is the partition's name.
            partition: its partition in the present metadata.
            is_leader: True if this broker leads, and its log works.
            log_end_offset: log end of the replica (exclusive).
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ROLE_LOG_INTERVAL_MS / 1000, self.say)
        self._seen += 1
        if self._seen <= MAX_ROLE_LINES:
            logger.info(
                "role: partition=%s leader_id=%s leader_epoch=%d is_leader=%s log_end_offset=%d",
                replica,
                partition.leader_id,
                partition.leader_epoch,
                is_leader,
                log_end_offset,
            )
        elif is_leader:
            self._led += 1
        elif partition.leader_id is None:
            self._leaderless += 1
        else:
            self._followed += 1

    def say(self) -> None:
        """Write the line with counts, and start the next interval."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        count = self._led + self._followed + self._leaderless
        if count:
            logger.info(
                "roles: %d more partitions changed: led=%d followed=%d leaderless=%d",
                count,
                self._led,
                self._followed,
                self._leaderless,
            )
        self._seen = self._led = self._followed = self._leaderless = 0
