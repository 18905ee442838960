# SPDX-License-Identifier: Apache-2.0
"""Deferred voters (*spares*): a round can be committed without them, so they get it a little later.

Owns which voters get a round at once. Decides nothing about commits, nor about the content of answers.

Theory of operation. A commit waits for a majority. If every voter got each round at once, a leader of three would have twice the
exchanges and flushes that the commit needs. On small machines the superfluous voter takes processor and disk from the one that the
commit waits for. So a round goes at once to as many voters as a majority needs, the quickest of those that wait for it. It goes to
the others `spare_wait_ms` later, with everything that came in between. A voter that is dead, frozen or busy with its disk waits for
nothing, so it is not chosen. One that becomes silent after it was chosen costs that wait once: then the deferred voters have the
round.

Laws: a deferred voter gets a round at most `spare_wait_ms` after its fetch lacked it. A voter that is further behind than its last
answer (it is catching up) is never deferred and never relied upon. Only a fetch counts for a commit, whichever voters were chosen.
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
    """Note a voter's fetch: how long the exchange took, and whether it keeps up. Call it before its progress is updated."""
    if progress.sent_ms is not None:
        progress.exchange_ms = now_ms - progress.sent_ms
    progress.sent_ms, progress.sent_end_offset = None, None
    progress.keeps_up = fetch_offset >= (progress.previous_leader_end_offset or state.log.log_end_offset)


def note_sent(state: RaftState, progress: ReplicaProgress, *, now_ms: int) -> None:
    """Note that a voter was sent everything, or as much as one answer holds."""
    progress.sent_ms, progress.sent_end_offset = now_ms, state.log.log_end_offset


def is_held_back(state: RaftState, role: Leader, request: FetchRequest) -> bool:
    """Return whether the voter of this fetch need not get the round under way at once."""
    own = role.voters[request.replica.node_id]
    if not own.keeps_up:
        return False
    # A leader that is being removed continues to lead, but is not counted.
    needed = state.voter_set.majority - state.is_voter
    return sum(_has_round(role, progress) for progress in role.voters.values() if progress is not own) >= needed


def _has_round(role: Leader, progress: ReplicaProgress) -> bool:
    """Return whether a voter has flushed the round under way, or is expected to soon."""
    end_offset = progress.end_offset or 0
    if progress.keeps_up and progress.sent_end_offset is not None:
        end_offset = max(end_offset, progress.sent_end_offset)
    return end_offset >= role.round_end_offset


def quickest_first(role: Leader, fetches: list[ParkedFetch]) -> list[ParkedFetch]:
    """Return fetches of voters, given in order of arrival, in the order of answering: quickest first, among equals the latest."""
    last_first = fetches[::-1]
    last_first.sort(key=lambda fetch: role.voters[fetch.request.replica.node_id].exchange_ms)
    return last_first
