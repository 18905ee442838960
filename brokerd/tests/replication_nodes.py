# SPDX-License-Identifier: Apache-2.0
"""Logs, streams and brokers for the replication model: a shell in memory that carries out the effects of the core."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from brokerd.partition.effects import (
    AcceptSubscription,
    DivergeSubscription,
    EndSubscription,
    ProposeIsr,
    SendAck,
    Subscribe,
)
from brokerd.partition.events import BrokerState
from brokerd.partition.reconciliation import EpochEnd
from brokerd.partition.replica import PartitionReplica
from metaquorum.metadata.state import PartitionImage


@dataclass(frozen=True, slots=True)
class Entry:
    """A record: the leader epoch that stamped it, and a unique value."""

    epoch: int
    value: int


class SimLog:
    """A log in memory: records, how many are flushed, and where leader epochs begin."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.flushed = 0
        self.epochs: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        """Log end offset."""
        return len(self.entries)

    @property
    def last_epoch(self) -> int | None:
        """Leader epoch of the last record."""
        return self.entries[-1].epoch if self.entries else None

    def assign_epoch(self, epoch: int) -> None:
        """Begin an epoch at the log end. An epoch that began there without a record is forgotten."""
        if self.epochs and epoch <= self.epochs[-1][0]:
            assert epoch == self.epochs[-1][0], f"epoch {epoch} after {self.epochs}"
            return
        self.epochs = [*((known, start) for known, start in self.epochs if start < self.end), (epoch, self.end)]

    def append(self, entry: Entry) -> None:
        """Append one record."""
        self.assign_epoch(entry.epoch)
        self.entries.append(entry)

    def epoch_end(self, epoch: int | None) -> EpochEnd | None:
        """Return the largest epoch at or below `epoch`, and where it ends, as `PartitionLog.end_offset_for_epoch` does."""
        if epoch is None or not self.epochs or epoch > self.epochs[-1][0]:
            return None
        below = [known for known, _ in self.epochs if known <= epoch]
        end = next((start for known, start in self.epochs if known > epoch), self.end)
        return EpochEnd(below[-1] if below else epoch, end)

    def truncate(self, to_offset: int) -> None:
        """Drop the tail."""
        del self.entries[to_offset:]
        self.flushed = min(self.flushed, to_offset)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < to_offset]

    def reopen(self, keep: int) -> None:
        """Reopen after a crash that left `keep` records. All of them are flushed then, and the epochs are read from them."""
        self.truncate(keep)
        self.flushed = self.end
        self.epochs = []
        for offset, entry in enumerate(self.entries):
            if not self.epochs or self.epochs[-1][0] < entry.epoch:
                self.epochs.append((entry.epoch, offset))


@dataclass(slots=True)
class Pushed:
    """Records of one leader epoch, on their way to a follower."""

    session: int
    base_offset: int
    entries: list[Entry]


@dataclass(slots=True)
class Told:
    """A high watermark on its way to a follower."""

    session: int
    high_watermark: int


ToLeader = Subscribe | SendAck | int
"""Messages of a follower. A number is a session that ends."""

SubscriptionAnswer = AcceptSubscription | DivergeSubscription | EndSubscription
ToFollower = SubscriptionAnswer | Pushed | Told


@dataclass(slots=True, eq=False)
class Stream:
    """One Replicate stream. Messages under way when it broke may still arrive, late."""

    follower_id: int
    leader_id: int
    follower_process: int
    leader_process: int
    broker_epoch: int
    up: deque[ToLeader] = field(default_factory=deque[ToLeader])
    down: deque[ToFollower] = field(default_factory=deque[ToFollower])
    is_open: bool = True
    # The session numbers of the follower on this stream.
    asked: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class Subscription:
    """A subscription as the leader's shell passes it on."""

    stream: Stream
    session: int
    next_offset: int


@dataclass(slots=True)
class InFlight:
    """A proposal on its way to the controller."""

    node_id: int
    process: int
    broker_epoch: int
    effect: ProposeIsr
    is_awaited: bool = True


@dataclass(frozen=True, slots=True)
class Version:
    """The committed metadata at one time."""

    partition: PartitionImage
    brokers: dict[int, BrokerState]


class Node:
    """A broker with one replica."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.log = SimLog()
        self.core: PartitionReplica | None = None
        self.process = 0
        self.broker_epoch = 0
        self.stopped_clean_epoch: int | None = None
        self.version = 0
        self.high_watermark = 0
        self.wants_flush = False
        self.flush_end: int | None = None
        self.subscriptions: dict[int, Subscription] = {}
        self.incoming: Pushed | None = None
        self.asking: Subscribe | None = None
        self.tokens: dict[int, int] = {}
        self.token_count = 0
