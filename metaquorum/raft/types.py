# SPDX-License-Identifier: Apache-2.0
"""Value types of the Raft core, each with its law.

Owns names for numbers (so that the type checker refuses to mix them up) and small immutable values. Knows no behaviour.
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
"""Last epoch that messages, batches and the vote file can hold."""
MAX_EPOCH_LEAP = 2**20
"""A peer whose epoch is further above the own one is not believed: each election opens one epoch, so this is a million elections."""
LOG_BEGIN = Offset(0)


class Rng(Protocol):
    """The only source of chance of a core; `random.Random` is one."""

    def randrange(self, start: int, stop: int, /) -> int:
        """Draw from start (inclusive) to stop (exclusive)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaKey:
    """Identity of a voter or observer: the same node on a wiped disk is another replica.

    Attributes:
        node_id: node id.
        directory_id: id of its metadata directory, 16 bytes.
    """

    node_id: NodeId
    directory_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRange:
    """Feature levels that a process can run at. One that does not say any is of a version that knows the first level only.

    Attributes:
        min_level: lowest, at least 1 (inclusive).
        max_level: highest (inclusive).
    """

    min_level: int = 1
    max_level: int = 1

    def has(self, level: int) -> bool:
        """Whether it can run at this level."""
        return self.min_level <= level <= self.max_level


FIRST_LEVEL_ONLY = LevelRange()


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class LogPosition:
    """End of a log, compared as Raft compares logs: first by the epoch of the last record, then by length.

    Attributes:
        last_epoch: epoch of the last record, 0 when the log is empty.
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
    """Names a snapshot of the committed log; two snapshots of a cluster with the same id have the same content.

    Attributes:
        end_offset: every record below it (exclusive) is in the snapshot.
        epoch: epoch of the last of them.
    """

    end_offset: Offset
    epoch: QuorumEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionState:
    """What a node must not forget: epoch, leader and vote. Written to stable storage before any message that shows it.

    Law: `quorum_epoch` never falls; within one epoch the vote never changes once given, and neither does the leader.

    Attributes:
        quorum_epoch: highest epoch seen.
        leader_id: leader of that epoch, once known.
        voted_key: replica that got this node's vote in that epoch.
    """

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    voted_key: ReplicaKey | None


INITIAL_ELECTION_STATE = ElectionState(quorum_epoch=NO_EPOCH, leader_id=None, voted_key=None)
