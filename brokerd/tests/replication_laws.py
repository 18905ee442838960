# SPDX-License-Identifier: Apache-2.0
"""The state of the replication model, and the laws over it.

Laws, after every step
    committed: what any replica ever had below its high watermark, every replica has below its own.
    candidates: each in-sync or eligible replica of the controller holds everything committed, in the way that counts.
    quorum: as many replicas as must be in sync hold what a leader commits.
    superset: the leader counts with every replica that the controller has in sync.
    belief: the registered process of a follower holds what the leader counts for it, as long as it follows this leader.
    acknowledged: an acknowledged record is committed, and that many replicas hold it, flushed if the receipt says so.
Source: Vanlightly, kafka-tlaplus, KIP-966: LeaderCandidateCompleteness, ReplicationQuorumSuperset, NoCommittedRecordLost.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from brokerd.partition.effects import CompleteAck
from brokerd.partition.events import Durability
from brokerd.partition.leader import Leadership
from brokerd.partition.progress import FollowerProgress
from brokerd.tests.replication_nodes import Entry, InFlight, Node, Stream, Version
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.tests.controller_world import World

REPLICAS: Final = (1, 2, 3)
MIN_ISR: Final = 2


class Watched:
    """Nodes, streams, proposals under way, and the metadata with its history.

    Args:
        seed: seed of all random choices.
        policy: the topic's flush policy.

    Attributes:
        committed: every record that a replica ever had below its high watermark.
        lossy: nodes that lost records that counted, until the controller knows.
        unclean: nodes that stopped without proof that they lost nothing, until the controller knows.
    """

    def __init__(self, seed: int, policy: FlushPolicy) -> None:
        self.random = random.Random(f"{seed}/{policy.value}")
        self.policy = policy
        self.now_ms = 1_000
        self.counts: Counter[str] = Counter()
        self.quorum = World()
        self.nodes = {node_id: Node(node_id) for node_id in REPLICAS}
        self.streams: list[Stream] = []
        self.proposals: list[InFlight] = []
        self.versions: list[Version] = []
        self.committed: list[Entry] = []
        self.lossy: set[int] = set()
        self.unclean: set[int] = set()
        self.ever_lossy: set[int] = set()
        self.processes = 0
        self.values = 0
        self.late_share = 0.0

    @property
    def partition(self) -> PartitionImage:
        """The committed state of the partition."""
        return self.quorum.partition("t")

    def check(self) -> None:
        """Check the laws that hold at any time."""
        partition, length = self.partition, len(self.committed)
        for node_id in {*partition.isr, *partition.elr} - self.lossy:
            log = self.nodes[node_id].log
            held = log.flushed if self.policy is FlushPolicy.ACK else log.end
            assert held >= length, f"candidates: {node_id} holds {held} of {length} committed, {partition}"
            assert log.entries[:length] == self.committed, f"candidates: the log of {node_id} is another one"
        for node in self.nodes.values():
            leadership = None if node.core is None else node.core.roles.leadership
            if leadership is not None:
                known = leadership.isr
                if (partition.leader_id, partition.leader_epoch) == (node.node_id, known.partition.leader_epoch):
                    assert {*partition.isr} <= {*known.maximal}, f"superset: {known.maximal} of {partition}"
                for follower in leadership.followers.values():
                    self._check_belief(node, leadership, follower)

    def _check_belief(self, node: Node, leadership: Leadership, follower: FollowerProgress) -> None:
        other = self.nodes[follower.node_id]
        if follower.appended_offset is None or follower.flushed_offset is None:
            return
        known = leadership.broker_epoch_of(follower.node_id)
        assert follower.broker_epoch == known, (
            f"belief: {follower.node_id} counts as {follower.broker_epoch} of {known}"
        )
        is_same = other.core is not None and other.core.leader_epoch == leadership.isr.partition.leader_epoch
        if follower.broker_epoch != other.broker_epoch or not is_same:
            return
        end, flushed = follower.appended_offset, follower.flushed_offset
        assert end <= other.log.end, f"belief: {follower.node_id} has {other.log.end}, not {end}"
        assert flushed <= other.log.flushed, f"belief: {follower.node_id} flushed {other.log.flushed}, not {flushed}"
        assert node.log.entries[:end] == other.log.entries[:end], f"belief: {follower.node_id} has other records"

    def acknowledge(self, node: Node, effect: CompleteAck) -> None:
        """Check an acknowledgement to a client."""
        offset = node.tokens.pop(effect.token, None)
        if offset is None:
            return
        assert offset < len(self.committed), f"acknowledged: {offset} of {len(self.committed)}"
        assert self.committed[offset] == node.log.entries[offset], f"acknowledged: {offset} is another record"
        if effect.durability is Durability.FLUSHED:
            flushed = sum(n.log.flushed > offset for n in self.nodes.values())
            assert flushed >= MIN_ISR, f"acknowledged: {offset} is called flushed on {flushed}"
        self.counts[f"ack: {effect.durability.name}"] += 1

    def check_quorum(self, high_watermark: int) -> None:
        """Check that as many replicas as must be in sync hold what was just committed."""
        holders = [
            node
            for node in self.nodes.values()
            if (node.log.flushed if self.policy is FlushPolicy.ACK else node.log.end) >= high_watermark
            and node.log.entries[:high_watermark] == self.committed
        ]
        # A node that has lost its page cache since then did hold it when it said so.
        count = len({node.node_id for node in holders} | self.ever_lossy)
        assert count >= MIN_ISR, f"quorum: {count} hold {high_watermark}"
