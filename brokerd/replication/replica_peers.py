# SPDX-License-Identifier: Apache-2.0
"""What the replicas of one broker have in common towards the rest of the cluster. Types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from brokerd.partition.effects import ProposeIsr
from brokerd.partition.events import Event
from brokerd.replication.leader_link import LeaderLinks
from brokerd.replication.repair_peers import RepairPeers


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeers:
    """Streams to the leaders of other brokers, the way to the controller, and what repairs ask; None: nothing is repaired."""

    links: LeaderLinks
    proposals: IsrProposer
    repairs: RepairPeers | None = None
