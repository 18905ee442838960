# SPDX-License-Identifier: Apache-2.0
"""Forged requests in the name of voters, with an epoch that no election has reached. Any program that reaches a port can send them.

Owns their content; `sim_faults` decides when they arrive and where. Law of the run: nodes refuse them, and learn no epoch from them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    PreVoteRequest,
    Request,
    UpdateVoterRequest,
    VoteRequest,
)
from metaquorum.raft.types import MAX_EPOCH_LEAP, MAX_QUORUM_EPOCH, NO_EPOCH, Offset, QuorumEpoch, ReplicaKey


def absurd_epoch(rng: random.Random, own: QuorumEpoch) -> QuorumEpoch:
    """Return an epoch that a node in epoch `own` must not believe; half of the time the largest one."""
    if rng.random() < 0.5:
        return MAX_QUORUM_EPOCH
    least = MAX_QUORUM_EPOCH - MAX_EPOCH_LEAP + 1 if own == NO_EPOCH else own + MAX_EPOCH_LEAP + 1
    return QuorumEpoch(rng.randint(least, MAX_QUORUM_EPOCH))


def forge(
    rng: random.Random, target: ReplicaKey, others: Sequence[ReplicaKey], *, cluster_id: str, epoch: QuorumEpoch
) -> Request:
    """Return a request to a node in the name of one of the others."""
    sender = rng.choice(others)
    end_offset = Offset(rng.choice([0, 1, 10**6]))
    kind = rng.randrange(6)
    if kind < 2:
        made = VoteRequest if kind else PreVoteRequest
        return made(
            cluster_id=cluster_id,
            quorum_epoch=epoch,
            candidate=sender,
            voter=target,
            last_epoch=QuorumEpoch(epoch - 1),
            log_end_offset=end_offset,
        )
    if kind == 2:
        return BeginQuorumEpochRequest(
            cluster_id=cluster_id,
            quorum_epoch=epoch,
            leader_id=sender.node_id,
            voter=target,
            leader_address="forged:1",
        )
    if kind == 3:
        return EndQuorumEpochRequest(
            cluster_id=cluster_id, quorum_epoch=epoch, leader_id=sender.node_id, preferred_successors=(target,)
        )
    if kind == 4:
        return UpdateVoterRequest(cluster_id=cluster_id, quorum_epoch=epoch, voter=sender, address="forged:1")
    return FetchRequest(
        cluster_id=cluster_id,
        quorum_epoch=epoch,
        replica=sender,
        fetch_offset=end_offset,
        last_fetched_epoch=QuorumEpoch(epoch - 1),
        high_watermark=end_offset,
        max_bytes=1_000,
        max_wait_ms=100,
        replica_address="forged:1",
    )
