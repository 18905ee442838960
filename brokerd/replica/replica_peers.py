# SPDX-License-Identifier: Apache-2.0
"""What the replicas of one broker have in common towards the rest of the cluster. Types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from brokerd.controller_client.partition_requests import ProposingReplica, Resignation
from brokerd.partition.effects import ProposeIsr
from brokerd.replica.replication_border import LeaderLinks, RepairPeers


class IsrProposer(Protocol):
    """The way of proposals of in-sync replicas to the controller."""

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        """Send a proposal; the replica is told exactly once what became of it, later. Must not block."""
        ...


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
