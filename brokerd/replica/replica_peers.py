# SPDX-License-Identifier: Apache-2.0
"""What the replicas of one broker have in common towards the rest of the cluster. Types only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from brokerd.partition.effects import ProposeIsr
from brokerd.partition.events import Event
from brokerd.replica.replication_border import LeaderLinks, RepairPeers


class ProposingReplica(Protocol):
    """A replica that leads, as the way to the controller sees it; `str` names the partition."""

    topic_id: bytes
    partition: int

    def take_event(self, event: Event) -> None:
        """Learn what became of a proposal; one that is out of date is passed over."""
        ...


class IsrProposer(Protocol):
    """The way of proposals of in-sync replicas to the controller."""

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        """Send a proposal; the replica is told exactly once what became of it, later. Must not block."""
        ...


class ResignReason(Enum):
    """Why a leadership is given up; the value stands in logs."""

    CUT_OFF = "cut-off"
    """Too few followers reach the leader, and others live."""
    DAMAGE = "damage"
    """Its copy is damaged below the high watermark."""
    NO_ROOM = "no-room"
    """Its log directory has too little room for appends of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resignation:
    """A leadership that is given up.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: partition, from 0.
        leader_epoch: leader epoch of the leadership.
        reason: why.
        allow_eligible: True: an eligible replica will do, because it has all that was acknowledged.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    reason: ResignReason
    allow_eligible: bool


class LeadershipResigner(Protocol):
    """The way of leaderships that are given up to the controller."""

    def resign(self, resignation: Resignation) -> None:
        """Ask that another replica leads a partition. Must not block."""
        ...


class LostReplicas(Protocol):
    """What tells the controller of replicas whose log does not work here any more, or was found where it is awaited."""

    def note_lost(self, topic_id: bytes, partition: int) -> None:
        """Learn that the log of a replica does not work in this process any more. Must not block."""
        ...

    def note_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Learn that the log of a replica lies in a directory that its partition awaits. Must not block."""
        ...

    def note_removed(self, topic_id: bytes, partition: int) -> None:
        """Learn that a replica does not belong here any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeers:
    """Streams to the leaders of other brokers, the way to the controller, and what repairs ask; None: nothing is repaired.

    `withdrawals` None: a replica whose log fails stays where the metadata has it. `resignations` None: leaderships are never given up.
    """

    links: LeaderLinks
    proposals: IsrProposer
    repairs: RepairPeers | None = None
    withdrawals: LostReplicas | None = None
    resignations: LeadershipResigner | None = None
