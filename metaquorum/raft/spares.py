# SPDX-License-Identifier: Apache-2.0
"""Spare voters: those that a round can be committed without, and that hear of it a little later.

Owns which voters are given a round at once. Decides nothing about what is committed, nor about what a voter is given.

Theory of operation. A commit waits for a majority. To give every voter each round at once costs a leader of three twice the
exchanges and flushes that the commit needs; on small machines the voter that nobody waits for takes the processor and the disk
of the one that everybody waits for. So a round goes at once to as many voters as a majority needs, the quickest of those that
wait for it, and to the others `spare_wait_ms` later with all that came meanwhile. A voter that is dead, frozen or busy with its
disk waits for nothing, so it is not chosen; one that was chosen and went silent costs that wait once: then the spares have the round.

Laws: a spare hears of a round at most `spare_wait_ms` after its fetch lacked it; a voter that is further behind than its last
answer (it catches up) is never held back and never relied upon. What counts for a commit is a fetch alone, whoever was chosen.
Source: Ongaro's dissertation section 10.2 (replication need not wait for the slow); Dean, Barroso, "The Tail at Scale" (a second
replica is asked when the first is late).
"""

from __future__ import annotations

from metaquorum.raft.messages import FetchRequest
from metaquorum.raft.parking import ParkedFetch
from metaquorum.raft.roles import Leader, ReplicaProgress
from metaquorum.raft.state import RaftState
from metaquorum.raft.types import Offset


def note_fetch(state: RaftState, progress: ReplicaProgress, fetch_offset: Offset, *, now_ms: int) -> None:
    """A voter came back: how long it took, and whether it keeps up; before its progress is noted."""
    if progress.sent_ms is not None:
        progress.exchange_ms = now_ms - progress.sent_ms
    progress.sent_ms, progress.sent_end_offset = None, None
    progress.keeps_up = fetch_offset >= (progress.previous_leader_end_offset or state.log.log_end_offset)


def note_sent(state: RaftState, progress: ReplicaProgress, *, now_ms: int) -> None:
    """A voter was given everything there is, or as much of it as one answer holds."""
    progress.sent_ms, progress.sent_end_offset = now_ms, state.log.log_end_offset


def is_held_back(state: RaftState, role: Leader, request: FetchRequest) -> bool:
    """Whether the voter of this fetch need not have the round under way at once."""
    own = role.voters[request.replica.node_id]
    if not own.keeps_up:
        return False
    # A leader that is being removed leads on, and is not counted.
    needed = state.voter_set.majority - state.is_voter
    return sum(_has_round(role, progress) for progress in role.voters.values() if progress is not own) >= needed


def _has_round(role: Leader, progress: ReplicaProgress) -> bool:
    """Whether a voter has flushed the round under way, or is expected to before long."""
    end_offset = progress.end_offset or 0
    if progress.keeps_up and progress.sent_end_offset is not None:
        end_offset = max(end_offset, progress.sent_end_offset)
    return end_offset >= role.round_end_offset


def quickest_first(role: Leader, fetches: list[ParkedFetch]) -> list[ParkedFetch]:
    """Order fetches of voters, in the order of their arrival, as they should be answered: among equals the one that came last."""
    last_first = fetches[::-1]
    last_first.sort(key=lambda fetch: role.voters[fetch.request.replica.node_id].exchange_ms)
    return last_first
