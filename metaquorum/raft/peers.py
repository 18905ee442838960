# SPDX-License-Identifier: Apache-2.0
"""Common checks of all requests and responses, and what they teach about epoch and leader.

Owns the rules for all roles: cluster, voter key, higher epoch, "one leader per epoch", and which epochs are believed. Bytes of a peer
are never asserted on: a peer that breaks the rules is refused or ignored, and reported.
Source: KIP-595 "Epoch and leader validation", KIP-853 (voter key).
"""

from __future__ import annotations

from metaquorum.raft.calls import PeerCall
from metaquorum.raft.effects import Violation
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    Request,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Candidate, Follower, Prospective, Unattached
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import become_follower, become_unattached
from metaquorum.raft.types import (
    MAX_EPOCH_LEAP,
    MAX_QUORUM_EPOCH,
    NO_EPOCH,
    ElectionState,
    NodeId,
    QuorumEpoch,
    ReplicaKey,
)


def is_plausible(state: RaftState, epoch: QuorumEpoch) -> bool:
    """Return False for an epoch that no peer can have reached. A replica without an epoch believes all that leave room for more."""
    own = state.quorum_epoch
    if own == NO_EPOCH:
        return epoch <= MAX_QUORUM_EPOCH - MAX_EPOCH_LEAP
    return epoch <= own + MAX_EPOCH_LEAP


def refuse_implausible(state: RaftState, token: int, request: Request) -> None:
    """Refuse a request whose epoch is not believed, and report it. The node learns nothing from it."""
    state.report(
        Violation.ABSURD_REQUEST,
        f"{type(request).__name__} of epoch {request.quorum_epoch}, and this node is in {state.quorum_epoch}: not believed, refused",
    )
    own, leader_id, refusal = state.quorum_epoch, state.known_leader_id, Refusal.INVALID_REQUEST
    match request:
        case VoteRequest() | PreVoteRequest():
            state.reply(token, VoteResponse(quorum_epoch=own, leader_id=leader_id, granted=False, refusal=refusal))
        case BeginQuorumEpochRequest():
            state.reply(token, BeginQuorumEpochResponse(quorum_epoch=own, leader_id=leader_id, refusal=refusal))
        case EndQuorumEpochRequest():
            state.reply(token, EndQuorumEpochResponse(quorum_epoch=own, leader_id=leader_id, refusal=refusal))
        case FetchRequest():
            address = state.leader_address()
            state.reply(
                token, FetchResponse(quorum_epoch=own, leader_id=leader_id, leader_address=address, refusal=refusal)
            )
        case UpdateVoterRequest():  # pragma: no branch -- all kinds are above
            state.reply(token, UpdateVoterResponse(quorum_epoch=own, leader_id=leader_id, refusal=refusal))


def check_voter_request(
    state: RaftState, *, cluster_id: str, quorum_epoch: QuorumEpoch, voter: ReplicaKey
) -> Refusal | None:
    """Check a request to one voter: the cluster, exactly this replica, an epoch that is not old."""
    if cluster_id != state.identity.cluster_id:
        return Refusal.WRONG_CLUSTER
    if voter != state.key:
        return Refusal.INVALID_VOTER_KEY
    if quorum_epoch < state.quorum_epoch:
        return Refusal.FENCED_EPOCH
    return None


def observe(
    state: RaftState, epoch: QuorumEpoch, leader_id: NodeId | None, address: str | None, *, now_ms: int
) -> None:
    """Learn the epoch and the leader that a peer knows. Older knowledge is ignored.

    A peer may name this node as leader because its earlier replica, on a disk since wiped, was the leader; such a name is ignored.
    """
    if leader_id == state.key.node_id:
        leader_id = None
    said = address
    if leader_id is not None and address is None:
        address = state.address_of(leader_id)
    if epoch > state.quorum_epoch:
        if leader_id is not None and address is not None:
            become_follower(state, epoch, leader_id=leader_id, leader_address=address, now_ms=now_ms)
        else:
            become_unattached(state, epoch, leader_id=leader_id, now_ms=now_ms)
    elif epoch == state.quorum_epoch and leader_id is not None:
        _observe_leader(state, leader_id, address, now_ms, said=said)


def _observe_leader(state: RaftState, leader_id: NodeId, address: str | None, now_ms: int, *, said: str | None) -> None:
    known_id = state.election.leader_id
    if known_id is not None and known_id != leader_id:
        text = f"two leaders of epoch {state.quorum_epoch}: {known_id}, and {leader_id} by word of a peer"
        state.report(Violation.TWO_LEADERS, text)
        return
    if not isinstance(state.role, Unattached | Prospective | Candidate):
        return
    if isinstance(state.role, Prospective) and known_id is not None:
        # It asks for pre-votes because that leader is silent, so its name is not new. Its address may be: this voter may have an old
        # voter set, and the leader may not know this voter. A round without a winner falls back to that address.
        state.role.leader_address = said or state.role.leader_address
        return
    if address is not None:
        become_follower(state, state.quorum_epoch, leader_id=leader_id, leader_address=address, now_ms=now_ms)
    elif known_id is None and isinstance(state.role, Unattached):
        state.set_election(
            ElectionState(quorum_epoch=state.quorum_epoch, leader_id=leader_id, voted_key=state.election.voted_key)
        )


def leader_is_gone(state: RaftState, *, now_ms: int) -> None:
    """Note that the leader refused or resigned: a follower waits only a little longer for it."""
    role = state.role
    if isinstance(role, Follower) and not role.is_leader_gone:
        role.is_leader_gone = True
        role.fetch_deadline_ms = min(role.fetch_deadline_ms, now_ms + state.draw_leader_gone_ms())


def on_begin_quorum_epoch(state: RaftState, token: int, request: BeginQuorumEpochRequest, *, now_ms: int) -> None:
    """Handle a leader's announcement."""
    refusal = check_voter_request(
        state, cluster_id=request.cluster_id, quorum_epoch=request.quorum_epoch, voter=request.voter
    )
    if refusal is None and request.leader_id == state.key.node_id:
        refusal = Refusal.INVALID_REQUEST
    if refusal is None:
        observe(state, request.quorum_epoch, request.leader_id, request.leader_address, now_ms=now_ms)
        if state.election.leader_id != request.leader_id:
            refusal = Refusal.INVALID_REQUEST
        else:
            _take_address(state, request.leader_address, now_ms)
    state.reply(
        token,
        BeginQuorumEpochResponse(quorum_epoch=state.quorum_epoch, leader_id=state.known_leader_id, refusal=refusal),
    )


def _take_address(state: RaftState, address: str, now_ms: int) -> None:
    """Take the address that the leader itself names. It is better than the voter set's, because the leader may have moved since.

    A voter that lacks the new set could not fetch it from the old address.
    """
    role = state.role
    if isinstance(role, Follower | Prospective) and role.leader_address != address:
        role.leader_address = address
        if isinstance(role, Follower):
            # The request under way went to the old address; an answer from there no longer counts.
            role.fetch = PeerCall(now_ms)
