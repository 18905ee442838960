# SPDX-License-Identifier: Apache-2.0
"""State of one quorum node, and the small operations that all roles share.

Owns what outlives a role. Decides nothing: roles do. Only `transitions` replaces `role`.
Invariants: `high_watermark` never falls; `commit_offset` <= min(high_watermark, flushed_offset); election.quorum_epoch is never below
the epoch of the last record once started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metaquorum.raft.calls import PeerCall
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import AdvanceCommit, AnnounceLeader, FlushLog, Reply, ReportViolation, Send, Violation
from metaquorum.raft.kept_snapshots import KeptSnapshots
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import FetchRequest, Request, Response
from metaquorum.raft.outbox import Outbox
from metaquorum.raft.roles import Follower, Leader, Prospective, Resigned, Role
from metaquorum.raft.types import (
    FIRST_LEVEL_ONLY,
    LOG_BEGIN,
    ElectionState,
    LevelRange,
    NodeId,
    Offset,
    QuorumEpoch,
    ReplicaKey,
    Rng,
)
from metaquorum.raft.voters import Voter, VoterHistory, VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of this node, and the addresses that it may ask.

    Attributes:
        key: node id and directory id.
        cluster_id: cluster.
        address: `host:port` of its own quorum listener; None for an observer without one.
        addresses: configured `host:port` by node id; they take precedence over those in the voter set.
        bootstrap_addresses: further `host:port` at which a node of the quorum may be found.
        levels: feature levels that this process supports; each fetch reports them.
    """

    key: ReplicaKey
    cluster_id: str
    address: str | None
    addresses: Mapping[NodeId, str] = field(default_factory=dict[NodeId, str])
    bootstrap_addresses: Sequence[str] = ()
    levels: LevelRange = FIRST_LEVEL_ONLY


class RaftState:
    """Everything that a node knows between two steps."""

    __slots__ = (
        "_announced",
        "_next_request_id",
        "_own_voter",
        "commit_offset",
        "config",
        "election",
        "high_watermark",
        "identity",
        "log",
        "outbox",
        "rng",
        "role",
        "shutdown_deadline_ms",
        "snapshots",
        "voters",
    )

    def __init__(
        self,
        *,
        identity: Identity,
        config: RaftConfig,
        rng: Rng,
        election: ElectionState,
        voters: VoterHistory,
        log: LogView,
        role: Role,
    ) -> None:
        self.identity = identity
        self.config = config
        self.rng = rng
        self.election = election
        self.voters = voters
        self.log = log
        self.role: Role = role
        self.outbox = Outbox(election, max_held_messages=config.max_held_messages)
        self.high_watermark: Offset | None = None
        self.commit_offset = LOG_BEGIN
        self.shutdown_deadline_ms: int | None = None
        self.snapshots = KeptSnapshots()
        self._next_request_id = 1
        self._announced: tuple[QuorumEpoch, NodeId | None, str | None] | None = None
        self._own_voter: tuple[VoterSet | None, Voter | None] = (None, None)

    @property
    def key(self) -> ReplicaKey:
        """Identity of this replica."""
        return self.identity.key

    @property
    def quorum_epoch(self) -> QuorumEpoch:
        """Highest known epoch."""
        return self.election.quorum_epoch

    @property
    def voter_set(self) -> VoterSet:
        """Voter set in force at the end of the log."""
        return self.voters.latest

    @property
    def is_voter(self) -> bool:
        """True if this replica is a voter."""
        return self.own_voter is not None

    @property
    def own_voter(self) -> Voter | None:
        """This replica in the voter set in force; None if it is not a voter.

        Each event asks for it several times, and voter sets seldom change, so the answer is kept with its set.
        """
        voters = self.voters.latest
        if voters is not self._own_voter[0]:
            voter = voters.find(self.identity.key.node_id)
            self._own_voter = (voters, None if voter is None or voter.key != self.identity.key else voter)
        return self._own_voter[1]

    @property
    def may_campaign(self) -> bool:
        """True if this replica may ask for votes: it is a voter, or its removal is not known to be committed.

        Until then it may have the longest log, so that no other replica can be elected. Source: Raft dissertation 4.2.2.
        """
        if self.is_voter:
            return True
        is_committed = self.high_watermark is not None and self.high_watermark > self.voters.latest_offset
        return not is_committed and self.voters.previous.contains(self.identity.key)

    def address_of(self, node_id: NodeId) -> str | None:
        """Return the address of a node: the configured one, else the voter set's; None if unknown."""
        voter = self.voter_set.find(node_id)
        return self.identity.addresses.get(node_id) if voter is None else self.address_for(voter)

    def address_for(self, voter: Voter) -> str:
        """Return the address of a voter: the configured one, else the voter set's."""
        return self.identity.addresses.get(voter.key.node_id, voter.address)

    @property
    def known_leader_id(self) -> NodeId | None:
        """Leader of this epoch, as far as known. A resigned leader does not name itself."""
        return None if isinstance(self.role, Resigned) else self.election.leader_id

    def leader_address(self) -> str | None:
        """Return the address of the leader of this epoch, as far as known."""
        match self.role:
            case Resigned():
                return None
            case Follower(leader_address=address):
                return address
            case Leader():
                return self.identity.address
            case Prospective(leader_address=str() as address):
                return address
            case _:
                leader_id = self.election.leader_id
                return None if leader_id is None else self.address_of(leader_id)

    def peer_addresses(self) -> list[str]:
        """Return the addresses at which to look for a leader, without repetition, in a fixed order."""
        candidates = [self.address_for(voter) for voter in self.voter_set.others(self.key)]
        candidates += [self.identity.addresses[node_id] for node_id in sorted(self.identity.addresses)]
        candidates += self.identity.bootstrap_addresses
        return [address for address in dict.fromkeys(candidates) if address != self.identity.address]

    def draw_election_timeout_ms(self) -> int:
        """Return a random time from `election_timeout_ms` (inclusive) to twice that (exclusive). Source: Raft section 5.2."""
        low_ms = self.config.election_timeout_ms
        return self.rng.randrange(low_ms, 2 * low_ms)

    def draw_leader_gone_ms(self) -> int:
        """Return a random time for which a follower waits for a leader that refused."""
        gone_ms = self.config.leader_gone_ms
        return self.rng.randrange(gone_ms // 2, gone_ms + gone_ms // 2)

    def next_request_id(self) -> int:
        """Return an id that no other call of this node has."""
        request_id = self._next_request_id
        self._next_request_id += 1
        return request_id

    def send(self, call: PeerCall, address: str, request: Request, *, now_ms: int) -> None:
        """Send the next request of a repeated call.

        Without an answer it is repeated soon. A late answer still counts, so the shell waits for it until the fetch timeout.
        """
        request_id = self.next_request_id()
        timeout_ms = self.config.request_timeout_ms
        if isinstance(request, FetchRequest):
            timeout_ms += request.max_wait_ms
        call.start(request_id, now_ms=now_ms, timeout_ms=timeout_ms)
        late_ms = max(timeout_ms, self.config.fetch_timeout_ms)
        self.outbox.say(Send(request_id=request_id, address=address, request=request, timeout_ms=late_ms))

    def reply(self, token: int, response: Response) -> None:
        """Answer a request."""
        self.outbox.say(Reply(token=token, response=response))

    def report(self, kind: Violation, text: str) -> None:
        """Report to the operator that a peer broke the protocol."""
        self.outbox.emit(ReportViolation(kind=kind, text=text))

    def set_election(self, election: ElectionState) -> None:
        """Change epoch, leader or vote. The change reaches the disk before any message that shows it leaves."""
        before = self.election
        assert election.quorum_epoch >= before.quorum_epoch, f"epoch would fall: {before} to {election}"
        if election.quorum_epoch == before.quorum_epoch:
            assert before.voted_key in (None, election.voted_key), f"vote would change: {before} to {election}"
            assert before.leader_id in (None, election.leader_id), f"leader would change: {before} to {election}"
        self.election = election
        self.outbox.record(election)

    def raise_high_watermark(self, high_watermark: Offset) -> None:
        """Note that everything below this offset (exclusive) is committed. A lower offset than the known one is ignored."""
        if self.high_watermark is None or high_watermark > self.high_watermark:
            assert high_watermark <= self.log.log_end_offset, (
                f"high watermark {high_watermark} beyond the log end {self.log.log_end_offset}"
            )
            self.high_watermark = high_watermark

    def deliver(self) -> None:
        """Deliver everything that is committed, and flushed here."""
        if self.high_watermark is not None:
            commit_offset = min(self.high_watermark, self.log.flushed_offset)
            if commit_offset > self.commit_offset:
                self.commit_offset = commit_offset
                self.outbox.emit(AdvanceCommit(commit_offset=commit_offset))

    def flush_appended(self) -> None:
        """Flush appended records, unless a flush is under way; its end asks again."""
        log = self.log
        role = self.role
        # A leader flushes when a round begins; records appended in between are flushed with the next one.
        has_to_flush = log.flushed_offset < role.round_end_offset if isinstance(role, Leader) else not log.is_flushed
        if has_to_flush and not log.is_flushing:
            self.outbox.emit(FlushLog(flush_id=log.begin_flush()))

    def settle(self) -> None:
        """End a step: flush appended records, deliver what is committed and flushed, announce the leader."""
        self.flush_appended()
        self.deliver()
        known = (self.quorum_epoch, self.known_leader_id, self.leader_address())
        if known != self._announced:
            self._announced = known
            self.outbox.emit(AnnounceLeader(quorum_epoch=known[0], leader_id=known[1], address=known[2]))
