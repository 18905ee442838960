# SPDX-License-Identifier: Apache-2.0
"""Changing the voters one at a time: the rules of KIP-853 and of chapter 4 of the Raft dissertation, one by one."""

from __future__ import annotations

from dataclasses import replace

from metaquorum.raft.events import LogFlushed, Tick
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import (
    EndQuorumEpochRequest,
)
from metaquorum.raft.roles import Resigned
from metaquorum.raft.types import NodeId, Offset
from metaquorum.raft.voter_changes import (
    AddVoter,
    ChangeCommitted,
    ChangeRefusal,
    ChangeUnknown,
    RemoveVoter,
)
from metaquorum.raft.voters import Voter
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key
from metaquorum.tests.raft.steps import begins, fetch, leading
from metaquorum.tests.raft.voter_changes import answers, ask, catch_up, changes, ids, refused, settled

# Adding.


def test_added_voter_counts_from_the_append_and_the_answer_waits_for_the_new_majority() -> None:
    """KIP-853: the VotersRecord is effective when appended; 3 of 4 must have it."""
    node, role = settled([1, 2, 3])
    catch_up(node, 4)
    before = role.high_watermark
    node.forget()
    assert ask(node, AddVoter(key=key(4))) == []
    assert ids(node) == [1, 2, 3, 4]
    assert changes(node)[0].voters.find(NodeId(4)) == Voter(key=key(4), address="n4")
    end = node.state.log.log_end_offset
    fetch(node, 2, end)
    assert role.high_watermark == before, "2 of 4 are no majority"
    fetch(node, 3, end)
    assert role.high_watermark == end
    assert answers(node) == [(7, ChangeCommitted(next_offset=end))]


def test_second_voter_of_a_quorum_of_one_must_have_the_record() -> None:
    """From one voter to two: both make the majority."""
    node, role = settled([1])
    catch_up(node, 2)
    node.forget()
    assert ask(node, AddVoter(key=key(2), address="elsewhere:1")) == []
    end = node.state.log.log_end_offset
    assert node.state.voter_set.find(NodeId(2)) == Voter(key=key(2), address="elsewhere:1")
    assert begins(node, 2), "a new voter is told who leads"
    assert role.high_watermark == end - 1
    fetch(node, 2, end)
    assert answers(node) == [(7, ChangeCommitted(next_offset=end))]
    assert NodeId(2) in role.voters
    assert role.observers == {}


def test_parked_fetches_get_the_record_of_voters_at_once() -> None:
    """The record is data like any other."""
    node, _ = settled([1, 2, 3])
    catch_up(node, 4)
    end = int(node.state.log.log_end_offset)
    fetch(node, 4, end, high_watermark=end)
    node.forget()
    ask(node, AddVoter(key=key(4)))
    assert [type(effect).__name__ for effect in node.effects].count("ReplyWithBatches") >= 1


def test_fetch_of_an_observer_below_its_record_is_not_its_word() -> None:
    """An observer need not flush before it fetches: only a fetch above the record that added it counts."""
    node, role = settled([1])
    catch_up(node, 2)
    node.propose()
    node.forget()
    ask(node, AddVoter(key=key(2)))
    end = int(node.state.log.log_end_offset)
    committed = role.high_watermark
    fetch(node, 2, end - 1)
    assert role.voters[NodeId(2)].end_offset is None
    fetch(node, 2, end)
    assert role.voters[NodeId(2)].end_offset == end
    fetch(node, 2, end - 1)
    assert role.voters[NodeId(2)].end_offset == end, "an old fetch takes nothing back"
    assert committed == end - 1
    assert role.high_watermark == end


def test_duplicate_node_id_is_refused_whatever_its_directory() -> None:
    """KIP-853 DUPLICATE_VOTER: the old key of a wiped disk must be removed first."""
    node, _ = settled([1, 2, 3])
    assert ask(node, AddVoter(key=key(2))) == refused(ChangeRefusal.DUPLICATE_VOTER)
    assert ask(node, AddVoter(key=replace(key(2), directory_id=b"w" * 16))) == refused(ChangeRefusal.DUPLICATE_VOTER)
    assert changes(node) == []


def test_full_quorum_takes_no_further_voter() -> None:
    """`max_voters` bounds the set."""
    node, _ = settled([1, 2, 3], max_voters=3)
    catch_up(node, 4)
    assert ask(node, AddVoter(key=key(4))) == refused(ChangeRefusal.TOO_MANY_VOTERS)


def test_replica_that_never_fetched_or_lags_or_fell_silent_is_refused() -> None:
    """KIP-853: it must have reached the log end, and have fetched lately."""
    node, _ = settled([1])
    assert ask(node, AddVoter(key=key(4))) == refused(ChangeRefusal.NOT_CAUGHT_UP)
    fetch(node, 4, 0)
    assert ask(node, AddVoter(key=key(4))) == refused(ChangeRefusal.NOT_CAUGHT_UP)
    catch_up(node, 4)
    node.advance(1_501)
    assert ask(node, AddVoter(key=key(4))) == refused(ChangeRefusal.NOT_CAUGHT_UP)
    node.propose()
    node.advance(3_500)
    fetch(node, 4, 1)
    assert ask(node, AddVoter(key=key(4))) == refused(ChangeRefusal.NOT_CAUGHT_UP)
    assert ids(node) == [1]
    catch_up(node, 4)
    assert ask(node, AddVoter(key=key(4))) == []


def test_voter_without_a_known_address_is_refused() -> None:
    """A voter must be reachable by its peers."""
    node, _ = settled([1])
    request = node.fetch_request(4, offset=node.state.log.log_end_offset, last_epoch=int(node.state.quorum_epoch))
    node.receive(replace(request, replica_address=None))
    assert ask(node, AddVoter(key=key(4))) == refused(ChangeRefusal.NO_ADDRESS)


# One at a time.


def test_second_change_waits_for_the_commit_of_the_first() -> None:
    """KIP-853: at most one uncommitted VotersRecord."""
    node, _ = settled([1, 2, 3])
    catch_up(node, 4, 5)
    assert ask(node, AddVoter(key=key(4))) == []
    assert ask(node, AddVoter(key=key(5)), token=8) == refused(ChangeRefusal.CHANGE_PENDING)
    catch_up(node, 2, 3, 4, 5)
    assert ask(node, AddVoter(key=key(5)), token=9) == []
    assert ids(node) == [1, 2, 3, 4, 5]


def test_leader_without_a_commit_of_its_epoch_changes_nothing() -> None:
    """Raft erratum of 2015: a change by an earlier leader may be uncommitted until a record of this epoch is committed."""
    node, _ = leading([1, 2, 3])
    assert ask(node, RemoveVoter(key=key(3))) == refused(ChangeRefusal.NOT_READY)


def test_voters_of_the_format_are_a_change_as_well() -> None:
    """The first leader writes the first record of voters; until its commit no second change is allowed."""
    node, role = leading([1, 2, 3])
    fetch(node, 2, 1)
    assert role.high_watermark == 1
    assert ask(node, RemoveVoter(key=key(3))) == refused(ChangeRefusal.CHANGE_PENDING)


def test_follower_changes_nothing() -> None:
    """KIP-853: the leader alone changes the voters."""
    node = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=2).start()
    node.follow(2, 3)
    assert ask(node, RemoveVoter(key=key(3))) == refused(ChangeRefusal.NOT_LEADER)


# Removing.


def test_removed_voter_counts_no_more_and_goes_on_as_observer() -> None:
    """KIP-853: the new majority counts from the append; the removed replica may continue to fetch."""
    node, role = settled([1, 2, 3])
    node.propose()
    node.forget()
    assert ask(node, RemoveVoter(key=key(3))) == []
    assert ids(node) == [1, 2]
    end = node.state.log.log_end_offset
    fetch(node, 3, end)
    assert role.high_watermark is not None
    assert role.high_watermark < end
    assert list(role.observers) == [key(3)]
    fetch(node, 2, end)
    assert answers(node) == [(7, ChangeCommitted(next_offset=end))]
    node.forget()
    node.advance(400)
    assert begins(node, 3) == [], "it is told nothing any more"


def test_removal_of_the_slowest_commits_what_the_others_have() -> None:
    """The majority may shrink, and the high watermark rise, with the append."""
    node, role = settled([1, 2])
    node.propose()
    end = Offset(node.state.log.log_end_offset + 1)
    assert role.high_watermark == end - 2
    assert ask(node, RemoveVoter(key=key(2))) == [ChangeCommitted(next_offset=end)]
    assert role.high_watermark == end


def test_unknown_and_last_voter_are_not_removed() -> None:
    """KIP-853 VOTER_NOT_FOUND, also for another directory; a quorum must keep at least one voter."""
    node, _ = settled([1])
    assert ask(node, RemoveVoter(key=key(4))) == refused(ChangeRefusal.VOTER_NOT_FOUND)
    wiped = replace(key(1), directory_id=b"w" * 16)
    assert ask(node, RemoveVoter(key=wiped)) == refused(ChangeRefusal.VOTER_NOT_FOUND)
    assert ask(node, RemoveVoter(key=key(1))) == refused(ChangeRefusal.LAST_VOTER)


def test_removal_that_would_lose_the_quorum_is_refused() -> None:
    """A majority of the remaining voters must fetch and have caught up."""
    node, _ = settled([1, 2, 3])
    node.advance(1_400)
    catch_up(node, 2)
    node.advance(200)
    assert ask(node, RemoveVoter(key=key(2))) == refused(ChangeRefusal.QUORUM_AT_RISK)
    assert ask(node, RemoveVoter(key=key(1))) == refused(ChangeRefusal.QUORUM_AT_RISK)
    assert ask(node, RemoveVoter(key=key(3))) == []


def test_leader_that_removes_itself_leads_uncounted_until_the_commit_and_resigns_then() -> None:
    """KIP-853: 'the leader will continue to lead until the VotersRecord is committed, without counting itself'."""
    node, role = settled([1, 2, 3])
    node.forget()
    assert ask(node, RemoveVoter(key=key(1))) == []
    end = node.state.log.log_end_offset
    fetch(node, 2, end)
    assert role.high_watermark == end - 1, "2 of {2, 3} are needed; the leader is none of them"
    assert node.role == "Leader"
    fetch(node, 3, end)
    assert answers(node) == [(7, ChangeCommitted(next_offset=end))]
    node.advance(0)
    assert node.role == "Resigned"
    assert isinstance(node.state.role, Resigned)
    assert node.state.role.successors == (key(2), key(3))
    assert {request.preferred_successors for _, request in node.sent(EndQuorumEpochRequest)} == {(key(2), key(3))}
    node.advance(500)
    assert node.role == "Unattached"
    node.advance(60_000)
    assert node.role == "Unattached", "an observer starts no election"


def test_removed_leader_is_not_counted_for_check_quorum() -> None:
    """It needs a majority of the other voters to stay leader."""
    node, _ = settled([1, 2, 3])
    node.advance(1_000)
    catch_up(node, 2, 3)
    ask(node, RemoveVoter(key=key(1)))
    node.advance(1_000)
    fetch(node, 2, node.state.log.log_end_offset)
    node.advance(500)
    assert node.role == "Resigned"
    assert answers(node) == [(7, ChangeUnknown())]


def test_removed_leader_delivers_its_removal_before_it_resigns() -> None:
    """Its users see the commit while it leads; a change during that time is refused."""
    node, _ = settled([1, 2, 3])
    node.auto_disk = False
    ask(node, RemoveVoter(key=key(1)))
    end = node.state.log.log_end_offset
    catch_up(node, 2, 3)
    assert answers(node) == [(7, ChangeCommitted(next_offset=end))]
    assert node.role == "Leader"
    assert ask(node, RemoveVoter(key=key(3)), token=8) == refused(ChangeRefusal.CHANGE_PENDING)
    flush_id = node.raft.state.log.begin_flush() if not node.state.log.is_flushing else _flush_id(node.state.log)
    node.step(LogFlushed(flush_id=flush_id))
    assert node.raft.deadline_ms() is not None
    node.step(Tick())
    assert node.role == "Resigned"


def _flush_id(log: LogView) -> int:
    return log._flush_id  # pyright: ignore[reportPrivateUsage] -- which flush is under way
