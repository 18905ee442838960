# SPDX-License-Identifier: Apache-2.0
"""Steps that tests of replication share."""

from __future__ import annotations

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import (
    Send,
)
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    FetchResponse,
)
from metaquorum.raft.roles import Leader
from metaquorum.testing.scripted_node import ScriptedNode, key


def leading(voters: list[int], **arguments: object) -> tuple[ScriptedNode, Leader]:
    """Node 1 leads."""
    node = ScriptedNode(voters=voters, config=RaftConfig(**arguments)).start()  # pyright: ignore
    if len(voters) > 1:
        node.elect()
    role = node.state.role
    assert isinstance(role, Leader)
    return node, role


def fetch(node: ScriptedNode, replica: int, offset: int, **arguments: int) -> FetchResponse | None:
    """Let a replica fetch that has all of the leader's log below the offset."""
    last_epoch = arguments.pop("last_epoch", int(node.state.quorum_epoch) if offset else 0)
    answer = node.receive(node.fetch_request(replica, offset=offset, last_epoch=last_epoch, **arguments))
    assert answer is None or isinstance(answer, FetchResponse)
    return answer


def begins(node: ScriptedNode, voter: int) -> list[Send]:
    """Reminders sent to a voter."""
    return [send for send, request in node.sent(BeginQuorumEpochRequest) if request.voter == key(voter)]
