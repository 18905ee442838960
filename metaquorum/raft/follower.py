# SPDX-License-Identifier: Apache-2.0
"""Fetching: a follower copies its leader's log, and an unattached node looks for a leader.

Owns Unattached (except the vote) and Follower: when to fetch, how to handle an answer, when the leader counts as lost, and where to
truncate a log that diverges from the leader's.
Laws: a voter fetches only when everything that it has is flushed, because its fetch offset promises that much. So while it flushes,
the leader has nothing to answer, its silence means nothing, and the fetch timeout stops. Nothing below the high watermark is ever
truncated.
Source: KIP-595 "Fetch"; KIP-101 (divergence).
"""

from __future__ import annotations

from metaquorum.raft.effects import AppendAsFollower, TruncateLog, Violation
from metaquorum.raft.events import Failure
from metaquorum.raft.messages import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchedBatches,
    FetchRequest,
    FetchResponse,
    Refusal,
)
from metaquorum.raft.peers import leader_is_gone, observe
from metaquorum.raft.roles import Follower, Unattached
from metaquorum.raft.snapshots import begin_download, download_of
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import become_prospective, become_unattached
from metaquorum.raft.types import LOG_BEGIN, EpochEnd, Offset


def poll_unattached(state: RaftState, role: Unattached, *, now_ms: int) -> None:
    """Start an election if it is time (at once for the only voter), else look for a leader."""
    deadline_ms = role.election_deadline_ms
    if deadline_ms is not None and (now_ms >= deadline_ms or state.voter_set.is_only(state.key)):
        become_prospective(state, now_ms=now_ms)
        return
    role.fetch.poll(now_ms=now_ms, config=state.config)
    # The asked peer may be the leader, which trusts the fetch offset.
    if role.fetch.is_ready(now_ms) and _is_word_good(state) and (peers := state.peer_addresses()):
        address = peers[role.next_peer % len(peers)]
        role.next_peer = (role.next_peer + 1) % len(peers)
        # The request only asks for the name of the leader, so the peer need not wait for data.
        state.send(role.fetch, address, _fetch_request(state, max_wait_ms=0), now_ms=now_ms)


def unattached_deadline_ms(state: RaftState, role: Unattached) -> int | None:
    """Return when an unattached node must act without an event, in milliseconds; None for never."""
    due: list[int] = []
    if role.election_deadline_ms is not None:
        due.append(role.election_deadline_ms)
    if role.fetch.request_id is not None or (_is_word_good(state) and state.peer_addresses()):
        due.append(role.fetch.deadline_ms)
    return min(due, default=None)


def poll_follower(state: RaftState, role: Follower, *, now_ms: int) -> None:
    """Give up a leader that was silent for too long, else fetch."""
    if now_ms >= role.fetch_deadline_ms and not _waits_for_own_disk(state, role):
        if not state.may_campaign:
            become_unattached(state, state.quorum_epoch, now_ms=now_ms)
            return
        if state.shutdown_deadline_ms is None:
            become_prospective(state, now_ms=now_ms)
            return
    role.fetch.poll(now_ms=now_ms, config=state.config)
    if role.fetch.is_ready(now_ms) and _is_word_good(state) and download_of(state, role) is None:
        # After a lost request, ask the leader to answer soon: then a second request may be lost as well within the timeout.
        is_first = role.fetch.failure_count == 0
        max_wait_ms = state.config.fetch_wait_ms if is_first else state.config.fetch_retry_wait_ms
        request = _fetch_request(state, max_wait_ms=max_wait_ms)
        state.send(role.fetch, role.leader_address, request, now_ms=now_ms)


def follower_deadline_ms(state: RaftState, role: Follower) -> int | None:
    """Return when a follower must act without an event, in milliseconds; None while it waits only for its own disk."""
    may_fetch = _is_word_good(state) and download_of(state, role) is None
    if role.fetch.request_id is None and not may_fetch:
        return None if _waits_for_own_disk(state, role) else role.fetch_deadline_ms
    return min(role.fetch_deadline_ms, role.fetch.deadline_ms)


def on_flushed(state: RaftState, role: Follower, *, now_ms: int) -> None:
    """Restart the fetch timeout of a leader that this voter could not ask during the flush.

    A leader that resigned or refused gets no more time.
    """
    if state.is_voter and not role.is_leader_gone:
        role.fetch_deadline_ms = now_ms + state.config.fetch_timeout_ms


def _waits_for_own_disk(state: RaftState, role: Follower) -> bool:
    """Return whether the leader is silent because this voter could not ask it."""
    return not _is_word_good(state) and role.fetch.request_id is None and not role.is_leader_gone


def _is_word_good(state: RaftState) -> bool:
    """Return whether a fetch may name the end of the log: a voter's must be flushed, an observer's promises nothing."""
    return state.log.is_flushed or not state.is_voter


def _fetch_request(state: RaftState, *, max_wait_ms: int) -> FetchRequest:
    return FetchRequest(
        cluster_id=state.identity.cluster_id,
        quorum_epoch=state.quorum_epoch,
        replica=state.key,
        fetch_offset=state.log.log_end_offset,
        last_fetched_epoch=state.log.last_epoch,
        high_watermark=state.high_watermark,
        max_bytes=state.config.max_fetch_bytes,
        max_wait_ms=max_wait_ms,
        replica_address=state.identity.address,
        read_round=state.role.read_round if isinstance(state.role, Follower) else 0,
        levels=state.identity.levels,
    )


def on_fetch_response(state: RaftState, request_id: int, response: FetchResponse, *, now_ms: int) -> None:
    """Handle a fetch answer: any peer may name the leader, but only the leader's batches count."""
    role = state.role
    observe(state, response.quorum_epoch, response.leader_id, response.leader_address, now_ms=now_ms)
    if role is not state.role:
        return
    if isinstance(role, Unattached) and role.fetch.awaits(request_id):
        # Ask the next peer after a pause; otherwise a cluster without a leader would be asked in a tight loop.
        role.fetch.fail(request_id, now_ms=now_ms, config=state.config)
    elif isinstance(role, Follower) and role.fetch.awaits(request_id):
        if _take(state, role, response, now_ms):
            role.has_fetched = True
            role.is_leader_gone = False
            role.fetch_deadline_ms = now_ms + state.config.fetch_timeout_ms
            role.fetch.succeed(ready_at_ms=now_ms)
        else:
            role.fetch.fail(request_id, now_ms=now_ms, config=state.config)


def _take(state: RaftState, role: Follower, response: FetchResponse, now_ms: int) -> bool:
    """Return whether the answer is a valid one of the leader. If so, its content has been applied to the log."""
    if response.refusal is not None:
        resigned = response.refusal is Refusal.NOT_LEADER and response.quorum_epoch == state.quorum_epoch
        # A process at the leader's address that has just started, or is about to stop, answers UNAVAILABLE.
        if resigned or response.refusal is Refusal.UNAVAILABLE:
            leader_is_gone(state, now_ms=now_ms)
        return False
    if response.quorum_epoch != state.quorum_epoch or response.leader_id != role.leader_id:
        text = f"fetch answer without leadership of {role.leader_id} in epoch {state.quorum_epoch}: {response}"
        state.report(Violation.FETCH_ANSWER, text)
        return False
    # Whatever else the answer says: the next fetch of this epoch is sent after the round began.
    role.read_round = max(role.read_round, response.read_round)
    if response.snapshot is not None:
        return begin_download(state, role, response.snapshot)
    if response.diverging is not None:
        return _truncate(state, response.diverging)
    if response.batches is not None and not _append(state, response.batches):
        return False
    if response.high_watermark is not None:
        # The leader has checked that this log is a prefix of its own, so what it has committed of this log is committed.
        state.raise_high_watermark(min(response.high_watermark, state.log.log_end_offset))
    return True


def _truncate(state: RaftState, diverging: EpochEnd) -> bool:
    own = state.log.end_offset_for_epoch(diverging.epoch)
    to_offset = min(own.end_offset, diverging.end_offset) if own.epoch == diverging.epoch else own.end_offset
    if to_offset >= state.log.log_end_offset or to_offset < (state.high_watermark or LOG_BEGIN):
        state.report(
            Violation.CUT,
            f"leader asks to cut the log to {to_offset} (its epoch {diverging.epoch} ends at {diverging.end_offset});"
            f" high watermark {state.high_watermark}, log end {state.log.log_end_offset}: data was lost somewhere",
        )
        return False
    state.log.truncate_suffix(to_offset)
    state.voters.truncate_suffix(to_offset)
    state.outbox.emit(TruncateLog(to_offset=to_offset))
    return True


def _append(state: RaftState, batches: FetchedBatches) -> bool:
    expected: Offset = state.log.log_end_offset
    epoch = state.log.last_epoch
    for span in batches.spans:
        continues = span.base_offset == expected < span.next_offset
        if not continues or not max(epoch, 1) <= span.epoch <= state.quorum_epoch:
            text = f"fetched batch {span} does not continue the log at {expected}, epoch {epoch}"
            state.report(Violation.FETCH_ANSWER, text)
            return False
        expected, epoch = span.next_offset, span.epoch
    for span in batches.spans:
        state.log.append(epoch=span.epoch, next_offset=span.next_offset)
    for offset, voters in batches.voters:
        state.voters.append(offset, voters)
    state.outbox.emit(AppendAsFollower(batches=batches))
    return True


def on_fetch_failure(state: RaftState, request_id: int, failure: Failure, *, now_ms: int) -> bool:
    """Note that a fetch got no answer.

    Returns:
        Whether the request is a fetch of the current role.
    """
    role = state.role
    if not isinstance(role, Unattached | Follower) or not role.fetch.awaits(request_id):
        return False
    role.fetch.fail(request_id, now_ms=now_ms, config=state.config)
    if failure is Failure.REFUSED:
        leader_is_gone(state, now_ms=now_ms)
    return True


def on_end_quorum_epoch(state: RaftState, token: int, request: EndQuorumEpochRequest, *, now_ms: int) -> None:
    """Handle the leader's resignation: its first successor starts an election at once, the others wait for it."""
    refusal = None
    if request.cluster_id != state.identity.cluster_id:
        refusal = Refusal.WRONG_CLUSTER
    elif request.quorum_epoch < state.quorum_epoch:
        refusal = Refusal.FENCED_EPOCH
    elif request.leader_id == state.key.node_id:
        refusal = Refusal.INVALID_REQUEST
    else:
        observe(state, request.quorum_epoch, request.leader_id, None, now_ms=now_ms)
        role = state.role
        if isinstance(role, Follower) and role.leader_id == request.leader_id:
            role.is_leader_gone = True
            patience_ms = _successor_patience_ms(state, request)
            role.fetch_deadline_ms = min(role.fetch_deadline_ms, now_ms + patience_ms)
        elif state.election.leader_id not in (None, request.leader_id):
            # Another leader of this epoch is known, so this message was reported and is refused.
            refusal = Refusal.INVALID_REQUEST
    state.reply(
        token,
        EndQuorumEpochResponse(quorum_epoch=state.quorum_epoch, leader_id=state.known_leader_id, refusal=refusal),
    )


def _successor_patience_ms(state: RaftState, request: EndQuorumEpochRequest) -> int:
    """Return how many milliseconds a successor waits: the first none, the k-th (from 2) base * 2^(k-2) within the limit.

    Source: KafkaRaftClient, end of epoch back-off.
    """
    successors = request.preferred_successors
    if state.key not in successors:
        return state.draw_election_timeout_ms()
    position = successors.index(state.key)
    if position == 0:
        return 0
    limit_ms = state.config.retry_backoff_ms_max
    base_ms = max(1, limit_ms >> min(len(successors) - 1, 16))
    return min(limit_ms, base_ms << min(position - 1, 16))
