# SPDX-License-Identifier: Apache-2.0
"""Value types of the Raft core, each with its law.

Owns names for numbers (so the type checker does not let callers mix them up) and small immutable values. Knows no behaviour.
Source: KIP-595 (epochs, offsets), KIP-853 (replica key).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

NodeId = NewType("NodeId", int)
"""Id of a server, from 0."""

QuorumEpoch = NewType("QuorumEpoch", int)
"""Number of a leadership of the quorum: Raft's term. 0 is before the first election, so no record has it."""

Offset = NewType("Offset", int)
"""Position of a record in the metadata log, from 0. `..._end` and high watermarks are exclusive."""

NO_EPOCH = QuorumEpoch(0)
MAX_QUORUM_EPOCH = QuorumEpoch(2**31 - 1)
"""Largest epoch that messages, batches and the vote file can hold."""
MAX_EPOCH_LEAP = 2**20
"""Largest believed distance of a peer's epoch above the own one: each election opens one epoch, so this is a million elections."""
LOG_BEGIN = Offset(0)


class Rng(Protocol):
    """The only source of randomness of a core; `random.Random` is one."""

    def randrange(self, start: int, stop: int, /) -> int:
        """Return a random number from start (inclusive) to stop (exclusive)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaKey:
    """Identity of a voter or observer. The same node with a wiped disk is another replica.

    Attributes:
        node_id: node id.
        directory_id: id of its metadata directory, 16 bytes.
    """

    node_id: NodeId
    directory_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRange:
    """Feature levels that a process supports. A version that reports none supports only the first level.

    Attributes:
        min_level: lowest, at least 1 (inclusive).
        max_level: highest (inclusive).
    """

    min_level: int = 1
    max_level: int = 1

    def has(self, level: int) -> bool:
        """Return whether the process supports this level."""
        return self.min_level <= level <= self.max_level


FIRST_LEVEL_ONLY = LevelRange()


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class LogPosition:
    """End of a log. Compared as in Raft: first by the epoch of the last record, then by length.

    Attributes:
        last_epoch: epoch of the last record; 0 if the log is empty.
        log_end_offset: end of the log (exclusive).
    """

    last_epoch: QuorumEpoch
    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """Where an epoch ends in a log.

    Attributes:
        epoch: an epoch that has records in the log, or 0 for the beginning of the log.
        end_offset: offset after its last record (exclusive).
    """

    epoch: QuorumEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    """Names a snapshot of the committed log. Snapshots of one cluster with the same id have the same content.

    Attributes:
        end_offset: end of the snapshot (exclusive): it holds every record below.
        epoch: epoch of the last of them.
    """

    end_offset: Offset
    epoch: QuorumEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionState:
    """What a node must not forget: epoch, leader and vote. It reaches stable storage before any message that shows it leaves.

    Law: `quorum_epoch` never falls. Within one epoch a given vote never changes, and neither does a known leader.

    Attributes:
        quorum_epoch: highest known epoch.
        leader_id: leader of that epoch; None if unknown.
        voted_key: replica that got this node's vote in that epoch, or None.
    """

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    voted_key: ReplicaKey | None


INITIAL_ELECTION_STATE = ElectionState(quorum_epoch=NO_EPOCH, leader_id=None, voted_key=None)
