# SPDX-License-Identifier: Apache-2.0
"""Rounds of replication: when a leader sends what it has appended to its voters, and flushes it.

Owns the end of the round under way, and the wait between two rounds. Decides nothing about commits.

Theory of operation. An exchange with a voter, its flush and the leader's flush cost the same for one record as for a hundred. So
everything that is appended while a round is uncommitted makes the next one; a single record waits for nothing. With many active
clients, the answers of a round bring their next requests one by one: the first of them would make a round of its own, and so on. So
after a round of several proposals the next one waits until as many have come, for a few milliseconds at most.

The number of active clients is unknown: most of their requests wait unread in sockets while the leader is busy, and small rounds keep
it busy. So each crowded round that reached its target makes the next one wait for a quarter more, until one waits in vain. The target
then stays, and rises again after `crowd_hold_rounds`, or once more proposals have come by themselves.

Laws: a round begins with everything appended; it ends when all of it is committed. A control record is never held back: it belongs to
the round under way (`transitions.append_as_leader`), because a new voter set may be unable to commit anything before it has the
record that names it. Rounds move messages and flushes, never the count of what is flushed.
"""

from __future__ import annotations

from metaquorum.raft.roles import Leader
from metaquorum.raft.state import RaftState


def on_append(state: RaftState, role: Leader, *, now_ms: int) -> bool:
    """Count an appended proposal. Return whether a round begins with it."""
    role.round_waiting += 1
    return _begin_if_due(state, role, now_ms)


def on_commit(state: RaftState, role: Leader, *, now_ms: int) -> None:
    """Note that the high watermark moved: a round may begin with what was appended in between."""
    if role.round_waiting > 0:
        _begin_if_due(state, role, now_ms)


def on_time(state: RaftState, role: Leader, *, now_ms: int) -> bool:
    """Return whether a round begins because the wait is over."""
    return role.round_deadline_ms is not None and now_ms >= role.round_deadline_ms and _begin(state, role)


def _begin_if_due(state: RaftState, role: Leader, now_ms: int) -> bool:
    if role.high_watermark is not None and role.high_watermark < role.round_end_offset:
        return False
    if role.round_waiting < role.round_target:
        if role.round_deadline_ms is None:
            role.round_deadline_ms = now_ms + state.config.crowd_wait_ms
        return False
    return _begin(state, role)


def _begin(state: RaftState, role: Leader) -> bool:
    role.round_end_offset = state.log.log_end_offset
    size, role.round_size, role.round_waiting = role.round_waiting, role.round_waiting, 0
    role.round_deadline_ms = None
    if size < role.round_target:
        role.round_hold = state.config.crowd_hold_rounds
    elif size > role.round_target or role.round_hold == 0:
        role.round_hold = 0
        size += max(1, size // 4)
    else:
        role.round_hold -= 1
    # A few are no crowd: the next proposal waits for nothing.
    role.round_target = size if role.round_size >= state.config.crowd_size else 0
    return True
