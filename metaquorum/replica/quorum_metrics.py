# SPDX-License-Identifier: Apache-2.0
"""Everything that the metrics of a quorum node show, as of one moment.

Owns the sample and how it follows from core, meter and thread. Changes nothing; taken on the event loop, where the core
lives, and given away as a value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from metaquorum.raft.state import RaftState
from metaquorum.replica.quorum_meter import MeterReading

ROLES: Final = tuple(kind.__name__.lower() for kind in (Unattached, Prospective, Candidate, Leader, Resigned, Follower))
"""Names of the roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSample:
    """State and counters of a node. Offsets are exclusive ends unless named start; None: not known.

    Attributes:
        cluster_id: cluster.
        node_id: this node.
        role: its role, one of `ROLES`.
        is_voter: whether it votes.
        quorum_epoch: highest epoch seen.
        leader_id: leader of that epoch.
        voted_id: node id of the replica that has this node's vote in that epoch.
        high_watermark: end of the committed log.
        log_start_offset: first offset of the log (inclusive).
        log_end_offset: end of the log.
        log_end_epoch: epoch of the last record.
        flushed_offset: end of what is on stable storage.
        voter_count: voters in force.
        observer_count: observers that fetch from this leader; None where it does not lead.
        uncommitted_bytes: bytes that this leader appended and that are not committed; 0 where it does not lead.
        has_uncommitted_change: whether the newest set of voters is not known to be committed.
        meter: counters.
        loop_busy_s: seconds of processor that the thread of the event loop has used.
        loop_idle_ratio: share of the time since the last sample, from 0 to 1, in which it used none; None: first sample.
    """

    cluster_id: str
    node_id: int
    role: str
    is_voter: bool
    quorum_epoch: int
    leader_id: int | None
    voted_id: int | None
    high_watermark: int | None
    log_start_offset: int
    log_end_offset: int
    log_end_epoch: int
    flushed_offset: int
    voter_count: int
    observer_count: int | None
    uncommitted_bytes: int
    has_uncommitted_change: bool
    meter: MeterReading
    loop_busy_s: float
    loop_idle_ratio: float | None


class LoopClock:
    """Processor time of the thread that makes it; costs nothing until it is read. A thread that waits for its disk counts as idle.

    Args:
        thread_s: processor seconds of the thread; for tests.
        now_s: monotonic seconds; for tests.
    """

    def __init__(
        self, *, thread_s: Callable[[], float] | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._thread_s = thread_s or _own_thread_s()
        self._now_s = now_s
        self._last: tuple[float, float] | None = None

    def read(self) -> tuple[float, float | None]:
        """Seconds used in all; and the idle share, 0 to 1, of the time since the last reading."""
        busy_s, now_s = self._thread_s(), self._now_s()
        last, self._last = self._last, (busy_s, now_s)
        if last is None or now_s <= last[1]:
            return busy_s, None
        return busy_s, min(1.0, max(0.0, 1.0 - (busy_s - last[0]) / (now_s - last[1])))


def _own_thread_s() -> Callable[[], float]:
    if not hasattr(time, "pthread_getcpuclockid"):
        # Systems without it: what the whole process uses, which is mostly this thread.
        return time.process_time
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def take_sample(state: RaftState, meter: MeterReading, clock: LoopClock) -> QuorumSample:
    """Read everything, on the event loop."""
    role = state.role
    leading = role if isinstance(role, Leader) else None
    busy_s, idle_ratio = clock.read()
    voted = state.election.voted_key
    is_known = state.high_watermark is not None
    return QuorumSample(
        cluster_id=state.identity.cluster_id,
        node_id=state.key.node_id,
        role=type(role).__name__.lower(),
        is_voter=state.is_voter,
        quorum_epoch=state.quorum_epoch,
        leader_id=state.known_leader_id,
        voted_id=None if voted is None else voted.node_id,
        high_watermark=state.high_watermark,
        log_start_offset=state.log.log_start_offset,
        log_end_offset=state.log.log_end_offset,
        log_end_epoch=state.log.last_epoch,
        flushed_offset=state.log.flushed_offset,
        voter_count=len(state.voter_set.voters),
        observer_count=None if leading is None else len(leading.observers),
        uncommitted_bytes=0 if leading is None else leading.uncommitted_bytes,
        has_uncommitted_change=not is_known or (state.high_watermark or 0) <= state.voters.latest_offset,
        meter=meter,
        loop_busy_s=busy_s,
        loop_idle_ratio=idle_ratio,
    )
