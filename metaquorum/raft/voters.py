# SPDX-License-Identifier: Apache-2.0
"""The voter set, its majorities, and its history along the log.

Owns majorities, and which set is in force at the end of the log. Knows no roles and no time.
Law: a VotersRecord counts from its append on, committed or not, until it is truncated away (KIP-853).
Source: KIP-595 "Voter set", KIP-853 "Voters record".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metaquorum.raft.types import LOG_BEGIN, NodeId, Offset, ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One voter, and the address of its quorum listener (`host:port`)."""

    key: ReplicaKey
    address: str


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters, ascending by node id, each id once. Empty on a node that does not know any voter."""

    voters: tuple[Voter, ...]

    def __post_init__(self) -> None:
        ids = [voter.key.node_id for voter in self.voters]
        assert ids == sorted(set(ids)), f"voters must ascend by node id without repetition: {ids}"

    @property
    def majority(self) -> int:
        """Smallest number of voters such that any two groups of this size share a member."""
        return len(self.voters) // 2 + 1

    def find(self, node_id: NodeId) -> Voter | None:
        """Return the voter with this node id, or None."""
        for voter in self.voters:
            if voter.key.node_id == node_id:
                return voter
        return None

    def contains(self, key: ReplicaKey) -> bool:
        """Return whether exactly this replica, by node id and directory id, is a voter."""
        voter = self.find(key.node_id)
        return voter is not None and voter.key == key

    def is_impostor(self, key: ReplicaKey) -> bool:
        """Return whether the key has a voter's node id with another directory id: a wiped or copied disk."""
        voter = self.find(key.node_id)
        return voter is not None and voter.key != key

    def others(self, key: ReplicaKey) -> tuple[Voter, ...]:
        """Return all voters except this replica."""
        return tuple(voter for voter in self.voters if voter.key != key)

    def is_only(self, key: ReplicaKey) -> bool:
        """Return whether this replica is the only voter."""
        return len(self.voters) == 1 and self.voters[0].key == key


def voter_set(voters: Sequence[Voter]) -> VoterSet:
    """Return a set of voters given in any order."""
    return VoterSet(tuple(sorted(voters, key=lambda voter: voter.key.node_id)))


def majority_offset(end_offsets: Sequence[Offset]) -> Offset:
    """Return the largest offset that a majority of the given log ends has reached.

    Args:
        end_offsets: flushed log end (exclusive) of every voter; at least one.

    Source: KIP-595 "High watermark": the element floor(n/2) of the offsets in descending order.
    """
    return sorted(end_offsets, reverse=True)[len(end_offsets) // 2]


class VoterHistory:
    """Voter sets by the offset of their records. Before the first one, the set of the format counts."""

    __slots__ = ("_changes", "_initial")

    def __init__(self, initial: VoterSet, changes: Sequence[tuple[Offset, VoterSet]] = ()) -> None:
        self._initial = initial
        self._changes = list(changes)

    @property
    def latest(self) -> VoterSet:
        """The set in force at the end of the log."""
        return self._changes[-1][1] if self._changes else self._initial

    @property
    def previous(self) -> VoterSet:
        """The set before the one in force; the set of the format if there is none."""
        return self._changes[-2][1] if len(self._changes) > 1 else self._initial

    @property
    def latest_offset(self) -> Offset:
        """Offset of the record of the set in force; the beginning of the log for the set of the format."""
        return self._changes[-1][0] if self._changes else LOG_BEGIN

    @property
    def is_in_log(self) -> bool:
        """True if the log has a VotersRecord; the first leader must append one otherwise."""
        return bool(self._changes)

    def append(self, offset: Offset, voters: VoterSet) -> None:
        """Note that a VotersRecord was appended at this offset (inclusive)."""
        assert not self._changes or offset > self._changes[-1][0], f"voters at {offset} after {self._changes[-1][0]}"
        self._changes.append((offset, voters))

    def reset(self, end_offset: Offset, voters: VoterSet) -> None:
        """Note that a snapshot replaced the log. This set is in force at its end; its record is somewhere below."""
        self._changes = [(Offset(end_offset - 1), voters)]

    def truncate_suffix(self, to_offset: Offset) -> None:
        """Forget every set whose record is at or after this offset."""
        while self._changes and self._changes[-1][0] >= to_offset:
            self._changes.pop()
