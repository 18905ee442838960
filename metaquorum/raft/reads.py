# SPDX-License-Identifier: Apache-2.0
"""Linearizable reads: a leader confirms that it still leads before it shows what it has committed.

Owns the rounds that confirm the leadership, and the reads that wait for one. Does not answer the reads itself.

Theory of operation. A read that arrives after the start of R rounds may be answered once a majority of voters has *sent* a fetch in
this epoch after the start of round R + 1. A leader of a later epoch before that start would have had the vote of one of them, and
that voter would no longer fetch in this epoch. Followers pull, so a round is a number in the fetch answers: the leader raises it and
answers the delayed fetches of the voters, and each voter repeats the number in its next fetch. One round is under way at a time;
reads that arrive during it share the next one.

Laws: a read gets the high watermark at its arrival or a later one, and it is a known one (a record of this epoch is committed). Every
read is answered exactly once: ReadReady, or RejectRead if the leadership ends first.
Source: Ongaro's dissertation section 6.4 (ReadIndex), adapted to followers that pull.
"""

from __future__ import annotations

from metaquorum.raft.effects import ReadReady, Rejection, RejectRead
from metaquorum.raft.events import ReadRequested
from metaquorum.raft.messages import FetchRequest
from metaquorum.raft.roles import Leader, PendingRead, ReplicaProgress
from metaquorum.raft.state import RaftState


def on_read(state: RaftState, event: ReadRequested) -> bool:
    """Accept or reject a read.

    Returns:
        Whether a round begins with it, of which the voters should learn at once.
    """
    role = state.role
    if not isinstance(role, Leader) or role.high_watermark is None:
        # Before a record of this epoch is committed, the leader does not know what is committed.
        reason = Rejection.BUSY if isinstance(role, Leader) else Rejection.NOT_LEADER
        state.outbox.emit(RejectRead(read_id=event.read_id, reason=reason))
        return False
    if len(role.reads) >= state.config.max_pending_reads:
        state.outbox.emit(RejectRead(read_id=event.read_id, reason=Rejection.BUSY))
        return False
    role.reads.append(PendingRead(read_id=event.read_id, after_round=role.read_round, read_offset=role.high_watermark))
    return _begin_round(state, role)


def is_news(role: Leader, request: FetchRequest) -> bool:
    """Return whether a fetch must be answered because its voter does not know the round under way."""
    progress = role.voters.get(request.replica.node_id)
    return progress is not None and progress.key == request.replica and request.read_round < role.read_round


def note_round(state: RaftState, role: Leader, progress: ReplicaProgress, request: FetchRequest) -> bool:
    """Note a voter's fetch of this epoch, which may complete the round.

    Returns:
        Whether another round begins, for reads that arrived in between.
    """
    progress.read_round = max(progress.read_round, min(request.read_round, role.read_round))
    return _finish_round(state, role)


def _begin_round(state: RaftState, role: Leader) -> bool:
    """Start a round if reads wait and none is under way."""
    if not role.reads or role.reads[0].after_round < role.read_round:
        return False
    role.read_round += 1
    # The only voter needs no confirmation.
    return not _finish_round(state, role) and bool(role.reads)


def _finish_round(state: RaftState, role: Leader) -> bool:
    confirmed = state.is_voter + sum(progress.read_round == role.read_round for progress in role.voters.values())
    if confirmed < state.voter_set.majority:
        return False
    while role.reads and role.reads[0].after_round < role.read_round:
        read = role.reads.popleft()
        state.outbox.emit(ReadReady(read_id=read.read_id, read_offset=read.read_offset))
    return _begin_round(state, role)
