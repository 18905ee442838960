# SPDX-License-Identifier: Apache-2.0
"""One simulated machine: a disk that survives, and a process around the real Raft core that does not.

Owns the execution of effects on the simulated disk and network. Decides nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import (
    Activate,
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
    ReadReady,
    RejectProposal,
    RejectRead,
    Reply,
    ReplyWithBatches,
    Send,
    TrimLog,
    TruncateLog,
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
from metaquorum.testing.sim_log import DamagedDiskError, PowerLostError, Recovered, SimBatch, SimDisk
from metaquorum.testing.sim_reader import ReadChecker
from metaquorum.testing.sim_snapshots import SimSnapshots
from storage.errors import DataLossError, StorageError

CLUSTER_ID: Final = "simulated"
"""Cluster of every simulated node."""


class World(Protocol):
    """The part of the world that a node needs."""

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
        """Carry a request to the node at its address."""
        ...

    def carry_response(self, node: SimNode, token: int, response: Response) -> None:
        """Carry a response back to the node that sent the request with this token."""
        ...

    def carry_download(self, node: SimNode, effect: DownloadSnapshot) -> None:
        """Download a snapshot from the node at its address, piece by piece."""
        ...

    def restart_later(self, node: SimNode) -> None:
        """Start a node again after a while."""
        ...

    def on_commit(self, node: SimNode, commit_offset: Offset) -> None:
        """Note that a node delivers up to this offset (exclusive)."""
        ...

    def on_activate(self, node: SimNode, effect: Activate) -> None:
        """Note that a node leads."""
        ...

    def on_deactivate(self, node: SimNode) -> None:
        """Note that a node no longer leads."""
        ...

    def on_answer(self, node: SimNode, effect: AnswerVoterChange | AnswerTransfer) -> None:
        """Pass a node's answer to the operator."""
        ...

    def on_stop(self, node: SimNode) -> None:
        """Note that a process is gone."""
        ...

    def on_damaged_disk(self, node: SimNode, error: DamagedDiskError) -> None:
        """Note that a machine refuses to start or continue with the content of its disk."""
        ...

    def note(self, node: SimNode, event: Event, effects: list[Effect]) -> None:
        """Store a step for the trace."""
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
        disk: SimDisk,
    ) -> None:
        self.world = world
        self.key = key
        self.name = name
        self.initial_voters = initial_voters
        self.disk = disk
        self.incarnation = 0
        self.paused_until_ms = 0
        self.raft: RaftNode | None = None
        self.snapshots = SimSnapshots(self)
        self.address = name
        self.bootstrap_addresses = addresses
        self._flush_ms_max = world.options.flush_ms_max
        self._rng: random.Random = world.scheduler.rng(f"disk/{name}")
        self._clock_offset_ms = self._rng.randint(0, 1_000_000)
        drift = world.options.clock_drift
        self._clock_rate = 1.0 + self._rng.uniform(-drift, drift)
        self._tick_at_ms: int | None = None
        self._proposal_payload = ""
        self._rejected = False

    @property
    def rng(self) -> random.Random:
        """Random stream of this machine's disk."""
        return self._rng

    @property
    def is_up(self) -> bool:
        """True while the process runs."""
        return self.raft is not None

    @property
    def is_leader(self) -> bool:
        """True if the process runs and believes that it leads."""
        return self.raft is not None and isinstance(self.raft.state.role, Leader)

    def start(self) -> None:
        """Start a process with the content of the disk."""
        assert self.raft is None, f"{self.name} runs"
        world, disk = self.world, self.disk
        self.incarnation += 1
        self._tick_at_ms = None
        self.paused_until_ms = 0
        try:
            found = disk.recover()
        except DamagedDiskError as error:
            world.counts["damage refused at the start"] += 1
            world.on_damaged_disk(self, error)
            return
        self._count_recovery(found)
        self.snapshots = SimSnapshots(self)
        self.raft = RaftNode(
            identity=Identity(
                key=self.key, cluster_id=CLUSTER_ID, address=self.address, bootstrap_addresses=self.bootstrap_addresses
            ),
            config=world.config,
            rng=world.scheduler.rng(f"raft/{self.name}/{self.incarnation}"),
            election=disk.election,
            voters=VoterHistory(self.initial_voters, found.voters),
            log=found.log,
            kept_snapshots=found.snapshots,
            committed_offset=found.committed_offset,
        )
        world.checker.on_restart(self.key)
        self.handle(Started())

    def stop(self, strike: Callable[[], None] | None = None) -> None:
        """Kill the process. Lose what is not durable, or apply another fault to its disk."""
        self.raft = None
        self.world.on_stop(self)
        if strike is None:
            self.disk.crash(self._rng)
        else:
            strike()

    def _count_recovery(self, found: Recovered) -> None:
        counts = self.world.counts
        if found.is_restarted:
            counts["interrupted install healed"] += 1
        if found.lost_count:
            counts["crash that loses unflushed data"] += 1
        if found.cut_bytes:
            counts["torn write"] += 1

    def local_now_ms(self) -> int:
        """Return the time of this node's clock, which has its own zero and its own rate."""
        return self._clock_offset_ms + int(self.world.scheduler.now_ms * self._clock_rate)

    def propose(self, payload: str, event: Event) -> bool:
        """Step with a proposal. Return whether it was appended."""
        self._proposal_payload = payload
        self._rejected = False
        self.handle(event)
        return not self._rejected

    def handle(self, event: Event) -> None:
        """Step the core, carry out its effects, check the laws."""
        assert self.raft is not None, f"{self.name} is down"
        was = type(self.raft.state.role)
        effects = self.raft.step(event, self.local_now_ms())
        self.world.note(self, event, effects)
        self._count_change(was)
        finished = False
        try:
            for effect in effects:
                finished = self._execute(effect) or finished
        except (PowerLostError, StorageError, DamagedDiskError) as error:
            self._fail(error)
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

    def _fail(self, error: PowerLostError | StorageError | DamagedDiskError) -> None:
        """Stop the process after a power loss or a refused write: it must not tell others what may not be on disk."""
        if isinstance(error, DataLossError | DamagedDiskError):
            self.world.counts["damage found in use"] += 1
        elif isinstance(error, StorageError):
            self.world.counts["refused write"] += 1
        self.stop()
        if isinstance(error, DamagedDiskError):
            self.world.on_damaged_disk(self, error)
        else:
            self.world.restart_later(self)

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
        """Carry out one effect. Return whether the process must end."""
        disk, world = self.disk, self.world
        match effect:
            case PersistElectionState(sequence=sequence, state=state):
                disk.electing = state
                self.later(lambda: self._persisted(sequence))
            case AppendAsLeader():
                world.checker.on_append(disk.append_as_leader(effect, self._proposal_payload))
            case AppendAsFollower():
                for batch in disk.append_as_follower(effect):
                    world.checker.on_append(batch)
            case TruncateLog(to_offset=to_offset):
                world.counts["truncation"] += 1
                disk.truncate_suffix(to_offset)
            case FlushLog(flush_id=flush_id):
                batch = disk.batches[-1]
                disk.begin_flush()
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
            case Activate():
                world.on_activate(self, effect)
            case Deactivate():
                world.on_deactivate(self)
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
        self.disk.save_vote()
        self.handle(ElectionStatePersisted(sequence=sequence))

    def _flushed(self, flush_id: int, batch: SimBatch) -> None:
        self.disk.flushed(batch)
        self.handle(LogFlushed(flush_id=flush_id))

    def later(self, complete: Callable[[], None]) -> None:
        """Run a completion when the disk is done, unless the process is gone by then."""
        incarnation = self.incarnation

        def run() -> None:
            if self.incarnation == incarnation and self.is_up:
                try:
                    complete()
                except (PowerLostError, StorageError, DamagedDiskError) as error:
                    self._fail(error)

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
