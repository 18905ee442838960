# SPDX-License-Identifier: Apache-2.0
"""Laws of the quorum, checked after every simulated event on the node that it touched.

Owns the laws for the whole cluster: leaders, votes, histories, committed records. Reads nodes, changes nothing.
Source: KRaft's RaftEventSimulationTest; Vanlightly's kraft TLA+ (names in brackets); Raft figure 3.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaquorum.raft.effects import (
    Activate,
    AppendAsLeader,
    Effect,
    InstallSnapshot,
    Reply,
    ReplyWithBatches,
    ReportViolation,
    Send,
    TruncateLog,
    Violation,
    VotersChange,
)
from metaquorum.raft.messages import FetchRequest, VoteRequest, VoteResponse
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.state import RaftState
from metaquorum.raft.types import MAX_EPOCH_LEAP, NodeId, Offset, QuorumEpoch, ReplicaKey
from metaquorum.raft.voters import VoterSet
from metaquorum.testing.sim_log import SimBatch, SimDisk, SimSnapshot


class InvariantViolation(AssertionError):
    """A law of the quorum was broken."""


def require(condition: bool, law: str, detail: object) -> None:
    """Raise an error if a law is broken.

    Raises:
        InvariantViolation: the condition is false.
    """
    if not condition:
        raise InvariantViolation(f"{law}: {detail}")


class Checker:
    """Remembers what was true once and must stay true."""

    def __init__(self) -> None:
        self._leader_of: dict[QuorumEpoch, NodeId] = {}
        self._vote_of: dict[tuple[ReplicaKey, QuorumEpoch], ReplicaKey] = {}
        self._history_of: dict[tuple[Offset, QuorumEpoch], bytes] = {}
        self._committed: dict[Offset, bytes] = {Offset(0): b""}
        self._persisted_epoch: dict[ReplicaKey, QuorumEpoch] = {}
        self._high_watermark: dict[ReplicaKey, Offset] = {}
        self.committed_end_offset = Offset(0)

    def on_restart(self, key: ReplicaKey) -> None:
        """Note the start of a process: it may know a lower high watermark than its earlier process."""
        self._high_watermark.pop(key, None)

    def on_append(self, batch: SimBatch) -> None:
        """Check log matching: (offset, epoch) names one record and one history before it [NoLogDivergence]."""
        name = (batch.base_offset, batch.epoch)
        known = self._history_of.setdefault(name, batch.history)
        require(known == batch.history, "log matching", f"two records at {name}")

    def on_snapshot(self, snapshot: SimSnapshot) -> None:
        """Check that a snapshot holds exactly the committed log up to its end [ConsistentCommittedData]."""
        end_offset = snapshot.id.end_offset
        require(end_offset <= self.committed_end_offset, "a snapshot holds committed records only", snapshot.id)
        require(
            self._committed.get(end_offset) == snapshot.last.history, "a snapshot is of the committed log", snapshot.id
        )

    def on_state(self, state: RaftState, disk: SimDisk, disks: Mapping[ReplicaKey, SimDisk]) -> None:
        """Check the laws of one node after an event."""
        key, election = state.key, state.election
        if election.leader_id is not None:
            self._one_leader(election.quorum_epoch, election.leader_id)
        if disk.election.leader_id is not None:
            self._one_leader(disk.election.quorum_epoch, disk.election.leader_id)
        persisted = disk.election.quorum_epoch
        require(persisted >= self._persisted_epoch.get(key, persisted), "persisted epoch never falls", key)
        self._persisted_epoch[key] = persisted
        require(state.log.log_end_offset == disk.log_end_offset, "shadow of the log", state.log.log_end_offset)
        require(
            state.log.flushed_offset <= disk.durable_end_offset,
            "flushed means durable",
            (state.log.flushed_offset, disk.durable_end_offset),
        )
        require(state.log.last_epoch <= election.quorum_epoch, "log is of epochs seen", election)
        require(election.quorum_epoch < MAX_EPOCH_LEAP, "epochs are reached by elections", election)
        self._snapshot_laws(state, disk)
        self._high_watermark_laws(state, disk, disks)
        if isinstance(state.role, Leader):
            self._leader_laws(state, disk)

    def _snapshot_laws(self, state: RaftState, disk: SimDisk) -> None:
        """Check that a log above 0 begins at an existing snapshot [SnapshotAtLogStart]."""
        log, base = state.log, disk.base
        start = (log.log_start_offset, log.start_epoch)
        require(start == ((0, 0) if base is None else (base.next_offset, base.epoch)), "shadow of the log start", start)
        ids = tuple(snapshot.id for snapshot in disk.snapshots)
        # The core learns of a newly made snapshot only in the next step.
        require(ids[: len(state.snapshots.ids)] == state.snapshots.ids, "kept snapshots are on the disk", ids)
        require(
            base is None or any(snapshot.last is base or snapshot.last == base for snapshot in disk.snapshots),
            "a snapshot at the log start [SnapshotAtLogStart]",
            (start, ids),
        )
        require(log.last_epoch == (0 if disk.last is None else disk.last.epoch), "epoch before the end", log.last_epoch)

    def _one_leader(self, epoch: QuorumEpoch, leader_id: NodeId) -> None:
        known = self._leader_of.setdefault(epoch, leader_id)
        require(known == leader_id, "one leader per epoch [NeverTwoLeadersInSameEpoch]", (epoch, known, leader_id))

    def _high_watermark_laws(self, state: RaftState, disk: SimDisk, disks: Mapping[ReplicaKey, SimDisk]) -> None:
        high_watermark = state.high_watermark
        if high_watermark is None:
            return
        before = self._high_watermark.get(state.key, Offset(0))
        require(high_watermark >= before, "high watermark never falls", (state.key, before, high_watermark))
        self._high_watermark[state.key] = high_watermark
        require(high_watermark <= disk.log_end_offset, "high watermark within the log", high_watermark)
        require(state.commit_offset <= disk.durable_end_offset, "delivered is durable here", state.commit_offset)
        if high_watermark > self.committed_end_offset:
            self._commit(state, high_watermark, disk, disks)
        if high_watermark > before:
            require(
                self._committed.get(high_watermark) == disk.history_at(high_watermark),
                "committed records never change [AckedValueNotLost]",
                high_watermark,
            )

    def _commit(
        self,
        state: RaftState,
        high_watermark: Offset,
        disk: SimDisk,
        disks: Mapping[ReplicaKey, SimDisk],
    ) -> None:
        """Check a commit: a majority has it on disk, and it continues the earlier commits.

        The leader may have resigned in the same step, and a paused one may hear late of its followers' flushes.
        """
        history = disk.history_at(high_watermark)
        require(history is not None, "high watermark ends a batch", high_watermark)
        holders = [
            voter.key.node_id
            for voter in state.voter_set.voters
            if disks[voter.key].durable_end_offset >= high_watermark
            and disks[voter.key].history_at(high_watermark) == history
        ]
        require(
            len(holders) >= state.voter_set.majority,
            "a majority has what is committed, on its disks",
            (high_watermark, holders),
        )
        end_offset = self.committed_end_offset
        require(
            disk.history_at(end_offset) == self._committed[end_offset],
            "commits continue each other [AckedValueNotLost]",
            (end_offset, high_watermark),
        )
        for batch in reversed(disk.batches):
            if batch.next_offset <= end_offset:
                break
            if batch.next_offset <= high_watermark:
                self._committed[batch.next_offset] = batch.history
        self.committed_end_offset = high_watermark

    def _leader_laws(self, state: RaftState, disk: SimDisk) -> None:
        self._one_leader(state.quorum_epoch, state.key.node_id)
        require(disk.election.leader_id == state.key.node_id, "leadership is on disk", disk.election)
        self._complete(disk)

    def _complete(self, disk: SimDisk) -> None:
        """Check leader completeness: a leader that may be the newest has every committed record [LeaderHasAllAckedValues].

        A deposed leader that does not know it yet is in an older epoch than the leader that has committed since.
        """
        end_offset = self.committed_end_offset
        if disk.election.quorum_epoch < max(self._leader_of):
            return
        require(
            disk.history_at(end_offset) == self._committed[end_offset],
            "leader has all that is committed",
            (end_offset, disk.log_end_offset),
        )

    def on_effect(self, state: RaftState, disk: SimDisk, effect: Effect) -> None:
        """Check a node's output: nothing may depend on state that is not on its disk."""
        match effect:
            case Send(request=request):
                self._spoken(disk, request.quorum_epoch, effect)
                if isinstance(request, VoteRequest):
                    self._one_vote(disk, state.key, request.quorum_epoch, request.candidate)
                if isinstance(request, FetchRequest) and state.is_voter:
                    require(
                        request.fetch_offset <= disk.durable_end_offset,
                        "a voter fetches from what it has flushed",
                        (request.fetch_offset, disk.durable_end_offset),
                    )
            case Reply(response=response):
                self._spoken(disk, response.quorum_epoch, effect)
                if isinstance(response, VoteResponse) and response.granted:
                    voted = disk.election.voted_key
                    if disk.election.quorum_epoch == response.quorum_epoch and voted is not None:
                        self._one_vote(disk, state.key, response.quorum_epoch, voted)
            case ReplyWithBatches(response=response):
                self._spoken(disk, response.quorum_epoch, effect)
                require(disk.election.leader_id == state.key.node_id, "only a leader serves", effect)
            case AppendAsLeader(content=VotersChange()):
                self._one_change(disk)
            case TruncateLog():
                require(
                    _latest_voters(disk) in (None, state.voter_set),
                    "voters in force are the newest in the log",
                    state.voter_set,
                )
            case Activate(start_offset=start_offset):
                require(start_offset <= self.committed_end_offset, "activation follows a commit", start_offset)
            case InstallSnapshot(snapshot=snapshot):
                require(
                    isinstance(state.role, Follower), "no leader loads a snapshot [LeaderNeverLoadSnapshot]", effect
                )
                require(state.high_watermark == snapshot.end_offset, "high watermark of the snapshot", effect)
                voters = None if disk.last is None else disk.last.voters_after
                require(state.voter_set == voters, "voters of the snapshot", (state.voter_set, voters))
                require(
                    self._committed.get(snapshot.end_offset) == disk.history_at(snapshot.end_offset),
                    "what is installed is committed [ConsistentCommittedData]",
                    effect,
                )
            case ReportViolation(kind=Violation.ABSURD_REQUEST):
                # A forged request. Requests of nodes are covered by the law that epochs are reached only by elections.
                pass
            case ReportViolation(text=text):
                require(False, "no node breaks the protocol", text)
            case _:
                pass

    def _one_change(self, disk: SimDisk) -> None:
        """Check that a leader appends a voter set only when the one before it is committed [KIP-853]."""
        uncommitted = 0
        for batch in reversed(disk.batches):
            if batch.next_offset <= self.committed_end_offset:
                break
            uncommitted += batch.voters is not None
        require(uncommitted <= 1, "one change of voters at a time", uncommitted)

    def _spoken(self, disk: SimDisk, epoch: QuorumEpoch, effect: Effect) -> None:
        require(epoch <= disk.election.quorum_epoch, "nothing is said before it is on disk", (epoch, effect))

    def _one_vote(self, disk: SimDisk, key: ReplicaKey, epoch: QuorumEpoch, candidate: ReplicaKey) -> None:
        require(
            disk.election.quorum_epoch > epoch or disk.election.voted_key == candidate,
            "a vote is on disk before it is given",
            (key, epoch, disk.election),
        )
        known = self._vote_of.setdefault((key, epoch), candidate)
        require(known == candidate, "one vote per epoch", (key, epoch, known, candidate))


def _latest_voters(disk: SimDisk) -> VoterSet | None:
    """Return the newest voter set in a log or in the snapshot before it; None without one."""
    return None if disk.last is None else disk.last.voters_after
