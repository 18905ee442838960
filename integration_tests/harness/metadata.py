# SPDX-License-Identifier: Apache-2.0
"""Questions about the metadata of a cluster that may be unable to answer. Then the result is None or empty."""

from __future__ import annotations

from collections.abc import Sequence

from lograft import Admin
from lograft.errors import LograftError
from lograft.types import PartitionDescription, QuorumDescription


def quorum_of(admin: Admin) -> QuorumDescription | None:
    """Return the quorum as its leader sees it; None while no broker answers."""
    try:
        return admin.describe_quorum()
    except LograftError:
        return None


def unfenced_brokers(admin: Admin) -> set[int]:
    """Return the ids of the unfenced brokers; an empty set while no broker answers."""
    try:
        return {broker.broker_id for broker in admin.describe_cluster().brokers if not broker.fenced}
    except LograftError:
        return set()


def partitions_of(admin: Admin, topic: str) -> Sequence[PartitionDescription] | None:
    """Return the partitions of a topic; None while no broker answers."""
    try:
        return admin.describe_topic(topic).partitions
    except LograftError:
        return None


def are_in_sync(partitions: Sequence[PartitionDescription]) -> bool:
    """Return True if every partition has a leader and all its replicas are in sync."""
    return all(each.leader_id is not None and set(each.isr) == set(each.replicas) for each in partitions)
