# SPDX-License-Identifier: Apache-2.0
"""Metrics of a quorum node: counters of the running core, and a sample of everything at one moment.

Owns plain numbers that the driver updates (records appended and fetched, durations of commits and elections), and the sample, which
is taken on the event loop and passed on as a value. Decides nothing. Of all records that wait for their commit only one is timed, and
the next one after its commit; so each append costs one comparison, whatever the load.
Source: KIP-595 "Metrics"; `docs/quorum.md` section "Metrics".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaquorum.raft.effects import AdvanceCommit, AppendAsFollower, AppendAsLeader, Effect, TruncateLog
from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from metaquorum.raft.state import RaftState
from metaquorum.replica.latency_window import Latencies, LatencyWindow

ROLES: Final = tuple(kind.__name__.lower() for kind in (Unattached, Prospective, Candidate, Leader, Resigned, Follower))
"""Names of the roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """Counters since the start of the node.

    Attributes:
        appended_records: records appended, as leader or follower.
        fetched_records: those of them that came from a leader.
        truncations: number of truncations of the log.
        commits: durations from a leader's append of a record to its commit; a sample.
        elections: durations from the loss of a known leader to a known leader of another epoch.
    """

    appended_records: int
    fetched_records: int
    truncations: int
    commits: Latencies
    elections: Latencies


class QuorumMeter:
    """The counters of one driver.

    Args:
        now_s: returns monotonic seconds.
        quorum_epoch: epoch at the start; a leader of this epoch does not count as elected.
    """

    def __init__(self, now_s: Callable[[], float], *, quorum_epoch: int) -> None:
        self._now_s = now_s
        self._led_records = 0
        self._fetched_records = 0
        self._truncations = 0
        self._commits = LatencyWindow()
        self._elections = LatencyWindow()
        self._timed: tuple[int, float] | None = None
        self._leaderless_since_s: float | None = now_s()
        self._led_epoch = quorum_epoch

    def note(self, effect: Effect) -> None:
        """Count an effect of the core."""
        match effect:
            case AdvanceCommit(commit_offset=commit_offset):
                self._committed(commit_offset)
            case AppendAsLeader(base_offset=base_offset, next_offset=next_offset):
                self._led_records += next_offset - base_offset
                if self._timed is None:
                    self._timed = (next_offset, self._now_s())
            case AppendAsFollower(batches=batches):
                self._fetched_records += batches.spans[-1].next_offset - batches.spans[0].base_offset
            case TruncateLog():
                self._truncations += 1
            case _:
                pass

    def _committed(self, commit_offset: int) -> None:
        """Note that everything below this offset (exclusive) is committed and on stable storage here."""
        if self._timed is not None and commit_offset >= self._timed[0]:
            now_s = self._now_s()
            self._commits.note(now_s - self._timed[1], now_s=now_s)
            self._timed = None

    def settled(self, state: RaftState) -> None:
        """Look after a step whether a leader is known. A leader that comes back in its own epoch is not an election."""
        role = state.role
        if not isinstance(role, Leader | Resigned):
            # Its records may still be committed, but no caller here gets an answer for them.
            self._timed = None
        if not isinstance(role, Leader | Follower):
            if self._leaderless_since_s is None:
                self._leaderless_since_s = self._now_s()
        elif self._leaderless_since_s is not None or state.quorum_epoch != self._led_epoch:
            now_s = self._now_s()
            if state.quorum_epoch != self._led_epoch:
                # A follower that learns of the next leader at once was never without a leader.
                since_s = now_s if self._leaderless_since_s is None else self._leaderless_since_s
                self._elections.note(now_s - since_s, now_s=now_s)
            self._leaderless_since_s = None
            self._led_epoch = state.quorum_epoch

    def read(self) -> MeterReading:
        """Return the current counters."""
        now_s = self._now_s()
        return MeterReading(
            appended_records=self._led_records + self._fetched_records,
            fetched_records=self._fetched_records,
            truncations=self._truncations,
            commits=self._commits.read(now_s=now_s),
            elections=self._elections.read(now_s=now_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSample:
    """State and counters of a node. Offsets are exclusive ends, except starts; None: unknown.

    Attributes:
        cluster_id: cluster.
        node_id: this node.
        role: its role, one of `ROLES`.
        is_voter: True if it is a voter.
        quorum_epoch: highest known epoch.
        leader_id: leader of that epoch.
        voted_id: node id of the replica that has this node's vote in that epoch.
        high_watermark: end of the committed log.
        log_start_offset: first offset of the log (inclusive).
        log_end_offset: end of the log.
        log_end_epoch: epoch of the last record.
        flushed_offset: end of the flushed log.
        voter_count: number of voters in force.
        observer_count: observers that fetch from this leader; None if it does not lead.
        uncommitted_bytes: bytes that this leader has appended and not committed; 0 if it does not lead.
        has_uncommitted_change: True if the newest voter set is not known to be committed.
        meter: counters.
        loop_busy_s: processor seconds that the event loop's thread has used.
        loop_idle_ratio: share of the time since the last sample in which it used none, 0 to 1; None for the first sample.
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
    """Processor time of the thread that creates it. It costs nothing until it is read. A thread that waits for its disk counts as idle.

    Args:
        thread_s: returns processor seconds of the thread; for tests.
        now_s: returns monotonic seconds; for tests.
    """

    def __init__(
        self, *, thread_s: Callable[[], float] | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._thread_s = thread_s or _own_thread_s()
        self._now_s = now_s
        self._last: tuple[float, float] | None = None

    def read(self) -> tuple[float, float | None]:
        """Return the processor seconds so far, and the idle share (0 to 1) since the last call; None at the first call."""
        busy_s, now_s = self._thread_s(), self._now_s()
        last, self._last = self._last, (busy_s, now_s)
        if last is None or now_s <= last[1]:
            return busy_s, None
        return busy_s, min(1.0, max(0.0, 1.0 - (busy_s - last[0]) / (now_s - last[1])))


def _own_thread_s() -> Callable[[], float]:
    if not hasattr(time, "pthread_getcpuclockid"):
        # Without a clock of the thread: the time of the whole process, which is mostly this thread's.
        return time.process_time
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def take_sample(state: RaftState, meter: MeterReading, clock: LoopClock) -> QuorumSample:
    """Return a sample of everything. Runs on the event loop."""
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
