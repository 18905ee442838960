# SPDX-License-Identifier: Apache-2.0
"""Linearizable reads: a leader answers only once a majority has confirmed that it still leads."""

from __future__ import annotations

from dataclasses import replace

from metaquorum.raft.effects import Effect, ReadReady, Rejection, RejectRead, Send
from metaquorum.raft.events import ReadRequested
from metaquorum.raft.messages import FetchRequest
from metaquorum.raft.types import Offset
from metaquorum.testing.scripted_node import ScriptedNode, key
from metaquorum.tests.raft.steps import fetch, leading


def read(node: ScriptedNode, read_id: int) -> list[Effect]:
    return node.step(ReadRequested(read_id=read_id))


def ready(node: ScriptedNode) -> list[tuple[int, int]]:
    return [(effect.read_id, effect.read_offset) for effect in node.of(ReadReady)]


def rejected(node: ScriptedNode) -> list[tuple[int, Rejection]]:
    return [(effect.read_id, effect.reason) for effect in node.of(RejectRead)]


def committed(voters: list[int], **arguments: object) -> ScriptedNode:
    """Node 1 leads, and all voters have its first two records (LeaderChange and voters)."""
    node, role = leading(voters, **arguments)
    for voter in voters[1:]:
        fetch(node, voter, 2, high_watermark=2)
    assert role.high_watermark == 2
    node.forget()
    return node


def test_read_waits_for_a_fetch_that_was_sent_after_it_came() -> None:
    """Dissertation 6.4: a fetch that was under way proves nothing; one that repeats the round does."""
    node = committed([1, 2, 3])
    read(node, 7)
    # Both parked fetches are answered with the round at once, though there is no other news.
    answer = fetch(node, 2, 2, high_watermark=2)
    assert answer is not None
    assert answer.read_round == 1
    assert ready(node) == []
    assert fetch(node, 2, 2, high_watermark=2, read_round=1) is None
    assert ready(node) == [(7, 2)]


def test_parked_fetches_of_voters_are_answered_when_a_round_begins() -> None:
    """Otherwise a read would wait as long as a fetch does; observers do not vote and stay parked."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 2, high_watermark=2)
    assert fetch(node, 2, 2, high_watermark=2) is None
    assert fetch(node, 9, 2, high_watermark=2) is None
    assert len(role.parked) == 2
    read(node, 1)
    assert [parked.request.replica for parked in role.parked] == [key(9)]


def test_reads_that_come_during_a_round_share_the_next_one() -> None:
    """Two rounds are enough for any number of reads, and they are answered in their order."""
    node = committed([1, 2, 3])
    for read_id in (1, 2, 3):
        read(node, read_id)
    answer = fetch(node, 2, 2, high_watermark=2, read_round=1)
    assert ready(node) == [(1, 2)]
    assert answer is not None, "the next round has begun: news for the very fetch that ended the first"
    assert answer.read_round == 2
    fetch(node, 3, 2, high_watermark=2, read_round=2)
    assert ready(node) == [(1, 2), (2, 2), (3, 2)]
    read(node, 4)
    answer = fetch(node, 2, 2, high_watermark=2, read_round=2)
    assert answer is not None
    assert answer.read_round == 3


def test_majority_of_five_needs_two_others() -> None:
    """The leader is one of the majority, and a voter that repeats its fetch counts once."""
    node = committed([1, 2, 3, 4, 5])
    read(node, 1)
    for _ in range(2):
        fetch(node, 2, 2, high_watermark=2, read_round=1)
    assert ready(node) == []
    fetch(node, 9, 2, high_watermark=2, read_round=1)
    assert ready(node) == [], "an observer confirmed a leader"
    fetch(node, 4, 2, high_watermark=2, read_round=1)
    assert ready(node) == [(1, 2)]


def test_round_that_was_never_begun_confirms_nothing_later() -> None:
    """A voter that names a round without reason (another leader's, or a wrong one) does not confirm the next one."""
    node = committed([1, 2, 3])
    fetch(node, 2, 2, high_watermark=2, read_round=99)
    read(node, 1)
    assert ready(node) == []
    fetch(node, 2, 2, high_watermark=2, read_round=1)
    assert ready(node) == [(1, 2)]


def test_diverging_voter_confirms_as_well() -> None:
    """The contents of its log do not matter: it fetches in this epoch, so it has voted in no later one."""
    node = committed([1, 2, 3])
    node.propose()
    read(node, 1)
    answer = fetch(node, 2, 9, read_round=1)
    assert answer is not None
    assert answer.diverging is not None
    assert ready(node) == [(1, 2)]


def test_only_voter_answers_at_once() -> None:
    """A quorum of one needs no other voter."""
    node = committed([1])
    for read_id in (1, 2):
        read(node, read_id)
    assert ready(node) == [(1, 2), (2, 2)]


def test_nobody_but_a_leader_answers() -> None:
    """A follower rejects; so does a leader that does not know the high watermark yet."""
    follower = ScriptedNode().start()
    read(follower, 1)
    assert rejected(follower) == [(1, Rejection.NOT_LEADER)]
    node, _ = leading([1, 2, 3])
    read(node, 2)
    assert rejected(node) == [(2, Rejection.BUSY)]


def test_waiting_reads_are_bounded() -> None:
    """Further ones are rejected as busy."""
    node = committed([1, 2, 3], max_pending_reads=2)
    for read_id in (1, 2, 3):
        read(node, read_id)
    assert rejected(node) == [(3, Rejection.BUSY)]


def test_reads_are_rejected_when_the_leadership_ends() -> None:
    """Check-quorum bounds how long an unconfirmed leader keeps reads waiting."""
    node = committed([1, 2, 3])
    read(node, 1)
    node.advance(1_500)
    assert node.role == "Resigned"
    assert rejected(node) == [(1, Rejection.NOT_LEADER)]
    assert ready(node) == []


def test_follower_repeats_the_round_of_its_leader() -> None:
    """In the next fetch, whatever else the answer says; another leader's rounds start again from 0."""
    node = ScriptedNode().start()
    send = node.follow(2, 3)
    answer = replace(node.leader_answer(2), read_round=5)
    node.answer(send, answer)
    send, request = node.sent(FetchRequest)[-1]
    assert request.read_round == 5
    node.answer(send, replace(answer, read_round=4))
    assert node.sent(FetchRequest)[-1][1].read_round == 5
    node.follow(3, 4)
    assert node.sent(FetchRequest)[-1][1].read_round == 0


def test_answer_from_elsewhere_is_no_round() -> None:
    """An answer of another node than the leader of the epoch does not count."""
    node = ScriptedNode().start()
    send: Send = node.follow(2, 3)
    node.answer(send, replace(node.leader_answer(3), read_round=5, leader_id=key(3).node_id))
    node.advance(20)
    assert node.sent(FetchRequest)[-1][1].read_round == 0
    assert node.state.log.log_end_offset == Offset(0)
