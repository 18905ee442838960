# SPDX-License-Identifier: Apache-2.0
"""Data of the six roles. Their behaviour is in election, follower, leader, resigned; legal changes are in transitions.

What outlives a role (epoch, vote, known leader, high watermark) is in `RaftState`.
Source: KIP-595, KIP-996; Kafka's QuorumState.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from metaquorum.raft.calls import PeerCall
from metaquorum.raft.parking import ParkedFetches
from metaquorum.raft.types import LOG_BEGIN, LevelRange, NodeId, Offset, ReplicaKey
from metaquorum.raft.voter_changes import PendingChange, PendingTransfer
from metaquorum.raft.voters import Voter


@dataclass(slots=True, kw_only=True)
class Unattached:
    """Knows an epoch, but no leader to fetch from; asks peers for one.

    Attributes:
        election_deadline_ms: when to start an election; None for an observer and for a stopping node, which never do.
        fetch: the call that looks for a leader.
        next_peer: index of the peer to ask next.
    """

    election_deadline_ms: int | None
    fetch: PeerCall
    next_peer: int = 0


@dataclass(slots=True, kw_only=True)
class VoteCall:
    """The vote of one voter in one round. `call` asks for it; `granted` is None while it is open."""

    voter: Voter
    call: PeerCall
    granted: bool | None = None


@dataclass(slots=True, kw_only=True)
class Prospective:
    """Asks whether it would be elected; nothing durable has changed yet.

    Attributes:
        election_deadline_ms: when the round is given up.
        leader_address: address of the leader of this epoch, if one was known; the node falls back to it.
        votes: answers of the other voters, by node id.
    """

    election_deadline_ms: int
    leader_address: str | None
    votes: dict[NodeId, VoteCall]


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Wants to lead a new epoch, and has voted for itself.

    Attributes:
        election_deadline_ms: when the round is given up.
        votes: answers of the other voters, by node id.
        is_elected: True once a majority has voted for it and it waits only for its disk.
    """

    election_deadline_ms: int
    votes: dict[NodeId, VoteCall]
    is_elected: bool = False


@dataclass(slots=True, kw_only=True)
class ReplicaProgress:
    """A leader's knowledge of another replica.

    Attributes:
        key: the replica.
        address: address of its quorum listener; None for an observer without one.
        end_offset: end of its flushed log (exclusive), proven to match the leader's; None before the first such fetch.
        last_fetch_ms: time of its last fetch; None before the first.
        previous_fetch_ms: time of its last fetch that matched the leader's log.
        previous_leader_end_offset: end of the leader's log at that time.
        last_caught_up_ms: latest time at which it is known to have had everything.
        read_round: last round of reads that it has repeated in a fetch of this epoch.
        counts_above: offset of the record that made it a voter in this epoch; its fetches up to it (inclusive) are an observer's and
            prove nothing. None: it was a voter before this leadership.
        levels: feature levels that it supports, from its last fetch; None before the first.
        keeps_up: whether its last fetch had everything that the log had at the fetch before; see `spares`.
        sent_ms: when its last fetch was answered with data; None once it has fetched again.
        sent_end_offset: end of this log at that time (exclusive); None once it has fetched again.
        exchange_ms: time from its last answer with data to the next fetch.
    """

    key: ReplicaKey
    address: str | None
    end_offset: Offset | None = None
    last_fetch_ms: int | None = None
    previous_fetch_ms: int | None = None
    previous_leader_end_offset: Offset | None = None
    last_caught_up_ms: int | None = None
    read_round: int = 0
    counts_above: Offset | None = None
    levels: LevelRange | None = None
    keeps_up: bool = False
    sent_ms: int | None = None
    sent_end_offset: Offset | None = None
    exchange_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRead:
    """A linearizable read that waits until the leadership is confirmed; see `reads`.

    Attributes:
        read_id: the user's id of the read.
        after_round: number of the last round that began before the read arrived.
        read_offset: high watermark at that time.
    """

    read_id: int
    after_round: int
    read_offset: Offset


@dataclass(slots=True, kw_only=True)
class Leader:
    """Leads the epoch; the leadership is on its disk.

    Attributes:
        started_ms: when it became leader.
        epoch_start_offset: offset of its first record, the LeaderChange (inclusive).
        high_watermark: end of the committed log (exclusive); None until a record of this epoch is committed.
        round_end_offset: end of the round under way (exclusive): needed voters get everything below at once; what lies above makes
            the next round.
        round_size: proposals of the round under way, or of the last one; see `rounds`.
        round_waiting: proposals that were appended above it.
        round_target: proposals that the next round waits for; 0: it waits for none.
        round_hold: rounds that must reach their target before one waits for more again.
        round_deadline_ms: when the next round begins at the latest; None while one is under way, or no proposal waits.
        voters: progress of the other voters, by node id.
        begin_calls: calls that announce it to the other voters, by node id.
        observers: progress of observers, in the order of their last fetch.
        parked: delayed fetches.
        uncommitted: (next offset, size in bytes) of each appended but uncommitted proposal.
        uncommitted_bytes: sum of those sizes.
        is_active: whether its users were told to start.
        read_round: number of the last round of reads that began; see `reads`.
        reads: waiting reads, in the order of their arrival.
        change: the uncommitted change of voters, if any.
        transfer: the leadership transfer under way, if any; no proposals are accepted during it.
    """

    started_ms: int
    epoch_start_offset: Offset
    high_watermark: Offset | None = None
    round_end_offset: Offset = LOG_BEGIN
    round_size: int = 0
    round_waiting: int = 0
    round_target: int = 0
    round_hold: int = 0
    round_deadline_ms: int | None = None
    voters: dict[NodeId, ReplicaProgress]
    begin_calls: dict[NodeId, PeerCall]
    observers: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict[ReplicaKey, ReplicaProgress])
    parked: ParkedFetches = field(default_factory=ParkedFetches)
    uncommitted: deque[tuple[Offset, int]] = field(default_factory=deque[tuple[Offset, int]])
    uncommitted_bytes: int = 0
    is_active: bool = False
    read_round: int = 0
    reads: deque[PendingRead] = field(default_factory=deque[PendingRead])
    change: PendingChange | None = None
    transfer: PendingTransfer | None = None


@dataclass(slots=True, kw_only=True)
class EndCall:
    """Tells one voter that the epoch ends."""

    voter: Voter
    call: PeerCall
    is_done: bool = False
    is_gone: bool = False


@dataclass(slots=True, kw_only=True)
class Resigned:
    """Led this epoch, no longer leads, and grants no vote in it.

    Attributes:
        election_deadline_ms: when it moves to the next epoch on its own.
        successors: voters in the order in which they should try to lead.
        end_calls: calls that inform the other voters, by node id.
    """

    election_deadline_ms: int
    successors: tuple[ReplicaKey, ...]
    end_calls: dict[NodeId, EndCall]


@dataclass(slots=True, kw_only=True)
class Follower:
    """Fetches from the leader of the epoch.

    Attributes:
        leader_id: node id of the leader.
        leader_address: `host:port` of its quorum listener.
        fetch_deadline_ms: when the leader counts as lost, unless this voter waits for its own disk.
        fetch: the call that fetches.
        has_fetched: whether this leader has given a valid answer since the role began.
        is_leader_gone: whether the leader has refused or resigned since its last valid answer.
        read_round: last round of reads that this leader has named; see `reads`.
        update_call: the call that reports this voter's own address to the leader.
    """

    leader_id: NodeId
    leader_address: str
    fetch_deadline_ms: int
    fetch: PeerCall
    has_fetched: bool = False
    is_leader_gone: bool = False
    read_round: int = 0
    update_call: PeerCall = field(default_factory=lambda: PeerCall(0))


Role = Unattached | Prospective | Candidate | Leader | Resigned | Follower
