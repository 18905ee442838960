# SPDX-License-Identifier: Apache-2.0
"""Start after a restart, resignation, orderly shutdown, and the table of transitions cell by cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from metaquorum.raft.calls import PeerCall
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import FinishShutdown, PersistElectionState, Send
from metaquorum.raft.events import Failure, ShutdownRequested, Started, Tick
from metaquorum.raft.messages import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    PreVoteRequest,
    Refusal,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from metaquorum.raft.transitions import (
    LEGAL_TRANSITIONS,
    EpochRule,
    become_follower,
    become_prospective,
    become_unattached,
    is_legal,
)
from metaquorum.raft.types import ElectionState, NodeId, QuorumEpoch
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key

# Restart.


@pytest.mark.parametrize(
    ("election", "epochs", "role", "epoch"),
    [
        (election_state(0), [], "Unattached", 0),
        (election_state(5), [(2, 0)], "Unattached", 5),
        (election_state(5, voted=2), [(2, 0)], "Unattached", 5),
        (election_state(5, voted=1), [(2, 0)], "Candidate", 5),
        (election_state(5, leader=1, voted=1), [(2, 0)], "Resigned", 5),
        (election_state(5, leader=2), [(2, 0)], "Follower", 5),
        (election_state(5, leader=2, voted=1), [(2, 0)], "Follower", 5),
        (election_state(5, leader=8), [(2, 0)], "Unattached", 5),
        (election_state(1, leader=1, voted=1), [(2, 0)], "Unattached", 2),
    ],
)
def test_first_role_follows_from_the_disk(
    election: ElectionState, epochs: list[tuple[int, int]], role: str, epoch: int
) -> None:
    """KIP-595 initialization; `docs/quorum.md` "Start"."""
    node = ScriptedNode(election=election, epochs=epochs, log_end_offset=4 if epochs else 0).start()
    assert node.role == role
    assert node.state.quorum_epoch == epoch


def test_restarted_leader_gives_no_vote_in_its_epoch_and_leads_a_later_one() -> None:
    """A node that led an epoch and may have lost unflushed records never leads it again."""
    node = ScriptedNode(election=election_state(5, leader=1, voted=1), epochs=[(5, 0)], log_end_offset=4).start()
    answer = node.receive(node.vote_request(2, 5, last_epoch=4, log_end_offset=9))
    assert isinstance(answer, VoteResponse)
    assert not answer.granted
    node.advance(500)
    assert node.role == "Unattached"
    assert node.disk == election_state(6)


def test_restarted_candidate_asks_for_votes_of_the_same_epoch() -> None:
    """Its own vote is on disk and it cannot have led: a second request belongs to the same candidacy."""
    node = ScriptedNode(election=election_state(5, voted=1), epochs=[(2, 0)], log_end_offset=4).start()
    assert [request.quorum_epoch for _, request in node.sent(VoteRequest)] == [5, 5]
    assert node.of(PersistElectionState) == []


def test_restart_with_a_vote_gives_no_second_one() -> None:
    """Raft 5.2: the vote survives a crash."""
    node = ScriptedNode(election=election_state(5, voted=2)).start()
    answer = node.receive(node.vote_request(3, 5))
    assert isinstance(answer, VoteResponse)
    assert not answer.granted


def test_observer_with_its_own_vote_on_disk_is_unattached() -> None:
    """A replica that is no longer a voter does not continue a candidacy."""
    node = ScriptedNode(number=9, election=election_state(5, voted=9)).start()
    assert node.role == "Unattached"


def test_restarted_follower_fetches_from_its_leader_at_once() -> None:
    """KIP-595: a known leader with an address needs no search."""
    node = ScriptedNode(election=election_state(5, leader=2), epochs=[(2, 0)], log_end_offset=4).start()
    ((send, request),) = node.sent(FetchRequest)
    assert send.address == "n2"
    assert (request.fetch_offset, request.last_fetched_epoch, request.high_watermark) == (4, 2, None)


def test_node_starts_once() -> None:
    """An event before the start, and a second start, are bugs of the shell."""
    with pytest.raises(AssertionError, match="out of turn"):
        ScriptedNode().step(Tick())
    node = ScriptedNode().start()
    with pytest.raises(AssertionError, match="out of turn"):
        node.step(Started())


# Resignation.


def test_resigned_leader_names_its_successors_by_their_logs() -> None:
    """KIP-595: preferred successors in descending order of fetch offset."""
    node = ScriptedNode().start().elect()
    node.propose(5)
    for replica, offset in ((2, 2), (3, 7)):
        node.receive(node.fetch_request(replica, offset=offset, last_epoch=1, max_wait_ms=0))
    node.advance(1_500)
    assert node.role == "Resigned"
    requests = [request for _, request in node.sent(EndQuorumEpochRequest)]
    assert [request.preferred_successors for request in requests] == [(key(3), key(2))] * 2


def test_resigned_leader_repeats_itself_until_heard_and_moves_on_at_its_timeout() -> None:
    """KIP-595: EndQuorumEpoch is sent until answered; then the next epoch begins without a vote."""
    node = ScriptedNode().start().elect()
    node.advance(1_500)
    (first, _), (second, _) = node.sent(EndQuorumEpochRequest)
    node.answer(first, EndQuorumEpochResponse(quorum_epoch=QuorumEpoch(1), leader_id=None))
    node.fail(second)
    node.advance(20)
    assert len(node.sent(EndQuorumEpochRequest)) == 3
    node.fail(first)
    node.advance(479)
    assert node.role == "Resigned"
    node.advance(1)
    assert node.role == "Unattached"
    assert node.disk == election_state(2)


def test_resigned_leader_retries_a_request_that_times_out() -> None:
    """A lost EndQuorumEpoch expires like every request."""
    config = RaftConfig(request_timeout_ms=100)
    node = ScriptedNode(election=election_state(5, leader=1, voted=1), config=config).start()
    assert len(node.sent(EndQuorumEpochRequest)) == 2
    node.advance(119)
    assert len(node.sent(EndQuorumEpochRequest)) == 2
    node.advance(1)
    assert len(node.sent(EndQuorumEpochRequest)) == 4


def test_answer_with_a_higher_epoch_ends_a_resignation() -> None:
    """Another node leads already."""
    node = ScriptedNode().start().elect()
    node.advance(1_500)
    send, _ = node.sent(EndQuorumEpochRequest)[0]
    node.answer(send, EndQuorumEpochResponse(quorum_epoch=QuorumEpoch(2), leader_id=NodeId(3)))
    assert node.role == "Follower"
    node.fail(node.sent(EndQuorumEpochRequest)[1][0])
    assert node.role == "Follower"


@pytest.mark.parametrize(
    ("successors", "patience_ms"),
    [([1, 2], 0), ([3, 1], 200), ([3, 4, 1], 200), ([3, 4, 5, 1], 200), ([3, 4, 5, 6, 7, 1], 192), ([3], 500)],
)
def test_successors_of_a_resigning_leader_wait_in_their_order(successors: list[int], patience_ms: int) -> None:
    """KafkaRaftClient: the first elects at once, the k-th waits min(max, base * 2^(k-2)); others an election timeout."""
    node = ScriptedNode()
    node.start()
    node.follow(2, 4)
    answer = node.receive(node.end_request(2, 4, successors))
    assert answer == EndQuorumEpochResponse(quorum_epoch=QuorumEpoch(4), leader_id=NodeId(2))
    if patience_ms:
        node.advance(patience_ms - 1)
        assert node.role == "Follower"
        node.advance(1)
    assert node.role == "Prospective"


@pytest.mark.parametrize(
    ("epoch", "leader", "refusal"), [(3, 2, Refusal.FENCED_EPOCH), (4, 1, Refusal.INVALID_REQUEST)]
)
def test_end_quorum_epoch_is_checked(epoch: int, leader: int, refusal: Refusal) -> None:
    """KIP-595: old epochs are fenced; a node refuses a request that names it as the resigning leader."""
    node = ScriptedNode().start()
    node.follow(2, 4)
    answer = node.receive(node.end_request(leader, epoch, [1]))
    assert isinstance(answer, EndQuorumEpochResponse)
    assert answer.refusal is refusal
    assert node.role == "Follower"


def test_end_quorum_epoch_of_another_cluster_is_refused() -> None:
    """Clusters do not mix."""
    node = ScriptedNode().start()
    node.follow(2, 4)
    request = EndQuorumEpochRequest(
        cluster_id="another", quorum_epoch=QuorumEpoch(4), leader_id=NodeId(2), preferred_successors=()
    )
    answer = node.receive(request)
    assert isinstance(answer, EndQuorumEpochResponse)
    assert answer.refusal is Refusal.WRONG_CLUSTER


def test_end_quorum_epoch_of_a_higher_epoch_teaches_the_epoch() -> None:
    """A voter that missed the whole leadership still learns the epoch, and starts an election at once if it is named first."""
    node = ScriptedNode().start()
    node.receive(node.end_request(2, 4, [3]))
    assert node.role == "Follower"
    assert node.disk == election_state(4, leader=2)


def test_end_quorum_epoch_reaches_a_candidate_of_the_next_epoch_too_late() -> None:
    """A node that has moved on is not moved back."""
    node = ScriptedNode(election=election_state(4, voted=1)).start()
    assert node.role == "Candidate"
    answer = node.receive(node.end_request(2, 3, [1]))
    assert isinstance(answer, EndQuorumEpochResponse)
    assert answer.refusal is Refusal.FENCED_EPOCH
    assert node.role == "Candidate"


# Shutdown.


def test_leader_that_leaves_stays_until_it_hears_of_a_successor() -> None:
    """KIP-595: a graceful shutdown hands leadership over first."""
    node = ScriptedNode().start().elect()
    node.step(ShutdownRequested())
    assert node.role == "Resigned"
    assert node.of(FinishShutdown) == []
    for send, _ in node.sent(EndQuorumEpochRequest):
        node.answer(send, EndQuorumEpochResponse(quorum_epoch=QuorumEpoch(1), leader_id=None))
    answer = node.receive(node.vote_request(2, 2, last_epoch=1, log_end_offset=99))
    assert isinstance(answer, VoteResponse)
    assert answer.granted
    assert node.of(FinishShutdown) == []
    node.receive(node.begin_request(2, 2))
    assert node.of(FinishShutdown) == [FinishShutdown()]
    node.step(Tick())
    assert len(node.of(FinishShutdown)) == 1


def test_leader_that_leaves_waits_no_longer_than_its_grace() -> None:
    """Perhaps no other voter can be elected: the shutdown has a time limit, and this node starts no new election."""
    node = ScriptedNode().start().elect()
    node.step(ShutdownRequested())
    node.step(ShutdownRequested())
    for send, _ in node.sent(EndQuorumEpochRequest):
        node.answer(send, EndQuorumEpochResponse(quorum_epoch=QuorumEpoch(1), leader_id=None))
    node.advance(999)
    assert node.role == "Resigned"
    assert node.of(FinishShutdown) == []
    node.advance(1)
    assert len(node.of(FinishShutdown)) == 1


def test_leader_whose_voters_are_all_gone_leaves_at_once() -> None:
    """The voters of a stopping cluster do not wait for each other."""
    node = ScriptedNode().start().elect()
    node.step(ShutdownRequested())
    first, second = [send for send, _ in node.sent(EndQuorumEpochRequest)]
    node.fail(first)
    assert node.of(FinishShutdown) == []
    node.fail(second, Failure.TIMED_OUT)
    assert node.of(FinishShutdown) == []
    node.advance(20)
    node.fail([send for send, _ in node.sent(EndQuorumEpochRequest)][-1])
    assert len(node.of(FinishShutdown)) == 1


def test_only_voter_leaves_at_once() -> None:
    """It has no successor."""
    node = ScriptedNode(voters=[1]).start()
    node.step(ShutdownRequested())
    assert len(node.of(FinishShutdown)) == 1


@pytest.mark.parametrize("election", [election_state(0), election_state(4, leader=2), election_state(4, voted=1)])
def test_node_that_does_not_lead_leaves_at_once(election: ElectionState) -> None:
    """Only a leader hands over; followers and prospectives stop at once."""
    node = ScriptedNode(election=election).start()
    node.step(ShutdownRequested())
    assert len(node.of(FinishShutdown)) == 1


def test_node_that_leaves_starts_no_election() -> None:
    """A former leader in shutdown grants its vote and does not become a candidate."""
    node = ScriptedNode().start().elect()
    node.step(ShutdownRequested())
    node.receive(node.vote_request(2, 2, last_epoch=1, log_end_offset=99))
    assert isinstance(node.state.role, Unattached)
    assert node.state.role.election_deadline_ms is None
    node.advance(999)
    assert node.role == "Unattached"
    assert node.sent(PreVoteRequest) == []
    node.receive(node.begin_request(3, 2))
    assert len(node.of(FinishShutdown)) == 1
    assert node.raft.deadline_ms() is None


def test_node_that_leaves_and_votes_again_draws_no_timer() -> None:
    """A second vote in a later epoch does not restart the timer."""
    node = ScriptedNode().start().elect()
    node.step(ShutdownRequested())
    for epoch in (2, 3):
        node.receive(node.vote_request(2, epoch, last_epoch=1, log_end_offset=99))
    assert isinstance(node.state.role, Unattached)
    assert node.state.role.election_deadline_ms is None


# Transitions.

ROLES: list[type[Role]] = [Unattached, Prospective, Candidate, Leader, Resigned, Follower]


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ROLES, ROLES)))
def test_transition_table_cell(old: type[Role], new: type[Role]) -> None:
    """Each cell allows exactly its rule; a missing cell is forbidden; no epoch ever falls."""
    rule = LEGAL_TRANSITIONS.get((old, new))
    same = is_legal(old, new, old_epoch=QuorumEpoch(5), new_epoch=QuorumEpoch(5))
    higher = is_legal(old, new, old_epoch=QuorumEpoch(5), new_epoch=QuorumEpoch(6))
    assert same is (rule in (EpochRule.SAME, EpochRule.ANY))
    assert higher is (rule in (EpochRule.HIGHER, EpochRule.ANY))
    assert not is_legal(old, new, old_epoch=QuorumEpoch(5), new_epoch=QuorumEpoch(4))


def test_a_leader_never_follows_or_forgets_in_its_own_epoch() -> None:
    """Raft 5.2 Leader Append-Only; KIP-595: leader to follower in the same epoch is an illegal state."""
    for target in (Follower, Unattached, Prospective, Candidate, Leader):
        assert not is_legal(Leader, target, old_epoch=QuorumEpoch(5), new_epoch=QuorumEpoch(5))
    for source in (Unattached, Prospective, Resigned, Follower, Leader):
        assert not is_legal(source, Leader, old_epoch=QuorumEpoch(5), new_epoch=QuorumEpoch(5))


def leader_node() -> ScriptedNode:
    """A leader of epoch 1."""
    return ScriptedNode().start().elect()


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda node: become_follower(
            node.state, QuorumEpoch(1), leader_id=NodeId(2), leader_address="n2", now_ms=node.now_ms
        ),
        lambda node: become_unattached(node.state, QuorumEpoch(1), now_ms=node.now_ms),
        lambda node: become_prospective(node.state, now_ms=node.now_ms),
    ],
)
def test_forbidden_transition_stops_the_process(forbidden: Callable[[ScriptedNode], None]) -> None:
    """An illegal change is a bug of the core: it asserts, and the old role stays."""
    node = leader_node()
    role = node.state.role
    with pytest.raises(AssertionError, match="Leader of epoch 1"):
        forbidden(node)
    assert node.state.role is role


def test_observer_cannot_become_prospective() -> None:
    """KIP-595: observers never stand."""
    node = ScriptedNode(number=9).start()
    with pytest.raises(AssertionError, match="observer"):
        become_prospective(node.state, now_ms=node.now_ms)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (election_state(4), "epoch would fall"),
        (election_state(5, voted=3), "vote would change"),
        (election_state(5, leader=3, voted=2), "leader would change"),
    ],
)
def test_election_state_laws_are_asserted(change: ElectionState, law: str) -> None:
    """Epoch, vote and leader are each set once and never taken back."""
    node = ScriptedNode(election=election_state(5, leader=2, voted=2)).start()
    with pytest.raises(AssertionError, match=law):
        node.state.set_election(change)


def test_role_that_does_not_settle_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step must end: roles that keep changing stop the process instead of hanging it."""
    from metaquorum.raft import follower

    def restless(state: object, role: Unattached, *, now_ms: int) -> None:
        node.state.role = Unattached(election_deadline_ms=None, fetch=PeerCall(now_ms))

    node = ScriptedNode().start()
    monkeypatch.setattr(follower, "poll_unattached", restless)
    with pytest.raises(AssertionError, match="settle"):
        node.step(Tick())


def test_send_addresses_come_from_the_voter_set() -> None:
    """Guards the script: requests go to the addresses of the voters."""
    node = ScriptedNode().start()
    node.advance(500)
    assert {send.address for send in node.of(Send)} <= {"n2", "n3"}
