# SPDX-License-Identifier: Apache-2.0
"""Normative statements of the Raft paper's sections 5.1 to 5.6 that no other test shows; `docs/normative.md` has all of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import (
    AdvanceCommit,
    AppendAsFollower,
    AppendAsLeader,
    LeaderChange,
    PersistElectionState,
    Proposal,
    ReplyWithBatches,
    Send,
    TruncateLog,
    VotersChange,
)
from metaquorum.raft.events import Tick
from metaquorum.raft.messages import (
    BeginQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    PreVoteRequest,
    Refusal,
    Request,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Candidate, Leader, Prospective, Unattached
from metaquorum.raft.types import Offset
from metaquorum.testing.scripted_node import ScriptedNode, batches, election_state, key
from metaquorum.tests.raft.roles import EPOCH, LOG_END, VOTERS, candidate, follower, leader
from metaquorum.tests.raft.steps import fetch, leading
from metaquorum.tests.raft.test_properties import random_event
from metaquorum.tests.raft.votes import granted, refused

# 5.1 and 5.2: terms and elections.


@pytest.mark.parametrize("role", list(VOTERS))
def test_every_answer_shows_the_term(role: str) -> None:
    """5.1: terms are exchanged whenever servers communicate, also where the request is refused."""
    requests: list[Callable[[ScriptedNode], Request]] = [
        lambda node: node.vote_request(2, EPOCH - 1),
        lambda node: node.pre_vote_request(2, EPOCH - 1),
        lambda node: node.begin_request(3, EPOCH - 1),
        lambda node: node.end_request(3, EPOCH - 1),
        lambda node: node.fetch_request(2, offset=1, last_epoch=3, epoch=EPOCH - 1),
        lambda node: node.vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END),
        lambda node: node.fetch_request(2, offset=1, last_epoch=3, max_wait_ms=0),
    ]
    for request in requests:
        node = VOTERS[role]()
        answer = node.receive(request(node))
        assert answer is not None
        assert answer.quorum_epoch == EPOCH


@pytest.mark.parametrize("role", list(VOTERS))
def test_every_request_carries_the_term(role: str) -> None:
    """5.1: every request of every role carries the current term."""
    node = VOTERS[role]()
    node.forget()
    for _ in range(30):
        before = node.state.quorum_epoch
        deadline_ms = node.raft.deadline_ms()
        assert deadline_ms is not None
        node.now_ms = deadline_ms
        sent = [effect.request for effect in node.step(Tick()) if isinstance(effect, Send)]
        assert {request.quorum_epoch for request in sent} <= {before, node.state.quorum_epoch}
    assert len(node.of(Send)) > 3


def test_candidate_asks_all_other_voters_in_one_step() -> None:
    """5.2: requests for votes go out in parallel to each of the other servers, and to no other."""
    node = ScriptedNode(voters=[1, 2, 3, 4, 5]).start()
    node.advance(500)
    assert [request.voter for _, request in node.sent(PreVoteRequest)] == [key(number) for number in (2, 3, 4, 5)]
    for send, _ in node.sent(PreVoteRequest)[:2]:
        node.answer(send, granted(node))
    assert [request.voter for _, request in node.sent(VoteRequest)] == [key(number) for number in (2, 3, 4, 5)]


@pytest.mark.parametrize(("voters", "needed"), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3)])
def test_candidate_needs_a_majority_of_all_voters(voters: int, needed: int) -> None:
    """5.2: votes of a majority of the full cluster win, one less does not, and no voter counts twice."""
    node = ScriptedNode(voters=list(range(1, voters + 1)), election=election_state(3, voted=1)).start()
    sends = [send for send, _ in node.sent(VoteRequest)]
    for send in sends[: needed - 1]:
        node.answer(send, granted(node))
        node.answer(send, granted(node))
    assert node.role == "Candidate"
    node.answer(sends[needed - 1], granted(node))
    assert node.role == "Leader"


def test_votes_of_another_term_do_not_count() -> None:
    """5.2: the votes must be of the candidate's own term."""
    node = candidate()
    send = node.sent(VoteRequest)[0][0]
    node.answer(send, VoteResponse(quorum_epoch=node.state.election.quorum_epoch, leader_id=None, granted=False))
    other = node.sent(VoteRequest)[1][0]
    node.answer(other, VoteResponse(quorum_epoch=election_state(EPOCH - 1).quorum_epoch, leader_id=None, granted=True))
    assert node.role == "Candidate"


@pytest.mark.parametrize("epoch", [1, EPOCH - 1])
def test_candidate_refuses_a_leader_of_an_older_term(epoch: int) -> None:
    """5.2: a candidate that hears from a leader of a smaller term rejects it and stays a candidate."""
    node = candidate()
    answer = node.receive(node.begin_request(3, epoch))
    assert isinstance(answer, BeginQuorumEpochResponse)
    assert (answer.refusal, answer.quorum_epoch) == (Refusal.FENCED_EPOCH, EPOCH)
    assert node.role == "Candidate"
    assert node.disk == election_state(EPOCH, voted=1)


class RecordingRng:
    """Draws at random and records the bounds."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self.bounds: list[tuple[int, int]] = []

    def randrange(self, start: int, stop: int, /) -> int:
        """Draw."""
        self.bounds.append((start, stop))
        return self._random.randrange(start, stop)


def test_every_round_draws_a_new_election_timeout_from_a_fixed_interval() -> None:
    """5.2: timeouts are random within a fixed interval, and a new one is drawn at the start of each election."""
    node = ScriptedNode()
    rng = RecordingRng()
    node.state.rng = rng
    node.start()
    drawn: list[int] = []
    for _ in range(40):
        before_ms, role = node.now_ms, node.state.role
        assert isinstance(role, Unattached | Prospective)
        assert role.election_deadline_ms is not None
        drawn.append(role.election_deadline_ms - before_ms)
        node.advance(drawn[-1])
        assert node.state.role is not role
    assert all(500 <= timeout_ms < 1_000 for timeout_ms in drawn)
    assert len(set(drawn)) > 30
    assert (500, 1_000) in rng.bounds


def test_candidate_that_lost_waits_its_timeout_out() -> None:
    """5.2: a candidate waits for its timeout to pass before it begins the next election."""
    node = candidate()
    role = node.state.role
    assert isinstance(role, Candidate)
    for send, _ in node.sent(VoteRequest):
        node.answer(send, refused(node))
    node.forget()
    node.advance(role.election_deadline_ms - node.now_ms - 1)
    assert node.state.role is role
    assert node.sent(PreVoteRequest) == node.sent(VoteRequest) == []


def test_vote_for_somebody_else_puts_off_the_own_election() -> None:
    """Figure 2: a voter that grants a vote does not become a candidate before another election timeout has passed."""
    node = ScriptedNode().start()
    node.advance(499)
    node.receive(node.vote_request(2, 1))
    node.advance(499)
    assert node.role == "Unattached"
    node.advance(1)
    assert node.role == "Prospective"


# 5.3: replication.


def test_leader_appends_each_record_at_the_end_of_its_log_once() -> None:
    """5.3: a leader makes one record at an offset in its term, and records never change their place."""
    node, _ = leading([1, 2, 3])
    for count in (1, 3, 2):
        node.propose(count)
    appends = node.of(AppendAsLeader)
    assert [(append.base_offset, append.next_offset) for append in appends] == [(2, 3), (3, 6), (6, 8)]
    assert {append.quorum_epoch for append in appends} == {1}
    assert all(isinstance(append.content, Proposal) for append in appends)


@pytest.mark.parametrize("seed", range(40))
def test_leader_never_cuts_its_own_log(seed: int) -> None:
    """5.3 Leader Append-Only: a leader of its epoch never removes or replaces a record."""
    rng = random.Random(seed)
    node = leader()
    for _ in range(60):
        role, end = node.state.role, node.state.log.log_end_offset
        if not isinstance(role, Leader):
            break
        node.now_ms += rng.choice([0, 1, 20])
        effects = node.raft.step(random_event(node, rng, []), node.now_ms)
        assert not any(isinstance(effect, TruncateLog | AppendAsFollower) for effect in effects)
        assert node.state.log.log_end_offset >= end


def test_new_leader_leaves_its_log_as_it_is_and_only_appends() -> None:
    """5.3: a new leader takes no action to make logs agree; it only adds its first record."""
    node = ScriptedNode(election=election_state(4), epochs=[(1, 0), (3, 6)], log_end_offset=9).start()
    node.advance(500)
    for kind in (PreVoteRequest, VoteRequest):
        node.answer(node.sent(kind)[0][0], granted(node))
    assert node.role == "Leader"
    assert node.of(TruncateLog) == []
    assert [append.content for append in node.of(AppendAsLeader)] == [LeaderChange(leader_id=1, granting_voters=(1, 2))]  # pyright: ignore
    assert node.state.log.epochs == ((1, 0), (3, 6), (5, 9))


def test_first_leader_of_a_log_appends_the_voters_too() -> None:
    """5.3 and KIP-853: the one exception, a log without voters."""
    node = ScriptedNode(voters=[1]).start()
    kinds = [type(append.content) for append in node.of(AppendAsLeader)]
    assert kinds == [LeaderChange, VotersChange]


def test_slow_follower_does_not_hold_up_commits() -> None:
    """5.3: a majority commits a record; a slow or dead minority changes nothing."""
    node, _ = leading([1, 2, 3, 4, 5])
    fetch(node, 4, 0)
    node.propose(5)
    for replica in (2, 3):
        fetch(node, replica, 7)
    assert node.state.high_watermark == 7


def test_answer_of_a_leader_names_the_end_of_what_is_committed() -> None:
    """5.3: the leader sends the highest committed offset, so that followers learn it."""
    node, _ = leading([1, 2, 3])
    fetch(node, 2, 2)
    answer = fetch(node, 3, 0)
    assert isinstance(answer, FetchResponse)
    assert answer.high_watermark == Offset(2)


def test_own_record_commits_everything_before_it() -> None:
    """5.3: a commit covers all records before, those of earlier leaders too, and they are delivered in order."""
    node = ScriptedNode(election=election_state(4), epochs=[(1, 0), (3, 6)], log_end_offset=9).start().elect()
    assert node.state.high_watermark is None
    fetch(node, 2, 10, last_epoch=5)
    node.propose(1)
    fetch(node, 2, 11, last_epoch=5)
    assert [effect.commit_offset for effect in node.of(AdvanceCommit)] == [10, 11]


def test_delivery_only_goes_up() -> None:
    """Figure 2: applied records are not applied again, whatever high watermark a later answer has."""
    node = follower()
    for high_watermark in (4, 9, 2, None, 9, 10):
        send, _ = node.sent(FetchRequest)[-1]
        node.answer(send, node.leader_answer(3, high_watermark=high_watermark))
    assert [effect.commit_offset for effect in node.of(AdvanceCommit)] == [4, 9, 10]


def test_records_keep_their_terms_under_later_leaders() -> None:
    """5.4.2: a leader sends records of earlier terms unchanged, and a follower appends them with their terms."""
    old = ScriptedNode(election=election_state(4), epochs=[(1, 0), (3, 6)], log_end_offset=9).start().elect()
    fetch(old, 2, 6, last_epoch=1)
    (reply,) = old.of(ReplyWithBatches)
    assert (reply.fetch_offset, old.state.log.epochs) == (6, ((1, 0), (3, 6), (5, 9)))
    node = ScriptedNode(election=election_state(5), epochs=[(1, 0)], log_end_offset=6).start()
    send = node.follow(2, 5)
    content = batches((6, 9, 3), (9, 10, 5))
    node.answer(send, node.leader_answer(2, batches=content))
    assert node.of(AppendAsFollower) == [AppendAsFollower(batches=content)]
    assert node.state.log.epochs == ((1, 0), (3, 6), (5, 9))


# 5.5 and 5.6: crashes and time.


@pytest.mark.parametrize(
    "request_of",
    [
        lambda node: node.vote_request(2, EPOCH + 1, last_epoch=3, log_end_offset=LOG_END + 1),
        lambda node: node.pre_vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END + 1),
        lambda node: node.begin_request(3, EPOCH),
        lambda node: node.begin_request(3, EPOCH + 1),
        lambda node: node.end_request(3, EPOCH, [2, 1]),
        lambda node: node.fetch_request(2, offset=9, last_epoch=3, max_wait_ms=0),
    ],
)
@pytest.mark.parametrize("role", list(VOTERS))
def test_repeated_request_is_answered_alike_and_changes_nothing_more(
    role: str, request_of: Callable[[ScriptedNode], Request]
) -> None:
    """5.5: requests are idempotent: a sender without an answer may ask again."""
    node = VOTERS[role]()
    request = request_of(node)
    first = node.receive(request)
    before = (node.role, node.disk, node.state.log.end_position, node.state.high_watermark)
    assert node.receive(request) == first
    assert (node.role, node.disk, node.state.log.end_position, node.state.high_watermark) == before


def test_vote_whose_answer_was_lost_in_a_crash_is_given_again() -> None:
    """5.5: a server that crashed between its vote and its answer gives the same answer when asked again."""
    node = ScriptedNode(election=election_state(2), auto_disk=False).start()
    assert node.receive(node.vote_request(2, 3)) is None
    (write,) = node.of(PersistElectionState)
    again = ScriptedNode(election=write.state).start()
    for candidate_number, expected in ((3, False), (2, True)):
        answer = again.receive(again.vote_request(candidate_number, 3))
        assert isinstance(answer, VoteResponse)
        assert answer.granted is expected


@pytest.mark.parametrize("role", ["Unattached", "Prospective", "Candidate", "Resigned", "Follower"])
def test_request_without_an_answer_is_repeated_for_ever(role: str) -> None:
    """5.5: requests to a server that is down are tried again until it is back."""
    node = VOTERS[role]()
    for _ in range(20):
        node.forget()
        node.advance(2_000)
        assert node.of(Send) != [], f"{node.role} fell silent"


def test_times_leave_room_for_each_other() -> None:
    """5.6: a healthy leader is heard from well before it would be given up."""
    config = RaftConfig()
    assert config.fetch_wait_ms <= config.fetch_wait_ms_max < config.fetch_timeout_ms
    assert config.begin_quorum_epoch_after_ms < config.fetch_timeout_ms < config.check_quorum_timeout_ms
    assert config.retry_backoff_ms < config.retry_backoff_ms_max < config.election_timeout_ms
