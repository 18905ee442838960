# SPDX-License-Identifier: Apache-2.0
"""Answers to vote requests that tests of elections share."""

from __future__ import annotations

from metaquorum.raft.messages import (
    VoteResponse,
)
from metaquorum.raft.types import NodeId
from metaquorum.testing.scripted_node import ScriptedNode


def granted(node: ScriptedNode) -> VoteResponse:
    """A yes in the node's epoch."""
    return VoteResponse(quorum_epoch=node.state.quorum_epoch, leader_id=None, granted=True)


def refused(node: ScriptedNode, leader: int | None = None) -> VoteResponse:
    """A no in the node's epoch."""
    leader_id = None if leader is None else NodeId(leader)
    return VoteResponse(quorum_epoch=node.state.quorum_epoch, leader_id=leader_id, granted=False)
