# SPDX-License-Identifier: Apache-2.0
"""Properties of the Raft core: fast arithmetic against simple models, and every event in every role."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.raft.effects import Effect
from metaquorum.raft.events import (
    ElectionStatePersisted,
    Event,
    Failure,
    LogFlushed,
    ProposalReceived,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    ShutdownRequested,
    Tick,
)
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchResponse,
    Refusal,
    VoteResponse,
)
from metaquorum.raft.types import EpochEnd, NodeId, Offset, QuorumEpoch
from metaquorum.raft.voters import majority_offset
from metaquorum.testing.scripted_node import ScriptedNode, batches, election_state


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_majority_offset_is_the_largest_that_a_majority_has_reached(end_offsets: list[int]) -> None:
    """The sorted form agrees with counting every candidate offset."""
    needed = len(end_offsets) // 2 + 1
    expected = max(offset for offset in range(21) if sum(end >= offset for end in end_offsets) >= needed)
    assert majority_offset([Offset(end) for end in end_offsets]) == expected


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 4)),
            st.tuples(st.just("cut"), st.floats(0, 1), st.none()),
        ),
        max_size=30,
    )
)
def test_log_view_agrees_with_a_list_of_epochs(steps: list[tuple[str, float, int | None]]) -> None:
    """A list with the epoch of each record is the simple model of the epoch table."""
    view = LogView()
    model: list[int] = []
    epoch = 1
    for kind, amount, count in steps:
        if kind == "append":
            epoch = max(epoch, model[-1] if model else 1) + int(amount)
            model += [epoch] * (count or 1)
            view.append(epoch=QuorumEpoch(epoch), next_offset=Offset(len(model)))
        else:
            to_offset = int(amount * len(model))
            del model[to_offset:]
            view.truncate_suffix(Offset(to_offset))
    assert view.log_end_offset == len(model)
    assert view.last_epoch == (model[-1] if model else 0)
    for asked in range(epoch + 2):
        lower = [known for known in model if known <= asked]
        found = lower[-1] if lower else 0
        assert view.end_offset_for_epoch(QuorumEpoch(asked)) == EpochEnd(
            epoch=QuorumEpoch(found), end_offset=Offset(len(lower))
        )


ELECTIONS = [
    election_state(0),
    election_state(3),
    election_state(3, voted=1),
    election_state(3, voted=2),
    election_state(3, leader=1, voted=1),
    election_state(3, leader=2),
]


def random_event(node: ScriptedNode, rng: random.Random, outstanding: list[Effect]) -> Event:
    """Any event that a shell or a peer, correct or not, may send."""
    from metaquorum.raft.effects import FlushLog, PersistElectionState, Send

    epoch = QuorumEpoch(rng.randint(0, 6))
    leader_id = rng.choice([None, NodeId(1), NodeId(2), NodeId(3)])
    refusal = rng.choice([None, None, *Refusal])
    sends = [effect.request_id for effect in outstanding if isinstance(effect, Send)] or [1]
    request_id = rng.choice(sends)
    writes = [effect for effect in outstanding if isinstance(effect, PersistElectionState | FlushLog)]
    if writes and rng.random() < 0.5:
        write = writes[0]
        outstanding.remove(write)
        if isinstance(write, PersistElectionState):
            return ElectionStatePersisted(sequence=write.sequence)
        return LogFlushed(flush_id=write.flush_id)
    offset, last = rng.randint(0, 12), rng.randint(0, 6)
    requests = [
        node.vote_request(rng.randint(1, 4), epoch, last_epoch=last, log_end_offset=offset),
        node.pre_vote_request(rng.randint(1, 4), epoch, last_epoch=last, log_end_offset=offset),
        node.begin_request(rng.randint(1, 3), epoch),
        node.end_request(rng.randint(1, 3), epoch, [1, 2]),
        node.fetch_request(rng.randint(1, 4), offset=offset, last_epoch=last, epoch=epoch),
    ]
    end = node.state.log.log_end_offset
    content = rng.choice([None, batches((end, end + 2, epoch)), batches((offset, offset + 1, epoch))])
    diverging = rng.choice([None, EpochEnd(epoch=QuorumEpoch(last), end_offset=Offset(offset))])
    responses = [
        VoteResponse(quorum_epoch=epoch, leader_id=leader_id, granted=rng.random() < 0.5, refusal=refusal),
        BeginQuorumEpochResponse(quorum_epoch=epoch, leader_id=leader_id, refusal=refusal),
        EndQuorumEpochResponse(quorum_epoch=epoch, leader_id=leader_id, refusal=refusal),
        FetchResponse(
            quorum_epoch=rng.choice([epoch, node.state.quorum_epoch]),
            leader_id=leader_id,
            leader_address=None,
            high_watermark=Offset(offset),
            refusal=refusal,
            batches=content,
            diverging=diverging,
        ),
    ]
    events: list[Event] = [
        Tick(),
        Tick(),
        RequestReceived(token=rng.randint(1, 1_000_000), request=rng.choice(requests)),
        RequestReceived(token=rng.randint(1, 1_000_000), request=rng.choice(requests)),
        ResponseReceived(request_id=request_id, response=rng.choice(responses)),
        ResponseReceived(request_id=request_id, response=rng.choice(responses)),
        RequestFailed(request_id=request_id, failure=rng.choice(list(Failure))),
        ProposalReceived(proposal_id=1, quorum_epoch=node.state.quorum_epoch, record_count=2, size_bytes=100),
    ]
    return rng.choice(events) if rng.random() < 0.99 else ShutdownRequested()


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.sampled_from(ELECTIONS), st.sampled_from([1, 9]), st.sampled_from([[1], [1, 2, 3]]))
def test_no_sequence_of_events_breaks_a_node(seed: int, election: object, number: int, voters: list[int]) -> None:
    """Whatever peers send, in any order, a node never fails an assertion and keeps the laws of a single node."""
    rng = random.Random(seed)
    assert election in ELECTIONS
    start = next(known for known in ELECTIONS if known == election)
    node = ScriptedNode(
        number=number, voters=voters, election=start, epochs=[(2, 0)], log_end_offset=4, auto_disk=False
    )
    if start.quorum_epoch == 0:
        node = ScriptedNode(number=number, voters=voters, auto_disk=False)
    node.start()
    epoch, high_watermark = node.state.quorum_epoch, 0
    for _ in range(60):
        node.now_ms += rng.choice([0, 1, 20, 300, 1_500])
        node.step(random_event(node, rng, node.effects))
        state = node.state
        assert state.quorum_epoch >= epoch
        assert (state.high_watermark or 0) >= high_watermark
        assert state.log.last_epoch <= state.quorum_epoch
        assert state.commit_offset <= state.log.flushed_offset <= state.log.log_end_offset
        deadline_ms = node.raft.deadline_ms()
        assert deadline_ms is None or deadline_ms > node.now_ms - 1
        epoch, high_watermark = state.quorum_epoch, state.high_watermark or 0
