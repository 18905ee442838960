# SPDX-License-Identifier: Apache-2.0
"""What the replicas of one broker share for their requests to the rest of the cluster. Types only."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.controller_client.partition_requests import PartitionRequests
from brokerd.replica.replication_border import LeaderLinks, RepairPeers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeers:
    """The other brokers and the controller, for the replicas of one broker.

    Attributes:
        links: streams to the leaders on other brokers.
        requests: requests to the controller.
        repairs: requests for damaged ranges; None: no damage is repaired.
    """

    links: LeaderLinks
    requests: PartitionRequests
    repairs: RepairPeers | None = None
