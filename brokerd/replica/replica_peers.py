# SPDX-License-Identifier: Apache-2.0
"""What the replicas of one broker share towards the rest of the cluster. Types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from brokerd.controller_client.partition_requests import ProposingReplica, Resignation
from brokerd.partition.effects import ProposeIsr
from brokerd.replica.replication_border import LeaderLinks, RepairPeers


class IsrProposer(Protocol):
    """Sends proposals of in-sync replicas to the controller."""

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        """Send a proposal; the replica later gets its outcome exactly once. Must not block."""
        ...


class LeadershipResigner(Protocol):
    """Sends resignations of leaderships to the controller."""

    def resign(self, resignation: Resignation) -> None:
        """Ask the controller to elect another replica. Must not block."""
        ...


class LostReplicas(Protocol):
    """Reports to the controller replicas whose log does not work here, or was found in an awaited directory."""

    def note_lost(self, topic_id: bytes, partition: int) -> None:
        """Note that the log of a replica does not work in this process any more. Must not block."""
        ...

    def note_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Note that the log of a replica is in a directory that its partition awaits. Must not block."""
        ...

    def note_removed(self, topic_id: bytes, partition: int) -> None:
        """Note that a replica no longer belongs here."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeers:
    """Streams to the leaders on other brokers, the ways to the controller, and the peers for repairs (None: no repairs).

    `withdrawals` None: a replica whose log fails is not reported. `resignations` None: leaderships are never resigned.
    """

    links: LeaderLinks
    proposals: IsrProposer
    repairs: RepairPeers | None = None
    withdrawals: LostReplicas | None = None
    resignations: LeadershipResigner | None = None
