# SPDX-License-Identifier: Apache-2.0
"""Lines of log about roles: one for each change while there are few, one that counts when there are many.

Owns which of both is written. A broker that starts, stops or loses its neighbour has tens of thousands of roles changed within seconds:
a line for each cost more than the changes, and no reader can follow them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from metaquorum.metadata.image import PartitionImage

logger = logging.getLogger(__name__)

MAX_ROLE_LINES: Final = 10
"""Changes of roles that get a line of their own within `ROLE_LOG_INTERVAL_MS`; the others are counted."""

ROLE_LOG_INTERVAL_MS: Final = 1_000
"""Milliseconds from the first change to the line that counts."""


class RoleLog:
    """Writes the lines about roles. Belongs to one event loop; one object for all replicas of a broker."""

    def __init__(self) -> None:
        self._seen = 0
        self._led = self._followed = self._leaderless = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, replica: object, partition: PartitionImage, *, is_leader: bool, log_end_offset: int) -> None:
        """Learn that the role of a replica has changed.

        Args:
            replica: names itself as text.
            partition: its partition as the metadata has it now.
            is_leader: True if this broker leads, and its log works.
            log_end_offset: of the replica (exclusive).
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
        """Write the line that counts, and start the next interval."""
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
