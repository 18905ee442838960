# SPDX-License-Identifier: Apache-2.0
"""The decision of a first start: what an unformatted node does after the answers of its peers. Pure.

Law: two nodes that both format as initial voters agree on a majority of the voters. A node whose disk was wiped never comes back as
the same voter, because that voter may have voted.
Why it holds: a node forms a set of initial voters only if every peer, in one round, answers that it knows nothing and accepts this
node under its current directory id. A formatted node accepts only the keys with which it was formatted. So two sets can differ only
in the key of a node that was wiped in between, and no node has its old key any more.
Source: `docs/quorum.md` "First start".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metaquorum.raft.types import NodeId, ReplicaKey
from metaquorum.raft.voters import Voter, VoterSet, voter_set


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """Answer of a peer; ProbeResponse in `proto/lograft/internal/v1/quorum.proto` defines the fields."""

    key: ReplicaKey
    cluster_id: str
    is_formatted: bool
    has_history: bool
    voters: tuple[ReplicaKey, ...]
    accepts_initial_voter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ask again later."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Stop, because to continue would mix clusters."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatVoter:
    """Format as one of these initial voters, with the directory id of the probes."""

    voters: VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatObserver:
    """Format as an observer with a new directory id: the quorum continues without this disk."""

    reason: str


FirstStartDecision = Wait | Refuse | FormatVoter | FormatObserver


def decide_first_start(
    *, key: ReplicaKey, cluster_id: str, addresses: Mapping[NodeId, str], answers: Mapping[NodeId, ProbeAnswer]
) -> FirstStartDecision:
    """Decide from one round of answers.

    Args:
        key: this node, with the directory id of its probes.
        cluster_id: the cluster to join.
        addresses: configured voters, this node among them or not.
        answers: answers of this round by the node id that was asked; silent peers are missing.
    """
    for node_id in sorted(answers):
        answer = answers[node_id]
        if answer.cluster_id != cluster_id:
            return Refuse(
                reason=f"node {node_id} at {addresses[node_id]} is of cluster {answer.cluster_id!r}, not {cluster_id!r}"
            )
        if answer.key.node_id != node_id:
            return Refuse(reason=f"{addresses[node_id]} is node {answer.key.node_id}, configured as node {node_id}")
    if key.node_id not in addresses:
        return FormatObserver(reason="not among the configured voters")
    known = [answers[node_id] for node_id in sorted(answers)]
    inviting = [answer for answer in known if answer.is_formatted and key in answer.voters]
    if inviting:
        return _join(inviting, addresses)
    for answer in known:
        if answer.has_history or answer.is_formatted:
            return FormatObserver(
                reason=f"node {answer.key.node_id} is part of a quorum that does not know this directory"
            )
    missing = sorted(set(addresses) - set(answers) - {key.node_id})
    if missing:
        return Wait(reason=f"no answer from nodes {missing}")
    hesitant = [answer.key.node_id for answer in known if not answer.accepts_initial_voter]
    if hesitant:
        return Wait(reason=f"nodes {hesitant} do not have this node among their configured voters")
    keys = [key, *(answer.key for answer in known)]
    return FormatVoter(voters=_with_addresses(keys, addresses))


def _join(inviting: list[ProbeAnswer], addresses: Mapping[NodeId, str]) -> FirstStartDecision:
    """Join a quorum whose nodes were formatted with this node as a voter, and wait for it."""
    with_history = [answer for answer in inviting if answer.has_history]
    sets = {answer.voters for answer in (with_history or inviting)}
    if len(sets) > 1:
        return Wait(reason="peers disagree about the initial voters; wipe the ones that are wrong")
    (keys,) = sets
    unknown = [voter.node_id for voter in keys if voter.node_id not in addresses]
    if unknown:
        return Refuse(reason=f"the quorum has voters {unknown} that are not among the configured voters")
    return FormatVoter(voters=_with_addresses(list(keys), addresses))


def _with_addresses(keys: list[ReplicaKey], addresses: Mapping[NodeId, str]) -> VoterSet:
    return voter_set([Voter(key=voter, address=addresses[voter.node_id]) for voter in keys])
