# SPDX-License-Identifier: Apache-2.0
"""Every request between quorum nodes is checked for cluster, epoch and voter key, in every role; KIP-595, KIP-853.

A refused request changes nothing. A request with several mistakes is refused for the first of them in the order cluster, voter key,
epoch: a node learns no epoch from another cluster or from a request to another voter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    PreVoteRequest,
    Refusal,
    UpdateVoterRequest,
    VoteRequest,
)
from metaquorum.raft.snapshots import check_download
from metaquorum.raft.types import QuorumEpoch, ReplicaKey
from metaquorum.testing.scripted_node import CLUSTER_ID, ScriptedNode, key, snapshot_id
from metaquorum.tests.raft.roles import EPOCH, LOG_END, VOTERS


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """A replica asks for the pieces of a snapshot."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    replica: ReplicaKey


Checked = (
    VoteRequest
    | PreVoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | UpdateVoterRequest
    | DownloadRequest
)
Make = Callable[[ScriptedNode], Checked]

REQUESTS: Final[dict[str, Make]] = {
    "Vote": lambda node: node.vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END),
    "Vote, preliminary": lambda node: node.pre_vote_request(2, EPOCH, last_epoch=3, log_end_offset=LOG_END),
    "BeginQuorumEpoch": lambda node: node.begin_request(3, EPOCH),
    "EndQuorumEpoch": lambda node: node.end_request(3, EPOCH, [1]),
    "FetchQuorum": lambda node: node.fetch_request(2, offset=LOG_END, last_epoch=3, epoch=EPOCH),
    "UpdateVoter": lambda _: UpdateVoterRequest(
        cluster_id=CLUSTER_ID, quorum_epoch=QuorumEpoch(EPOCH), voter=key(2), address="n2"
    ),
    "FetchSnapshot": lambda _: DownloadRequest(CLUSTER_ID, QuorumEpoch(EPOCH), key(2)),
}
TO_A_VOTER: Final = ("Vote", "Vote, preliminary", "BeginQuorumEpoch")
"""Requests that are meant for one replica and name it."""
TO_THE_LEADER: Final = ("FetchQuorum", "UpdateVoter", "FetchSnapshot")
"""Requests that only the leader of the very epoch serves; they teach nothing about a higher one."""


def refusal(node: ScriptedNode, request: Checked) -> Refusal | None:
    """Let a node answer a request; return why it did not handle it."""
    if isinstance(request, DownloadRequest):
        return check_download(
            node.state,
            cluster_id=request.cluster_id,
            quorum_epoch=request.quorum_epoch,
            replica=request.replica,
            snapshot=snapshot_id(4, 3),
        )
    answer = node.receive(request)
    assert answer is not None, f"no answer to {request}"
    return answer.refusal


def shape(node: ScriptedNode) -> tuple[object, ...]:
    """Return the state that a refused request must not change."""
    state = node.state
    return (state.role, repr(state.role), node.disk, state.election, state.log.end_position, state.high_watermark)


@pytest.mark.parametrize("role", list(VOTERS))
@pytest.mark.parametrize("rpc", list(REQUESTS))
def test_request_of_another_cluster_is_refused(rpc: str, role: str) -> None:
    """It is refused with a lower, the same and a higher epoch, and the node learns nothing from it."""
    for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
        node = VOTERS[role]()
        before = shape(node)
        request = replace(REQUESTS[rpc](node), cluster_id="another", quorum_epoch=QuorumEpoch(epoch))
        assert refusal(node, request) is Refusal.WRONG_CLUSTER
        assert shape(node) == before


@pytest.mark.parametrize("role", list(VOTERS))
@pytest.mark.parametrize("rpc", list(REQUESTS))
def test_request_of_an_older_epoch_is_fenced(rpc: str, role: str) -> None:
    """The answer shows the present epoch, so that the sender catches up."""
    node = VOTERS[role]()
    before = shape(node)
    assert refusal(node, replace(REQUESTS[rpc](node), quorum_epoch=QuorumEpoch(EPOCH - 1))) is Refusal.FENCED_EPOCH
    assert shape(node) == before


@pytest.mark.parametrize("role", list(VOTERS))
@pytest.mark.parametrize("rpc", TO_THE_LEADER)
def test_request_to_a_leader_of_a_higher_epoch_is_refused(rpc: str, role: str) -> None:
    """The sender means another leader; this node learns that leader from votes and from the leader itself."""
    node = VOTERS[role]()
    before = shape(node)
    assert refusal(node, replace(REQUESTS[rpc](node), quorum_epoch=QuorumEpoch(EPOCH + 1))) is Refusal.UNKNOWN_EPOCH
    assert shape(node) == before


@pytest.mark.parametrize("role", [role for role in VOTERS if role != "Leader"])
@pytest.mark.parametrize("rpc", TO_THE_LEADER)
def test_request_to_a_leader_is_refused_by_others(rpc: str, role: str) -> None:
    """A node that does not lead serves neither log nor snapshots, and appends nothing."""
    node = VOTERS[role]()
    before = shape(node)
    assert refusal(node, REQUESTS[rpc](node)) is Refusal.NOT_LEADER
    assert shape(node) == before


@pytest.mark.parametrize("role", list(VOTERS))
@pytest.mark.parametrize("rpc", TO_A_VOTER)
@pytest.mark.parametrize("wrong", [key(2), ReplicaKey(node_id=key(1).node_id, directory_id=bytes(16))])
def test_request_for_another_voter_key_is_refused(wrong: ReplicaKey, rpc: str, role: str) -> None:
    """This holds for another node id, for the same node id on another directory, and for any epoch."""
    for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
        node = VOTERS[role]()
        before = shape(node)
        request = REQUESTS[rpc](node)
        assert isinstance(request, VoteRequest | PreVoteRequest | BeginQuorumEpochRequest)
        asked = replace(request, voter=wrong, quorum_epoch=QuorumEpoch(epoch))
        assert refusal(node, asked) is Refusal.INVALID_VOTER_KEY
        assert shape(node) == before


@pytest.mark.parametrize("voter", [key(7), ReplicaKey(node_id=key(2).node_id, directory_id=bytes(16))])
def test_update_for_a_key_that_does_not_vote_is_refused(voter: ReplicaKey) -> None:
    """Only the voter itself, by node id and directory id, may change its address in the set."""
    node = VOTERS["Leader"]()
    before = shape(node)
    request = UpdateVoterRequest(
        cluster_id=CLUSTER_ID, quorum_epoch=QuorumEpoch(EPOCH), voter=voter, address="elsewhere:1"
    )
    assert refusal(node, request) is Refusal.INVALID_VOTER_KEY
    assert shape(node) == before


def test_every_kind_of_request_is_here() -> None:
    """A new kind of request must be added to the checks."""
    from metaquorum.raft import messages

    checked = {type(make(VOTERS["Leader"]())) for make in REQUESTS.values()} - {DownloadRequest}
    assert checked == set(messages.Request.__args__)
