# SPDX-License-Identifier: Apache-2.0
"""The small parts of the Raft core: log shadow, voter sets, calls, outbox, parked fetches."""

from __future__ import annotations

import pytest

from metaquorum.raft.calls import PeerCall
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import PersistElectionState, Reply
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import FetchRequest, VoteResponse
from metaquorum.raft.outbox import Outbox
from metaquorum.raft.parking import ParkedFetch, ParkedFetches
from metaquorum.raft.types import EpochEnd, LogPosition, NodeId, Offset, QuorumEpoch, ReplicaKey
from metaquorum.raft.voters import Voter, VoterHistory, VoterSet, voter_set
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key


def test_log_positions_compare_by_epoch_and_then_by_length() -> None:
    """Raft 5.4.1: the log with the later last term is more up to date; of equal ones the longer."""
    short = LogPosition(last_epoch=QuorumEpoch(4), log_end_offset=Offset(3))
    long = LogPosition(last_epoch=QuorumEpoch(3), log_end_offset=Offset(30))
    assert long < short
    assert short < LogPosition(last_epoch=QuorumEpoch(4), log_end_offset=Offset(4))


def view() -> LogView:
    """Epoch 1 [0, 4), epoch 3 [4, 9)."""
    log = LogView()
    log.append(epoch=QuorumEpoch(1), next_offset=Offset(4))
    log.append(epoch=QuorumEpoch(3), next_offset=Offset(6))
    log.append(epoch=QuorumEpoch(3), next_offset=Offset(9))
    return log


def test_empty_log_ends_in_epoch_0_at_offset_0() -> None:
    """An empty log is behind every other."""
    log = LogView()
    assert log.end_position == LogPosition(last_epoch=QuorumEpoch(0), log_end_offset=Offset(0))
    assert log.is_flushed
    assert log.end_offset_for_epoch(QuorumEpoch(7)) == EpochEnd(epoch=QuorumEpoch(0), end_offset=Offset(0))


@pytest.mark.parametrize(("epoch", "expected"), [(0, (0, 0)), (1, (1, 4)), (2, (1, 4)), (3, (3, 9)), (8, (3, 9))])
def test_end_offset_for_epoch_is_that_of_the_largest_epoch_not_above(epoch: int, expected: tuple[int, int]) -> None:
    """KIP-101: the end of an epoch is the start of the next one."""
    end = view().end_offset_for_epoch(QuorumEpoch(epoch))
    assert (end.epoch, end.end_offset) == expected


@pytest.mark.parametrize(
    ("to_offset", "epochs"), [(9, [(1, 0), (3, 4)]), (5, [(1, 0), (3, 4)]), (4, [(1, 0)]), (0, [])]
)
def test_truncation_drops_the_epochs_that_begin_behind_it(to_offset: int, epochs: list[tuple[int, int]]) -> None:
    """An epoch without records is not in the log."""
    log = view()
    log.truncate_suffix(Offset(to_offset))
    assert list(log.epochs) == epochs
    assert log.log_end_offset == to_offset


def test_flush_covers_what_was_appended_before_it_began() -> None:
    """It does not cover records that are appended during the flush."""
    log = view()
    flush_id = log.begin_flush()
    log.append(epoch=QuorumEpoch(3), next_offset=Offset(12))
    assert log.end_flush(flush_id)
    assert (log.flushed_offset, log.is_flushed, log.is_flushing) == (9, False, False)


def test_flush_overtaken_by_a_truncation_covers_nothing() -> None:
    """The bytes at an offset may be different ones by the end of the flush."""
    log = view()
    first = log.begin_flush()
    log.truncate_suffix(Offset(5))
    log.append(epoch=QuorumEpoch(4), next_offset=Offset(9))
    assert not log.end_flush(first)
    second = log.begin_flush()
    assert not log.end_flush(first)
    assert log.flushed_offset == 0
    assert log.end_flush(second)
    assert log.flushed_offset == 9


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: LogView(log_end_offset=Offset(1), flushed_offset=Offset(2)),
        lambda: view().append(epoch=QuorumEpoch(3), next_offset=Offset(9)),
        lambda: view().append(epoch=QuorumEpoch(2), next_offset=Offset(10)),
        lambda: LogView().append(epoch=QuorumEpoch(0), next_offset=Offset(1)),
        lambda: view().truncate_suffix(Offset(10)),
        lambda: [log := view(), log.begin_flush(), log.begin_flush()],
    ],
)
def test_log_view_asserts_its_laws(misuse: object) -> None:
    """The shadow never describes an impossible log."""
    assert callable(misuse)
    with pytest.raises(AssertionError):
        misuse()


def members(*numbers: int) -> VoterSet:
    """A voter set of these node ids."""
    return voter_set([Voter(key=key(number), address=f"n{number}") for number in numbers])


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority(count: int, majority: int) -> None:
    """Two majorities of one set always share a member."""
    assert members(*range(count)).majority == majority


def test_voter_is_node_id_and_directory_id_together() -> None:
    """KIP-853: the same node id on another directory is not the voter."""
    voters = members(3, 1, 2)
    other = ReplicaKey(node_id=NodeId(2), directory_id=b"a-fresh-disk-000")
    assert [voter.key.node_id for voter in voters.voters] == [1, 2, 3]
    assert voters.contains(key(2))
    assert not voters.is_impostor(key(2))
    assert not voters.contains(other)
    assert voters.is_impostor(other)
    assert not voters.contains(key(7))
    assert not voters.is_impostor(key(7))
    assert [voter.key for voter in voters.others(key(2))] == [key(1), key(3)]
    assert members(4).is_only(key(4))
    assert not members(4).is_only(key(5))
    assert not voters.is_only(key(1))


def test_voter_set_has_each_node_id_once_in_order() -> None:
    """Iteration over voters is the same on every node."""
    with pytest.raises(AssertionError, match="ascend"):
        members(2, 2)


def test_voter_history_follows_the_log() -> None:
    """KIP-853: the last VotersRecord of the log counts, committed or not; a truncated one does not."""
    history = VoterHistory(members(1))
    assert not history.is_in_log
    history.append(Offset(1), members(1, 2))
    history.append(Offset(8), members(1, 2, 3))
    assert history.latest == members(1, 2, 3)
    history.truncate_suffix(Offset(9))
    assert history.latest == members(1, 2, 3)
    history.truncate_suffix(Offset(8))
    assert history.latest == members(1, 2)
    history.truncate_suffix(Offset(0))
    assert history.latest == members(1)
    history.append(Offset(5), members(2))
    with pytest.raises(AssertionError, match="voters at"):
        history.append(Offset(5), members(3))


def test_call_pauses_double_up_to_the_limit_and_begin_anew_after_a_success() -> None:
    """Retries are bounded in rate."""
    config = RaftConfig(retry_backoff_ms=20, retry_backoff_ms_max=100)
    call = PeerCall(0)
    pauses: list[int] = []
    for number in range(5):
        call.start(number, now_ms=1_000, timeout_ms=1_000)
        call.fail(number, now_ms=1_000, config=config)
        pauses.append(call.ready_at_ms - 1_000)
    assert pauses == [20, 40, 80, 100, 100]
    call.start(9, now_ms=2_000, timeout_ms=1_000)
    assert (call.deadline_ms, call.is_ready(9_999)) == (3_000, False)
    call.poll(now_ms=2_999, config=config)
    assert call.request_id == 9
    call.succeed(ready_at_ms=2_500)
    assert (call.is_ready(2_499), call.is_ready(2_500), call.deadline_ms) == (False, True, 2_500)
    call.start(10, now_ms=3_000, timeout_ms=1_000)
    with pytest.raises(AssertionError, match="under way"):
        call.start(11, now_ms=3_000, timeout_ms=1_000)
    call.fail(10, now_ms=3_000, config=config)
    assert call.ready_at_ms == 3_020


def test_late_request_is_sent_again_and_the_first_answer_to_any_counts() -> None:
    """The deadline says when an answer may be lost, not that a late answer is useless."""
    config = RaftConfig(retry_backoff_ms=20)
    call = PeerCall(0)
    call.start(1, now_ms=0, timeout_ms=100)
    call.poll(now_ms=100, config=config)
    assert (call.request_id, call.ready_at_ms, call.failure_count) == (None, 120, 1)
    assert call.awaits(1)
    call.start(2, now_ms=120, timeout_ms=100)
    assert call.awaits(1)
    call.fail(1, now_ms=130, config=config)
    assert (call.awaits(1), call.awaits(2), call.failure_count) == (False, True, 1)
    call.poll(now_ms=220, config=config)
    call.start(3, now_ms=260, timeout_ms=100)
    call.succeed(ready_at_ms=270)
    assert not any(call.awaits(number) for number in (1, 2, 3))
    assert call.failure_count == 0


def test_late_requests_of_one_call_are_bounded() -> None:
    """The oldest is forgotten."""
    config = RaftConfig()
    call = PeerCall(0)
    for number in range(1, config.max_late_requests + 3):
        call.start(number, now_ms=number * 1_000, timeout_ms=100)
        call.poll(now_ms=number * 1_000 + 100, config=config)
    assert [number for number in range(20) if call.awaits(number)] == list(range(3, config.max_late_requests + 3))


def reply(token: int) -> Reply:
    """Some message."""
    return Reply(token=token, response=VoteResponse(quorum_epoch=QuorumEpoch(1), leader_id=None, granted=False))


def outbox_of(*, max_held_messages: int = RaftConfig().max_held_messages) -> Outbox:
    """An outbox in the first epoch."""
    return Outbox(election_state(1), max_held_messages=max_held_messages)


def test_outbox_holds_messages_until_their_state_is_on_disk() -> None:
    """Raft figure 2: no message leaves that a crash could make untrue."""
    outbox = outbox_of()
    outbox.say(reply(1))
    outbox.record(election_state(2))
    outbox.say(reply(2))
    assert outbox.drain() == [reply(1), PersistElectionState(sequence=1, state=election_state(2))]
    outbox.record(election_state(3))
    outbox.say(reply(3))
    assert outbox.drain() == []
    outbox.persisted(1)
    assert outbox.drain() == [reply(2), PersistElectionState(sequence=2, state=election_state(3))]
    assert not outbox.is_persisted
    outbox.persisted(2)
    assert outbox.drain() == [reply(3)]
    assert outbox.is_persisted


def test_outbox_writes_only_the_latest_of_several_changes() -> None:
    """A later state includes the promises of an earlier one, so one write serves both."""
    outbox = outbox_of()
    outbox.record(election_state(1))
    assert outbox.is_persisted
    for epoch in (2, 3, 4):
        outbox.record(election_state(epoch))
        outbox.say(reply(epoch))
    assert outbox.drain() == [PersistElectionState(sequence=3, state=election_state(4))]
    with pytest.raises(AssertionError, match="under way"):
        outbox.persisted(1)
    outbox.persisted(3)
    assert outbox.drain() == [reply(2), reply(3), reply(4)]


def test_outbox_drops_the_oldest_message_beyond_its_limit() -> None:
    """A disk that hangs does not make the queue of messages grow without bound."""
    outbox = outbox_of(max_held_messages=2)
    outbox.record(election_state(2))
    for token in (1, 2, 3):
        outbox.say(reply(token))
    assert outbox.held_count == 2
    outbox.drain()
    outbox.persisted(1)
    assert outbox.drain() == [reply(2), reply(3)]


def parked(replica: int, token: int, deadline_ms: int) -> ParkedFetch:
    """A parked fetch of a replica."""
    request: FetchRequest = ScriptedNode().fetch_request(replica, offset=0, last_epoch=0)
    return ParkedFetch(token=token, request=request, deadline_ms=deadline_ms)


def test_parked_fetches_expire_in_the_order_of_their_deadlines() -> None:
    """A fetch that was replaced or removed never expires."""
    fetches = ParkedFetches()
    assert fetches.deadline_ms() is None
    assert fetches.put(parked(2, 1, 300)) is None
    assert fetches.put(parked(3, 2, 100)) is None
    assert fetches.put(parked(4, 3, 200)) is None
    assert fetches.put(parked(3, 4, 400)) == parked(3, 2, 100)
    assert fetches.deadline_ms() == 200
    assert fetches.remove(key(4)) == parked(4, 3, 200)
    assert fetches.remove(key(4)) is None
    assert [fetch.token for fetch in fetches] == [1, 4]
    assert fetches.pop_expired(299) == []
    assert [fetch.token for fetch in fetches.pop_expired(400)] == [1, 4]
    assert len(fetches) == 0
