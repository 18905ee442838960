# SPDX-License-Identifier: Apache-2.0
"""The state of a cluster at the moment, for requests in the name of its servers.

    facts = gather(admin, topic="fuzz-quiet", ends=[34, 33, 33], stranger=stranger)

Owns the questions. The answers are out of date when a request uses them, because elections go on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lograft import Admin
from lograft.types import BrokerStatus

ID_BYTES: Final = 16
"""Size of the ids of topics, log directories and processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A voter of the quorum."""

    node_id: int
    directory_id: bytes
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of the topic that the requests concern; it has no writer."""

    topic_id: bytes
    partition: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A registered broker without a process: requests in its name harm no server."""

    broker_id: int
    incarnation_id: bytes
    directory_id: bytes
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The state of the cluster, a moment ago.

    Attributes:
        high_watermark: high watermark of the metadata log, exclusive.
        brokers: the brokers with a process.
        topic: name of the topic that the requests concern.
        snapshot: end offset and epoch of the newest snapshot of the metadata.
    """

    cluster_id: str
    quorum_epoch: int
    leader_id: int
    high_watermark: int
    voters: tuple[Voter, ...]
    brokers: tuple[BrokerStatus, ...]
    topic: str
    partitions: tuple[Partition, ...]
    stranger: Stranger
    snapshot: tuple[int, int]

    def voter(self, node_id: int) -> Voter:
        """Return the voter with this id."""
        return next(voter for voter in self.voters if voter.node_id == node_id)

    def broker(self, node_id: int) -> BrokerStatus:
        """Return the broker with this id."""
        return next(broker for broker in self.brokers if broker.broker_id == node_id)


def gather(admin: Admin, *, topic: str, ends: Sequence[int], stranger: Stranger) -> Facts:
    """Ask a cluster for its state.

    Args:
        admin: client.
        topic: name of the topic that the requests concern.
        ends: end of each of its partitions, exclusive.
        stranger: broker without a process.

    Raises:
        LograftError: the cluster has no leader at the moment.
    """
    quorum = admin.describe_quorum()
    rows: list[dict[str, Any]] = [json.loads(line) for line in admin.export_metadata()]
    topic_id = next(row["topic_id"] for row in rows if row.get("type") == "topic" and row["topic"] == topic)
    found = [row for row in rows if row.get("type") == "partition" and row["topic"] == topic]
    leader_id = quorum.leader_id
    brokers = admin.describe_brokers()
    voter_ids = {voter.node_id for voter in quorum.voters}
    for broker in brokers:
        # Some of the requests register the stranger again.
        if broker.broker_id == stranger.broker_id:
            stranger = replace(stranger, broker_epoch=broker.broker_epoch, incarnation_id=broker.incarnation_id)
    return Facts(
        cluster_id=quorum.cluster_id,
        quorum_epoch=quorum.quorum_epoch,
        leader_id=quorum.voters[0].node_id if leader_id is None else leader_id,
        high_watermark=quorum.high_watermark or 0,
        voters=tuple(
            Voter(node_id=each.node_id, directory_id=each.directory_id or bytes(ID_BYTES), address=each.address or "")
            for each in quorum.voters
        ),
        brokers=tuple(broker for broker in brokers if broker.broker_id in voter_ids),
        topic=topic,
        partitions=tuple(
            Partition(
                topic_id=bytes.fromhex(topic_id),
                partition=row["partition"],
                leader_id=row["replicas"][0] if row["leader_id"] is None else row["leader_id"],
                leader_epoch=row["leader_epoch"],
                partition_epoch=row["partition_epoch"],
                replicas=tuple(row["replicas"]),
                end_offset=ends[row["partition"]],
            )
            for row in found
        ),
        stranger=stranger,
        snapshot=(1, 1)
        if quorum.latest_snapshot is None
        else (quorum.latest_snapshot.end_offset, quorum.latest_snapshot.quorum_epoch),
    )
