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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A reassignment of one partition: what it was asked to become, or what is under way.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        replicas_before: node ids of the replicas that it had, and has again when the reassignment is cancelled.
        replicas: node ids of the replicas that it is to have, the preferred leader first; empty on an error.
        adding: those that are being added, and not in sync yet.
        removing: those that go when all of `adding` are in sync.
        isr: node ids of the in-sync replicas.
        leader_id: node id of the leader; None: none, or an error.
        error: why it was refused; None: it was not.
    """

    topic: str
    partition: int
    replicas_before: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader_id: int | None = None
    error: LograftError | None = None

    @property
    def is_under_way(self) -> bool:
        """True while replicas are being added or removed."""
        return bool(self.adding or self.removing)
