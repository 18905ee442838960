# SPDX-License-Identifier: Apache-2.0
"""Brokers, topics and partitions as an image holds them, and the counts over them.

Owns the value types. They are compact, because one process may hold a million partitions: slots, shared tuples of node
ids, no per-partition dictionaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """A registered broker.

    Attributes:
        broker_id: node id.
        incarnation_id: random id of the process, 16 bytes.
        broker_epoch: offset of the registration's record; identifies this registration.
        host: host name or address that clients use.
        port: TCP port that clients use.
        rack: rack, or None.
        fenced: True while the broker may not lead.
        in_controlled_shutdown: True while the broker leaves in an orderly way.
        log_directory_ids: ids of its log directories, 16 bytes each.
        unclean: see `BrokerRecord`.
        offline_log_directory_ids: those of its log directories that have failed, ascending.
        min_feature_level: lowest feature level that it can run at, inclusive.
        max_feature_level: highest feature level that it can run at, inclusive.
    """

    broker_id: int
    incarnation_id: bytes
    broker_epoch: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_directory_ids: tuple[bytes, ...]
    unclean: bool
    offline_log_directory_ids: tuple[bytes, ...] = ()
    min_feature_level: int = 1
    max_feature_level: int = 1

    @property
    def can_lead(self) -> bool:
        """True when partitions may be led by this broker."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition.

    Attributes:
        partition: number, from 0.
        replicas: node ids; the first is the preferred leader.
        isr: node ids of the in-sync replicas, in the order of `replicas`.
        leader_id: node id, or None while there is no leader.
        leader_epoch: number of this leadership.
        partition_epoch: version of this state.
        elr: node ids of the eligible leader replicas, which have everything committed too (`isr.py`).
        last_known_elr: node ids of those that were, or were in sync, until an unclean stop.
        adding: those of `replicas` that a reassignment under way adds.
        removing: those of `replicas` that it removes.
    """

    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_id: int | None
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(slots=True)
class TopicImage:
    """A topic: name, id, partitions (index = number) and the configs that were set for it.

    The image that owns it changes it in place; everybody else only reads it, and keeps no reference across a change.
    """

    topic: str
    topic_id: bytes
    partitions: list[PartitionImage] = field(default_factory=list[PartitionImage])
    configs: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def replication_factor(self) -> int:
        """Number of replicas of the first partition; 0 for a topic without partitions."""
        return len(self.partitions[0].replicas) if self.partitions else 0

    def copy(self) -> TopicImage:
        """Return a topic that can be changed without changing this one; the partitions are shared, being frozen."""
        return TopicImage(self.topic, self.topic_id, list(self.partitions), dict(self.configs))


@dataclass(slots=True)
class PartitionCounts:
    """How many replicas and leaders every broker has, kept up to date by each change of a partition.

    Attributes:
        partitions: number of partitions.
        leaderless: number of partitions without a leader.
        replicas: number of replicas by broker id; a broker without any is absent.
        leaders: number of led partitions by broker id; a broker without any is absent.
    """

    partitions: int = 0
    leaderless: int = 0
    replicas: dict[int, int] = field(default_factory=dict[int, int])
    leaders: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, partition: PartitionImage) -> None:
        """Count one partition."""
        self._move(partition, 1)

    def remove(self, partition: PartitionImage) -> None:
        """Count one partition less."""
        self._move(partition, -1)

    def replace(self, old: PartitionImage, new: PartitionImage) -> None:
        """Count a changed partition; cheap when only in-sync replicas or epochs differ."""
        if old.leader_id != new.leader_id or old.replicas != new.replicas:
            self._move(old, -1)
            self._move(new, 1)

    def copy(self) -> PartitionCounts:
        """Return counts that can be changed without changing these."""
        return PartitionCounts(self.partitions, self.leaderless, dict(self.replicas), dict(self.leaders))

    def _move(self, partition: PartitionImage, step: int) -> None:
        self.partitions += step
        for broker_id in partition.replicas:
            _bump(self.replicas, broker_id, step)
        if partition.leader_id is None:
            self.leaderless += step
        else:
            _bump(self.leaders, partition.leader_id, step)


def _bump(counts: dict[int, int], broker_id: int, step: int) -> None:
    count = counts.get(broker_id, 0) + step
    assert count >= 0, f"negative count {count} for broker {broker_id}"
    if count:
        counts[broker_id] = count
    else:
        del counts[broker_id]
