# SPDX-License-Identifier: Apache-2.0
"""Rounds: records that are appended while others wait for their commit are sent and flushed together."""

from __future__ import annotations

from metaquorum.raft.effects import Effect, FlushLog, ReplyWithBatches
from metaquorum.raft.events import VoterChangeRequested
from metaquorum.raft.roles import Leader
from metaquorum.raft.voter_changes import AddVoter
from metaquorum.testing.scripted_node import ScriptedNode, key
from metaquorum.tests.raft.steps import fetch, leading


def sent(node: ScriptedNode) -> list[int]:
    """Fetch offsets of the answers with data since the last `forget`."""
    return [reply.fetch_offset for reply in node.of(ReplyWithBatches)]


def flush_of(effects: list[Effect]) -> FlushLog:
    """The one flush among some effects."""
    (flush,) = [effect for effect in effects if isinstance(effect, FlushLog)]
    return flush


def in_round(proposal_count: int, **arguments: object) -> tuple[ScriptedNode, Leader]:
    """A leader of three whose last committed round had this many proposals; both voters wait for more."""
    node, role = leading([1, 2, 3], **arguments)
    fetch(node, 2, 2, high_watermark=2)
    fetch(node, 3, 2, high_watermark=2)
    node.propose()
    for _ in range(proposal_count):
        node.propose()
    fetch(node, 2, 3, high_watermark=2)
    assert role.round_size == proposal_count
    end_offset = 3 + proposal_count
    fetch(node, 2, end_offset, high_watermark=3)
    assert role.high_watermark == end_offset
    fetch(node, 3, end_offset, high_watermark=end_offset)
    node.forget()
    return node, role


def test_lone_record_waits_for_nothing() -> None:
    """The voter that a commit needs gets it in the same step, and the leader flushes at the same time."""
    node, role = in_round(1)
    for offset in range(4, 8):
        node.propose()
        assert sent(node)[-1] == offset
        assert len(node.of(FlushLog)) == offset - 3
        fetch(node, 2, offset + 1, high_watermark=offset)
        assert role.high_watermark == offset + 1


def test_what_comes_meanwhile_makes_the_next_round() -> None:
    """Four records, one exchange and one flush; a voter that lacks a part of the round is sent the whole rest."""
    node, role = in_round(1)
    node.auto_disk = False
    flush = flush_of(node.propose())
    assert sent(node) == [4]
    node.forget()
    assert fetch(node, 3, 5, high_watermark=4) is None
    for _ in range(4):
        node.propose()
    assert node.of(FlushLog) == []
    next_flush = flush_of(node.complete(flush))
    assert (role.high_watermark, role.round_end_offset, role.round_size) == (5, 9, 4)
    assert sent(node) == [5]
    node.propose()
    node.forget()
    assert fetch(node, 3, 9, high_watermark=5) is None
    assert sent(node) == []
    node.complete(next_flush)
    assert role.high_watermark == 9


def test_after_a_crowded_round_the_next_one_waits_for_as_many() -> None:
    """The answers of a round bring the next proposals one by one: these share the next round, and one more may come."""
    node, role = in_round(4)
    for _ in range(4):
        node.propose()
    assert (sent(node), node.of(FlushLog)) == ([], [])
    node.propose()
    assert sent(node) == [7]
    assert len(node.of(FlushLog)) == 1
    assert (role.round_size, role.round_target, role.round_deadline_ms) == (5, 6, None)


def test_the_wait_is_short() -> None:
    """A proposal that comes alone after a crowd waits a few milliseconds, once."""
    node, role = in_round(4, crowd_wait_ms=5)
    node.propose()
    node.advance(3)
    node.propose()
    node.advance(1)
    assert sent(node) == []
    node.advance(1)
    assert sent(node) == [7]
    assert (role.round_size, role.round_target) == (2, 0)
    fetch(node, 3, 9, high_watermark=7)
    assert role.high_watermark == 9
    node.forget()
    node.propose()
    assert sent(node) == [9]


def commit_round(node: ScriptedNode, role: Leader, size: int, *, wait_ms: int = 0) -> None:
    """Propose, wait, and let the voters fetch the round."""
    node.forget()
    for _ in range(size):
        node.propose()
    node.advance(wait_ms)
    assert role.round_size == size
    end_offset = node.state.log.log_end_offset
    for voter in (2, 3):
        fetch(node, voter, end_offset, high_watermark=role.high_watermark or 0)
    assert role.high_watermark == end_offset


def test_rounds_grow_until_one_waits_in_vain() -> None:
    """The leader does not know how many proposals are unread: it waits for a few more each time, then for as many as came."""
    node, role = in_round(8, crowd_wait_ms=5, crowd_hold_rounds=2)
    assert role.round_target == 10
    commit_round(node, role, 10)
    assert role.round_target == 12
    commit_round(node, role, 11, wait_ms=5)
    for _ in range(2):
        assert role.round_target == 11
        commit_round(node, role, 11)
    # All others may have waited for a late one: the leader tries a larger round again later.
    assert role.round_target == 11
    commit_round(node, role, 11)
    assert role.round_target == 13


def test_more_than_was_waited_for_is_a_larger_crowd() -> None:
    """Proposals that arrive without a hold while a round is under way end the hold."""
    node, role = in_round(8, crowd_wait_ms=5, crowd_hold_rounds=50)
    commit_round(node, role, 6, wait_ms=5)
    assert (role.round_target, role.round_hold) == (6, 50)
    node.auto_disk = False
    node.forget()
    flushes: list[FlushLog] = []
    for _ in range(6):
        flushes += [effect for effect in node.propose() if isinstance(effect, FlushLog)]
    for _ in range(20):
        node.propose()
    fetch(node, 2, 6 + node.of(ReplyWithBatches)[0].fetch_offset, high_watermark=role.high_watermark or 0)
    node.complete(flushes[0])
    assert (role.round_size, role.round_target, role.round_hold) == (20, 25, 0)


def test_size_of_a_crowd_counts_proposals() -> None:
    """One caller with many records in each proposal is no crowd."""
    node, role = in_round(1)
    node.propose(50)
    fetch(node, 2, 54, high_watermark=4)
    assert role.high_watermark == 54
    node.forget()
    node.propose()
    assert sent(node) == [54]


def test_control_record_is_never_held_back() -> None:
    """A new voter commits nothing without the record that names it: a round that waits for that voter would wait for ever."""
    node, role = leading([1], crowd_wait_ms=5)
    fetch(node, 2, 2, high_watermark=2)
    node.auto_disk = False
    flush = flush_of(node.propose())
    fetch(node, 2, 3, high_watermark=2)
    node.complete(flush)
    assert role.high_watermark == 3
    node.propose()
    node.forget()
    node.step(VoterChangeRequested(token=1, change=AddVoter(key=key(2), address="n2")))
    assert sorted(role.voters) == [2]
    assert (role.round_end_offset, node.state.log.log_end_offset) == (5, 5)
    fetch(node, 2, 3, high_watermark=3)
    assert sent(node)[-1] == 3
