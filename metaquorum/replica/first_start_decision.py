# SPDX-License-Identifier: Apache-2.0
"""First start, decided: what an unformatted node does with what its peers answered. Pure.

Law: two nodes that both format as initial voters agree on a majority of the voters, and a node whose disk was wiped
never comes back as the voter that it was, for that one may have voted.
Why it holds: a set of initial voters is made only when every peer answered in one round that it knows of nothing and
accepts this node under its present directory id; a node that is formatted accepts only the keys that it was formatted
with. So the sets of two nodes can differ only in the key of a node that was wiped meanwhile, whose old key nobody has
any more.
Source: architecture section 7 "First start is safe by itself"; `docs/quorum.md` "First start".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metaquorum.raft.types import NodeId, ReplicaKey
from metaquorum.raft.voters import Voter, VoterSet, voter_set


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What a peer answered; `proto/lograft/internal/v1/quorum.proto` ProbeResponse says what the fields mean."""

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
    """Stop: going on would mix clusters."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatVoter:
    """Format as one of these initial voters, with the directory id that was asked with."""

    voters: VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatObserver:
    """Format as an observer with a fresh directory id: the quorum goes on without this disk."""

    reason: str


FirstStartDecision = Wait | Refuse | FormatVoter | FormatObserver


def decide_first_start(
    *, key: ReplicaKey, cluster_id: str, addresses: Mapping[NodeId, str], answers: Mapping[NodeId, ProbeAnswer]
) -> FirstStartDecision:
    """Decide from one round of answers.

    Args:
        key: this node under the directory id that it asked with.
        cluster_id: the cluster that it was told to join.
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
    """Peers were formatted with this very node as a voter and only wait for it."""
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
