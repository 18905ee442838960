# SPDX-License-Identifier: Apache-2.0
"""Resigned: a former leader informs its voters; also the orderly shutdown.

Owns the behaviour of Resigned, and the end of a shutdown.
Law: this node appends, serves and votes for nothing in the epoch that it led.
Source: KIP-595 "EndQuorumEpoch", "Resigned state".
"""

from __future__ import annotations

from metaquorum.raft.effects import FinishShutdown, Violation
from metaquorum.raft.election import EPOCHS_USED_UP
from metaquorum.raft.events import Failure
from metaquorum.raft.messages import EndQuorumEpochRequest, EndQuorumEpochResponse
from metaquorum.raft.peers import observe
from metaquorum.raft.roles import EndCall, Follower, Leader, Resigned
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import become_resigned, become_unattached
from metaquorum.raft.types import MAX_QUORUM_EPOCH, QuorumEpoch


def poll_resigned(state: RaftState, role: Resigned, *, now_ms: int) -> None:
    """Inform the voters. After the election timeout, move to the next epoch, in which this node may act again."""
    is_over = now_ms >= role.election_deadline_ms or state.voter_set.is_only(state.key)
    if is_over and state.quorum_epoch >= MAX_QUORUM_EPOCH:
        if now_ms >= role.election_deadline_ms:
            state.report(Violation.EPOCHS_USED_UP, EPOCHS_USED_UP)
            role.election_deadline_ms = now_ms + state.draw_election_timeout_ms()
    elif is_over and state.shutdown_deadline_ms is None:
        become_unattached(state, QuorumEpoch(state.quorum_epoch + 1), now_ms=now_ms)
        return
    for end in role.end_calls.values():
        end.call.poll(now_ms=now_ms, config=state.config)
        if not end.is_done and end.call.is_ready(now_ms):
            request = EndQuorumEpochRequest(
                cluster_id=state.identity.cluster_id,
                quorum_epoch=state.quorum_epoch,
                leader_id=state.key.node_id,
                preferred_successors=role.successors,
            )
            state.send(end.call, state.address_for(end.voter), request, now_ms=now_ms)


def resigned_deadline_ms(state: RaftState, role: Resigned) -> int | None:
    """Return when a resigned leader must act without an event, in milliseconds; None for never."""
    due = [end.call.deadline_ms for end in role.end_calls.values() if not end.is_done]
    if state.shutdown_deadline_ms is None:
        due.append(role.election_deadline_ms)
    return min(due, default=None)


def on_end_response(state: RaftState, request_id: int, response: EndQuorumEpochResponse, *, now_ms: int) -> None:
    """Note that a voter knows of the end of the epoch, or knows a newer one."""
    observe(state, response.quorum_epoch, response.leader_id, None, now_ms=now_ms)
    end = _find(state, request_id)
    if end is not None:
        end.call.succeed(ready_at_ms=now_ms)
        end.is_done = True


def on_end_failure(state: RaftState, request_id: int, failure: Failure, *, now_ms: int) -> bool:
    """Note that a message did not reach a voter.

    Returns:
        Whether the request is one of this role.
    """
    end = _find(state, request_id)
    if end is None:
        return False
    end.is_gone = failure is Failure.REFUSED
    end.call.fail(request_id, now_ms=now_ms, config=state.config)
    return True


def _find(state: RaftState, request_id: int) -> EndCall | None:
    if isinstance(state.role, Resigned):
        for end in state.role.end_calls.values():
            if end.call.awaits(request_id):
                return end
    return None


def request_shutdown(state: RaftState, *, now_ms: int) -> None:
    """Start a shutdown: a leader resigns and waits for a successor, other nodes may stop at once. Idempotent."""
    if state.shutdown_deadline_ms is None:
        state.shutdown_deadline_ms = now_ms
        if isinstance(state.role, Leader):
            state.shutdown_deadline_ms = now_ms + state.config.shutdown_grace_ms
            become_resigned(state, state.role, now_ms=now_ms)


def is_shutdown_done(state: RaftState, *, now_ms: int) -> bool:
    """Return whether a stopping node has nothing left to do for the others.

    A resigned leader stays until it hears of a successor, to give it its vote. It does not wait for voters that are gone.
    """
    assert state.shutdown_deadline_ms is not None, "no shutdown was asked for"
    if now_ms >= state.shutdown_deadline_ms:
        return True
    match state.role:
        case Resigned(end_calls=end_calls):
            return all(end.is_gone for end in end_calls.values())
        case role:
            return isinstance(role, Follower)


def finish_shutdown(state: RaftState) -> None:
    """Tell the shell that it may stop."""
    state.outbox.emit(FinishShutdown())
