# SPDX-License-Identifier: Apache-2.0
"""Data of the six roles. Behaviour is in election, follower, leader, resigned; legal changes are in transitions.

What outlives a role (epoch, vote, known leader, high watermark) is in `RaftState`, not here.
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
    """Knows the epoch and no leader that it could fetch from; asks around.

    Attributes:
        election_deadline_ms: when to start an election; None for an observer and for a node that is
            leaving, which never do.
        fetch: the call that looks for a leader.
        next_peer: position in the list of peers of the one to ask next.
    """

    election_deadline_ms: int | None
    fetch: PeerCall
    next_peer: int = 0


@dataclass(slots=True, kw_only=True)
class VoteCall:
    """The vote of one voter in one round: asked for by `call`, None while open."""

    voter: Voter
    call: PeerCall
    granted: bool | None = None


@dataclass(slots=True, kw_only=True)
class Prospective:
    """Asks whether it would be elected; nothing durable has changed yet.

    Attributes:
        election_deadline_ms: when the round is given up.
        leader_address: address of the leader of this epoch, when one was known: where to fall back to.
        votes: the other voters' answers, by node id.
    """

    election_deadline_ms: int
    leader_address: str | None
    votes: dict[NodeId, VoteCall]


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Wants to lead a new epoch and has voted for itself.

    Attributes:
        election_deadline_ms: when the round is given up.
        votes: the other voters' answers, by node id.
        is_elected: True once a majority has voted for it and only its disk is waited for.
    """

    election_deadline_ms: int
    votes: dict[NodeId, VoteCall]
    is_elected: bool = False


@dataclass(slots=True, kw_only=True)
class ReplicaProgress:
    """What a leader knows of another replica.

    Attributes:
        key: who it is.
        address: where its quorum listener is; None for an observer without one.
        end_offset: end of its flushed log (exclusive), proven to match the leader's; None before the first such fetch.
        last_fetch_ms: when it last fetched; None before the first.
        previous_fetch_ms: when its last fetch that matched the leader's log came.
        previous_leader_end_offset: end of the leader's log at that time.
        last_caught_up_ms: latest time at which it is known to have had everything.
        read_round: last round of reads that it has repeated in a fetch of this epoch.
        counts_above: offset of the record that made it a voter in this epoch; fetches up to it (inclusive) are those of
            an observer and prove nothing. None: it voted before this leadership.
        levels: feature levels that it can run at, by its last fetch; None before the first.
        keeps_up: whether its last fetch had all that there was when it asked before; see `spares`.
        sent_ms: when its last fetch was answered with data; None once it has come back.
        sent_end_offset: end of this log at that time (exclusive); None once it has come back.
        exchange_ms: from its last answer with data to the fetch that followed.
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
    """A linearizable read that waits for the leadership to be confirmed; see `reads`.

    Attributes:
        read_id: the user's name for it.
        after_round: number of the last round that was begun before the read came.
        read_offset: high watermark at that time.
    """

    read_id: int
    after_round: int
    read_offset: Offset


@dataclass(slots=True, kw_only=True)
class Leader:
    """Leads the epoch, which is on its disk.

    Attributes:
        started_ms: when it became leader.
        epoch_start_offset: offset of its first record, the LeaderChange (inclusive).
        high_watermark: end of the committed log (exclusive); None until a record of this epoch is committed.
        round_end_offset: voters that a commit needs are sent what lies below (exclusive) at once; what lies above makes the next round.
        round_size: proposals of the round under way, or of the last one; see `rounds`.
        round_waiting: proposals that were appended above it.
        round_target: proposals that the next round waits for; 0: for nothing.
        round_hold: rounds that got what they waited for before one waits for more again.
        round_deadline_ms: when the next round begins at the latest; None while one is under way, or none waits.
        voters: progress of the other voters, by node id.
        begin_calls: the calls that make it known to them, by node id.
        observers: progress of others that fetch, in the order of their last fetch.
        parked: fetches that wait for something to send.
        uncommitted: (next offset, size in bytes) of each appended proposal that is not committed.
        uncommitted_bytes: sum of those sizes.
        is_active: whether its users have been told to start.
        read_round: number of the last round of reads that was begun; see `reads`.
        reads: reads that wait, in the order of their arrival.
        change: the change of voters that is not committed yet.
        transfer: the handing over that is under way; no proposals are taken meanwhile.
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
    """Led this epoch, leads no more, and gives its vote to nobody in it.

    Attributes:
        election_deadline_ms: when it moves to the next epoch on its own.
        successors: voters in the order in which they should try to lead.
        end_calls: the calls that tell the other voters, by node id.
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
        fetch_deadline_ms: when the leader counts as lost, unless it is this voter's own disk that is waited for.
        fetch: the call that fetches.
        has_fetched: whether this leader has given a valid answer since the role began.
        is_leader_gone: whether the leader refused or said that it resigns, since its last valid answer.
        read_round: last round of reads that this leader has named; see `reads`.
        update_call: the call that tells the leader of this voter's own address.
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
