# SPDX-License-Identifier: Apache-2.0
"""The admin calls about the metadata quorum: its state, changes of voters, and leadership transfer.

This module owns the requests and the two steps of a replacement. It must not hold state. Law: a replacement removes a voter
only after it has seen a caught-up replica to replace it, and it can be repeated after any failure.
"""

from __future__ import annotations

from typing import Final

from lograft._admin.calls import AdminCalls
from lograft.errors import RefusedError, UsageError
from lograft.types import MetadataSnapshotDescription, QuorumDescription, QuorumReplicaDescription
from lograft.v1 import admin_pb2

DIRECTORY_ID_BYTES: Final = 16

REPLACEMENT_LAG_MS_MAX: Final = 5_000
"""A replacement must have been caught up within this many milliseconds."""


async def describe_quorum(calls: AdminCalls) -> QuorumDescription:
    """Describe the metadata quorum: leader, voters, observers."""
    request = admin_pb2.DescribeQuorumRequest()
    return _quorum(await calls.ask(lambda stub: stub.DescribeQuorum, request))


async def add_voter(calls: AdminCalls, node_id: int, *, directory_id: bytes | None = None) -> bytes:
    """Make a caught-up observer of the metadata quorum a voter. Return when the change is committed.

    Args:
        node_id: node id of the observer.
        directory_id: id of its metadata directory, 16 bytes; None means the directory that last fetched under this node id.

    Returns:
        The directory id.

    Raises:
        RefusedError: the node votes already, has not caught up, or the quorum is full. Nothing has changed.
        OutcomeUnknownError: the answer was lost. Describe the quorum to find out.
    """
    request = admin_pb2.AddVoterRequest(node_id=_node_id(node_id), directory_id=_directory_id(directory_id))
    return (await calls.ask(lambda stub: stub.AddVoter, request, may_repeat=False)).directory_id


async def remove_voter(calls: AdminCalls, node_id: int, *, directory_id: bytes | None = None) -> bytes:
    """Make a voter of the metadata quorum an observer. Return when the change is committed.

    Args:
        node_id: node id of the voter.
        directory_id: id of its metadata directory, 16 bytes; None means the directory that votes under this node id.

    Returns:
        The directory id.

    Raises:
        RefusedError: the voter does not exist, or the quorum would be lost. Nothing has changed.
        OutcomeUnknownError: the answer was lost. Describe the quorum to find out.
    """
    return await _remove_voter(calls, node_id, directory_id, None)


async def _remove_voter(
    calls: AdminCalls, node_id: int, directory_id: bytes | None, replacement_id: bytes | None
) -> bytes:
    """Remove a voter. With `replacement_id`, the leader refuses unless it could add this replica next."""
    request = admin_pb2.RemoveVoterRequest(
        node_id=_node_id(node_id),
        directory_id=_directory_id(directory_id),
        replacement_directory_id=_directory_id(replacement_id),
    )
    response = await calls.ask(lambda stub: stub.RemoveVoter, request, may_repeat=False)
    return response.directory_id


async def replace_voter(calls: AdminCalls, node_id: int) -> bytes:
    """Replace a voter whose disk was lost by the replica that now fetches under its node id. The call may be repeated.

    Args:
        node_id: node id of the voter.

    Returns:
        The directory id of the new voter.

    Raises:
        RefusedError: no such replica has caught up, or the quorum would be lost.
        OutcomeUnknownError: an answer was lost. Repeat the call.
    """
    number = _node_id(node_id)
    quorum = await describe_quorum(calls)
    replacement = _replacement(quorum, number)
    if any(voter.node_id == number for voter in quorum.voters):
        await _remove_voter(calls, number, None, replacement.directory_id)
    return await add_voter(calls, number, directory_id=replacement.directory_id)


async def transfer_leadership(calls: AdminCalls, node_id: int | None = None) -> int:
    """Let the leader of the metadata quorum transfer its leadership to a voter, and return the node id of the new leader.

    Args:
        node_id: node id of the voter; None means any voter.

    Raises:
        RefusedError: the voter does not exist, or does not keep up. The old leader still leads.
        OutcomeUnknownError: the answer was lost, or no new leader was known in time.
    """
    request = admin_pb2.TransferLeadershipRequest(node_id=None if node_id is None else _node_id(node_id))
    # A transfer to the current leader changes nothing, so a request that names a voter may be repeated.
    return (
        await calls.ask(
            lambda stub: stub.TransferLeadership,
            request,
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
