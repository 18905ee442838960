# SPDX-License-Identifier: Apache-2.0
"""One real Raft core; the test plays its peers and its disk.

Owns a clock that only the test moves, a vote file and a flush that complete at once (or when the test completes them), and the
effects of the core so far. Tests check everything for literal values. Nothing is random: the election timeout is the smallest
possible.
Source: Kafka's RaftClientTestContext.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import Effect, FlushLog, PersistElectionState, Reply, ReplyWithBatches, Send
from metaquorum.raft.events import (
    ElectionStatePersisted,
    Event,
    Failure,
    LogFlushed,
    ProposalReceived,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    Started,
    Tick,
)
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import (
    BatchSpan,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchedBatches,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.node import RaftNode
from metaquorum.raft.state import Identity, RaftState
from metaquorum.raft.types import (
    INITIAL_ELECTION_STATE,
    ElectionState,
    EpochEnd,
    NodeId,
    Offset,
    QuorumEpoch,
    ReplicaKey,
    SnapshotId,
)
from metaquorum.raft.voters import Voter, VoterHistory, voter_set

CLUSTER_ID = "scripted"
EffectT = TypeVar("EffectT", bound=Effect)
RequestT = TypeVar("RequestT", bound=Request)


def key(number: int) -> ReplicaKey:
    """Return the replica key of a node number."""
    return ReplicaKey(node_id=NodeId(number), directory_id=b"directory-%06d" % number)


def snapshot_id(end_offset: int, epoch: int) -> SnapshotId:
    """Return a snapshot id."""
    return SnapshotId(end_offset=Offset(end_offset), epoch=QuorumEpoch(epoch))


def election_state(epoch: int, *, leader: int | None = None, voted: int | None = None) -> ElectionState:
    """Return an election state."""
    return ElectionState(
        quorum_epoch=QuorumEpoch(epoch),
        leader_id=None if leader is None else NodeId(leader),
        voted_key=None if voted is None else key(voted),
    )


class LeastRng:
    """Returns the smallest possible value of each draw."""

    def randrange(self, start: int, stop: int, /) -> int:
        """Return start."""
        assert start < stop, f"empty range from {start} to {stop}"
        return start


class ScriptedNode:
    """One core, node 1 by default.

    Args:
        voters: numbers of the voters.
        number: number of this node; if it is not among the voters, it is an observer.
        election: election state on disk.
        epochs: (epoch, start offset) of the log on disk.
        log_end_offset: end of the log on disk, which is flushed.
        config: times and limits.
        auto_disk: whether writes of the vote and flushes complete within the step.
        voters_in_log: whether the log has a VotersRecord (at offset 1).
        knows_voters: whether the node was formatted with the voters.
        addresses: configured addresses by node number.
        start: (offset, epoch of the record before) at which the log on disk begins, if not at 0.
        snapshots: (end offset, epoch) of the snapshots on disk.
        committed_offset: end (exclusive) of what the image on disk shows as committed.
    """

    def __init__(
        self,
        *,
        voters: Sequence[int] = (1, 2, 3),
        number: int = 1,
        election: ElectionState = INITIAL_ELECTION_STATE,
        epochs: Sequence[tuple[int, int]] = (),
        log_end_offset: int = 0,
        config: RaftConfig | None = None,
        auto_disk: bool = True,
        voters_in_log: bool | None = None,
        knows_voters: bool = True,
        addresses: Mapping[int, str] | None = None,
        start: tuple[int, int] | None = None,
        snapshots: Sequence[tuple[int, int]] = (),
        committed_offset: int = 0,
    ) -> None:
        members = voter_set([Voter(key=key(voter), address=f"n{voter}") for voter in voters])
        in_log = log_end_offset > 1 if voters_in_log is None else voters_in_log
        self.config = config or RaftConfig()
        self.now_ms = 10_000
        self.auto_disk = auto_disk
        self.disk = election
        self.effects: list[Effect] = []
        self._token = 0
        self.raft = RaftNode(
            identity=Identity(
                key=key(number),
                cluster_id=CLUSTER_ID,
                address=f"n{number}",
                addresses={NodeId(node): address for node, address in (addresses or {}).items()},
                bootstrap_addresses=tuple(f"n{voter}" for voter in voters),
            ),
            config=self.config,
            rng=LeastRng(),
            election=election,
            voters=VoterHistory(members if knows_voters else voter_set([]), [(Offset(1), members)] if in_log else []),
            log=LogView(
                epochs=[(QuorumEpoch(epoch), Offset(start)) for epoch, start in epochs],
                log_end_offset=Offset(log_end_offset),
                flushed_offset=Offset(log_end_offset),
                start=None if start is None else snapshot_id(*start),
            ),
            kept_snapshots=[snapshot_id(*snapshot) for snapshot in snapshots],
            committed_offset=Offset(committed_offset),
        )

    @property
    def state(self) -> RaftState:
        """State of the core."""
        return self.raft.state

    @property
    def role(self) -> str:
        """Name of the role."""
        return type(self.raft.state.role).__name__

    def start(self) -> ScriptedNode:
        """Take the first role."""
        self.step(Started())
        return self

    def step(self, event: Event) -> list[Effect]:
        """Step the core, and the disk with it. Return the effects in order, those of completions included."""
        effects = self.raft.step(event, self.now_ms)
        self._check_deadline()
        self.effects.extend(effects)
        produced = list(effects)
        if self.auto_disk:
            for effect in effects:
                produced.extend(self.complete(effect))
        return produced

    def _check_deadline(self) -> None:
        """The deadline that a node keeps may be early, never late: it would sleep through its duty."""
        kept_ms = self.raft.deadline_ms()
        due_ms = self.raft._next_deadline_ms()  # pyright: ignore[reportPrivateUsage]
        assert due_ms is None or (kept_ms is not None and kept_ms <= due_ms), f"deadline {kept_ms}, due {due_ms}"

    def complete(self, effect: Effect) -> list[Effect]:
        """Complete one write of the vote or one flush."""
        match effect:
            case PersistElectionState(sequence=sequence, state=state):
                self.disk = state
                return self.step(ElectionStatePersisted(sequence=sequence))
            case FlushLog(flush_id=flush_id):
                return self.step(LogFlushed(flush_id=flush_id))
            case _:
                return []

    def advance(self, duration_ms: int) -> list[Effect]:
        """Let time pass, with a step at every deadline on the way."""
        target_ms = self.now_ms + duration_ms
        produced: list[Effect] = []
        while (deadline_ms := self.raft.deadline_ms()) is not None and deadline_ms <= target_ms:
            assert deadline_ms > self.now_ms or self.raft.deadline_ms() is not None, "a deadline in the past"
            self.now_ms = max(self.now_ms, deadline_ms)
            produced.extend(self.step(Tick()))
            if self.raft.deadline_ms() == deadline_ms:
                # Nothing changed, so the same deadline would come for ever.
                raise AssertionError(f"deadline {deadline_ms} does not move in {self.state.role}")
        self.now_ms = target_ms
        return produced

    def of(self, kind: type[EffectT]) -> list[EffectT]:
        """Return all effects of a kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[RequestT]) -> list[tuple[Send, RequestT]]:
        """Return all requests of a kind so far."""
        return [(send, send.request) for send in self.of(Send) if isinstance(send.request, kind)]

    def forget(self) -> None:
        """Forget the effects so far."""
        self.effects.clear()

    def receive(self, request: Request) -> Response | None:
        """Receive a peer's request. Return the answer if it came in the same step, else None."""
        self._token += 1
        token = self._token
        for effect in self.step(RequestReceived(token=token, request=request)):
            if isinstance(effect, Reply | ReplyWithBatches) and effect.token == token:
                return effect.response
        return None

    def answer(self, send: Send, response: Response) -> list[Effect]:
        """Receive a peer's answer."""
        return self.step(ResponseReceived(request_id=send.request_id, response=response))

    def fail(self, send: Send, failure: Failure = Failure.REFUSED) -> list[Effect]:
        """Let a request fail."""
        return self.step(RequestFailed(request_id=send.request_id, failure=failure))

    # Messages of peers.

    def vote_request(self, candidate: int, epoch: int, *, last_epoch: int = 0, log_end_offset: int = 0) -> VoteRequest:
        """Return a binding vote request to this node."""
        return VoteRequest(
            cluster_id=CLUSTER_ID,
            quorum_epoch=QuorumEpoch(epoch),
            candidate=key(candidate),
            voter=self.state.key,
            last_epoch=QuorumEpoch(last_epoch),
            log_end_offset=Offset(log_end_offset),
        )

    def pre_vote_request(
        self, candidate: int, epoch: int, *, last_epoch: int = 0, log_end_offset: int = 0
    ) -> PreVoteRequest:
        """Return a pre-vote request to this node."""
        return PreVoteRequest(
            cluster_id=CLUSTER_ID,
            quorum_epoch=QuorumEpoch(epoch),
            candidate=key(candidate),
            voter=self.state.key,
            last_epoch=QuorumEpoch(last_epoch),
            log_end_offset=Offset(log_end_offset),
        )

    def begin_request(self, leader: int, epoch: int) -> BeginQuorumEpochRequest:
        """Return a leader's announcement to this node."""
        return BeginQuorumEpochRequest(
            cluster_id=CLUSTER_ID,
            quorum_epoch=QuorumEpoch(epoch),
            leader_id=NodeId(leader),
            voter=self.state.key,
            leader_address=f"n{leader}",
        )

    def end_request(self, leader: int, epoch: int, successors: Sequence[int] = ()) -> EndQuorumEpochRequest:
        """Return a leader's resignation."""
        return EndQuorumEpochRequest(
            cluster_id=CLUSTER_ID,
            quorum_epoch=QuorumEpoch(epoch),
            leader_id=NodeId(leader),
            preferred_successors=tuple(key(successor) for successor in successors),
        )

    def fetch_request(
        self,
        replica: int,
        *,
        offset: int,
        last_epoch: int,
        epoch: int | None = None,
        high_watermark: int | None = None,
        max_wait_ms: int = 400,
        read_round: int = 0,
    ) -> FetchRequest:
        """Return a replica's fetch from this node."""
        return FetchRequest(
            cluster_id=CLUSTER_ID,
            quorum_epoch=self.state.quorum_epoch if epoch is None else QuorumEpoch(epoch),
            replica=key(replica),
            fetch_offset=Offset(offset),
            last_fetched_epoch=QuorumEpoch(last_epoch),
            high_watermark=None if high_watermark is None else Offset(high_watermark),
            max_bytes=1_000_000,
            max_wait_ms=max_wait_ms,
            replica_address=f"n{replica}",
            read_round=read_round,
        )

    def leader_answer(
        self,
        leader: int,
        *,
        batches: FetchedBatches | None = None,
        high_watermark: int | None = None,
        diverging: tuple[int, int] | None = None,
        snapshot: tuple[int, int] | None = None,
    ) -> FetchResponse:
        """Return the fetch answer of a leader of the current epoch."""
        end = None
        if diverging is not None:
            end = EpochEnd(epoch=QuorumEpoch(diverging[0]), end_offset=Offset(diverging[1]))
        return FetchResponse(
            quorum_epoch=self.state.quorum_epoch,
            leader_id=NodeId(leader),
            leader_address=f"n{leader}",
            high_watermark=None if high_watermark is None else Offset(high_watermark),
            diverging=end,
            batches=batches,
            snapshot=None if snapshot is None else snapshot_id(*snapshot),
        )

    # Whole sequences.

    def elect(self) -> ScriptedNode:
        """Time out, get every pre-vote and every vote, and lead."""
        for kind in (PreVoteRequest, VoteRequest):
            for _ in range(20):
                if self.sent(kind):
                    break
                self.advance(100)
            for send, _ in self.sent(kind):
                if self.role in ("Prospective", "Candidate"):
                    epoch = self.state.quorum_epoch
                    self.answer(send, VoteResponse(quorum_epoch=epoch, leader_id=None, granted=True))
        assert self.role == "Leader", f"not elected: {self.state.role}"
        self.forget()
        return self

    def follow(self, leader: int, epoch: int) -> Send:
        """Learn of a leader; return the first fetch from it."""
        self.receive(self.begin_request(leader, epoch))
        assert self.role == "Follower", f"not following: {self.state.role}"
        return self.sent(FetchRequest)[-1][0]

    def propose(self, record_count: int = 1, *, size_bytes: int = 100, epoch: int | None = None) -> list[Effect]:
        """Propose records as a user."""
        return self.step(
            ProposalReceived(
                proposal_id=1,
                quorum_epoch=self.state.quorum_epoch if epoch is None else QuorumEpoch(epoch),
                record_count=record_count,
                size_bytes=size_bytes,
            )
        )


def batches(*spans: tuple[int, int, int]) -> FetchedBatches:
    """Return fetched batches of (base offset, next offset, epoch) without content."""
    return FetchedBatches(
        data=b"",
        spans=tuple(
            BatchSpan(base_offset=Offset(base), next_offset=Offset(following), epoch=QuorumEpoch(epoch))
            for base, following, epoch in spans
        ),
    )
