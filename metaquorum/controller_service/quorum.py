# SPDX-License-Identifier: Apache-2.0
"""The metadata quorum in AdminService: its state, changes of its voters, and leadership transfer.

Owns the translation: which replica a request means (a node id, with or without a directory id), and the error code of each outcome of
the core. Decides nothing else. Law: only OUTCOME_UNKNOWN leaves open whether a change took effect.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS, CommandError
from metaquorum.controller_service.operation import Member
from metaquorum.raft.types import NodeId, ReplicaKey
from metaquorum.raft.voter_changes import (
    AddVoter,
    ChangeCommitted,
    ChangeRefusal,
    ChangeRefused,
    ChangeUnknown,
    RemoveVoter,
    TransferResigned,
    TransferTimedOut,
    VoterChange,
)
from metaquorum.replica.driver import StoppedError
from metaquorum.replica.quorum_node import QuorumNode, ReplicaStatus

DIRECTORY_ID_BYTES: Final = 16

_REFUSALS: Final[Mapping[ChangeRefusal, tuple[ErrorCode, str]]] = {
    ChangeRefusal.NOT_LEADER: (ErrorCode.NOT_CONTROLLER, "this node does not lead the quorum"),
    ChangeRefusal.NOT_READY: (ErrorCode.QUORUM_UNAVAILABLE, "the new leader has committed nothing yet; try again"),
    ChangeRefusal.CHANGE_PENDING: (
        ErrorCode.OVERLOADED,
        "another change of the voters is not committed yet; try again",
    ),
    ChangeRefusal.TRANSFER_PENDING: (ErrorCode.OVERLOADED, "the leadership is being handed over; try again"),
    ChangeRefusal.DUPLICATE_VOTER: (
        ErrorCode.INVALID_REQUEST,
        "a voter has this node id already; when its disk was lost, remove it first, or use replace-voter",
    ),
    ChangeRefusal.TOO_MANY_VOTERS: (ErrorCode.LIMIT_EXCEEDED, "the quorum has as many voters as it may have"),
    ChangeRefusal.NOT_CAUGHT_UP: (
        ErrorCode.INVALID_REQUEST,
        "no observer of this node id fetches and has caught up; start it, and look with `lograft quorum describe`",
    ),
    ChangeRefusal.NO_ADDRESS: (ErrorCode.INVALID_REQUEST, "it has no quorum listener, as a broker has none"),
    ChangeRefusal.LEVEL_NOT_SUPPORTED: (
        ErrorCode.INVALID_REQUEST,
        "it cannot run at the feature level of the cluster; install a version on it that can, and try again",
    ),
    ChangeRefusal.VOTER_NOT_FOUND: (ErrorCode.INVALID_REQUEST, "there is no such voter"),
    ChangeRefusal.LAST_VOTER: (ErrorCode.INVALID_REQUEST, "the last voter cannot be removed"),
    ChangeRefusal.QUORUM_AT_RISK: (
        ErrorCode.INVALID_REQUEST,
        "of the remaining voters no majority fetches and has caught up: the quorum would be lost",
    ),
    ChangeRefusal.ALREADY_LEADER: (ErrorCode.INVALID_REQUEST, "it leads already"),
    ChangeRefusal.NO_SUCCESSOR: (ErrorCode.INVALID_REQUEST, "no voter to hand over to has fetched lately"),
}


async def describe(
    _request: admin_pb2.DescribeQuorumRequest, member: Member, _timeout_ms: int
) -> admin_pb2.DescribeQuorumResponse:
    """Return the state of the quorum as its leader sees it, with the start of the log and the newest snapshot."""
    node = member.node
    status = node.status()
    snapshot = max(node.kept_snapshots, key=lambda each: each.end_offset, default=None)
    return admin_pb2.DescribeQuorumResponse(
        cluster_id=node.cluster_id,
        leader_id=status.leader.leader_id,
        quorum_epoch=status.leader.quorum_epoch,
        high_watermark=status.high_watermark,
        voters=[_replica(voter, leads=voter.node_id == status.leader.leader_id) for voter in status.voters],
        observers=[_replica(observer, leads=False) for observer in status.observers],
        log_start_offset=node.log_start_offset,
        latest_snapshot=None
        if snapshot is None
        else admin_pb2.MetadataSnapshot(end_offset=snapshot.end_offset, quorum_epoch=snapshot.epoch),
    )


async def add_voter(request: admin_pb2.AddVoterRequest, member: Member, timeout_ms: int) -> admin_pb2.AddVoterResponse:
    """Turn an observer into a voter and wait for the commit.

    Raises:
        CommandError: refused, or not known to be committed in time.
    """
    node = member.node
    # Feature level of the cluster, uncommitted changes included. Nothing is awaited between this line and the change.
    level = member.host.appended_level()
    status = node.status()
    if not request.directory_id and any(voter.node_id == request.node_id for voter in status.voters):
        raise _refused(node, ChangeRefusal.DUPLICATE_VOTER)
    key = _resolve(node, request.node_id, request.directory_id, status.observers, ChangeRefusal.NOT_CAUGHT_UP)
    offset = await _change(node, AddVoter(key=key, level=level), timeout_ms)
    return admin_pb2.AddVoterResponse(metadata_offset=offset, directory_id=key.directory_id)


async def remove_voter(
    request: admin_pb2.RemoveVoterRequest, member: Member, timeout_ms: int
) -> admin_pb2.RemoveVoterResponse:
    """Turn a voter into an observer and wait for the commit.

    Raises:
        CommandError: refused, or not known to be committed in time.
    """
    node = member.node
    # As in `add_voter`.
    level = member.host.appended_level()
    voters = node.status().voters
    key = _resolve(node, request.node_id, request.directory_id, voters, ChangeRefusal.VOTER_NOT_FOUND)
    replacement = None
    if request.replacement_directory_id:
        new = _resolve(node, request.node_id, request.replacement_directory_id, (), ChangeRefusal.NOT_CAUGHT_UP)
        replacement = AddVoter(key=new, level=level)
    offset = await _change(node, RemoveVoter(key=key, replacement=replacement), timeout_ms)
    return admin_pb2.RemoveVoterResponse(metadata_offset=offset, directory_id=key.directory_id)


async def transfer_leadership(
    request: admin_pb2.TransferLeadershipRequest, member: Member, timeout_ms: int
) -> admin_pb2.TransferLeadershipResponse:
    """Hand over the leadership and wait for the next leader. Returns at once if the requested node leads already.

    Raises:
        CommandError: refused, failed, or no leader known in time.
    """
    node = member.node
    to = request.node_id if request.HasField("node_id") else None
    try:
        outcome = await node.transfer_leadership(to)
        match outcome:
            case TransferResigned(quorum_epoch=epoch):
                async with asyncio.timeout(timeout_ms / 1000):
                    leader = await node.next_leader(above_epoch=epoch)
            case ChangeRefused(reason=ChangeRefusal.ALREADY_LEADER):
                leader = node.leader()
            case ChangeRefused(reason=reason):
                raise _refused(node, reason)
            case TransferTimedOut():
                raise CommandError(
                    ErrorCode.INVALID_REQUEST,
                    f"no voter to hand over to had everything in time: node {node.node_id} leads on; try again"
                    " when it has caught up",
                )
    except TimeoutError:
        raise _unknown(f"node {node.node_id} has resigned, and the next leader is not known yet") from None
    except StoppedError as error:
        raise CommandError(ErrorCode.SHUTTING_DOWN, f"{error}; ask another node") from error
    if leader.leader_id is None:
        raise _unknown(f"node {node.node_id} has resigned and is stopping")
    return admin_pb2.TransferLeadershipResponse(leader_id=leader.leader_id, quorum_epoch=leader.quorum_epoch)


def _replica(replica: ReplicaStatus, *, leads: bool) -> admin_pb2.QuorumReplica:
    return admin_pb2.QuorumReplica(
        node_id=replica.node_id,
        directory_id=replica.directory_id,
        address=replica.address or "",
        log_end_offset=replica.log_end_offset,
        last_fetch_age_ms=None if leads else replica.last_fetch_age_ms,
        last_caught_up_age_ms=replica.last_caught_up_age_ms,
    )


def _resolve(
    node: QuorumNode, node_id: int, directory_id: bytes, known: Sequence[ReplicaStatus], missing: ChangeRefusal
) -> ReplicaKey:
    """Return the key of the replica that a request means."""
    if directory_id:
        if len(directory_id) != DIRECTORY_ID_BYTES:
            raise CommandError(ErrorCode.INVALID_REQUEST, f"a directory id has 16 bytes, not {len(directory_id)}")
        return ReplicaKey(node_id=NodeId(node_id), directory_id=directory_id)
    found = [replica for replica in known if replica.node_id == node_id]
    if not found:
        raise _refused(node, missing)
    # An observer whose disk was lost stays known for a while: the request means the one that fetched last.
    ages_ms = [sys.maxsize if replica.last_fetch_age_ms is None else replica.last_fetch_age_ms for replica in found]
    return ReplicaKey(node_id=NodeId(node_id), directory_id=found[ages_ms.index(min(ages_ms))].directory_id)


async def _change(node: QuorumNode, change: VoterChange, timeout_ms: int) -> int:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            outcome = await node.change_voters(change)
    except TimeoutError:
        raise _unknown(f"the change was not committed within {timeout_ms} ms") from None
    except StoppedError as error:
        raise CommandError(ErrorCode.SHUTTING_DOWN, f"{error}; ask another node") from error
    match outcome:
        case ChangeCommitted(next_offset=next_offset):
            return next_offset
        case ChangeRefused(reason=reason):
            raise _refused(node, reason)
        case ChangeUnknown():
            raise _unknown("the leadership ended before the change was committed")


def _unknown(what: str) -> CommandError:
    return CommandError(ErrorCode.OUTCOME_UNKNOWN, f"{what}; look with `lograft quorum describe` before you repeat it")


def _refused(node: QuorumNode, reason: ChangeRefusal) -> CommandError:
    code, text = _REFUSALS[reason]
    return CommandError(
        code,
        f"{reason.name}: {text}",
        leader=node.leader() if code is ErrorCode.NOT_CONTROLLER else None,
        retry_after_ms=RETRY_AFTER_MS if code.retriable else None,
    )
