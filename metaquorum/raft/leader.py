# SPDX-License-Identifier: Apache-2.0
"""The leader: answers fetches, moves the high watermark, and resigns when no majority fetches any more.

Owns the behaviour of Leader. Laws:

* The high watermark is the offset that a majority of voters has flushed. It moves only above the first record of this epoch (records
  of older epochs are never committed by counting), and never falls. The leader counts its own log only as far as it is flushed.
* A fetch counts only if its offset and epoch match the leader's log.

New data answers a delayed fetch of a voter, because a commit waits for it. A commit answers a delayed fetch of an observer, because
it can use nothing before; an observer that keeps up gets successive commits together. Voters learn of a moved high watermark a little
later, mostly with the next data, because nothing waits for it. Data goes to voters in rounds, see `rounds`: at once to those that a
commit needs, see `spares`.
Source: KIP-595 "Fetch", "High watermark", "Check quorum"; Raft section 5.4.2; Vanlightly, RaftFsync specification.
"""

from __future__ import annotations

from metaquorum.raft import reads, rounds, spares
from metaquorum.raft.effects import (
    AppendAsLeader,
    Proposal,
    Rejection,
    RejectProposal,
    ReplyWithBatches,
)
from metaquorum.raft.events import ProposalReceived, ReadRequested
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    Refusal,
)
from metaquorum.raft.parking import ParkedFetch
from metaquorum.raft.peers import observe
from metaquorum.raft.roles import Leader, ReplicaProgress
from metaquorum.raft.snapshots import snapshot_for
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import activate, become_resigned
from metaquorum.raft.types import NO_EPOCH, EpochEnd, Offset, ReplicaKey, SnapshotId
from metaquorum.raft.voters import majority_offset


def poll_leader(state: RaftState, role: Leader, *, now_ms: int) -> None:
    """Resign after too long without a majority; remind voters that do not fetch; answer fetches that waited long enough."""
    seen_ms = quorum_seen_ms(state, role)
    if seen_ms is not None and now_ms >= seen_ms + state.config.check_quorum_timeout_ms:
        become_resigned(state, role, now_ms=now_ms)
        return
    for node_id, call in role.begin_calls.items():
        call.poll(now_ms=now_ms, config=state.config)
        if call.is_ready(now_ms):
            progress = role.voters[node_id]
            request = BeginQuorumEpochRequest(
                cluster_id=state.identity.cluster_id,
                quorum_epoch=state.quorum_epoch,
                leader_id=state.key.node_id,
                voter=progress.key,
                leader_address=state.identity.address or "",
            )
            assert progress.address is not None, f"voter {node_id} without an address"
            state.send(call, progress.address, request, now_ms=now_ms)
    if rounds.on_time(state, role, now_ms=now_ms):
        answer_parked(state, role, now_ms=now_ms)
    for fetch in role.parked.pop_expired(now_ms):
        _answer(state, role, fetch.token, fetch.request, now_ms=now_ms)


def leader_deadline_ms(state: RaftState, role: Leader) -> int | None:
    """Return when a leader must act without an event, in milliseconds; None for never."""
    due = [call.deadline_ms for call in role.begin_calls.values()]
    seen_ms = quorum_seen_ms(state, role)
    if seen_ms is not None:
        due.append(seen_ms + state.config.check_quorum_timeout_ms)
    parked_ms = role.parked.deadline_ms()
    if parked_ms is not None:
        due.append(parked_ms)
    if role.round_deadline_ms is not None:
        due.append(role.round_deadline_ms)
    return min(due, default=None)


def quorum_seen_ms(state: RaftState, role: Leader) -> int | None:
    """Return the latest time at which a majority of voters (this one counts as present) had fetched; None for the only voter."""
    # A leader that is being removed continues to lead, but is not counted.
    needed = state.voter_set.majority - state.is_voter
    if needed == 0:
        return None
    seen = [
        role.started_ms if progress.last_fetch_ms is None else progress.last_fetch_ms
        for progress in role.voters.values()
    ]
    return sorted(seen, reverse=True)[needed - 1]


def on_begin_response(state: RaftState, request_id: int, response: BeginQuorumEpochResponse, *, now_ms: int) -> None:
    """Note that a voter knows this leader, or knows a newer one."""
    observe(state, response.quorum_epoch, response.leader_id, None, now_ms=now_ms)
    if not isinstance(state.role, Leader):
        return
    for call in state.role.begin_calls.values():
        if call.awaits(request_id):
            if response.refusal is None:
                call.succeed(ready_at_ms=now_ms + state.config.begin_quorum_epoch_after_ms)
            else:
                call.fail(request_id, now_ms=now_ms, config=state.config)


def on_begin_failure(state: RaftState, request_id: int, *, now_ms: int) -> bool:
    """Note that a reminder got no answer.

    Returns:
        Whether the request is one of this role.
    """
    if not isinstance(state.role, Leader):
        return False
    for call in state.role.begin_calls.values():
        if call.awaits(request_id):
            call.fail(request_id, now_ms=now_ms, config=state.config)
            return True
    return False


def on_proposal(state: RaftState, event: ProposalReceived, *, now_ms: int) -> None:
    """Append a user's records, or reject them. A rejected proposal changes nothing."""
    role = state.role
    if not isinstance(role, Leader) or event.quorum_epoch != state.quorum_epoch:
        state.outbox.emit(RejectProposal(proposal_id=event.proposal_id, reason=Rejection.NOT_LEADER))
        return
    config = state.config
    if event.size_bytes > config.max_batch_bytes:
        state.outbox.emit(RejectProposal(proposal_id=event.proposal_id, reason=Rejection.TOO_LARGE))
        return
    is_full = role.uncommitted_bytes + event.size_bytes > config.max_uncommitted_bytes
    if role.transfer is not None or is_full or len(role.uncommitted) >= config.max_uncommitted_batches:
        state.outbox.emit(RejectProposal(proposal_id=event.proposal_id, reason=Rejection.BUSY))
        return
    assert event.record_count > 0, f"proposal of {event.record_count} records"
    base_offset = state.log.log_end_offset
    next_offset = Offset(base_offset + event.record_count)
    state.log.append(epoch=state.quorum_epoch, next_offset=next_offset)
    role.uncommitted.append((next_offset, event.size_bytes))
    role.uncommitted_bytes += event.size_bytes
    state.outbox.emit(
        AppendAsLeader(
            base_offset=base_offset,
            next_offset=next_offset,
            quorum_epoch=state.quorum_epoch,
            content=Proposal(proposal_id=event.proposal_id),
        )
    )
    if rounds.on_append(state, role, now_ms=now_ms):
        answer_parked(state, role, now_ms=now_ms)


def on_read(state: RaftState, event: ReadRequested, *, now_ms: int) -> None:
    """Accept a linearizable read; waiting voters learn of its round."""
    if reads.on_read(state, event):
        assert isinstance(state.role, Leader), "a round begins with a leader only"
        answer_parked(state, state.role, now_ms=now_ms)


def on_fetch(state: RaftState, token: int, request: FetchRequest, *, now_ms: int) -> None:
    """Answer a fetch, or delay the answer."""
    refusal = _check(state, request)
    role = state.role
    if refusal is not None or not isinstance(role, Leader):
        _refuse(state, token, refusal or Refusal.NOT_LEADER)
        return
    progress = _find_replica(state, role, request, now_ms)
    if progress is not None:
        spares.note_fetch(state, progress, request.fetch_offset, now_ms=now_ms)
        progress.last_fetch_ms = now_ms
        progress.levels = request.levels
        if reads.note_round(state, role, progress, request):
            answer_parked(state, role, now_ms=now_ms)
    snapshot = snapshot_for(state, request)
    if snapshot is not None:
        state.reply(token, _response(state, role, snapshot=snapshot))
        return
    own = state.log.end_offset_for_epoch(request.last_fetched_epoch)
    if own.epoch != request.last_fetched_epoch or own.end_offset < request.fetch_offset:
        state.reply(token, _response(state, role, diverging=own))
        return
    if progress is not None:
        _note_progress(state, progress, request, now_ms)
    if request.max_wait_ms == 0 or len(role.parked) >= state.config.max_parked_fetches:
        update_high_watermark(state, role, now_ms=now_ms)
        _answer(state, role, token, request, now_ms=now_ms)
        return
    # The fetch is delayed like the others before the high watermark moves, so that the round that may then begin can answer it.
    wait_ms = min(request.max_wait_ms, state.config.fetch_wait_ms_max)
    parked = ParkedFetch(token=token, request=request, deadline_ms=now_ms + wait_ms)
    older = role.parked.put(parked)
    if older is not None:
        _answer(state, role, older.token, older.request, now_ms=now_ms)
    update_high_watermark(state, role, now_ms=now_ms)
    if role.parked.token_of(request.replica) == token:
        _answer_or_keep(state, role, parked, keeps_up=progress is not None and progress.keeps_up, now_ms=now_ms)


def _answer_or_keep(state: RaftState, role: Leader, parked: ParkedFetch, *, keeps_up: bool, now_ms: int) -> None:
    """Answer a fetch that has just been delayed if it is due, else limit its wait."""
    request = parked.request
    lacks_commit = _lacks_commit(role, request)
    if _is_due(state, role, request) if _is_voter(role, request) else lacks_commit and not keeps_up:
        role.parked.remove(request.replica)
        _answer(state, role, parked.token, request, now_ms=now_ms)
    elif _is_spare(role, request):
        role.parked.hasten(parked, deadline_ms=now_ms + state.config.spare_wait_ms)
    elif lacks_commit:
        role.parked.hasten(parked, deadline_ms=now_ms + state.config.commit_news_ms)


def _check(state: RaftState, request: FetchRequest) -> Refusal | None:
    if request.cluster_id != state.identity.cluster_id:
        return Refusal.WRONG_CLUSTER
    if request.quorum_epoch < state.quorum_epoch:
        return Refusal.FENCED_EPOCH
    if request.quorum_epoch > state.quorum_epoch:
        return Refusal.UNKNOWN_EPOCH
    if request.replica == state.key or request.last_fetched_epoch > request.quorum_epoch:
        return Refusal.INVALID_REQUEST
    if (request.fetch_offset == 0) != (request.last_fetched_epoch == NO_EPOCH):
        return Refusal.INVALID_REQUEST
    return None


def _find_replica(state: RaftState, role: Leader, request: FetchRequest, now_ms: int) -> ReplicaProgress | None:
    """Return the progress of the fetching replica; None if there are too many observers."""
    key = request.replica
    progress = role.voters.get(key.node_id)
    if progress is None or progress.key != key:
        return _find_observer(state, role, request, now_ms)
    # A fetch is the best acknowledgement of a BeginQuorumEpoch.
    call = role.begin_calls[key.node_id]
    call.ready_at_ms = max(call.ready_at_ms, now_ms + state.config.begin_quorum_epoch_after_ms)
    return progress


def _note_progress(state: RaftState, progress: ReplicaProgress, request: FetchRequest, now_ms: int) -> None:
    """Note a fetch that matches this log: the replica has everything below its offset, flushed if it is a voter."""
    leader_end_offset = state.log.log_end_offset
    if request.fetch_offset >= leader_end_offset:
        progress.last_caught_up_ms = now_ms
    elif request.fetch_offset >= (progress.previous_leader_end_offset or leader_end_offset):
        # It now has everything that this log had at its last fetch.
        progress.last_caught_up_ms = progress.previous_fetch_ms
    progress.previous_fetch_ms = now_ms
    progress.previous_leader_end_offset = leader_end_offset
    if progress.counts_above is not None and request.fetch_offset <= progress.counts_above:
        # It did not know yet that it is a voter, so it need not have flushed.
        return
    # Requests may arrive out of order; flushed records stay flushed.
    progress.end_offset = max(progress.end_offset or Offset(0), request.fetch_offset)


def _find_observer(state: RaftState, role: Leader, request: FetchRequest, now_ms: int) -> ReplicaProgress | None:
    progress = role.observers.pop(request.replica, None)
    if progress is None:
        _forget_silent_observers(state, role, now_ms)
        if len(role.observers) >= state.config.max_observers:
            return None
        progress = ReplicaProgress(key=request.replica, address=request.replica_address)
    role.observers[request.replica] = progress
    return progress


def _forget_silent_observers(state: RaftState, role: Leader, now_ms: int) -> None:
    limit_ms = now_ms - state.config.observer_session_ms
    silent: list[ReplicaKey] = []
    # The order is that of the last fetches, so the first observer that is not silent ends the search.
    for key, progress in role.observers.items():
        if progress.last_fetch_ms is not None and progress.last_fetch_ms > limit_ms:
            break
        silent.append(key)
    for key in silent:
        del role.observers[key]


def _is_voter(role: Leader, request: FetchRequest) -> bool:
    progress = role.voters.get(request.replica.node_id)
    return progress is not None and progress.key == request.replica


def _is_due(state: RaftState, role: Leader, request: FetchRequest) -> bool:
    """Return whether a voter must be answered at once: a commit or a read waits for it, or it is catching up."""
    if reads.is_news(role, request):
        return True
    return request.fetch_offset < role.round_end_offset and not spares.is_held_back(state, role, request)


def _is_spare(role: Leader, request: FetchRequest) -> bool:
    """Return whether a delayed fetch is of a deferred voter, which lacks the round under way."""
    return _is_voter(role, request) and request.fetch_offset < role.round_end_offset


def _lacks_commit(role: Leader, request: FetchRequest) -> bool:
    known = request.high_watermark
    return role.high_watermark is not None and (known is None or known < role.high_watermark)


def _answer(state: RaftState, role: Leader, token: int, request: FetchRequest, *, now_ms: int) -> None:
    # While an observer's fetch was delayed, the log may have been trimmed beyond its offset.
    response = _response(state, role, snapshot=snapshot_for(state, request))
    if response.snapshot is None and request.fetch_offset < state.log.log_end_offset:
        max_bytes = min(request.max_bytes, state.config.max_fetch_bytes)
        # The election state of a leader is on disk, so the outbox holds nothing back: the batches are read in this step.
        assert state.outbox.is_persisted, "a leader has nothing that waits for its disk"
        state.outbox.say(
            ReplyWithBatches(token=token, response=response, fetch_offset=request.fetch_offset, max_bytes=max_bytes)
        )
        if _is_voter(role, request):
            spares.note_sent(state, role.voters[request.replica.node_id], now_ms=now_ms)
    else:
        state.reply(token, response)


def answer_parked(state: RaftState, role: Leader, *, now_ms: int) -> None:
    """Answer the delayed fetches of voters that a commit or a round of reads needs; those of deferred voters a little later."""
    waiting = [fetch for fetch in role.parked if _is_voter(role, fetch.request)]
    for fetch in spares.quickest_first(role, waiting):
        if _is_due(state, role, fetch.request):
            role.parked.remove(fetch.request.replica)
            _answer(state, role, fetch.token, fetch.request, now_ms=now_ms)
        elif _is_spare(role, fetch.request):
            role.parked.hasten(fetch, deadline_ms=now_ms + state.config.spare_wait_ms)


def _response(
    state: RaftState, role: Leader, *, diverging: EpochEnd | None = None, snapshot: SnapshotId | None = None
) -> FetchResponse:
    return FetchResponse(
        quorum_epoch=state.quorum_epoch,
        leader_id=state.key.node_id,
        leader_address=state.identity.address,
        high_watermark=role.high_watermark,
        diverging=diverging,
        read_round=role.read_round,
        log_start_offset=state.log.log_start_offset,
        snapshot=snapshot,
    )


def _refuse(state: RaftState, token: int, refusal: Refusal) -> None:
    response = FetchResponse(
        quorum_epoch=state.quorum_epoch,
        leader_id=state.known_leader_id,
        leader_address=state.leader_address(),
        refusal=refusal,
    )
    state.reply(token, response)


def update_high_watermark(state: RaftState, role: Leader, *, now_ms: int) -> None:
    """Commit what a majority of voters has flushed. Answer fetches that wait for the commit; voters' not at once."""
    end_offsets = [progress.end_offset or Offset(0) for progress in role.voters.values()]
    if state.is_voter:
        end_offsets.append(state.log.flushed_offset)
    high_watermark = majority_offset(end_offsets)
    if high_watermark <= role.epoch_start_offset or high_watermark <= (role.high_watermark or Offset(0)):
        return
    role.high_watermark = high_watermark
    state.raise_high_watermark(high_watermark)
    while role.uncommitted and role.uncommitted[0][0] <= high_watermark:
        role.uncommitted_bytes -= role.uncommitted.popleft()[1]
    if not role.is_active:
        activate(state, role)
    rounds.on_commit(state, role, now_ms=now_ms)
    answer_parked(state, role, now_ms=now_ms)
    for fetch in role.parked:
        if not _lacks_commit(role, fetch.request) or _is_spare(role, fetch.request):
            continue
        observer = None if _is_voter(role, fetch.request) else role.observers.get(fetch.request.replica)
        # An observer that heard of no commit for a while is answered at once; commits right after that share one answer.
        since_ms = now_ms if observer is None else observer.last_fetch_ms or 0
        if since_ms + state.config.commit_news_ms > now_ms:
            role.parked.hasten(fetch, deadline_ms=since_ms + state.config.commit_news_ms)
        else:
            role.parked.remove(fetch.request.replica)
            _answer(state, role, fetch.token, fetch.request, now_ms=now_ms)
