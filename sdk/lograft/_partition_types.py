# SPDX-License-Identifier: Apache-2.0
"""What users see of elections and reassignments; public as `lograft.types`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lograft.errors import LograftError


class ElectionType(Enum):
    """Which election is asked for."""

    PREFERRED = "preferred"
    """The first replica leads again, if it is in sync."""
    UNCLEAN = "unclean"
    """Where nobody who has everything committed can lead, a replica leads that may lack some of it, which is then lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedLeader:
    """What an election of one partition came to.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        leader_id: node id of the leader from here on; None on an error, or when nobody leads.
        leader_epoch: its leader epoch; None on an error.
        elected: True when the partition got another leader; False also when it needed no election.
        error: why nobody was elected; None: it was not refused.
    """

    topic: str
    partition: int
    leader_id: int | None = None
    leader_epoch: int | None = None
    elected: bool = False
    error: LograftError | None = None
