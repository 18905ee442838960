# SPDX-License-Identifier: Apache-2.0
"""The simulated world: machines, network, faults, a client.

Owns one run of one seed. Phases: faults with the laws checked after every event; then heal, converge within a time
limit, commit a fresh record, and compare all logs. The client remembers what was acknowledged to it: at the end each
such record is in the log at its offset, and no record is there twice.
Fault budget: nothing that was flushed is lost, but for the one disk that `wipe` takes, which counts as a voter lost
for good.
"""

from __future__ import annotations

from collections import Counter, deque

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import AnswerTransfer, AnswerVoterChange, DownloadSnapshot, Effect, Send
from metaquorum.raft.events import (
    Event,
    Failure,
    ProposalReceived,
    ReadRequested,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    ShutdownRequested,
)
from metaquorum.raft.messages import Response
from metaquorum.raft.types import NodeId, Offset, ReplicaKey
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.testing.invariants import Checker, InvariantViolation, require
from metaquorum.testing.options import SimOptions, draw_options
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.sim_downloads import SimDownloads
from metaquorum.testing.sim_log import SimDisk
from metaquorum.testing.sim_network import SimNetwork
from metaquorum.testing.sim_node import SimNode
from metaquorum.testing.sim_operator import SimOperator
from metaquorum.testing.sim_reader import ReadChecker
from metaquorum.testing.sim_snapshots import whole_log

CONVERGE_MS_MAX = 60_000
"""A healed quorum must have committed a fresh record everywhere within this virtual time."""

READ_SHARE = 0.25
"""Reads for each proposal."""

HISTORY_STEPS = 50
"""Steps kept for a report."""


class SimulatedQuorum:
    """One run.

    Args:
        seed: names the run.
        options: what may happen; drawn from the seed when None.
    """

    def __init__(self, seed: int, options: SimOptions | None = None) -> None:
        self.scheduler = Scheduler(seed)
        self.options = options or draw_options(self.scheduler.rng("options"))
        self.counts: Counter[str] = Counter()
        self.checker = Checker()
        self.reads = ReadChecker(self.counts)
        self.config = RaftConfig(kept_snapshots=self.options.kept_snapshots)
        # Few batches in one fetch answer, so that catching up takes several rounds; many once all is to come right.
        self.read_batches_max = 8
        self.history: deque[str] = deque(maxlen=HISTORY_STEPS)
        self._network = SimNetwork(self.scheduler, self.options, self.counts)
        self._downloads = SimDownloads(self, self._network)
        self._faults = self.scheduler.rng("faults")
        self._workload = self.scheduler.rng("workload")
        self._next_token = 1
        self._tokens: dict[int, tuple[SimNode, int, int]] = {}
        self._proposal_count = 0
        self._waiting: dict[str, deque[tuple[Offset, Offset, str]]] = {}
        self._acknowledged: dict[Offset, tuple[Offset, str]] = {}
        self.is_healed = False
        self._has_wiped = False
        self.nodes = self._build_nodes()
        self._operator = SimOperator(self)
        self.disks: dict[ReplicaKey, SimDisk] = {node.key: node.disk for node in self.nodes}

    def _build_nodes(self) -> list[SimNode]:
        options = self.options
        keys = [
            ReplicaKey(node_id=NodeId(number), directory_id=b"directory-%06d" % number)
            for number in range(1, options.voter_count + options.observer_count + 1)
        ]
        voters = voter_set([Voter(key=key, address=f"n{key.node_id}") for key in keys[: options.voter_count]])
        addresses = tuple(voter.address for voter in voters.voters)
        return [
            SimNode(
                self,
                key=key,
                name=f"n{key.node_id}",
                initial_voters=voters if voters.contains(key) else voter_set([]),
                addresses=addresses,
                flush_ms_max=options.flush_ms_max,
                clock_drift=options.clock_drift,
            )
            for key in keys
        ]

    def run(self, event_count: int) -> None:
        """Run faults for event_count events, then heal and converge.

        Raises:
            InvariantViolation: a law was broken, or the healed quorum did not converge.
            AssertionError: the core found itself in an impossible state.
        """
        for node in self.nodes:
            self.scheduler.after(self._faults.randint(0, 500), lambda node=node: self._start(node))
        self._schedule_faults()
        self._schedule_proposal()
        while self.scheduler.event_count < event_count and self.scheduler.run_next():
            pass
        self._heal()
        self._converge()
        self._compare()

    # What nodes ask of the world.

    def carry_request(self, node: SimNode, send: Send) -> None:
        """Take a request to the machine at its address."""
        target = next((other for other in self.nodes if other.name == send.address), None)
        require(target is not None, "addresses exist", send)
        assert target is not None, "required above"
        incarnation = node.incarnation

        def deliver() -> None:
            if not target.is_up:
                self._refuse(node, incarnation, send.request_id)
                return
            token = self._next_token
            self._next_token += 1
            self._tokens[token] = (node, incarnation, send.request_id)
            self.hand_over(target, RequestReceived(token=token, request=send.request))

        self._network.send(node.name, target.name, deliver)

    def carry_response(self, node: SimNode, token: int, response: Response) -> None:
        """Take a response back to the process that asked, if it still runs."""
        asker, incarnation, request_id = self._tokens.pop(token)

        def deliver() -> None:
            if asker.is_up and asker.incarnation == incarnation:
                self.hand_over(asker, ResponseReceived(request_id=request_id, response=response))

        self._network.send(node.name, asker.name, deliver)

    def carry_download(self, node: SimNode, effect: DownloadSnapshot) -> None:
        """Fetch a snapshot from the machine at its address."""
        self._downloads.begin(node, next(other for other in self.nodes if other.name == effect.address), effect)

    def on_commit(self, node: SimNode, commit_offset: Offset) -> None:
        """Acknowledge what this node proposed and has committed now."""
        waiting = self._waiting.get(node.name)
        while waiting and waiting[0][1] <= commit_offset:
            base_offset, next_offset, payload = waiting.popleft()
            held = next((b for b in node.disk.batches if b.base_offset == base_offset), None)
            if held is not None and held.payload == payload:
                self._acknowledged[base_offset] = (next_offset, payload)
                self.reads.promise(next_offset)
                self.counts["acknowledged"] += 1

    def on_answer(self, node: SimNode, effect: AnswerVoterChange | AnswerTransfer) -> None:
        """Take an answer to the operator."""
        if isinstance(effect, AnswerVoterChange):
            self._operator.on_change_answer(node, effect)
        else:
            self._operator.on_transfer_answer(node, effect)

    def on_stop(self, node: SimNode) -> None:
        """Tell the operator that a process is gone."""
        self._operator.on_stop(node)

    def note(self, node: SimNode, event: Event, effects: list[Effect]) -> None:
        """Add a step to the trace."""
        assert node.raft is not None, "a node notes its own step"
        state = node.raft.state
        names = " ".join(type(effect).__name__ for effect in effects)
        line = (
            f"{self.scheduler.now_ms} {node.name} {type(event).__name__} -> {type(state.role).__name__}"
            f" epoch={state.quorum_epoch} end={state.log.log_end_offset} flushed={state.log.flushed_offset}"
            f" hw={state.high_watermark} [{names}]"
        )
        self.scheduler.trace(line)
        self.history.append(line)

    def hand_over(self, node: SimNode, event: Event) -> None:
        """Step a node with an event, unless its process ends before it gets to it."""
        incarnation = node.incarnation

        def handle() -> None:
            if node.is_up and node.incarnation == incarnation:
                node.handle(event)

        node.when_awake(handle)

    def _refuse(self, node: SimNode, incarnation: int, request_id: int) -> None:
        """A machine without the process refuses the connection, when the answer gets through."""
        if self._faults.random() < 0.3:
            return
        self.counts["connection refused"] += 1

        def deliver() -> None:
            if node.is_up and node.incarnation == incarnation:
                self.hand_over(node, RequestFailed(request_id=request_id, failure=Failure.REFUSED))

        self.scheduler.after(self._faults.randint(0, 3), deliver)

    # Faults.

    def _start(self, node: SimNode) -> None:
        if not node.is_up:
            node.start()

    def _schedule_faults(self) -> None:
        options = self.options
        self._repeat(options.crash_every_ms, self._crash)
        self._repeat(options.shutdown_every_ms, self._shut_down)
        self._repeat(options.cut_every_ms, self._cut)
        self._repeat(options.pause_every_ms, self._pause)
        self._repeat(options.change_every_ms, self._operator.change_voters)
        self._repeat(options.transfer_every_ms, self._operator.transfer_leadership)
        if options.wipe:
            self.scheduler.after(self._faults.randint(1_000, 8_000), self._wipe)

    def _repeat(self, mean_ms: int | None, fault: object) -> None:
        if mean_ms is None:
            return
        assert callable(fault), "a fault is a method"

        def strike() -> None:
            if not self.is_healed:
                fault()
                self.scheduler.after(self._faults.randint(1, 2 * mean_ms), strike)

        self.scheduler.after(self._faults.randint(1, 2 * mean_ms), strike)

    def restart_later(self, node: SimNode) -> None:
        """Start a machine again after a while."""
        self.scheduler.after(self._faults.randint(1, self.options.down_ms_max), lambda: self._start(node))

    def _pick(self) -> SimNode:
        """A random machine, the leader half of the time."""
        leaders = [node for node in self.nodes if node.is_leader]
        return self._faults.choice(leaders if leaders and self._faults.random() < 0.5 else self.nodes)

    def _crash(self) -> None:
        node = self._pick()
        if node.is_up:
            self.counts["crash"] += 1
            node.stop()
            self.restart_later(node)

    def _shut_down(self) -> None:
        node = self._pick()
        if node.is_up:
            self.hand_over(node, ShutdownRequested())
            self._restart_when_down(node)

    def _restart_when_down(self, node: SimNode) -> None:
        """Poll until the orderly shutdown is over, then start again."""
        if node.is_up and not self.is_healed:
            self.scheduler.after(50, lambda: self._restart_when_down(node))
        elif not node.is_up:
            self.restart_later(node)

    def _cut(self) -> None:
        if len(self.nodes) < 2:
            return
        victim = self._pick()
        others = [node for node in self.nodes if node is not victim]
        outward = [(victim.name, node.name) for node in others]
        inward = [(node.name, victim.name) for node in others]
        single = self._faults.choice(others)
        kind = self._faults.randrange(4)
        links = [outward + inward, outward, inward, [(victim.name, single.name)]][kind]
        self.counts["cut, both ways" if kind == 0 else "cut, one way"] += 1
        self._network.cut(links, self._faults.randint(1, 2 * self.options.down_ms_max))

    def _pause(self) -> None:
        node = self._pick()
        self.counts["pause"] += 1
        pause_ms = self._faults.randint(1, self.options.down_ms_max)
        node.paused_until_ms = self.scheduler.now_ms + pause_ms
        # The first that it hears when it wakes: a leader that was replaced meanwhile must not answer from memory.
        self.scheduler.after(pause_ms, lambda: self._read_at(node))

    def _wipe(self) -> None:
        """A voter loses its disk and comes back with a fresh directory id: another replica, so an observer."""
        if self._has_wiped or self.is_healed:
            return
        node = self._operator.disk_to_lose()
        if node is None:
            # The voters are being changed, or there are none to spare.
            self.scheduler.after(100, self._wipe)
            return
        self._has_wiped = True
        self.counts["wipe"] += 1
        if node.is_up:
            node.stop()
        fresh = SimNode(
            self,
            key=ReplicaKey(node_id=node.key.node_id, directory_id=b"wiped-%010d" % node.key.node_id),
            name=node.name,
            initial_voters=voter_set([]),
            addresses=tuple(f"n{number}" for number in range(1, self.options.voter_count + 1)),
            flush_ms_max=self.options.flush_ms_max,
            clock_drift=self.options.clock_drift,
        )
        self.nodes[self.nodes.index(node)] = fresh
        # The lost disk stays in `disks` as it was: what it held counts as held, by a voter that is down for good.
        self.disks[fresh.key] = fresh.disk
        self._waiting.pop(node.name, None)
        self._operator.on_stop(node)
        self.restart_later(fresh)

    # The client.

    def _schedule_proposal(self) -> None:
        def strike() -> None:
            self._propose()
            self._read()
            # A client that proposes faster than the disks flush is a fault as well, and ends with the others.
            mean_ms = max(self.options.proposal_every_ms, 200 if self.is_healed else 0)
            self.scheduler.after(self._workload.randint(0, 2 * mean_ms), strike)

        self.scheduler.after(0, strike)

    def _propose(self) -> bool:
        leaders = [node for node in self.nodes if node.is_leader and node.paused_until_ms <= self.scheduler.now_ms]
        if not leaders:
            return False
        node = self._workload.choice(leaders)
        assert node.raft is not None, "leaders are up"
        self._proposal_count += 1
        payload = f"value-{self._proposal_count}"
        record_count = self._workload.randint(1, 3)
        base_offset = node.disk.log_end_offset
        event = ProposalReceived(
            proposal_id=self._proposal_count,
            quorum_epoch=node.raft.state.quorum_epoch,
            record_count=record_count,
            size_bytes=self._workload.randint(100, 10_000),
        )
        self._waiting.setdefault(node.name, deque())
        if not node.propose(payload, event):
            return False
        next_offset = Offset(base_offset + record_count)
        self._waiting[node.name].append((base_offset, next_offset, payload))
        return True

    def _read(self) -> None:
        """Ask everybody who believes to lead, or else anybody, what is committed."""
        if self._workload.random() < READ_SHARE:
            for node in [node for node in self.nodes if node.is_leader] or [self._workload.choice(self.nodes)]:
                self._read_at(node)

    def _read_at(self, node: SimNode) -> None:
        if node.is_up and node.paused_until_ms <= self.scheduler.now_ms:
            node.handle(ReadRequested(read_id=self.reads.begin()))

    # The end.

    def _heal(self) -> None:
        self.is_healed = True
        self.read_batches_max = 1_000
        self._network.heal()
        for node in self.nodes:
            node.paused_until_ms = 0
            if not node.is_up:
                node.start()

    def _converge(self) -> None:
        """Every node is up and in touch: within the limit a fresh record must be committed and known everywhere."""
        deadline_ms = self.scheduler.now_ms + CONVERGE_MS_MAX
        settled_from_ms = self.scheduler.now_ms + 5_000
        while self.scheduler.now_ms < deadline_ms:
            self.scheduler.run_next()
            for node in self.nodes:
                self._start(node)
            if self.scheduler.now_ms >= settled_from_ms and self._has_converged():
                self._operator.require_all_answered()
                return
        raise InvariantViolation(f"the healed quorum did not converge: {self.describe()}")

    def _has_converged(self) -> bool:
        leaders = [node for node in self.nodes if node.is_leader]
        if len(leaders) != 1 or leaders[0].raft is None:
            return False
        end = leaders[0].raft.state.high_watermark
        limit = self.checker.committed_end_offset
        if end is None or end != limit:
            return False
        # The workload goes on, so followers may be a few records behind the newest.
        return all(
            node.raft is not None
            and node.raft.state.high_watermark is not None
            and node.raft.state.quorum_epoch == leaders[0].raft.state.quorum_epoch
            and node.raft.state.commit_offset >= end - 10
            for node in self.nodes
        )

    def _compare(self) -> None:
        """Below its high watermark every log is the same, and every acknowledged record is in it."""
        leader = next(node for node in self.nodes if node.is_leader)
        for node in self.nodes:
            assert node.raft is not None, "converged nodes are up"
            end_offset = node.raft.state.high_watermark
            assert end_offset is not None, "converged nodes know a high watermark"
            if end_offset < leader.disk.log_start_offset:
                # Voters hear of a commit a little later than the leader, whose log may begin above it by then.
                continue
            require(
                node.disk.history_at(end_offset) == leader.disk.history_at(end_offset),
                "logs are equal below the high watermark",
                (node.name, end_offset),
            )
        whole = list(whole_log(leader.disk))
        by_offset = {batch.base_offset: batch for batch in whole}
        for base_offset, (next_offset, payload) in self._acknowledged.items():
            batch = by_offset.get(base_offset)
            require(
                batch is not None and batch.payload == payload and batch.next_offset == next_offset,
                "what was acknowledged is there",
                (base_offset, payload, batch),
            )
        values = Counter(batch.payload for batch in whole if batch.payload.startswith("value-"))
        require(all(count == 1 for count in values.values()), "no record is there twice", values.most_common(3))

    def describe(self) -> str:
        """One line for each node, and the last steps: what a failure report needs."""
        lines = [f"seed {self.scheduler.seed} at {self.scheduler.now_ms} ms, {self.options}"]
        for node in self.nodes:
            state = None if node.raft is None else node.raft.state
            shown = "down" if state is None else f"{state.election} {state.role} end={state.log.log_end_offset}"
            lines.append(f"  {node.name} {shown} disk={node.disk.election} durable={node.disk.durable_end_offset}")
        return "\n".join([*lines, "last steps:", *self.history])
