# SPDX-License-Identifier: Apache-2.0
"""First role of a node, from the state on its disk.

Owns the rules of a restart. Law: no restart lets a node give a second vote in an epoch, or lead an epoch twice.
Source: KIP-595 "Initialization"; `docs/quorum.md` "Start" has the table.
"""

from __future__ import annotations

from metaquorum.raft.roles import Role
from metaquorum.raft.state import RaftState
from metaquorum.raft.transitions import candidate_role, follower_role, resigned_role, unattached_role
from metaquorum.raft.types import ElectionState


def initial_role(state: RaftState, *, now_ms: int) -> Role:
    """Return the first role. May move the election state forward to the epoch of the log."""
    if state.election.quorum_epoch < state.log.last_epoch:
        # The log has records of an epoch whose election state did not reach the disk: the log is right.
        state.set_election(ElectionState(quorum_epoch=state.log.last_epoch, leader_id=None, voted_key=None))
        return unattached_role(state, now_ms)
    leader_id = state.election.leader_id
    voted_key = state.election.voted_key
    if leader_id == state.key.node_id:
        return resigned_role(state, now_ms)
    if leader_id is not None:
        address = state.address_of(leader_id)
        return unattached_role(state, now_ms) if address is None else follower_role(state, leader_id, address, now_ms)
    if voted_key == state.key and state.may_campaign:
        return candidate_role(state, now_ms)
    return unattached_role(state, now_ms)
