# SPDX-License-Identifier: Apache-2.0
"""The tables of transitions and of events in `docs/quorum.md`, cell by cell, against the core: allowed and forbidden ones.

The test reads the table from the page and compares it with the code; neither is generated from the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from metaquorum.raft.effects import (
    AnswerTransfer,
    AnswerVoterChange,
    RejectProposal,
    RejectRead,
    Reply,
    ReplyWithBatches,
)
from metaquorum.raft.events import (
    ReadRequested,
    ResponseReceived,
    ShutdownRequested,
    TransferRequested,
    VoterChangeRequested,
)
from metaquorum.raft.messages import (
    FetchResponse,
    PreVoteRequest,
    Refusal,
    UpdateVoterRequest,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from metaquorum.raft.transitions import (
    LEGAL_TRANSITIONS,
    EpochRule,
    become_candidate,
    become_follower,
    become_leader,
    become_prospective,
    become_resigned,
    become_unattached,
)
from metaquorum.raft.types import NodeId, QuorumEpoch
from metaquorum.raft.voter_changes import ChangeRefused, RemoveVoter
from metaquorum.testing.scripted_node import CLUSTER_ID, ScriptedNode, election_state, key
from metaquorum.tests.raft.roles import EPOCH, EVERYBODY, LOG_END, VOTERS

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "quorum.md"
ROLES: Final[dict[str, type[Role]]] = {
    kind.__name__: kind for kind in (Unattached, Prospective, Candidate, Leader, Resigned, Follower)
}
RULES: Final[dict[str, EpochRule | None]] = {
    "same": EpochRule.SAME,
    "higher": EpochRule.HIGHER,
    "same, higher": EpochRule.ANY,
    "-": None,
}


def table(heading: str) -> dict[str, dict[str, str]]:
    """Return the table below a heading of the page: cells by row and column."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(f"\n{heading}\n") == 1, f"{heading} is not once in {PAGE}"
    lines = text.split(f"\n{heading}\n")[1].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(
            lambda line: line.startswith("|"), itertools.dropwhile(lambda line: not line.startswith("|"), lines)
        )
    ]
    header, _, *body = rows
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body}


TRANSITIONS: Final = table("### Transitions")
EVENTS: Final = table("### What each event does")


def test_transition_table_of_the_page_is_that_of_the_core() -> None:
    """Every pair of roles has a cell on the page, and it is the rule of the code."""
    assert list(TRANSITIONS) == list(ROLES)
    for old, cells in TRANSITIONS.items():
        assert list(cells) == list(ROLES)
        for new, cell in cells.items():
            assert RULES[cell] is LEGAL_TRANSITIONS.get((ROLES[old], ROLES[new])), f"{old} to {new}"


def attempts(node: ScriptedNode) -> dict[str, list[tuple[int, Callable[[], None]]]]:
    """Return every way into a role that the core has, with the epoch that it leads to, by the role's name."""
    state, now_ms = node.state, node.now_ms
    candidate = Candidate(election_deadline_ms=0, votes={})
    leader = Leader(started_ms=0, epoch_start_offset=state.log.log_end_offset, voters={}, begin_calls={})

    def follow(epoch: int) -> Callable[[], None]:
        # Another leader than the one of the epoch is ruled out before the table is asked.
        known = state.election.leader_id if epoch == EPOCH else None
        return lambda: become_follower(
            state, QuorumEpoch(epoch), leader_id=known or NodeId(3), leader_address="n3", now_ms=now_ms
        )

    def forget(epoch: int) -> Callable[[], None]:
        return lambda: become_unattached(state, QuorumEpoch(epoch), now_ms=now_ms)

    def lead() -> None:
        # As if it were elected and its disk had the leadership: only the table can forbid it.
        state.election = election_state(EPOCH, leader=1, voted=1)
        become_leader(state, candidate, now_ms=now_ms)

    return {
        "Unattached": [(epoch, forget(epoch)) for epoch in (EPOCH, EPOCH + 1)],
        "Prospective": [(EPOCH, lambda: become_prospective(state, now_ms=now_ms))],
        "Candidate": [(EPOCH + 1, lambda: become_candidate(state, now_ms=now_ms))],
        "Leader": [(EPOCH, lead)],
        "Resigned": [(EPOCH, lambda: become_resigned(state, leader, now_ms=now_ms))],
        "Follower": [(epoch, follow(epoch)) for epoch in (EPOCH, EPOCH + 1)],
    }


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ROLES, ROLES)))
def test_transition_is_made_or_stops_the_process(old: str, new: str) -> None:
    """Each pair of roles, in the same epoch and a higher one: an allowed change happens, a forbidden one asserts and has no effect."""
    cell = TRANSITIONS[old][new]
    for number in range(len(attempts(VOTERS[old]())[new])):
        node = VOTERS[old]()
        epoch, attempt = attempts(node)[new][number]
        role = node.state.role
        assert (node.role, node.state.quorum_epoch) == (old, EPOCH)
        if ("same" if epoch == EPOCH else "higher") in cell:
            attempt()
            assert node.state.role is not role
            assert (node.role, node.state.quorum_epoch) == (new, epoch)
        else:
            with pytest.raises(AssertionError):
                attempt()
            assert node.state.role is role
            assert node.state.quorum_epoch == EPOCH


# Events.

Play = Callable[[ScriptedNode], object]
NOBODYS_REQUEST: Final = 999
"""Id of a request that was never sent."""


def time_passes(node: ScriptedNode) -> None:
    """Let the time-out of the role pass, without any other event."""
    config = node.config
    limit_ms = {"Leader": config.check_quorum_timeout_ms, "Follower": config.fetch_timeout_ms}
    node.advance(limit_ms.get(node.role, config.election_timeout_ms))


def votes(kind: type[PreVoteRequest | VoteRequest], *, granted: bool) -> Play:
    """Both other voters answer the requests of this kind; if none is open, the answers come nevertheless."""

    def play(node: ScriptedNode) -> None:
        is_open = node.role == ("Prospective" if kind is PreVoteRequest else "Candidate")
        ids = [send.request_id for send, _ in node.sent(kind)[-2:]] if is_open else [NOBODYS_REQUEST]
        for request_id in ids:
            epoch = node.state.quorum_epoch
            answer = VoteResponse(quorum_epoch=epoch, leader_id=None, granted=granted)
            node.step(ResponseReceived(request_id=request_id, response=answer))

    return play


def answer(epoch: int, leader: int | None) -> Play:
    """Return an event: an answer to some request, with an epoch and perhaps its leader."""
    response = FetchResponse(
        quorum_epoch=QuorumEpoch(epoch),
        leader_id=None if leader is None else NodeId(leader),
        leader_address=None if leader is None else f"n{leader}",
        refusal=Refusal.NOT_LEADER,
    )
    return lambda node: node.step(ResponseReceived(request_id=NOBODYS_REQUEST, response=response))


def update(epoch: int) -> Play:
    """Node 2 reports its address, which the log has already."""
    request = UpdateVoterRequest(cluster_id=CLUSTER_ID, quorum_epoch=QuorumEpoch(epoch), voter=key(2), address="n2")
    return lambda node: node.receive(request)


def vote(epoch: int) -> Play:
    """Node 2, whose log is longer, asks for a vote."""
    return lambda node: node.receive(node.vote_request(2, epoch, last_epoch=3, log_end_offset=LOG_END + 1))


def pre_vote(epoch: int) -> Play:
    """Node 2, whose log is longer, asks for a pre-vote."""
    return lambda node: node.receive(node.pre_vote_request(2, epoch, last_epoch=3, log_end_offset=LOG_END + 1))


def fetch(epoch: int) -> Play:
    """Node 2 fetches."""
    return lambda node: node.receive(node.fetch_request(2, offset=9, last_epoch=3, epoch=epoch, max_wait_ms=0))


def each_epoch(name: str, make: Callable[[int], Play]) -> dict[str, Play]:
    """The same event with a lower, the same and a higher epoch."""
    names = ("lower", "same", "higher")
    return {f"{name}, {relation} epoch": make(EPOCH + step) for relation, step in zip(names, (-1, 0, 1), strict=True)}


PLAYS: Final[dict[str, Play]] = {
    "its time-out passes": time_passes,
    "majority says yes to the pre-vote": votes(PreVoteRequest, granted=True),
    "majority says no to the pre-vote": votes(PreVoteRequest, granted=False),
    "majority says yes to the vote": votes(VoteRequest, granted=True),
    "majority says no to the vote": votes(VoteRequest, granted=False),
    **each_epoch("request for a vote", vote),
    **each_epoch("request for a pre-vote", pre_vote),
    **each_epoch("BeginQuorumEpoch of node 3", lambda epoch: lambda node: node.receive(node.begin_request(3, epoch))),
    **each_epoch("EndQuorumEpoch of node 3", lambda epoch: lambda node: node.receive(node.end_request(3, epoch, [1]))),
    **each_epoch("Fetch", fetch),
    **each_epoch("UpdateVoter", update),
    **each_epoch("answer without a leader", lambda epoch: answer(epoch, None)),
    **each_epoch("answer that names node 3 as leader", lambda epoch: answer(epoch, 3)),
    "proposal": lambda node: node.propose(),
    "linearizable read": lambda node: node.step(ReadRequested(read_id=1)),
    "change of the voters": lambda node: node.step(VoterChangeRequested(token=1, change=RemoveVoter(key=key(3)))),
    "transfer of the leadership": lambda node: node.step(TransferRequested(token=1, to=None)),
    "shutdown": lambda node: node.step(ShutdownRequested()),
}


def is_refusal(effect: object) -> bool:
    """Whether an effect is a refusal."""
    match effect:
        case RejectProposal() | RejectRead():
            return True
        case Reply(response=response) | ReplyWithBatches(response=response):
            return response.refusal is not None
        case AnswerVoterChange(outcome=outcome) | AnswerTransfer(outcome=outcome):
            return isinstance(outcome, ChangeRefused)
        case _:
            return False


def outcome(name: str, play: Play) -> str:
    """Return the effect of an event on a node, in the words of the page."""
    node = EVERYBODY[name]()
    role = node.state.role
    effect_count = len(node.effects)
    play(node)
    if node.state.role is role:
        return "refused" if any(map(is_refusal, node.effects[effect_count:])) else "-"
    rise = node.state.quorum_epoch - EPOCH
    return node.role + ("" if rise == 0 else f" +{rise}")


def test_page_has_every_event_and_everybody() -> None:
    """No row and no column is missing or unknown."""
    assert list(EVENTS) == list(PLAYS)
    assert all(list(cells) == list(EVERYBODY) for cells in EVENTS.values())


@pytest.mark.parametrize(("event", "who"), list(itertools.product(PLAYS, EVERYBODY)))
def test_event_does_what_the_page_says(event: str, who: str) -> None:
    """Each event in each role: the change of role and of epoch, a refusal, or nothing."""
    assert outcome(who, PLAYS[event]) == EVENTS[event][who]


def test_every_allowed_transition_is_made_by_some_event() -> None:
    """The table allows only what is needed: some event of the page uses each of its cells."""
    made: set[tuple[type[Role], type[Role], EpochRule]] = set()
    for cells in EVENTS.values():
        for who, cell in cells.items():
            new, _, rise = cell.partition(" ")
            if new in ROLES:
                rule = EpochRule.HIGHER if rise else EpochRule.SAME
                made.add((type(EVERYBODY[who]().state.role), ROLES[new], rule))
    for (old, new), rule in LEGAL_TRANSITIONS.items():
        needed = (EpochRule.SAME, EpochRule.HIGHER) if rule is EpochRule.ANY else (rule,)
        for each in needed:
            assert (old, new, each) in made, f"{old.__name__} to {new.__name__}, {each.value}"
