# SPDX-License-Identifier: Apache-2.0
"""RaftNode: one quorum node as a pure function of events and time. It dispatches; the roles decide.

Rules of this package (as in h11):

* `step(event, now_ms)` is the only entry; it returns what the shell must do, in order. `deadline_ms()` says when to step with `Tick`
  at the latest; an earlier step does no harm.
* No clock, no I/O, no randomness except the given rng, no logging, no iteration over sets.
* Bytes of peers are checked and refused, never asserted on. An AssertionError is a bug here or in the shell; the process stops.

Theory of operation. An event changes the role's data. Then the role is polled: it sends what is due, and changes the role if it must.
Polling repeats while the role changes (the only voter completes a whole election in one step). Then the step settles: flush, commit,
announce. At last the outbox drains; it holds back every message whose election state is not on disk yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.raft import election, follower, leader, membership, peers, resigned, snapshots, transfer
from metaquorum.raft.calls import PeerCall
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import Effect, Violation
from metaquorum.raft.events import (
    ElectionStatePersisted,
    Event,
    Failure,
    LogFlushed,
    ProposalReceived,
    ReadRequested,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    ShutdownRequested,
    SnapshotCreated,
    SnapshotDownloaded,
    SnapshotFailed,
    SnapshotProgressed,
    SnapshotServed,
    Started,
    Tick,
    TransferRequested,
    VoterChangeRequested,
)
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from metaquorum.raft.start import initial_role
from metaquorum.raft.state import Identity, RaftState
from metaquorum.raft.types import LOG_BEGIN, ElectionState, Offset, Rng, SnapshotId
from metaquorum.raft.voters import VoterHistory

_MAX_POLLS = 8
"""Largest number of role changes in one step: Resigned, Unattached, Prospective, Candidate, Leader, and some reserve."""


class RaftNode:
    """One voter or observer.

    Args:
        identity: identity of this node, and the addresses that it may ask.
        config: times and limits.
        rng: source of randomness for timeouts.
        election: election state from disk.
        voters: voter sets from the log, and the set of the format.
        log: view of the log on disk.
        kept_snapshots: ids of the snapshots on disk, ascending, none below the log start.
        committed_offset: everything below it (exclusive) is known to be committed, from the image on disk.
    """

    __slots__ = ("_deadline_ms", "_has_finished", "_has_started", "state")

    def __init__(
        self,
        *,
        identity: Identity,
        config: RaftConfig,
        rng: Rng,
        election: ElectionState,
        voters: VoterHistory,
        log: LogView,
        kept_snapshots: Sequence[SnapshotId] = (),
        committed_offset: Offset = LOG_BEGIN,
    ) -> None:
        # A placeholder until Started: before that the node sends nothing.
        role = Unattached(election_deadline_ms=None, fetch=PeerCall(0))
        self.state = RaftState(
            identity=identity, config=config, rng=rng, election=election, voters=voters, log=log, role=role
        )
        snapshots.restore(self.state, kept_snapshots, committed_offset=committed_offset)
        self._has_started = False
        self._has_finished = False
        self._deadline_ms: int | None = None

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event.

        Args:
            event: the event.
            now_ms: monotonic time in milliseconds; never less than in an earlier step.

        Returns:
            What the shell must do, in this order.
        """
        state = self.state
        assert self._has_started != isinstance(event, Started), f"{event} out of turn"
        self._has_started = True
        if isinstance(event, ProposalReceived) and self._is_nothing_due(now_ms):
            self._append(event, now_ms)
            return state.outbox.drain()
        _dispatch(state, event, now_ms)
        _poll(state, now_ms)
        snapshots.discard_orphan(state)
        state.settle()
        if state.shutdown_deadline_ms is not None and not self._has_finished:
            self._has_finished = resigned.is_shutdown_done(state, now_ms=now_ms)
            if self._has_finished:
                resigned.finish_shutdown(state)
        self._deadline_ms = self._next_deadline_ms()
        return state.outbox.drain()

    def _is_nothing_due(self, now_ms: int) -> bool:
        is_stopping = self.state.shutdown_deadline_ms is not None
        return not is_stopping and (self._deadline_ms is None or now_ms < self._deadline_ms)

    def _append(self, event: ProposalReceived, now_ms: int) -> None:
        """Handle a proposal while nothing is due. Thousands come each second, and each costs the leader only what it changes.

        A proposal changes no role and commits nothing. It may begin a round, or bring the deadlines of the round and of delayed
        fetches forward; no other deadline moves.
        """
        state = self.state
        leader.on_proposal(state, event, now_ms=now_ms)
        state.flush_appended()
        role = state.role
        if isinstance(role, Leader):
            self._deadline_ms = _earliest(self._deadline_ms, role.parked.deadline_ms(), role.round_deadline_ms)

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which the node needs a Tick if no other event comes before; None for never.

        It may be early after a proposal; the Tick then finds nothing to do.
        """
        return self._deadline_ms if self._has_started else self._next_deadline_ms()

    def _next_deadline_ms(self) -> int | None:
        state = self.state
        if self._has_finished:
            return None
        deadline_ms: int | None
        match state.role:
            case Unattached() as role:
                deadline_ms = follower.unattached_deadline_ms(state, role)
            case Prospective() | Candidate() as role:
                deadline_ms = election.voting_deadline_ms(role)
            case Leader() as role:
                deadline_ms = _earliest(
                    leader.leader_deadline_ms(state, role),
                    membership.membership_deadline_ms(state, role),
                    transfer.transfer_deadline_ms(state, role),
                )
            case Resigned() as role:
                deadline_ms = resigned.resigned_deadline_ms(state, role)
            case Follower() as role:  # pragma: no branch -- all kinds are above
                deadline_ms = _earliest(
                    follower.follower_deadline_ms(state, role), membership.own_address_deadline_ms(state, role)
                )
        return _earliest(deadline_ms, state.shutdown_deadline_ms)


def _earliest(*deadlines_ms: int | None) -> int | None:
    """Return the first of some deadlines, or None."""
    earliest_ms: int | None = None
    for deadline_ms in deadlines_ms:
        if deadline_ms is not None and (earliest_ms is None or deadline_ms < earliest_ms):
            earliest_ms = deadline_ms
    return earliest_ms


def _dispatch(state: RaftState, event: Event, now_ms: int) -> None:
    match event:
        case Started():
            state.role = initial_role(state, now_ms=now_ms)
        case Tick():
            pass
        case RequestReceived():
            _dispatch_request(state, event, now_ms)
        case ResponseReceived():
            _dispatch_response(state, event, now_ms)
        case RequestFailed():
            _dispatch_failure(state, event, now_ms)
        case ElectionStatePersisted(sequence=sequence):
            state.outbox.persisted(sequence)
        case LogFlushed(flush_id=flush_id):
            role = state.role
            is_done = state.log.end_flush(flush_id)
            if is_done and isinstance(role, Leader):
                leader.update_high_watermark(state, role, now_ms=now_ms)
            elif is_done and isinstance(role, Follower):
                follower.on_flushed(state, role, now_ms=now_ms)
        case ProposalReceived():
            leader.on_proposal(state, event, now_ms=now_ms)
        case ReadRequested():
            leader.on_read(state, event, now_ms=now_ms)
        case VoterChangeRequested():
            membership.on_change_request(state, event, now_ms=now_ms)
        case TransferRequested():
            transfer.on_transfer_request(state, event, now_ms=now_ms)
        case SnapshotCreated() | SnapshotProgressed() | SnapshotDownloaded() | SnapshotFailed() | SnapshotServed():
            snapshots.on_event(state, event, now_ms=now_ms)
        case ShutdownRequested():  # pragma: no branch -- all kinds are above
            resigned.request_shutdown(state, now_ms=now_ms)


def _dispatch_request(state: RaftState, event: RequestReceived, now_ms: int) -> None:
    if not peers.is_plausible(state, event.request.quorum_epoch):
        peers.refuse_implausible(state, event.token, event.request)
        return
    match event.request:
        case VoteRequest() | PreVoteRequest() as request:
            election.on_vote_request(state, event.token, request, now_ms=now_ms)
        case BeginQuorumEpochRequest() as request:
            peers.on_begin_quorum_epoch(state, event.token, request, now_ms=now_ms)
        case EndQuorumEpochRequest() as request:
            follower.on_end_quorum_epoch(state, event.token, request, now_ms=now_ms)
        case FetchRequest() as request:
            leader.on_fetch(state, event.token, request, now_ms=now_ms)
        case UpdateVoterRequest() as request:  # pragma: no branch -- all kinds are above
            membership.on_update_request(state, event.token, request, now_ms=now_ms)


def _dispatch_response(state: RaftState, event: ResponseReceived, now_ms: int) -> None:
    epoch = event.response.quorum_epoch
    if not peers.is_plausible(state, epoch):
        text = f"answer of epoch {epoch}, and this node is in {state.quorum_epoch}: not believed, dropped"
        state.report(Violation.ABSURD_ANSWER, text)
        failed = RequestFailed(request_id=event.request_id, failure=Failure.TIMED_OUT)
        _dispatch_failure(state, failed, now_ms)
        return
    match event.response:
        case VoteResponse() as response:
            election.on_vote_response(state, event.request_id, response, now_ms=now_ms)
        case BeginQuorumEpochResponse() as response:
            leader.on_begin_response(state, event.request_id, response, now_ms=now_ms)
        case EndQuorumEpochResponse() as response:
            resigned.on_end_response(state, event.request_id, response, now_ms=now_ms)
        case FetchResponse() as response:
            follower.on_fetch_response(state, event.request_id, response, now_ms=now_ms)
        case UpdateVoterResponse() as response:  # pragma: no branch -- all kinds are above
            membership.on_update_response(state, event.request_id, response, now_ms=now_ms)


def _dispatch_failure(state: RaftState, event: RequestFailed, now_ms: int) -> None:
    """Pass the failure to the call that owns the request id. Ids are unique over all calls; a very late failure has no owner."""
    _ = (
        follower.on_fetch_failure(state, event.request_id, event.failure, now_ms=now_ms)
        or election.on_vote_failure(state, event.request_id, now_ms=now_ms)
        or leader.on_begin_failure(state, event.request_id, now_ms=now_ms)
        or membership.on_update_failure(state, event.request_id, now_ms=now_ms)
        or resigned.on_end_failure(state, event.request_id, event.failure, now_ms=now_ms)
    )


def _poll(state: RaftState, now_ms: int) -> None:
    for _ in range(_MAX_POLLS):
        role = state.role
        match role:
            case Unattached():
                follower.poll_unattached(state, role, now_ms=now_ms)
            case Prospective():
                election.poll_prospective(state, role, now_ms=now_ms)
            case Candidate():
                election.poll_candidate(state, role, now_ms=now_ms)
            case Leader():
                _poll_leader(state, role, now_ms)
            case Resigned():
                resigned.poll_resigned(state, role, now_ms=now_ms)
            case Follower():  # pragma: no branch -- all kinds are above
                follower.poll_follower(state, role, now_ms=now_ms)
                if state.role is role:
                    membership.poll_own_address(state, role, now_ms=now_ms)
        if state.role is role:
            return
    raise AssertionError(f"role does not settle: {state.role}")


def _poll_leader(state: RaftState, role: Leader, now_ms: int) -> None:
    for poll in (leader.poll_leader, membership.poll_membership, transfer.poll_transfer):
        poll(state, role, now_ms=now_ms)
        if state.role is not role:
            return
