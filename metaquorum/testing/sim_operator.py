# SPDX-License-Identifier: Apache-2.0
"""The operator of the simulated quorum: adds, removes and replaces voters, and transfers the leadership.

Owns its requests and their answers. Laws: an answer comes once; a change reported as committed is committed; a refused one leaves no
trace in the log. It also decides when a disk may be lost: only while every voter agrees on the voter set, because a set that is just
shrinking may not survive a loss.
Fault budget: while the key of a lost disk is a voter, no other voter is removed, as a careful operator would ensure.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

from metaquorum.raft.effects import AnswerTransfer, AnswerVoterChange
from metaquorum.raft.events import TransferRequested, VoterChangeRequested
from metaquorum.raft.types import NodeId, ReplicaKey
from metaquorum.raft.voter_changes import (
    AddVoter,
    ChangeCommitted,
    ChangeRefused,
    ChangeUnknown,
    RemoveVoter,
    TransferResigned,
    TransferTimedOut,
    VoterChange,
)
from metaquorum.raft.voters import VoterSet
from metaquorum.testing.invariants import Checker, require
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.sim_log import SimBatch
from metaquorum.testing.sim_node import SimNode

MIN_VOTERS_TO_LOSE_ONE = 3
"""A quorum with fewer voters cannot continue after the loss of a disk."""


class LostDisks(Protocol):
    """What the operator knows of disks."""

    damaged: set[ReplicaKey]

    @property
    def is_moving(self) -> bool:
        """True while a voter has moved and not all nodes know its address."""
        ...


class OperatedWorld(Protocol):
    """The part of the world that the operator sees."""

    scheduler: Scheduler
    checker: Checker
    counts: Counter[str]
    nodes: list[SimNode]

    @property
    def faults(self) -> LostDisks:
        """State of disks and addresses."""
        ...


class SimOperator:
    """Asks leaders for changes, and checks the answers."""

    def __init__(self, world: OperatedWorld) -> None:
        self._world = world
        self._rng: random.Random = world.scheduler.rng("operator")
        self._next_token = 1
        self._asked: dict[int, tuple[SimNode, int]] = {}
        self._change_of: dict[int, VoterChange] = {}

    def change_voters(self) -> None:
        """Ask a leader, perhaps a deposed one, for a change."""
        node = self._some_leader()
        if node is None or node.raft is None or self._world.faults.is_moving:
            return
        change = self._choose(node.raft.state.voter_set)
        if change is None:
            return
        token = self._ask(node)
        self._change_of[token] = change
        self._world.counts["voter change asked for"] += 1
        end_offset = node.disk.log_end_offset
        node.handle(VoterChangeRequested(token=token, change=change))
        if token not in self._asked and node.disk.log_end_offset != end_offset:
            # The answer came at once: the leader alone is the majority, or a second record was due in this step.
            self._world.counts["voter change answered at once"] += 1

    def transfer_leadership(self) -> None:
        """Ask a leader to transfer the leadership to a certain node, or to any."""
        node = self._some_leader()
        if node is None:
            return
        to = self._rng.choice([None, *(NodeId(other.key.node_id) for other in self._world.nodes)])
        node.handle(TransferRequested(token=self._ask(node), to=to))

    def on_change_answer(self, node: SimNode, effect: AnswerVoterChange) -> None:
        """Check the answer to a change."""
        self._answered(node, effect.token)
        change = self._change_of.pop(effect.token)
        match effect.outcome:
            case ChangeCommitted(next_offset=next_offset):
                self._world.counts["voter change"] += 1
                committed = self._world.checker.committed_end_offset
                require(next_offset <= committed, "a change is answered when it is committed", effect)
                record = next(batch for batch in node.disk.batches if batch.next_offset == next_offset)
                voters = record.voters
                require(
                    voters is not None and voters.contains(change.key) == isinstance(change, AddVoter),
                    "the committed change is the one asked for",
                    (change, record),
                )
                kind = "voter added" if isinstance(change, AddVoter) else "voter removed"
                self._world.counts[kind] += 1
                if kind == "voter added" and change.key.directory_id.startswith(b"wiped"):
                    self._world.counts["wiped voter replaced"] += 1
            case ChangeRefused(reason=reason):
                self._world.counts[f"voter change refused, {reason.name.lower()}"] += 1
            case ChangeUnknown():
                self._world.counts["voter change, outcome unknown"] += 1

    def on_transfer_answer(self, node: SimNode, effect: AnswerTransfer) -> None:
        """Check the answer to a transfer."""
        self._answered(node, effect.token)
        match effect.outcome:
            case TransferResigned():
                require(not node.is_leader, "who hands over leads no more", effect)
                self._world.counts["leadership transfer"] += 1
            case TransferTimedOut():
                self._world.counts["leadership transfer given up"] += 1
            case ChangeRefused():
                self._world.counts["leadership transfer refused"] += 1

    def on_stop(self, node: SimNode) -> None:
        """Note that a process is gone: its requests get no answer."""
        for token in [token for token, (asked, _) in self._asked.items() if asked is node]:
            del self._asked[token]
            self._change_of.pop(token, None)

    def require_all_answered(self) -> None:
        """Check, long after the last request, that no request waits for an answer."""
        require(not self._asked, "every request is answered", sorted(self._asked))

    def disk_to_lose(self, damaged: Collection[ReplicaKey]) -> SimNode | None:
        """Return a voter whose disk may be lost now; None if the voters disagree, are too few, or one is lost already."""
        voters = None if self._world.faults.is_moving else self.agreed_voters()
        if voters is None or len(voters.voters) < MIN_VOTERS_TO_LOSE_ONE:
            return None
        members = [node for node in self._world.nodes if voters.contains(node.key)]
        if len(members) < len(voters.voters) or any(node.key in damaged for node in members):
            return None
        return self._rng.choice(members)

    def agreed_voters(self) -> VoterSet | None:
        """Return the voter set if all its remaining members have the same one, durably; else None."""
        newest = _voters_at_end(max(self._world.nodes, key=lambda node: node.disk.log_end_offset))
        members = [node for node in self._world.nodes if newest.contains(node.key)]
        agree = all(_voters_at_end(node) == newest == _durable_voters(node) for node in members)
        return newest if agree else None

    def _some_leader(self) -> SimNode | None:
        now_ms = self._world.scheduler.now_ms
        leaders = [node for node in self._world.nodes if node.is_leader and node.paused_until_ms <= now_ms]
        return self._rng.choice(leaders) if leaders else None

    def _ask(self, node: SimNode) -> int:
        token = self._next_token
        self._next_token += 1
        self._asked[token] = (node, node.incarnation)
        return token

    def _answered(self, node: SimNode, token: int) -> None:
        require(
            self._asked.pop(token, None) == (node, node.incarnation), "an answer comes once, from who was asked", token
        )

    def _choose(self, voters: VoterSet) -> VoterChange | None:
        keys = [node.key for node in self._world.nodes]
        damaged = self._world.faults.damaged
        lost = [voter.key for voter in voters.voters if voter.key not in keys or voter.key in damaged]
        if lost:
            return RemoveVoter(key=lost[0])
        if self._rng.random() < 0.05:
            return self._senseless(keys)
        outsiders = [key for key in keys if not voters.contains(key) and key not in damaged]
        # Adds about as often as it removes, so that sets of all sizes occur.
        if outsiders and self._rng.random() < 0.6:
            return AddVoter(key=self._rng.choice(outsiders))
        return RemoveVoter(key=self._rng.choice(voters.voters).key) if voters.voters else None

    def _senseless(self, keys: Sequence[ReplicaKey]) -> VoterChange:
        """Return a change of an unknown replica."""
        unknown = ReplicaKey(node_id=self._rng.choice(keys).node_id, directory_id=b"nobody's disk...")
        return AddVoter(key=unknown) if self._rng.random() < 0.5 else RemoveVoter(key=unknown)


def _voters_at_end(node: SimNode) -> VoterSet:
    return _voters_after(node, node.disk.last)


def _durable_voters(node: SimNode) -> VoterSet:
    disk = node.disk
    return _voters_after(node, disk.batches[disk.durable_count - 1] if disk.durable_count else disk.base)


def _voters_after(node: SimNode, batch: SimBatch | None) -> VoterSet:
    return node.initial_voters if batch is None or batch.voters_after is None else batch.voters_after
