# SPDX-License-Identifier: Apache-2.0
"""The calls about the metadata quorum, for the admin clients: its state, voters in, out and replaced, leadership handed over.

Owns requests, and the two steps of a replacement. Must not hold state. Law: a replacement takes no voter out before it
has seen a caught-up replica to take its place, and can be repeated after any failure.
"""

from __future__ import annotations

from typing import Final

from lograft._client.cluster import Cluster
from lograft.errors import RefusedError, UsageError
from lograft.types import MetadataSnapshotDescription, QuorumDescription, QuorumReplicaDescription
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub

DIRECTORY_ID_BYTES: Final = 16

REPLACEMENT_LAG_MS_MAX: Final = 5_000
"""A replacement must have had everything within so many milliseconds."""


async def describe_quorum(cluster: Cluster, *, timeout_ms: int) -> QuorumDescription:
    """Describe the metadata quorum."""
    request = admin_pb2.DescribeQuorumRequest(cluster_id=cluster.cluster_id)
    return _quorum(
        await cluster.ask(lambda channel: AdminServiceStub(channel).DescribeQuorum, request, timeout_ms=timeout_ms)
    )


async def add_voter(cluster: Cluster, node_id: int, directory_id: bytes | None, *, timeout_ms: int) -> bytes:
    """Make a voter of an observer; returns its directory id."""
    request = admin_pb2.AddVoterRequest(
        cluster_id=cluster.cluster_id, node_id=_node_id(node_id), directory_id=_directory_id(directory_id)
    )
    return (
        await cluster.ask(
            lambda channel: AdminServiceStub(channel).AddVoter, request, timeout_ms=timeout_ms, may_repeat=False
        )
    ).directory_id


async def remove_voter(
    cluster: Cluster, node_id: int, directory_id: bytes | None, *, timeout_ms: int, replacement_id: bytes | None = None
) -> bytes:
    """Make an observer of a voter; returns its directory id. `replacement_id`: only if this replica could be added next."""
    request = admin_pb2.RemoveVoterRequest(
        cluster_id=cluster.cluster_id,
        node_id=_node_id(node_id),
        directory_id=_directory_id(directory_id),
        replacement_directory_id=_directory_id(replacement_id),
    )
    return (
        await cluster.ask(
            lambda channel: AdminServiceStub(channel).RemoveVoter, request, timeout_ms=timeout_ms, may_repeat=False
        )
    ).directory_id


async def replace_voter(cluster: Cluster, node_id: int, *, timeout_ms: int) -> bytes:
    """Put the replica that fetches under a voter's node id in the place of that voter; returns its directory id.

    Args:
        cluster: connection.
        node_id: node id of the voter whose disk was lost.
        timeout_ms: milliseconds for the look at the quorum, and for each of the two changes.

    Raises:
        RefusedError: no replica of this node id has caught up, or the servers refuse. Nothing was changed, or the old
            voter is out and the replacement is not in yet; repeat it.
    """
    number = _node_id(node_id)
    quorum = await describe_quorum(cluster, timeout_ms=timeout_ms)
    replacement = _replacement(quorum, number)
    if any(voter.node_id == number for voter in quorum.voters):
        await remove_voter(cluster, number, None, timeout_ms=timeout_ms, replacement_id=replacement.directory_id)
    return await add_voter(cluster, number, replacement.directory_id, timeout_ms=timeout_ms)


async def transfer_leadership(cluster: Cluster, node_id: int | None, *, timeout_ms: int) -> int:
    """Have the leader hand over, and return who leads then."""
    request = admin_pb2.TransferLeadershipRequest(
        cluster_id=cluster.cluster_id, node_id=None if node_id is None else _node_id(node_id)
    )
    # To whom leads already there is nothing to hand over, so a named voter may be asked for twice.
    return (
        await cluster.ask(
            lambda channel: AdminServiceStub(channel).TransferLeadership,
            request,
            timeout_ms=timeout_ms,
            may_repeat=node_id is not None,
        )
    ).leader_id


def _replacement(quorum: QuorumDescription, node_id: int) -> QuorumReplicaDescription:
    known = [each for each in quorum.observers if each.node_id == node_id]
    ready = [
        each
        for each in known
        if each.last_caught_up_age_ms is not None and each.last_caught_up_age_ms <= REPLACEMENT_LAG_MS_MAX
    ]
    if not ready:
        state = "has not caught up yet" if known else "does not fetch as an observer"
        raise RefusedError(
            f"node {node_id} {state}: start it on its new directory, wait until `lograft quorum describe` shows it"
            " with everything, and repeat this"
        )
    return min(ready, key=lambda each: each.last_caught_up_age_ms or 0)


def _node_id(node_id: object) -> int:
    if isinstance(node_id, bool) or not isinstance(node_id, int) or not 0 <= node_id < 2**31:
        raise UsageError(f"a node id is a whole number from 0 to {2**31 - 1}, not {node_id!r}")
    return node_id


def _directory_id(directory_id: bytes | None) -> bytes:
    if directory_id is None:
        return b""
    if type(directory_id) is not bytes or len(directory_id) != DIRECTORY_ID_BYTES:
        raise UsageError(f"the id of a metadata directory is {DIRECTORY_ID_BYTES} bytes, not {directory_id!r}")
    return directory_id


def _quorum(response: admin_pb2.DescribeQuorumResponse) -> QuorumDescription:
    return QuorumDescription(
        cluster_id=response.cluster_id,
        leader_id=response.leader_id if response.HasField("leader_id") else None,
        quorum_epoch=response.quorum_epoch,
        high_watermark=response.high_watermark if response.HasField("high_watermark") else None,
        voters=tuple(map(_replica, response.voters)),
        observers=tuple(map(_replica, response.observers)),
        log_start_offset=response.log_start_offset,
        latest_snapshot=MetadataSnapshotDescription(
            end_offset=response.latest_snapshot.end_offset, quorum_epoch=response.latest_snapshot.quorum_epoch
        )
        if response.HasField("latest_snapshot")
        else None,
    )


def _replica(replica: admin_pb2.QuorumReplica) -> QuorumReplicaDescription:
    return QuorumReplicaDescription(
        node_id=replica.node_id,
        directory_id=replica.directory_id or None,
        address=replica.address or None,
        log_end_offset=replica.log_end_offset if replica.HasField("log_end_offset") else None,
        last_fetch_age_ms=replica.last_fetch_age_ms if replica.HasField("last_fetch_age_ms") else None,
        last_caught_up_age_ms=replica.last_caught_up_age_ms if replica.HasField("last_caught_up_age_ms") else None,
    )
