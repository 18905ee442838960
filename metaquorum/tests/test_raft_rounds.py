# SPDX-License-Identifier: Apache-2.0
"""Rounds: what is appended while records wait for their commit goes out, and is flushed, together."""

from __future__ import annotations

from metaquorum.raft.effects import Effect, FlushLog, ReplyWithBatches
from metaquorum.raft.events import VoterChangeRequested
from metaquorum.raft.roles import Leader
from metaquorum.raft.voter_changes import AddVoter
from metaquorum.testing.scripted_node import ScriptedNode, key
from metaquorum.tests.raft_steps import fetch, leading


def sent(node: ScriptedNode) -> list[int]:
    """Fetch offsets of what was answered with data since the last look away."""
    return [reply.fetch_offset for reply in node.of(ReplyWithBatches)]


def flush_of(effects: list[Effect]) -> FlushLog:
    """The one flush among some effects."""
    (flush,) = [effect for effect in effects if isinstance(effect, FlushLog)]
    return flush


def in_round(proposal_count: int, **arguments: object) -> tuple[ScriptedNode, Leader]:
    """A leader of three whose last committed round had so many proposals; both voters wait for more."""
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
    """Both voters are sent it in the step that appends it, and the leader flushes at the same time."""
    node, role = in_round(1)
    for offset in range(4, 8):
        node.propose()
        assert sent(node)[-1] == offset
        assert len(node.of(FlushLog)) == offset - 3
        fetch(node, 2, offset + 1, high_watermark=offset)
        assert role.high_watermark == offset + 1


def test_what_comes_meanwhile_makes_the_next_round() -> None:
    """Four records, one exchange and one flush; a voter that lacks a part of the round is sent everything there is."""
    node, role = in_round(1)
    node.auto_disk = False
    flush = flush_of(node.propose())
    assert sent(node) == [4, 4]
    node.forget()
    assert fetch(node, 2, 5, high_watermark=4) is None
    for _ in range(4):
        node.propose()
    assert node.of(FlushLog) == []
    next_flush = flush_of(node.complete(flush))
    assert (role.high_watermark, role.round_end_offset, role.round_size) == (5, 9, 4)
    assert sent(node) == [5]
    node.propose()
    node.forget()
    fetch(node, 3, 5, high_watermark=5)
    assert sent(node) == [5]
    assert fetch(node, 2, 9, high_watermark=5) is None
    node.complete(next_flush)
    assert role.high_watermark == 9


def test_after_a_crowded_round_the_next_one_waits_for_as_many() -> None:
    """The answers of a round bring the next questions one by one: they share the next round."""
    node, role = in_round(4)
    for _ in range(3):
        node.propose()
    assert (sent(node), node.of(FlushLog)) == ([], [])
    node.propose()
    assert sent(node) == [7, 7]
    assert len(node.of(FlushLog)) == 1
    assert (role.round_size, role.round_deadline_ms) == (4, None)


def test_the_wait_is_short() -> None:
    """Whoever comes alone after a crowd waits a few milliseconds, once."""
    node, role = in_round(4, crowd_wait_ms=5)
    node.propose()
    node.advance(3)
    node.propose()
    node.advance(1)
    assert sent(node) == []
    node.advance(1)
    assert sent(node) == [7, 7]
    assert role.round_size == 2
    fetch(node, 2, 9, high_watermark=7)
    assert role.high_watermark == 9
    fetch(node, 2, 9, high_watermark=9)
    node.forget()
    node.propose()
    assert sent(node) == [9]


def test_size_of_a_crowd_counts_proposals() -> None:
    """One asker with many records in each proposal is no crowd."""
    node, role = in_round(1)
    node.propose(50)
    fetch(node, 2, 54, high_watermark=4)
    assert role.high_watermark == 54
    node.forget()
    node.propose()
    assert sent(node) == [54]


def test_control_record_is_never_held_back() -> None:
    """A new voter commits nothing before it has the record that names it: the round that waits for it would wait for ever."""
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
