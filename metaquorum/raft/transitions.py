# SPDX-License-Identifier: Apache-2.0
"""Changes of role: the table of legal ones, and one function for each target role.

Owns the table, and what every change must do (leave the old role cleanly, record the election state, set the timers). Does not decide
when to change. A change that the table lacks is a programming error and stops the process: a node in an illegal state may give a vote
twice.
Source: KIP-595 "State machine", KIP-996; `docs/quorum.md` has the table.
"""

from __future__ import annotations

from enum import Enum, unique

from metaquorum.raft.calls import PeerCall
from metaquorum.raft.effects import (
    Activate,
    AnswerTransfer,
    AnswerVoterChange,
    AppendAsLeader,
    Deactivate,
    LeaderChange,
    Rejection,
    RejectRead,
    VotersChange,
)
from metaquorum.raft.messages import FetchResponse, Refusal
from metaquorum.raft.roles import (
    Candidate,
    EndCall,
    Follower,
    Leader,
    Prospective,
    ReplicaProgress,
    Resigned,
    Role,
    Unattached,
    VoteCall,
)
from metaquorum.raft.state import RaftState
from metaquorum.raft.types import ElectionState, NodeId, Offset, QuorumEpoch, ReplicaKey
from metaquorum.raft.voter_changes import ChangeRefusal, ChangeRefused, ChangeUnknown


@unique
class EpochRule(Enum):
    """What a change of role does to the epoch."""

    SAME = "same epoch"
    HIGHER = "higher epoch"
    ANY = "same or higher epoch"


LEGAL_TRANSITIONS: dict[tuple[type[Role], type[Role]], EpochRule] = {
    (Unattached, Unattached): EpochRule.HIGHER,
    (Unattached, Prospective): EpochRule.SAME,
    (Unattached, Follower): EpochRule.ANY,
    (Prospective, Unattached): EpochRule.ANY,
    (Prospective, Candidate): EpochRule.HIGHER,
    (Prospective, Follower): EpochRule.ANY,
    (Candidate, Unattached): EpochRule.HIGHER,
    (Candidate, Prospective): EpochRule.SAME,
    (Candidate, Leader): EpochRule.SAME,
    (Candidate, Follower): EpochRule.ANY,
    (Leader, Unattached): EpochRule.HIGHER,
    (Leader, Resigned): EpochRule.SAME,
    (Leader, Follower): EpochRule.HIGHER,
    (Resigned, Unattached): EpochRule.HIGHER,
    (Resigned, Follower): EpochRule.HIGHER,
    # Same epoch: an observer that lost its leader looks for one again; a voter starts an election instead.
    (Follower, Unattached): EpochRule.ANY,
    (Follower, Prospective): EpochRule.SAME,
    (Follower, Follower): EpochRule.HIGHER,
}
"""Legal changes of role. All others are forbidden."""


def is_legal(old: type[Role], new: type[Role], *, old_epoch: QuorumEpoch, new_epoch: QuorumEpoch) -> bool:
    """Return whether the table has this change."""
    match LEGAL_TRANSITIONS.get((old, new)):
        case EpochRule.SAME:
            return new_epoch == old_epoch
        case EpochRule.HIGHER:
            return new_epoch > old_epoch
        case EpochRule.ANY:
            return new_epoch >= old_epoch
        case None:  # pragma: no branch -- every rule is above
            return False


def become_unattached(state: RaftState, epoch: QuorumEpoch, *, now_ms: int, leader_id: NodeId | None = None) -> None:
    """Become unattached: know the epoch, but no leader to fetch from. `leader_id` may be known without an address."""
    election = state.election
    if epoch > election.quorum_epoch:
        election = ElectionState(quorum_epoch=epoch, leader_id=leader_id, voted_key=None)
    _change(state, election, unattached_role(state, now_ms))


def unattached_role(state: RaftState, now_ms: int) -> Unattached:
    """Return the role data of a node that becomes unattached."""
    may_campaign = state.may_campaign and state.shutdown_deadline_ms is None
    deadline_ms = now_ms + state.draw_election_timeout_ms() if may_campaign else None
    peer_count = len(state.peer_addresses())
    first_peer = state.rng.randrange(0, peer_count) if peer_count else 0
    return Unattached(election_deadline_ms=deadline_ms, fetch=PeerCall(now_ms), next_peer=first_peer)


def become_follower(
    state: RaftState, epoch: QuorumEpoch, *, leader_id: NodeId, leader_address: str, now_ms: int
) -> None:
    """Fetch from this leader from now on. The vote of the epoch, if given, stays."""
    voted_key = state.election.voted_key if epoch == state.quorum_epoch else None
    election = ElectionState(quorum_epoch=epoch, leader_id=leader_id, voted_key=voted_key)
    _change(state, election, follower_role(state, leader_id, leader_address, now_ms))


def follower_role(state: RaftState, leader_id: NodeId, leader_address: str, now_ms: int) -> Follower:
    """Return the role data of a node that becomes a follower."""
    return Follower(
        leader_id=leader_id,
        leader_address=leader_address,
        fetch_deadline_ms=now_ms + state.config.fetch_timeout_ms,
        fetch=PeerCall(now_ms),
    )


def become_prospective(state: RaftState, *, now_ms: int) -> None:
    """Ask for pre-votes before an election. Nothing durable changes; the vote of the epoch, if given, stays."""
    assert state.may_campaign, f"observer {state.key} would start an election"
    role = Prospective(
        election_deadline_ms=now_ms + state.draw_election_timeout_ms(),
        leader_address=state.leader_address(),
        votes=_open_votes(state, now_ms),
    )
    _change(state, state.election, role)


def become_candidate(state: RaftState, *, now_ms: int) -> None:
    """Open the next epoch and vote for itself. Source: Raft section 5.2."""
    election = ElectionState(quorum_epoch=QuorumEpoch(state.quorum_epoch + 1), leader_id=None, voted_key=state.key)
    _change(state, election, candidate_role(state, now_ms))


def candidate_role(state: RaftState, now_ms: int) -> Candidate:
    """Return the role data of a node that becomes a candidate."""
    return Candidate(election_deadline_ms=now_ms + state.draw_election_timeout_ms(), votes=_open_votes(state, now_ms))


def become_leader(state: RaftState, candidate: Candidate, *, now_ms: int) -> None:
    """Lead the epoch. Its first record says so; the first leader of all also records the voters.

    Nothing was appended in this epoch before, not even by an earlier process of this node: the leadership is on disk first, and a
    node that finds itself as leader on disk never leads that epoch again. So (offset, epoch) names one record for ever.
    """
    assert state.outbox.is_persisted, "leadership must be on disk before the first record"
    assert state.election.leader_id == state.key.node_id, f"not elected: {state.election}"
    others = state.voter_set.others(state.key)
    role = Leader(
        started_ms=now_ms,
        epoch_start_offset=state.log.log_end_offset,
        voters={v.key.node_id: ReplicaProgress(key=v.key, address=state.address_for(v)) for v in others},
        begin_calls={v.key.node_id: PeerCall(now_ms) for v in others},
    )
    granting = [vote.voter.key.node_id for vote in candidate.votes.values() if vote.granted]
    _change(state, state.election, role)
    append_as_leader(
        state,
        LeaderChange(leader_id=state.key.node_id, granting_voters=tuple(sorted([*granting, state.key.node_id]))),
    )
    if not state.voters.is_in_log:
        voters = state.voter_set
        state.voters.append(state.log.log_end_offset, voters)
        append_as_leader(state, VotersChange(voters=voters))


def append_as_leader(state: RaftState, content: LeaderChange | VotersChange) -> None:
    """Append one control record in the current epoch. It is sent to voters at once."""
    base_offset = state.log.log_end_offset
    next_offset = Offset(base_offset + 1)
    state.log.append(epoch=state.quorum_epoch, next_offset=next_offset)
    state.outbox.emit(
        AppendAsLeader(
            base_offset=base_offset, next_offset=next_offset, quorum_epoch=state.quorum_epoch, content=content
        )
    )
    assert isinstance(state.role, Leader), "only a leader appends"
    state.role.round_end_offset = next_offset


def activate(state: RaftState, leader: Leader) -> None:
    """Tell the users to start: a record of this epoch is committed, so everything before the epoch is, too."""
    leader.is_active = True
    start_offset = Offset(leader.epoch_start_offset + 1)
    state.outbox.emit(Activate(quorum_epoch=state.quorum_epoch, start_offset=start_offset))


def become_resigned(state: RaftState, leader: Leader, *, now_ms: int, first: ReplicaKey | None = None) -> None:
    """Stop leading, stay in the epoch, and name the successors: `first` if given, then the most complete log first."""
    ranked = sorted(leader.voters.values(), key=lambda p: (p.key != first, -(p.end_offset or 0), p.key.node_id))
    calls = {v.key.node_id: EndCall(voter=v, call=PeerCall(now_ms)) for v in state.voter_set.others(state.key)}
    role = Resigned(
        election_deadline_ms=now_ms + state.draw_election_timeout_ms(),
        successors=tuple(progress.key for progress in ranked),
        end_calls=calls,
    )
    _change(state, state.election, role)


def resigned_role(state: RaftState, now_ms: int) -> Resigned:
    """Return the role data of a node that finds itself as leader on disk. It names no successors, because it knows no progress."""
    successors: tuple[ReplicaKey, ...] = ()
    calls = {v.key.node_id: EndCall(voter=v, call=PeerCall(now_ms)) for v in state.voter_set.others(state.key)}
    return Resigned(
        election_deadline_ms=now_ms + state.draw_election_timeout_ms(), successors=successors, end_calls=calls
    )


def _open_votes(state: RaftState, now_ms: int) -> dict[NodeId, VoteCall]:
    return {v.key.node_id: VoteCall(voter=v, call=PeerCall(now_ms)) for v in state.voter_set.others(state.key)}


def _change(state: RaftState, election: ElectionState, role: Role) -> None:
    old = state.role
    assert is_legal(type(old), type(role), old_epoch=state.quorum_epoch, new_epoch=election.quorum_epoch), (
        f"{type(old).__name__} of epoch {state.quorum_epoch} to {type(role).__name__} of {election.quorum_epoch}"
    )
    old_epoch = state.quorum_epoch
    state.set_election(election)
    state.role = role
    if isinstance(old, Leader):
        _leave_leadership(state, old, old_epoch)


def _leave_leadership(state: RaftState, leader: Leader, old_epoch: QuorumEpoch) -> None:
    """Answer delayed requests and tell the users. `state` already has the new role."""
    for fetch in leader.parked:
        state.reply(
            fetch.token,
            FetchResponse(
                quorum_epoch=state.quorum_epoch,
                leader_id=state.known_leader_id,
                leader_address=state.leader_address(),
                refusal=Refusal.NOT_LEADER,
            ),
        )
    for read in leader.reads:
        state.outbox.emit(RejectRead(read_id=read.read_id, reason=Rejection.NOT_LEADER))
    if leader.change is not None and leader.change.token is not None:
        state.outbox.emit(AnswerVoterChange(token=leader.change.token, outcome=ChangeUnknown()))
    if leader.transfer is not None:
        refused = ChangeRefused(reason=ChangeRefusal.NOT_LEADER)
        state.outbox.emit(AnswerTransfer(token=leader.transfer.token, outcome=refused))
    if leader.is_active:
        # What this step committed belongs to this leadership: callers that wait for it must learn of it.
        state.deliver()
        state.outbox.emit(Deactivate(quorum_epoch=old_epoch))
