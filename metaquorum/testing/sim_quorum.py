# SPDX-License-Identifier: Apache-2.0
"""The simulated world: machines, network, a client.

Owns one run of one seed; `sim_faults` has the faults. Phases: faults, with the laws checked after every event; then heal, converge
within a time limit, commit a new record, and compare all logs. The client remembers its acknowledged records: at the end each one
must be in the log at its offset, and no record may be there twice.
Fault budget: no flushed data is lost, except on the disks that `sim_faults` wipes or damages; each of them counts as a voter lost for
good.
"""

from __future__ import annotations

from collections import Counter, deque

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import Activate, AnswerTransfer, AnswerVoterChange, DownloadSnapshot, Effect, Send
from metaquorum.raft.events import (
    Event,
    Failure,
    ProposalReceived,
    ReadRequested,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    SnapshotFailed,
)
from metaquorum.raft.messages import Refusal, Request, Response
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.testing.invariants import Checker, InvariantViolation, require
from metaquorum.testing.options import SimOptions, draw_options
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.sim_controller import SimControllers
from metaquorum.testing.sim_downloads import SimDownloads
from metaquorum.testing.sim_faults import SimFaults
from metaquorum.testing.sim_log import DamagedDiskError, SimDisk
from metaquorum.testing.sim_network import SimNetwork
from metaquorum.testing.sim_node import SimNode
from metaquorum.testing.sim_operator import SimOperator
from metaquorum.testing.sim_reader import ReadChecker
from metaquorum.testing.sim_snapshots import whole_log

CONVERGE_MS_MAX = 60_000
"""Virtual milliseconds within which a healed quorum must have committed a new record everywhere."""

READ_SHARE = 0.25
"""Reads for each proposal."""

HISTORY_STEPS = 50
"""Steps kept for a report."""


class SimulatedQuorum:
    """One run.

    Args:
        seed: seed of the run.
        options: what may happen; None: drawn from the seed.
    """

    def __init__(self, seed: int, options: SimOptions | None = None) -> None:
        self.scheduler = Scheduler(seed)
        self.options = options or draw_options(self.scheduler.rng("options"))
        self.counts: Counter[str] = Counter()
        self.checker = Checker()
        self.reads = ReadChecker(self.counts)
        self.config = RaftConfig(kept_snapshots=self.options.kept_snapshots)
        # Few batches in one fetch answer, so that catching up takes several rounds; many after the healing.
        self.read_batches_max = 8
        self.history: deque[str] = deque(maxlen=HISTORY_STEPS)
        self._network = SimNetwork(self.scheduler, self.options, self.counts)
        self._downloads = SimDownloads(self, self._network)
        self._workload = self.scheduler.rng("workload")
        self._next_token = 1
        self._tokens: dict[int, tuple[SimNode, int, int]] = {}
        self._forged_tokens: set[int] = set()
        self._proposal_count = 0
        self._waiting: dict[str, deque[tuple[Offset, Offset, str]]] = {}
        self._acknowledged: dict[Offset, tuple[Offset, str]] = {}
        self.is_healed = False
        self.faults = SimFaults(self, self._network)
        self.nodes = self._build_nodes()
        self.operator = SimOperator(self)
        self.controllers = SimControllers(self)
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
                disk=self.faults.make_disk(key),
            )
            for key in keys
        ]

    def run(self, event_count: int) -> None:
        """Run with faults for `event_count` events, then heal and converge.

        Raises:
            InvariantViolation: a law was broken, or the healed quorum did not converge.
            AssertionError: the core was in an impossible state.
        """
        for node in self.nodes:
            self.scheduler.after(self.faults.rng.randint(0, 500), lambda node=node: self.start(node))
        self.faults.schedule()
        self._schedule_proposal()
        self.controllers.schedule()
        while self.scheduler.event_count < event_count and self.scheduler.run_next():
            pass
        self._heal()
        self._converge()
        self._compare()

    # Requests of nodes to the world.

    def carry_request(self, node: SimNode, send: Send) -> None:
        """Carry a request to the machine at its address."""
        target = self._at(send.address)
        incarnation = node.incarnation
        if target is None:
            self._refuse(node, incarnation, send.request_id)
            return

        def deliver() -> None:
            if not target.is_up:
                self._refuse(node, incarnation, send.request_id)
                return
            token = self._next_token
            self._next_token += 1
            self._tokens[token] = (node, incarnation, send.request_id)
            self.hand_over(target, RequestReceived(token=token, request=send.request))

        self._network.send(node.name, target.name, deliver)

    def deliver_forged(self, node: SimNode, request: Request) -> None:
        """Deliver a request to a machine that no other machine sent."""
        token = self._next_token
        self._next_token += 1
        self._forged_tokens.add(token)
        self.hand_over(node, RequestReceived(token=token, request=request))

    def carry_response(self, node: SimNode, token: int, response: Response) -> None:
        """Carry a response back to the process that sent the request, if it still runs."""
        if token in self._forged_tokens:
            require(response.refusal is Refusal.INVALID_REQUEST, "a forged request is refused", response)
            return
        asker, incarnation, request_id = self._tokens.pop(token)

        def deliver() -> None:
            if asker.is_up and asker.incarnation == incarnation:
                self.hand_over(asker, ResponseReceived(request_id=request_id, response=response))

        self._network.send(node.name, asker.name, deliver)

    def carry_download(self, node: SimNode, effect: DownloadSnapshot) -> None:
        """Download a snapshot from the machine at its address."""
        target = self._at(effect.address)
        if target is None:
            failed = SnapshotFailed(download_id=effect.download_id, failure=Failure.TIMED_OUT)
            self.scheduler.after(1, lambda: self.hand_over(node, failed))
            return
        self._downloads.begin(node, target, effect)

    def _at(self, address: str) -> SimNode | None:
        """Return the machine at an address; None if it has moved away."""
        target = next((node for node in self.nodes if node.address == address), None)
        require(target is not None or address in self.faults.old_addresses, "addresses exist", address)
        return target

    def on_commit(self, node: SimNode, commit_offset: Offset) -> None:
        """Acknowledge what this node proposed and has now committed."""
        waiting = self._waiting.get(node.name)
        while waiting and waiting[0][1] <= commit_offset:
            base_offset, next_offset, payload = waiting.popleft()
            held = node.disk.batch_before(next_offset)
            if held is not None and (held.base_offset, held.payload) == (base_offset, payload):
                self._acknowledged[base_offset] = (next_offset, payload)
                self.reads.promise(next_offset)
                self.counts["acknowledged"] += 1
        self.controllers.on_commit(node, commit_offset)

    def on_activate(self, node: SimNode, effect: Activate) -> None:
        """Start a controller on a node."""
        self.controllers.on_activate(node, effect)

    def on_deactivate(self, node: SimNode) -> None:
        """End the controller on a node."""
        self.controllers.on_deactivate(node)

    def on_answer(self, node: SimNode, effect: AnswerVoterChange | AnswerTransfer) -> None:
        """Pass an answer to the operator."""
        if isinstance(effect, AnswerVoterChange):
            self.operator.on_change_answer(node, effect)
        else:
            self.operator.on_transfer_answer(node, effect)

    def on_stop(self, node: SimNode) -> None:
        """Tell the operator and the controllers that a process is gone."""
        self.operator.on_stop(node)
        self.controllers.on_deactivate(node)

    def on_damaged_disk(self, node: SimNode, error: DamagedDiskError) -> None:
        """Replace a machine with a damaged disk; nothing else may keep a machine from starting and continuing."""
        self.faults.on_damaged_disk(node, error)

    def restart_later(self, node: SimNode) -> None:
        """Start a machine again after a while."""
        self.faults.restart_later(node)

    def forget_client(self, node: SimNode) -> None:
        """Forget what a machine has not acknowledged: its disk is lost, so it never will."""
        self._waiting.pop(node.name, None)

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
        """Step a node with an event when it is awake, unless its process ends before."""
        incarnation = node.incarnation

        def handle() -> None:
            if node.is_up and node.incarnation == incarnation:
                node.handle(event)

        node.when_awake(handle)

    def _refuse(self, node: SimNode, incarnation: int, request_id: int) -> None:
        """Refuse a connection to a machine without a process; sometimes the refusal is lost."""
        if self.faults.rng.random() < 0.3:
            return
        self.counts["connection refused"] += 1

        def deliver() -> None:
            if node.is_up and node.incarnation == incarnation:
                self.hand_over(node, RequestFailed(request_id=request_id, failure=Failure.REFUSED))

        self.scheduler.after(self.faults.rng.randint(0, 3), deliver)

    def start(self, node: SimNode) -> None:
        """Start a machine that is down."""
        if not node.is_up:
            node.start()

    # The client.

    def _schedule_proposal(self) -> None:
        def strike() -> None:
            self._propose()
            self._read()
            # A client that proposes faster than the disks flush is a fault, too, and ends with the others.
            mean_ms = max(self.options.proposal_every_ms, 200 if self.is_healed else 0)
            self.scheduler.after(self._workload.randint(0, 2 * mean_ms), strike)

        self.scheduler.after(0, strike)

    def _propose(self) -> bool:
        leaders = [node for node in self.nodes if node.is_leader and node.paused_until_ms <= self.scheduler.now_ms]
        if not leaders:
            return False
        node = self._workload.choice(leaders)
        assert node.raft is not None, "leaders are up"
        return self.propose_at(node, node.raft.state.quorum_epoch, self._workload.randint(1, 3)) is not None

    def propose_at(self, node: SimNode, quorum_epoch: QuorumEpoch, record_count: int) -> tuple[Offset, str] | None:
        """Propose a batch at a leader. Return its offset and its payload, or None if it is refused."""
        self._proposal_count += 1
        payload = f"value-{self._proposal_count}"
        base_offset = node.disk.log_end_offset
        event = ProposalReceived(
            proposal_id=self._proposal_count,
            quorum_epoch=quorum_epoch,
            record_count=record_count,
            size_bytes=self._workload.randint(100, 10_000),
        )
        self._waiting.setdefault(node.name, deque())
        if not node.propose(payload, event):
            return None
        self._waiting[node.name].append((base_offset, Offset(base_offset + record_count), payload))
        return base_offset, payload

    def _read(self) -> None:
        """Ask every machine that believes it leads, or else a random one, what is committed."""
        if self._workload.random() < READ_SHARE:
            for node in [node for node in self.nodes if node.is_leader] or [self._workload.choice(self.nodes)]:
                self.read_at(node)

    def read_at(self, node: SimNode) -> None:
        """Ask one machine what is committed."""
        if node.is_up and node.paused_until_ms <= self.scheduler.now_ms:
            node.handle(ReadRequested(read_id=self.reads.begin()))

    # The end of the run.

    def _heal(self) -> None:
        self.is_healed = True
        self.read_batches_max = 1_000
        self._network.heal()
        self.faults.heal()
        for node in list(self.nodes):
            node.paused_until_ms = 0
            self.start(node)

    def _converge(self) -> None:
        """Let the healed quorum run: within the limit a new record must be committed and known everywhere."""
        deadline_ms = self.scheduler.now_ms + CONVERGE_MS_MAX
        settled_from_ms = self.scheduler.now_ms + 5_000
        while self.scheduler.now_ms < deadline_ms:
            self.scheduler.run_next()
            for node in list(self.nodes):
                self.start(node)
            if self.scheduler.now_ms >= settled_from_ms and self._has_converged():
                self.operator.require_all_answered()
                return
        raise InvariantViolation(f"the healed quorum did not converge: {self.describe()}")

    def _has_converged(self) -> bool:
        leaders = [node for node in self.nodes if node.is_leader]
        if len(leaders) != 1 or leaders[0].raft is None:
            return False
        end = leaders[0].raft.state.high_watermark
        limit = self.checker.committed_end_offset
        # A leader has the new address of a voter in its set before the others have; until then it could be lost again.
        if end is None or end != limit or self.faults.is_moving:
            return False
        # The workload continues, so followers may be a few records behind; but their logs must still be comparable.
        start = leaders[0].disk.log_start_offset
        return all(
            node.raft is not None
            and (node.raft.state.high_watermark or -1) >= start
            and node.raft.state.quorum_epoch == leaders[0].raft.state.quorum_epoch
            and node.raft.state.commit_offset >= end - 10
            for node in self.nodes
        ) and self.controllers.has_settled(leaders[0])

    def _compare(self) -> None:
        """Check that all logs are equal below their high watermarks, and contain every acknowledged record."""
        leader = next(node for node in self.nodes if node.is_leader)
        for node in self.nodes:
            assert node.raft is not None, "converged nodes are up"
            end_offset = node.raft.state.high_watermark
            assert end_offset is not None, "converged nodes know a high watermark"
            require(
                node.disk.history_at(end_offset) == leader.disk.history_at(end_offset),
                "logs are equal below the high watermark",
                (node.name, end_offset),
            )
        self.faults.compare_files()
        require(not self.faults.is_moving, "voters that moved are known by their new address", leader.name)
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
        """Return one line for each node, and the last steps, for a failure report."""
        lines = [f"seed {self.scheduler.seed} at {self.scheduler.now_ms} ms, {self.options}"]
        for node in self.nodes:
            state = None if node.raft is None else node.raft.state
            shown = "down" if state is None else f"{state.election} {state.role} end={state.log.log_end_offset}"
            lines.append(f"  {node.name} {shown} disk={node.disk.election} durable={node.disk.durable_end_offset}")
        return "\n".join([*lines, "last steps:", *self.history])
