# SPDX-License-Identifier: Apache-2.0
"""Rounds of replication: when a leader gives what it has appended to its voters, and flushes it.

Owns the end of the round under way and the wait between two. Decides nothing about what is committed.

Theory of operation. An exchange with a voter, its flush and the leader's own cost the same for one record as for a hundred. So
what is appended while a round is not committed makes the next one; a lone record waits for nothing. Where many ask at once, the
answers of a round bring their next questions one by one: the first of them would make a round of its own, and so on. After a
round of several proposals the next one therefore waits until as many have come, for a few milliseconds at most.

How many ask is not known: most of their questions wait unread in sockets while a leader is busy, and rounds that are small keep
it busy. So each crowded round that got what it waited for makes the next one wait for a quarter more, until one waits in vain;
that many it is then, and more is tried again after `crowd_hold_rounds`, or once more have come by themselves.

Laws: a round begins with everything appended; it ends when all of it is committed. What a control record needs is never held
back: it belongs to the round under way (`transitions.append_as_leader`), for a new set of voters may be unable to commit
anything before it has the record that names it. A round moves messages and flushes, never the count of what is flushed.
"""

from __future__ import annotations

from metaquorum.raft.roles import Leader
from metaquorum.raft.state import RaftState


def on_append(state: RaftState, role: Leader, *, now_ms: int) -> bool:
    """A proposal was appended; whether a round begins with it."""
    role.round_waiting += 1
    return _begin_if_due(state, role, now_ms)


def on_commit(state: RaftState, role: Leader, *, now_ms: int) -> None:
    """The high watermark moved; a round may begin with what was appended meanwhile."""
    if role.round_waiting > 0:
        _begin_if_due(state, role, now_ms)


def on_time(state: RaftState, role: Leader, *, now_ms: int) -> bool:
    """Time passes; whether a round begins because the wait is over."""
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
    # A few are no crowd: whoever comes next waits for nothing.
    role.round_target = size if role.round_size >= state.config.crowd_size else 0
    return True
