# SPDX-License-Identifier: Apache-2.0
"""Spare voters: a round goes at once to as many voters as its commit needs, and to the others a little later."""

from __future__ import annotations

from metaquorum.raft.effects import ReplyWithBatches
from metaquorum.raft.events import ReadRequested, VoterChangeRequested
from metaquorum.raft.roles import Leader
from metaquorum.raft.voter_changes import RemoveVoter
from metaquorum.testing.scripted_node import ScriptedNode, key
from metaquorum.tests.raft.steps import fetch, leading


def told(node: ScriptedNode) -> list[int]:
    """Fetch offsets of the answers with data since the last `forget`."""
    return [reply.fetch_offset for reply in node.of(ReplyWithBatches)]


def waiting(voters: list[int], **arguments: object) -> tuple[ScriptedNode, Leader]:
    """A leader whose other voters have every record, know its commit, and wait; the last one waits last."""
    node, role = leading(voters, **arguments)
    for voter in voters[1:]:
        fetch(node, voter, 2, high_watermark=0)
    for voter in voters[1:]:
        fetch(node, voter, 2, high_watermark=2)
    assert role.high_watermark == 2
    node.forget()
    return node, role


def holders(role: Leader) -> list[int]:
    """Node ids of the voters that are being sent a round."""
    return [number for number, progress in role.voters.items() if progress.sent_end_offset is not None]


def test_a_round_goes_to_as_many_as_a_commit_needs() -> None:
    """One of two others, two of four; the commit comes with their fetches."""
    for voters, needed in (([1, 2, 3], 1), ([1, 2, 3, 4, 5], 2)):
        node, role = waiting(voters)
        node.propose()
        assert told(node) == [2] * needed
        for voter in holders(role):
            fetch(node, voter, 3, high_watermark=2)
        assert role.high_watermark == 3


def test_the_only_other_voter_is_never_spare() -> None:
    """Of two voters both are needed."""
    node, role = waiting([1, 2])
    for offset in (2, 3, 4):
        node.propose()
        assert told(node)[-1] == offset
        fetch(node, 2, offset + 1, high_watermark=offset)
        assert role.high_watermark == offset + 1


def test_a_spare_hears_a_little_later_with_all_that_came_meanwhile() -> None:
    """Its wait begins with the first round that it lacks, and later rounds do not put it off."""
    node, role = waiting([1, 2, 3], spare_wait_ms=20)
    node.propose()
    (chosen,) = holders(role)
    spare = 5 - chosen
    for offset in (3, 4):
        fetch(node, chosen, offset, high_watermark=offset - 1)
        node.advance(8)
        node.propose()
    fetch(node, chosen, 5, high_watermark=4)
    node.forget()
    node.advance(3)
    assert told(node) == []
    node.advance(1)
    assert told(node) == [2]
    assert holders(role) == [spare]
    assert role.voters[spare].sent_end_offset == 5


def test_a_voter_that_was_chosen_and_went_silent_costs_one_wait() -> None:
    """The spare commits that round and is chosen for the next one: no later round waits for the silent voter."""
    node, role = waiting([1, 2, 3], spare_wait_ms=20)
    node.propose()
    (silent,) = holders(role)
    other = 5 - silent
    node.advance(20)
    assert told(node) == [2, 2]
    fetch(node, other, 3, high_watermark=2)
    assert role.high_watermark == 3
    node.forget()
    node.propose()
    assert told(node) == [3]
    fetch(node, other, 4, high_watermark=3)
    assert role.high_watermark == 4


def test_the_quickest_is_chosen() -> None:
    """A voter with a slow disk is the spare after its first slow exchange."""
    node, role = waiting([1, 2, 3], spare_wait_ms=20)
    node.propose()
    (slow,) = holders(role)
    quick = 5 - slow
    node.advance(15)
    fetch(node, slow, 3, high_watermark=2)
    node.advance(5)
    fetch(node, quick, 3, high_watermark=2)
    for offset in (3, 4, 5):
        node.propose()
        assert holders(role) == [quick]
        fetch(node, quick, offset + 1, high_watermark=offset)
        assert role.high_watermark == offset + 1


def test_a_voter_that_catches_up_is_neither_held_back_nor_relied_upon() -> None:
    """It lacks more than its last answer had: it is answered at once, and the round also goes to another voter."""
    node, role = waiting([1, 2, 3])
    for offset in (2, 3):
        node.propose()
        fetch(node, 3, offset + 1, high_watermark=offset)
    node.advance(100)
    node.propose()
    fetch(node, 3, 5, high_watermark=4)
    # It has fewer records than it was sent, like a voter whose answer was cut at the size limit.
    fetch(node, 2, 3, high_watermark=2)
    node.advance(20)
    node.forget()
    fetch(node, 2, 4, high_watermark=2)
    assert told(node) == [4]
    fetch(node, 3, 5, high_watermark=5)
    node.forget()
    node.propose()
    assert told(node) == [5]
    assert not role.voters[2].keeps_up


def test_spares_take_part_in_rounds_of_reads() -> None:
    """A read waits for a majority, and its round goes to all voters."""
    node, role = waiting([1, 2, 3])
    node.propose()
    (chosen,) = holders(role)
    node.forget()
    node.step(ReadRequested(read_id=1))
    assert told(node) == [2]
    assert holders(role) == [2, 3]
    assert role.voters[chosen].key == key(chosen)


def test_a_leader_that_is_removed_needs_one_voter_more() -> None:
    """The leader does not count, so both other voters do."""
    node, role = waiting([1, 2, 3])
    node.step(VoterChangeRequested(token=1, change=RemoveVoter(key=key(1))))
    assert not node.state.is_voter
    assert sorted(holders(role)) == [2, 3]
