# SPDX-License-Identifier: Apache-2.0
"""Leadership transfer: stop accepting proposals, wait until a successor has everything, resign in its favour.

Owns the wait and its limit. Law: the leader resigns only for a voter that has all of its log on disk. After `transfer_timeout_ms` it
continues to lead.
Source: Raft dissertation 3.10; KIP-595 "EndQuorumEpoch" (preferred successors).
"""

from __future__ import annotations

from metaquorum.raft.effects import AnswerTransfer
from metaquorum.raft.events import TransferRequested
from metaquorum.raft.membership import check_ready, fetches_lately
from metaquorum.raft.roles import Leader, ReplicaProgress
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import become_resigned
from metaquorum.raft.voter_changes import (
    ChangeRefusal,
    ChangeRefused,
    PendingTransfer,
    TransferResigned,
    TransferTimedOut,
)


def on_transfer_request(state: RaftState, event: TransferRequested, *, now_ms: int) -> None:
    """Start a transfer, or refuse it."""
    role = state.role
    refusal = _check(state, role, event, now_ms) if isinstance(role, Leader) else ChangeRefusal.NOT_LEADER
    if refusal is not None or not isinstance(role, Leader):
        reason = refusal or ChangeRefusal.NOT_LEADER
        state.outbox.emit(AnswerTransfer(token=event.token, outcome=ChangeRefused(reason=reason)))
        return
    role.transfer = PendingTransfer(
        token=event.token,
        to=event.to,
        started_ms=now_ms,
        deadline_ms=now_ms + state.config.transfer_timeout_ms,
    )


def _check(state: RaftState, role: Leader, event: TransferRequested, now_ms: int) -> ChangeRefusal | None:
    refusal = check_ready(state, role)
    if refusal is not None:
        return refusal
    if event.to == state.key.node_id:
        return ChangeRefusal.ALREADY_LEADER
    if event.to is not None and event.to not in role.voters:
        return ChangeRefusal.VOTER_NOT_FOUND
    if not any(fetches_lately(state, progress, now_ms) for progress in _candidates(role, event.to)):
        return ChangeRefusal.NO_SUCCESSOR
    return None


def _candidates(role: Leader, to: int | None) -> list[ReplicaProgress]:
    """Return the possible successors, ascending by node id."""
    return [role.voters[node_id] for node_id in sorted(role.voters) if to in (None, node_id)]


def poll_transfer(state: RaftState, role: Leader, *, now_ms: int) -> None:
    """Resign once a successor has everything; continue to lead when that takes too long."""
    transfer = role.transfer
    if transfer is None:
        return
    successor = _successor(state, role, transfer)
    if successor is not None:
        role.transfer = None
        outcome = TransferResigned(quorum_epoch=state.quorum_epoch, successor=successor.key)
        state.outbox.emit(AnswerTransfer(token=transfer.token, outcome=outcome))
        become_resigned(state, role, now_ms=now_ms, first=successor.key)
    elif now_ms >= transfer.deadline_ms:
        role.transfer = None
        state.outbox.emit(AnswerTransfer(token=transfer.token, outcome=TransferTimedOut()))


def _successor(state: RaftState, role: Leader, transfer: PendingTransfer) -> ReplicaProgress | None:
    """Return the first voter that has flushed everything, once all of it is committed and delivered here; else None."""
    log_end_offset = state.log.log_end_offset
    if state.commit_offset < log_end_offset:
        return None
    ready = (progress for progress in _candidates(role, transfer.to) if progress.end_offset == log_end_offset)
    return next(ready, None)


def transfer_deadline_ms(state: RaftState, role: Leader) -> int | None:
    """Return when the wait ends: at once if a successor is ready, else at the timeout; None without a transfer."""
    transfer = role.transfer
    if transfer is None:
        return None
    return transfer.deadline_ms if _successor(state, role, transfer) is None else transfer.started_ms
