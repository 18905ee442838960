# SPDX-License-Identifier: Apache-2.0
"""Changes of the voters: one at a time, by a VotersRecord that counts from its append on.

Owns the leader's checks before a change, its counting during a change, and its resignation when the change removes it; also how a
voter reports its own address to the leader. Laws:

* A change begins only when a record of this epoch is committed and no VotersRecord is uncommitted. So any two sets in use at the same
  time differ by one voter, and their majorities share one.
* A new voter supports the feature level that the change names.
* What a replica fetched before it knew that it is a voter is no promise: it counts from its first fetch above the record that added
  it.

Source: KIP-853; Raft dissertation chapter 4, and its erratum of 2015 (the committed record of the own epoch).
"""

from __future__ import annotations

from metaquorum.raft.calls import PeerCall
from metaquorum.raft.effects import AnswerVoterChange, VotersChange
from metaquorum.raft.events import VoterChangeRequested
from metaquorum.raft.leader import answer_parked, update_high_watermark
from metaquorum.raft.messages import Refusal, UpdateVoterRequest, UpdateVoterResponse
from metaquorum.raft.peers import observe
from metaquorum.raft.roles import Follower, Leader, ReplicaProgress
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import append_as_leader, become_resigned
from metaquorum.raft.types import Offset
from metaquorum.raft.voter_changes import (
    AddVoter,
    ChangeCommitted,
    ChangeOutcome,
    ChangeRefusal,
    ChangeRefused,
    PendingChange,
    RemoveVoter,
    UpdateVoter,
    VoterChange,
)
from metaquorum.raft.voters import Voter, VoterSet, voter_set


def on_change_request(state: RaftState, event: VoterChangeRequested, *, now_ms: int) -> None:
    """Start a change, or refuse it. The answer comes at the commit; a refused change has no effect."""
    outcome = _begin(state, event.token, event.change, now_ms)
    if outcome is not None:
        state.outbox.emit(AnswerVoterChange(token=event.token, outcome=outcome))


def on_update_request(state: RaftState, token: int, request: UpdateVoterRequest, *, now_ms: int) -> None:
    """Handle a voter's report of its address. The voter repeats it until its own log has it, so the answer need not wait."""
    role = state.role
    refusal = None
    if request.cluster_id != state.identity.cluster_id:
        refusal = Refusal.WRONG_CLUSTER
    elif request.quorum_epoch < state.quorum_epoch:
        refusal = Refusal.FENCED_EPOCH
    elif request.quorum_epoch > state.quorum_epoch:
        refusal = Refusal.UNKNOWN_EPOCH
    elif not isinstance(role, Leader):
        refusal = Refusal.NOT_LEADER
    elif not request.address or request.voter == state.key:
        refusal = Refusal.INVALID_REQUEST
    else:
        match _begin(state, None, UpdateVoter(key=request.voter, address=request.address), now_ms):
            case ChangeRefused(reason=ChangeRefusal.VOTER_NOT_FOUND):
                refusal = Refusal.INVALID_VOTER_KEY
            case ChangeRefused():
                refusal = Refusal.UNAVAILABLE
            case _:
                pass
    state.reply(
        token, UpdateVoterResponse(quorum_epoch=state.quorum_epoch, leader_id=state.known_leader_id, refusal=refusal)
    )


def _begin(state: RaftState, token: int | None, change: VoterChange, now_ms: int) -> ChangeOutcome | None:
    """Append the VotersRecord of a change.

    Returns:
        The answer, or None if it comes at the commit.
    """
    role = state.role
    if not isinstance(role, Leader):
        return ChangeRefused(reason=ChangeRefusal.NOT_LEADER)
    refusal = check_ready(state, role)
    if refusal is not None:
        return ChangeRefused(reason=refusal)
    match change:
        case AddVoter():
            voters = _with_added(state, role, change, now_ms)
        case RemoveVoter():
            voters = _with_removed(state, role, change, now_ms)
        case UpdateVoter():  # pragma: no branch -- all kinds are above
            voters = _with_address(state, change)
    if isinstance(voters, ChangeRefusal):
        return ChangeRefused(reason=voters)
    if voters == state.voter_set:
        assert role.high_watermark is not None, "checked by check_ready"
        return ChangeCommitted(next_offset=role.high_watermark)
    _apply(state, role, voters, token, now_ms)
    return None


def check_ready(state: RaftState, role: Leader) -> ChangeRefusal | None:
    """Return why the voters or the leadership may not change now; None if they may."""
    if role.transfer is not None:
        return ChangeRefusal.TRANSFER_PENDING
    if role.high_watermark is None:
        return ChangeRefusal.NOT_READY
    if role.high_watermark <= state.voters.latest_offset or not state.is_voter:
        return ChangeRefusal.CHANGE_PENDING
    return None


def _with_added(state: RaftState, role: Leader, change: AddVoter, now_ms: int) -> VoterSet | ChangeRefusal:
    voters = state.voter_set
    if voters.find(change.key.node_id) is not None:
        return ChangeRefusal.DUPLICATE_VOTER
    if len(voters.voters) >= state.config.max_voters:
        return ChangeRefusal.TOO_MANY_VOTERS
    newcomer = _newcomer(state, role, change, now_ms)
    return newcomer if isinstance(newcomer, ChangeRefusal) else voter_set([*voters.voters, newcomer])


def _newcomer(state: RaftState, role: Leader, change: AddVoter, now_ms: int) -> Voter | ChangeRefusal:
    """Return the observer as a voter, or what it lacks. Its levels are those of its last fetch."""
    progress = role.observers.get(change.key)
    if progress is None or not has_caught_up(state, progress, now_ms):
        return ChangeRefusal.NOT_CAUGHT_UP
    assert progress.levels is not None, "who has caught up has fetched"
    if not progress.levels.has(change.level):
        return ChangeRefusal.LEVEL_NOT_SUPPORTED
    address = change.address or progress.address
    if address is None:
        return ChangeRefusal.NO_ADDRESS
    return Voter(key=change.key, address=address)


def _with_removed(state: RaftState, role: Leader, change: RemoveVoter, now_ms: int) -> VoterSet | ChangeRefusal:
    if not state.voter_set.contains(change.key):
        return ChangeRefusal.VOTER_NOT_FOUND
    remaining = voter_set(state.voter_set.others(change.key))
    if not remaining.voters:
        return ChangeRefusal.LAST_VOTER
    if change.replacement is not None:
        newcomer = _newcomer(state, role, change.replacement, now_ms)
        if isinstance(newcomer, ChangeRefusal):
            return newcomer
    ready_count = sum(
        voter.key == state.key or has_caught_up(state, role.voters[voter.key.node_id], now_ms)
        for voter in remaining.voters
    )
    return remaining if ready_count >= remaining.majority else ChangeRefusal.QUORUM_AT_RISK


def _with_address(state: RaftState, change: UpdateVoter) -> VoterSet | ChangeRefusal:
    if not state.voter_set.contains(change.key):
        return ChangeRefusal.VOTER_NOT_FOUND
    return voter_set([*state.voter_set.others(change.key), Voter(key=change.key, address=change.address)])


def fetches_lately(state: RaftState, progress: ReplicaProgress, now_ms: int) -> bool:
    """Return whether a replica has fetched within `recent_fetch_ms`."""
    return progress.last_fetch_ms is not None and now_ms - progress.last_fetch_ms <= state.config.recent_fetch_ms


def has_caught_up(state: RaftState, progress: ReplicaProgress, now_ms: int) -> bool:
    """Return whether a replica fetches, and had everything within `caught_up_ms_max`."""
    caught_up_ms = progress.last_caught_up_ms
    is_close = caught_up_ms is not None and now_ms - caught_up_ms <= state.config.caught_up_ms_max
    return is_close and fetches_lately(state, progress, now_ms)


def _apply(state: RaftState, role: Leader, voters: VoterSet, token: int | None, now_ms: int) -> None:
    """Append the record, and count by the new set from here on."""
    offset = state.log.log_end_offset
    state.voters.append(offset, voters)
    append_as_leader(state, VotersChange(voters=voters))
    role.change = PendingChange(token=token, next_offset=Offset(offset + 1))
    known = role.voters
    role.voters = {}
    for voter in voters.others(state.key):
        number = voter.key.node_id
        progress = known.pop(number, None)
        if progress is None:
            observed = role.observers.pop(voter.key)
            # Its offsets so far are those of an observer, which need not have flushed.
            observed.end_offset = None
            observed.counts_above = offset
            progress = observed
            role.begin_calls[number] = PeerCall(now_ms)
        progress.address = state.address_for(voter)
        role.voters[number] = progress
    for number in known:
        # A removed voter is an observer from its next fetch on.
        del role.begin_calls[number]
    update_high_watermark(state, role, now_ms=now_ms)
    answer_parked(state, role, now_ms=now_ms)


def poll_membership(state: RaftState, role: Leader, *, now_ms: int) -> None:
    """Answer a committed change; update the own address; resign if the change has removed this node."""
    committed = role.high_watermark
    change = role.change
    if change is not None and committed is not None and committed >= change.next_offset:
        role.change = None
        if change.token is not None:
            state.outbox.emit(
                AnswerVoterChange(token=change.token, outcome=ChangeCommitted(next_offset=change.next_offset))
            )
    if _has_to_leave(state, role):
        become_resigned(state, role, now_ms=now_ms)
    elif _has_moved(state) and check_ready(state, role) is None:
        assert state.identity.address is not None, "a node that has moved has an address"
        outcome = _begin(state, None, UpdateVoter(key=state.key, address=state.identity.address), now_ms)
        assert outcome is None, f"own address: {outcome}"


def membership_deadline_ms(state: RaftState, role: Leader) -> int | None:
    """Return a past time, so an immediate deadline, once the removed leader has delivered the record of its removal; else None."""
    return role.started_ms if _has_to_leave(state, role) else None


def _has_to_leave(state: RaftState, role: Leader) -> bool:
    """Return whether the record that removed this leader is committed and delivered, so that its users know."""
    return role.change is None and not state.is_voter and state.commit_offset > state.voters.latest_offset


def _has_moved(state: RaftState) -> bool:
    """Return whether this voter's quorum listener has another address than the set says."""
    voter = state.own_voter
    return voter is not None and state.identity.address not in (None, voter.address)


def poll_own_address(state: RaftState, role: Follower, *, now_ms: int) -> None:
    """Report this voter's address to the leader while the set in the log has another one."""
    call = role.update_call
    call.poll(now_ms=now_ms, config=state.config)
    if role.has_fetched and _has_moved(state) and call.is_ready(now_ms):
        assert state.identity.address is not None, "a node that has moved has an address"
        request = UpdateVoterRequest(
            cluster_id=state.identity.cluster_id,
            quorum_epoch=state.quorum_epoch,
            voter=state.key,
            address=state.identity.address,
        )
        state.send(call, role.leader_address, request, now_ms=now_ms)


def own_address_deadline_ms(state: RaftState, role: Follower) -> int | None:
    """Return when a follower must report its address again, in milliseconds; None if the set has it."""
    return role.update_call.deadline_ms if role.has_fetched and _has_moved(state) else None


def on_update_response(state: RaftState, request_id: int, response: UpdateVoterResponse, *, now_ms: int) -> None:
    """Note that the leader got the address, or could not handle it now."""
    observe(state, response.quorum_epoch, response.leader_id, None, now_ms=now_ms)
    role = state.role
    if isinstance(role, Follower) and role.update_call.awaits(request_id):
        role.update_call.succeed(ready_at_ms=now_ms + state.config.update_voter_every_ms)


def on_update_failure(state: RaftState, request_id: int, *, now_ms: int) -> bool:
    """Note that the report did not reach the leader.

    Returns:
        Whether the request is the one of this role.
    """
    role = state.role
    if not isinstance(role, Follower) or not role.update_call.awaits(request_id):
        return False
    role.update_call.fail(request_id, now_ms=now_ms, config=state.config)
    return True
