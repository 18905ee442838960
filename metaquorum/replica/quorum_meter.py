# SPDX-License-Identifier: Apache-2.0
"""Counters of a running core: what was appended and fetched, how long commits and elections take.

Owns plain numbers that the driver raises as it goes; they are read when somebody asks. Decides nothing. Of all records that
wait for their commit one is timed, the next one when that is committed: one comparison for each append, whatever the load.
Source: KIP-595 "Metrics"; `docs/quorum.md` section "Metrics".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metaquorum.raft.effects import AdvanceCommit, AppendAsFollower, AppendAsLeader, Effect, TruncateLog
from metaquorum.raft.roles import Follower, Leader, Resigned
from metaquorum.raft.state import RaftState
from metaquorum.replica.latency_window import Latencies, LatencyWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """What was counted since the start of the node.

    Attributes:
        appended_records: records that were appended, as leader or follower.
        fetched_records: those of them that came from a leader.
        truncations: times that the log was cut.
        commits: from the append of a record, as leader, to its commit; a sample.
        elections: from the time at which no leader was known to the time at which one of another epoch was.
    """

    appended_records: int
    fetched_records: int
    truncations: int
    commits: Latencies
    elections: Latencies


class QuorumMeter:
    """The counters of one driver.

    Args:
        now_s: monotonic seconds.
        quorum_epoch: epoch at the start; its leader is no news.
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
        """The core has an effect."""
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
        """Everything below this offset (exclusive) is committed and on stable storage here."""
        if self._timed is not None and commit_offset >= self._timed[0]:
            now_s = self._now_s()
            self._commits.note(now_s - self._timed[1], now_s=now_s)
            self._timed = None

    def settled(self, state: RaftState) -> None:
        """A step is over: look whether a leader is known. A leader that came back in its own epoch was no election."""
        role = state.role
        if not isinstance(role, Leader | Resigned):
            # What it appended may yet be committed, but nobody here is answered for it.
            self._timed = None
        if not isinstance(role, Leader | Follower):
            if self._leaderless_since_s is None:
                self._leaderless_since_s = self._now_s()
        elif self._leaderless_since_s is not None or state.quorum_epoch != self._led_epoch:
            now_s = self._now_s()
            if state.quorum_epoch != self._led_epoch:
                # A follower that hears of the next leader at once was never without one.
                since_s = now_s if self._leaderless_since_s is None else self._leaderless_since_s
                self._elections.note(now_s - since_s, now_s=now_s)
            self._leaderless_since_s = None
            self._led_epoch = state.quorum_epoch

    def read(self) -> MeterReading:
        """What is known now."""
        now_s = self._now_s()
        return MeterReading(
            appended_records=self._led_records + self._fetched_records,
            fetched_records=self._fetched_records,
            truncations=self._truncations,
            commits=self._commits.read(now_s=now_s),
            elections=self._elections.read(now_s=now_s),
        )
