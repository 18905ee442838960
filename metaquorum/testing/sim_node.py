# SPDX-License-Identifier: Apache-2.0
"""One simulated machine: a disk that survives, and a process around the real Raft core that does not.

Owns the execution of effects on the simulated disk and network. Decides nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import (
    AdvanceCommit,
    AnswerTransfer,
    AnswerVoterChange,
    AppendAsFollower,
    AppendAsLeader,
    Deactivate,
    DiscardSnapshot,
    DownloadSnapshot,
    Effect,
    FinishShutdown,
    FlushLog,
    InstallSnapshot,
    PersistElectionState,
    Proposal,
    ReadReady,
    RejectProposal,
    RejectRead,
    Reply,
    ReplyWithBatches,
    Send,
    TrimLog,
    TruncateLog,
    VotersChange,
)
from metaquorum.raft.events import ElectionStatePersisted, Event, LogFlushed, Started, Tick
from metaquorum.raft.messages import Response
from metaquorum.raft.node import RaftNode
from metaquorum.raft.roles import Leader, Resigned
from metaquorum.raft.state import Identity
from metaquorum.raft.types import Offset, ReplicaKey
from metaquorum.raft.voters import VoterHistory, VoterSet
from metaquorum.testing.invariants import Checker
from metaquorum.testing.options import SimOptions
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.sim_log import SimBatch, SimDisk, SimFetchedBatches
from metaquorum.testing.sim_reader import ReadChecker
from metaquorum.testing.sim_snapshots import PowerLostError, SimSnapshots


class World(Protocol):
    """What a node needs of the world around it."""

    scheduler: Scheduler
    checker: Checker
    reads: ReadChecker
    counts: Counter[str]
    config: RaftConfig
    options: SimOptions
    disks: dict[ReplicaKey, SimDisk]
    is_healed: bool
    read_batches_max: int

    def carry_request(self, node: SimNode, send: Send) -> None:
        """Take a request to the node at its address."""
        ...

    def carry_response(self, node: SimNode, token: int, response: Response) -> None:
        """Take a response back to who asked under this token."""
        ...

    def carry_download(self, node: SimNode, effect: DownloadSnapshot) -> None:
        """Fetch a snapshot from the node at its address, piece by piece."""
        ...

    def restart_later(self, node: SimNode) -> None:
        """Start a node again after a while."""
        ...

    def on_commit(self, node: SimNode, commit_offset: Offset) -> None:
        """A node delivers up to this offset."""
        ...

    def on_answer(self, node: SimNode, effect: AnswerVoterChange | AnswerTransfer) -> None:
        """A node answers the operator."""
        ...

    def on_stop(self, node: SimNode) -> None:
        """A process is gone."""
        ...

    def note(self, node: SimNode, event: Event, effects: list[Effect]) -> None:
        """Remember a step for the trace."""
        ...


class SimNode:
    """A machine with one node on it."""

    def __init__(
        self,
        world: World,
        *,
        key: ReplicaKey,
        name: str,
        initial_voters: VoterSet,
        addresses: tuple[str, ...],
        flush_ms_max: int,
        clock_drift: float,
    ) -> None:
        self.world = world
        self.key = key
        self.name = name
        self.initial_voters = initial_voters
        self.disk = SimDisk()
        self.incarnation = 0
        self.paused_until_ms = 0
        self.raft: RaftNode | None = None
        self.snapshots = SimSnapshots(self)
        self._addresses = addresses
        self._flush_ms_max = flush_ms_max
        self._rng: random.Random = world.scheduler.rng(f"disk/{name}")
        self._clock_offset_ms = self._rng.randint(0, 1_000_000)
        self._clock_rate = 1.0 + self._rng.uniform(-clock_drift, clock_drift)
        self._tick_at_ms: int | None = None
        self._proposal_payload = ""
        self._rejected = False

    @property
    def rng(self) -> random.Random:
        """Chance of this machine's disk."""
        return self._rng

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self.raft is not None

    @property
    def is_leader(self) -> bool:
        """Whether the process runs and believes to lead."""
        return self.raft is not None and isinstance(self.raft.state.role, Leader)

    def start(self) -> None:
        """Start a process on what the disk has."""
        assert self.raft is None, f"{self.name} runs"
        world, disk = self.world, self.disk
        self.incarnation += 1
        self._tick_at_ms = None
        self.paused_until_ms = 0
        if disk.heal():
            world.counts["interrupted install healed"] += 1
        self.snapshots = SimSnapshots(self)
        changes = [(batch.base_offset, batch.voters) for batch in disk.batches if batch.voters is not None]
        if disk.base is not None and disk.base.voters_after is not None:
            changes.insert(0, (Offset(disk.log_start_offset - 1), disk.base.voters_after))
        self.raft = RaftNode(
            identity=Identity(
                key=self.key, cluster_id="simulated", address=self.name, bootstrap_addresses=self._addresses
            ),
            config=world.config,
            rng=world.scheduler.rng(f"raft/{self.name}/{self.incarnation}"),
            election=disk.election,
            voters=VoterHistory(self.initial_voters, changes),
            log=disk.view(),
            kept_snapshots=[snapshot.id for snapshot in disk.snapshots],
            committed_offset=disk.applied_offset,
        )
        world.checker.on_restart(self.key)
        self.handle(Started())

    def stop(self) -> None:
        """Kill the process and lose what is not durable."""
        self.raft = None
        self.world.on_stop(self)
        lost = self.disk.crash(self._rng)
        if lost:
            self.world.counts["crash that loses unflushed data"] += 1

    def local_now_ms(self) -> int:
        """Clock of this node: its own zero and its own rate."""
        return self._clock_offset_ms + int(self.world.scheduler.now_ms * self._clock_rate)

    def propose(self, payload: str, event: Event) -> bool:
        """Step with a proposal; whether it was appended."""
        self._proposal_payload = payload
        self._rejected = False
        self.handle(event)
        return not self._rejected

    def handle(self, event: Event) -> None:
        """Step the core, carry its effects out, check the laws."""
        assert self.raft is not None, f"{self.name} is down"
        was = type(self.raft.state.role)
        world = self.world
        effects = self.raft.step(event, self.local_now_ms())
        self.world.note(self, event, effects)
        self._count_change(was)
        finished = False
        try:
            for effect in effects:
                finished = self._execute(effect) or finished
        except PowerLostError:
            self.stop()
            world.restart_later(self)
            return
        self.world.checker.on_state(self.raft.state, self.disk, self.world.disks)
        for effect in effects:
            self.world.checker.on_effect(self.raft.state, self.disk, effect)
            if isinstance(effect, AnswerVoterChange | AnswerTransfer):
                self.world.on_answer(self, effect)
        if finished:
            self.stop()
        else:
            self._schedule_tick()

    def _count_change(self, was: type[object]) -> None:
        assert self.raft is not None, "checked by the caller"
        role = self.raft.state.role
        if type(role) is not was:
            self.world.counts[f"became {type(role).__name__.lower()}"] += 1
            if isinstance(role, Leader) and self.world.counts["became leader"] > 1:
                self.world.counts["leader change"] += 1
            if isinstance(role, Resigned) and self.raft.state.shutdown_deadline_ms is None and was is Leader:
                self.world.counts["leader without majority resigned"] += 1

    def _execute(self, effect: Effect) -> bool:
        """Carry one effect out; whether the process is to end."""
        disk, world = self.disk, self.world
        match effect:
            case PersistElectionState(sequence=sequence, state=state):
                disk.electing = state
                self.later(lambda: self._persisted(sequence))
            case AppendAsLeader(next_offset=next_offset, quorum_epoch=epoch, content=content):
                payload = self._proposal_payload if isinstance(content, Proposal) else type(content).__name__
                voters = content.voters if isinstance(content, VotersChange) else None
                if voters is not None:
                    payload += " " + " ".join(str(voter.key) for voter in voters.voters)
                world.checker.on_append(
                    disk.append(next_offset=next_offset, epoch=epoch, payload=payload, voters=voters)
                )
            case AppendAsFollower(batches=batches):
                assert isinstance(batches, SimFetchedBatches), "simulated logs only"
                for batch in batches.batches:
                    copy = disk.append(
                        next_offset=batch.next_offset, epoch=batch.epoch, payload=batch.payload, voters=batch.voters
                    )
                    world.checker.on_append(copy)
            case TruncateLog(to_offset=to_offset):
                world.counts["truncation"] += 1
                disk.truncate_suffix(to_offset)
            case FlushLog(flush_id=flush_id):
                batch = disk.batches[-1]
                self.later(lambda: self._flushed(flush_id, batch))
            case Send():
                world.carry_request(self, effect)
            case Reply(token=token, response=response):
                world.carry_response(self, token, response)
            case ReplyWithBatches():
                self._serve(effect)
            case RejectProposal():
                self._rejected = True
            case AdvanceCommit(commit_offset=commit_offset):
                world.on_commit(self, commit_offset)
                disk.applied_offset = commit_offset
                self.snapshots.on_commit(commit_offset)
            case ReadReady(read_id=read_id, read_offset=read_offset):
                world.reads.end(read_id, read_offset, world.checker.committed_end_offset)
            case RejectRead(read_id=read_id):
                world.reads.reject(read_id)
            case Deactivate():
                world.counts["leader deposed or resigned"] += 1
            case FinishShutdown():
                world.counts["orderly shutdown"] += 1
                return True
            case DownloadSnapshot() | DiscardSnapshot() | InstallSnapshot() | TrimLog():
                self.snapshots.execute(effect)
            case _:
                pass
        return False

    def _serve(self, effect: ReplyWithBatches) -> None:
        batches = self.disk.read(effect.fetch_offset, self.world.read_batches_max)
        self.world.carry_response(self, effect.token, replace(effect.response, batches=batches))

    def _persisted(self, sequence: int) -> None:
        assert self.disk.electing is not None, "nothing was being written"
        self.disk.election = self.disk.electing
        self.disk.electing = None
        self.handle(ElectionStatePersisted(sequence=sequence))

    def _flushed(self, flush_id: int, batch: SimBatch) -> None:
        self.disk.flushed(batch)
        self.handle(LogFlushed(flush_id=flush_id))

    def later(self, complete: Callable[[], None]) -> None:
        """Run a completion when the disk is done, unless the process is gone by then."""
        incarnation = self.incarnation

        def run() -> None:
            if self.incarnation == incarnation and self.is_up:
                complete()

        self.world.scheduler.after(self._rng.randint(0, self._flush_ms_max), lambda: self.when_awake(run))

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run the action now, or when the process is no longer paused."""
        wait_ms = self.paused_until_ms - self.world.scheduler.now_ms
        if wait_ms <= 0:
            action()
        else:
            self.world.scheduler.after(wait_ms, lambda: self.when_awake(action))

    def _schedule_tick(self) -> None:
        assert self.raft is not None, "checked by the caller"
        deadline_ms = self.raft.deadline_ms()
        if deadline_ms is None:
            self._tick_at_ms = None
            return
        scheduler = self.world.scheduler
        local_delay_ms = max(0, deadline_ms - self.local_now_ms())
        at_ms = scheduler.now_ms + max(1, int(local_delay_ms / self._clock_rate) + 1)
        if at_ms == self._tick_at_ms:
            return
        self._tick_at_ms = at_ms
        incarnation = self.incarnation

        def tick() -> None:
            if self._tick_at_ms == at_ms and self.incarnation == incarnation and self.is_up:
                self._tick_at_ms = None
                self.handle(Tick())

        scheduler.after(at_ms - scheduler.now_ms, lambda: self.when_awake(tick))
