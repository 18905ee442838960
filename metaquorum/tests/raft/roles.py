# SPDX-License-Identifier: Apache-2.0
"""One node in each role, all in epoch 5 with a log of 10 records, for tests that go over all roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metaquorum.raft.messages import PreVoteRequest, VoteResponse
from metaquorum.testing.scripted_node import ScriptedNode, election_state

EPOCH: Final = 5
LOG_END: Final = 10
"""End of the log of every node here; the last record is of epoch 3 but for the leader, whose own record is the last."""


def _node(epoch: int, *, number: int = 1, leader: int | None = None, voted: int | None = None) -> ScriptedNode:
    return ScriptedNode(
        number=number,
        election=election_state(epoch, leader=leader, voted=voted),
        epochs=[(3, 0)],
        log_end_offset=LOG_END,
    )


def unattached() -> ScriptedNode:
    """Knows the epoch, and neither its leader nor a candidate."""
    return _node(EPOCH).start()


def prospective() -> ScriptedNode:
    """Asks for pre-votes and knows no leader."""
    node = unattached()
    node.advance(node.config.election_timeout_ms)
    return node


def prospective_with_leader() -> ScriptedNode:
    """Asks for pre-votes because node 3, the leader, is silent."""
    node = follower()
    node.advance(node.config.fetch_timeout_ms)
    return node


def candidate() -> ScriptedNode:
    """Asks for votes in the epoch."""
    node = _node(EPOCH - 1).start()
    node.advance(node.config.election_timeout_ms)
    grant = VoteResponse(quorum_epoch=node.state.quorum_epoch, leader_id=None, granted=True)
    node.answer(node.sent(PreVoteRequest)[0][0], grant)
    return node


def leader() -> ScriptedNode:
    """Leads the epoch; all voters have every record, and all are committed."""
    node = ScriptedNode(election=election_state(EPOCH - 1), epochs=[(3, 0)], log_end_offset=LOG_END - 1)
    node.start().elect()
    for replica in (2, 3):
        node.receive(node.fetch_request(replica, offset=LOG_END, last_epoch=EPOCH, max_wait_ms=0))
    return node


def resigned() -> ScriptedNode:
    """Led the epoch."""
    return _node(EPOCH, leader=1, voted=1).start()


def follower() -> ScriptedNode:
    """Follows node 3 and has not fetched yet."""
    return _node(EPOCH, leader=3).start()


def observer() -> ScriptedNode:
    """Is not a voter; knows the epoch, and not its leader."""
    return _node(EPOCH, number=9).start()


def following_observer() -> ScriptedNode:
    """Is no voter and follows node 3."""
    return _node(EPOCH, number=9, leader=3).start()


VOTERS: Final[dict[str, Callable[[], ScriptedNode]]] = {
    "Unattached": unattached,
    "Prospective": prospective,
    "Candidate": candidate,
    "Leader": leader,
    "Resigned": resigned,
    "Follower": follower,
}
"""A voter in each role, by the name of the role."""

EVERYBODY: Final[dict[str, Callable[[], ScriptedNode]]] = {
    "Unattached": unattached,
    "Prospective": prospective,
    "Prospective, leader known": prospective_with_leader,
    "Candidate": candidate,
    "Leader": leader,
    "Resigned": resigned,
    "Follower": follower,
    "observer": observer,
    "observer, Follower": following_observer,
}
"""Voters and observers, by the headings of the table "What each event does" in `docs/quorum.md`."""
