# SPDX-License-Identifier: Apache-2.0
"""Elections: which replica gets a vote, and the two rounds of asking for votes.

Owns Prospective and Candidate, and the answers to both kinds of vote request. A granted vote is sent only once it is on disk (the
outbox holds it back).
Source: Raft sections 5.2 and 5.4.1; KIP-996 (pre-vote); `docs/quorum.md` "Who gets a vote" has the matrix.
"""

from __future__ import annotations

from metaquorum.raft.effects import Violation
from metaquorum.raft.messages import PreVoteRequest, Refusal, VoteRequest, VoteResponse
from metaquorum.raft.peers import check_voter_request, leader_is_gone, observe
from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached, VoteCall
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import (
    become_candidate,
    become_follower,
    become_leader,
    become_prospective,
    become_unattached,
)
from metaquorum.raft.types import MAX_QUORUM_EPOCH, ElectionState, LogPosition, NodeId

EPOCHS_USED_UP = (
    f"the quorum is in epoch {MAX_QUORUM_EPOCH}, the last one that exists: no node can be elected any more. Stop all voters, run "
    "`metaquorum reset-epoch` on the data directory of each, and start them again (docs/quorum.md, 'An epoch that ran out')"
)
"""Log message for the operator."""


def on_vote_request(state: RaftState, token: int, request: VoteRequest | PreVoteRequest, *, now_ms: int) -> None:
    """Answer a request for a vote or a pre-vote."""
    refusal = _check(state, request)
    granted = False
    if refusal is None:
        observe(state, request.quorum_epoch, None, None, now_ms=now_ms)
        granted = would_grant(state, request, now_ms=now_ms)
        if granted and isinstance(request, VoteRequest):
            _give_vote(state, request, now_ms)
        elif isinstance(request, PreVoteRequest) and isinstance(state.role, Prospective):
            _ask_again(state.role, request, now_ms)
    state.reply(
        token,
        VoteResponse(
            quorum_epoch=state.quorum_epoch,
            leader_id=state.known_leader_id,
            leader_address=state.leader_address(),
            granted=granted,
            refusal=refusal,
        ),
    )


def _check(state: RaftState, request: VoteRequest | PreVoteRequest) -> Refusal | None:
    refusal = check_voter_request(
        state, cluster_id=request.cluster_id, quorum_epoch=request.quorum_epoch, voter=request.voter
    )
    if refusal is not None:
        return refusal
    position = LogPosition(last_epoch=request.last_epoch, log_end_offset=request.log_end_offset)
    if state.voter_set.is_impostor(request.candidate) and position <= state.log.end_position:
        # The candidate has a wiped or copied disk under a voter's node id: it may have forgotten its promises. But if its log is
        # ahead of this one, it may have a voter set with the new directory, and that set counts for the candidate (KIP-853).
        return Refusal.INVALID_VOTER_KEY
    # A candidate has opened its own epoch, so its log is of lower ones; a pre-vote comes before that.
    last_epoch_limit = request.quorum_epoch - 1 if isinstance(request, VoteRequest) else request.quorum_epoch
    if request.last_epoch > last_epoch_limit or request.candidate == state.key:
        return Refusal.INVALID_REQUEST
    return None


def would_grant(state: RaftState, request: VoteRequest | PreVoteRequest, *, now_ms: int) -> bool:
    """Return the answer of the vote matrix; the request is of the current epoch. Source: `docs/quorum.md` "Who gets a vote"."""
    is_up_to_date = (
        LogPosition(last_epoch=request.last_epoch, log_end_offset=request.log_end_offset) >= state.log.end_position
    )
    is_binding = isinstance(request, VoteRequest)
    match state.role:
        case Unattached() | Prospective():
            if is_binding and state.election.voted_key is not None:
                # A candidate that crashed may be back in the same epoch without the records that it had not flushed.
                return state.election.voted_key == request.candidate and is_up_to_date
            if is_binding and state.election.leader_id is not None:
                return False
            return is_up_to_date
        case Follower() as role:
            # After the deadline it waits only for its own disk: it has not heard from its leader, and must not protect it.
            has_leader = role.has_fetched and not role.is_leader_gone and now_ms < role.fetch_deadline_ms
            return not is_binding and is_up_to_date and not has_leader
        case Candidate() | Resigned():
            return not is_binding and is_up_to_date
        case Leader():  # pragma: no branch -- every role is above
            return False


def _give_vote(state: RaftState, request: VoteRequest, now_ms: int) -> None:
    if state.election.voted_key is None:
        state.set_election(ElectionState(quorum_epoch=state.quorum_epoch, leader_id=None, voted_key=request.candidate))
    # A voter that has just granted its vote does not compete at once.
    role = state.role
    if isinstance(role, Prospective) or (isinstance(role, Unattached) and role.election_deadline_ms is not None):
        role.election_deadline_ms = now_ms + state.draw_election_timeout_ms()


def _ask_again(role: Prospective, request: PreVoteRequest, now_ms: int) -> None:
    """Ask a voter for its pre-vote again, because it has lost the leader, too: if it refused before, it may grant now.

    Otherwise two voters that notice a silent leader one after the other might refuse each other for a whole round.
    """
    vote = role.votes.get(request.candidate.node_id)
    if vote is not None and vote.granted is False:
        vote.granted = None
        vote.call.ready_at_ms = now_ms


def on_vote_response(state: RaftState, request_id: int, response: VoteResponse, *, now_ms: int) -> None:
    """Count an answer if it belongs to the current round."""
    observe(state, response.quorum_epoch, response.leader_id, response.leader_address, now_ms=now_ms)
    if not isinstance(state.role, Prospective | Candidate):
        return
    vote = _find(state.role, request_id)
    if vote is None:
        return
    if response.refusal is Refusal.UNAVAILABLE:
        vote.call.fail(request_id, now_ms=now_ms, config=state.config)
        return
    vote.call.succeed(ready_at_ms=now_ms)
    vote.granted = response.granted and response.refusal is None and response.quorum_epoch == state.quorum_epoch


def on_vote_failure(state: RaftState, request_id: int, *, now_ms: int) -> bool:
    """Note that a vote request got no answer.

    Returns:
        Whether the request belongs to the current round.
    """
    if not isinstance(state.role, Prospective | Candidate):
        return False
    vote = _find(state.role, request_id)
    if vote is None:
        return False
    vote.call.fail(request_id, now_ms=now_ms, config=state.config)
    return True


def poll_prospective(state: RaftState, role: Prospective, *, now_ms: int) -> None:
    """Become candidate, give the round up, or continue to ask."""
    granted, open_count = _tally(role.votes)
    # The node's own vote counts only while it is a voter.
    granted += state.is_voter
    if granted >= state.voter_set.majority and state.quorum_epoch >= MAX_QUORUM_EPOCH:
        if now_ms >= role.election_deadline_ms:
            state.report(Violation.EPOCHS_USED_UP, EPOCHS_USED_UP)
            role.election_deadline_ms = now_ms + state.draw_election_timeout_ms()
    elif granted >= state.voter_set.majority:
        become_candidate(state, now_ms=now_ms)
    elif granted + open_count < state.voter_set.majority or now_ms >= role.election_deadline_ms:
        _fall_back(state, role, now_ms)
    else:
        _ask(state, role, now_ms)


def _fall_back(state: RaftState, role: Prospective, now_ms: int) -> None:
    leader_id = state.election.leader_id
    if leader_id is not None and role.leader_address is not None:
        become_follower(
            state, state.quorum_epoch, leader_id=leader_id, leader_address=role.leader_address, now_ms=now_ms
        )
        # The leader was silent for a whole fetch timeout, so it gets only the short wait unless it answers.
        leader_is_gone(state, now_ms=now_ms)
    else:
        become_unattached(state, state.quorum_epoch, now_ms=now_ms)


def poll_candidate(state: RaftState, role: Candidate, *, now_ms: int) -> None:
    """Become leader, give the round up, or continue to ask. After a definite loss the candidate waits: another one is about to win."""
    if role.is_elected:
        if state.outbox.is_persisted:
            become_leader(state, role, now_ms=now_ms)
        return
    granted, _ = _tally(role.votes)
    if granted + state.is_voter >= state.voter_set.majority:
        role.is_elected = True
        state.set_election(
            ElectionState(quorum_epoch=state.quorum_epoch, leader_id=state.key.node_id, voted_key=state.key)
        )
    elif now_ms >= role.election_deadline_ms:
        become_prospective(state, now_ms=now_ms)
    else:
        _ask(state, role, now_ms)


def voting_deadline_ms(role: Prospective | Candidate) -> int | None:
    """Return when a round must act without an event, in milliseconds; None while it waits only for the disk."""
    if isinstance(role, Candidate) and role.is_elected:
        return None
    calls = [vote.call.deadline_ms for vote in role.votes.values() if vote.granted is None]
    return min([role.election_deadline_ms, *calls])


def _tally(votes: dict[NodeId, VoteCall]) -> tuple[int, int]:
    granted = sum(vote.granted is True for vote in votes.values())
    return granted, sum(vote.granted is None for vote in votes.values())


def _find(role: Prospective | Candidate, request_id: int) -> VoteCall | None:
    for vote in role.votes.values():
        if vote.call.awaits(request_id):
            return vote
    return None


def _ask(state: RaftState, role: Prospective | Candidate, now_ms: int) -> None:
    end = state.log.end_position
    request_type = PreVoteRequest if isinstance(role, Prospective) else VoteRequest
    for vote in role.votes.values():
        vote.call.poll(now_ms=now_ms, config=state.config)
        if vote.granted is None and vote.call.is_ready(now_ms):
            key = vote.voter.key
            request = request_type(
                cluster_id=state.identity.cluster_id,
                quorum_epoch=state.quorum_epoch,
                candidate=state.key,
                voter=key,
                last_epoch=end.last_epoch,
                log_end_offset=end.log_end_offset,
            )
            state.send(vote.call, state.address_for(vote.voter), request, now_ms=now_ms)
