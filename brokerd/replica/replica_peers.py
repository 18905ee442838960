# SPDX-License-Identifier: Apache-2.0
"""What the replicas of one broker share for their requests to the rest of the cluster. Types only."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.controller_client.partition_requests import PartitionRequests
from brokerd.replica.replication_border import LeaderStreams, RepairPeers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeers:
    """The other brokers and the controller, for the replicas of one broker.

    Attributes:
        leader_streams: streams to the leaders on other brokers.
        requests: requests to the controller.
        repairs: requests for damaged ranges; None: no damage is repaired.
    """

    leader_streams: LeaderStreams
    requests: PartitionRequests
    repairs: RepairPeers | None = None
