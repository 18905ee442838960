# SPDX-License-Identifier: Apache-2.0
"""Brokers, topics and partitions as an image holds them, and counts over the partitions.

Owns the value types, and the table of a topic's partitions. The table is compact because one process may hold a million partitions:
they are packed in blocks (`partition_blocks.py`), and a `PartitionImage` is created when a caller reads one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, overload

from metaquorum.metadata import partition_blocks
from metaquorum.metadata.partition_blocks import BLOCK_PARTITIONS, Members, OpenBlock

Choice = TypeVar("Choice")


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
        in_controlled_shutdown: True during a controlled shutdown of the broker.
        log_directory_ids: ids of its log directories, 16 bytes each.
        unclean: see `BrokerRecord`.
        lost_directories: see `BrokerRecord`.
        replaced_log_directory_ids: see `BrokerRecord`.
        replaced_broker_epoch: see `BrokerRecord`.
        offline_log_directory_ids: log directories of the broker that have failed, ascending.
        min_feature_level: lowest feature level that it supports, inclusive.
        max_feature_level: highest feature level that it supports, inclusive.
        replication_port: TCP port at the host for replication; 0: unknown.
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
    lost_directories: bool = False
    replaced_log_directory_ids: tuple[bytes, ...] = ()
    replaced_broker_epoch: int = 0
    offline_log_directory_ids: tuple[bytes, ...] = ()
    min_feature_level: int = 1
    max_feature_level: int = 1
    replication_port: int = 0

    @property
    def can_lead(self) -> bool:
        """True if the broker may lead partitions."""
        return not self.fenced and not self.in_controlled_shutdown


class PartitionImage(NamedTuple):
    """A partition. A named tuple, as its records are.

    Attributes:
        partition: number, from 0.
        replicas: node ids; the first is the preferred leader.
        isr: node ids of the in-sync replicas, in the order of `replicas`.
        leader_id: node id, or None while there is no leader.
        leader_epoch: number of this leadership.
        partition_epoch: version of this state.
        elr: node ids of the eligible leader replicas, which have everything committed, too (`isr.py`).
        last_known_elr: node ids that were in `elr` or `isr` until an unclean shutdown.
        adding: those of `replicas` that a reassignment under way adds.
        removing: those of `replicas` that the reassignment removes.
        awaited: those of `isr` whose log directory is gone, packed (`awaited.py`); while there are any, there is no leader.
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
    awaited: tuple[int, ...] = ()

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas that it has once the reassignment under way is complete; those that it has if there is none."""
        return tuple(node_id for node_id in self.replicas if node_id not in self.removing)


def _members(partition: PartitionImage) -> bytes:
    return partition_blocks.encode_members(
        partition.leader_id,
        partition.replicas,
        partition.isr,
        partition.elr,
        partition.last_known_elr,
        partition.adding,
        partition.removing,
        partition.awaited,
    )


def _image(number: int, entry: tuple[bytes, int, int]) -> PartitionImage:
    data, leader_epoch, partition_epoch = entry
    members = partition_blocks.decode_members(data)
    return PartitionImage(
        number,
        members.replicas,
        members.isr,
        members.leader_id,
        leader_epoch,
        partition_epoch,
        members.elr,
        members.last_known_elr,
        members.adding,
        members.removing,
        members.awaited,
    )


def example(members: bytes) -> PartitionImage:
    """Return a new partition with these members, the first one of its topic."""
    return _image(0, (members, 0, 0))


def partitions_of_block(number: int, data: bytes) -> Iterator[PartitionImage]:
    """Yield the partitions of block `number` of a topic."""
    for partition, entry in enumerate(partition_blocks.entries(data), number * BLOCK_PARTITIONS):
        yield _image(partition, entry)


class Partitions(Sequence[PartitionImage]):
    """The partitions of a topic by number, packed in blocks. One block at a time is open for changes, until `seal`.

    Args:
        partitions: initial partitions, numbered from 0.
    """

    __slots__ = ("_blocks", "_count", "_open", "_open_number")

    def __init__(self, partitions: Sequence[PartitionImage] = ()) -> None:
        self._blocks: list[bytes] = []
        self._count = 0
        # The entry of the open block in `_blocks` is outdated.
        self._open: OpenBlock | None = None
        self._open_number = 0
        for partition in partitions:
            self.append(partition)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> PartitionImage: ...

    @overload
    def __getitem__(self, number: slice) -> list[PartitionImage]: ...

    def __getitem__(self, number: int | slice) -> PartitionImage | list[PartitionImage]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self._count))]
        number = self._checked(number)
        block, place = divmod(number, BLOCK_PARTITIONS)
        if self._open is not None and block == self._open_number:
            opened = self._open
            return _image(number, (opened.members[place], opened.leader_epochs[place], opened.partition_epochs[place]))
        return _image(number, partition_blocks.entry(self._blocks[block], place))

    def __iter__(self) -> Iterator[PartitionImage]:
        number = 0
        for data in self.blocks():
            for entry in partition_blocks.entries(data):
                yield _image(number, entry)
                number += 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partitions):
            return NotImplemented
        return self._count == other._count and self.blocks() == other.blocks()

    def __repr__(self) -> str:
        return f"Partitions({list(self)!r})"

    def append(self, partition: PartitionImage) -> None:
        """Add the partition with the next number."""
        assert partition.partition == self._count, f"partition {partition.partition} after {self._count}"
        block = self._count // BLOCK_PARTITIONS
        opened = self.open(block)
        opened.members.append(_members(partition))
        opened.leader_epochs.append(partition.leader_epoch)
        opened.partition_epochs.append(partition.partition_epoch)
        self._count += 1

    def chosen(self, first: int, end: int, choose: Callable[[bytes], Choice | None]) -> Iterator[tuple[int, Choice]]:
        """Yield the number of each partition for whose members `choose` returns something, together with that result.

        Args:
            first: first partition number (inclusive).
            end: end of the partition numbers (exclusive).
            choose: called once for each distinct members of a block; None skips their partitions.
        """
        blocks = self.blocks()
        for block in range(first // BLOCK_PARTITIONS, -(-end // BLOCK_PARTITIONS)):
            data = blocks[block]
            choices = [choose(members) for members in partition_blocks.distinct_members(data)]
            if all(choice is None for choice in choices):
                continue
            for number, kind in enumerate(partition_blocks.index_of(data), start=block * BLOCK_PARTITIONS):
                choice = choices[kind]
                if choice is not None and first <= number < end:
                    yield number, choice

    def tally(self) -> Iterator[tuple[Members, int]]:
        """Yield the members that occur, with their number of partitions. The same members may come more than once."""
        return partition_blocks.tally(self.blocks())

    def blocks(self) -> list[bytes]:
        """Return all blocks. Callers must not change the list."""
        self.seal()
        return self._blocks

    def add_block(self, number: int, data: bytes) -> Iterator[tuple[Members, int]]:
        """Add the next block from disk or from a peer; return its `tally`.

        Raises:
            AssertionError, struct.error, IndexError: the block is damaged, or not the next one.
        """
        assert number * BLOCK_PARTITIONS == self._count, f"block {number} after {self._count} partitions"
        partition_blocks.check(data)
        self._blocks.append(data)
        self._count += partition_blocks.partition_count(data)
        return partition_blocks.tally((data,))

    def open(self, block: int) -> OpenBlock:
        """Return a block to change, valid until another one is opened. The number after the last block starts a new one."""
        if self._open is None or block != self._open_number:
            self.seal()
            if block == len(self._blocks):
                self._blocks.append(b"")
                self._open = OpenBlock()
            else:
                self._open = partition_blocks.open_block(self._blocks[block])
            self._open_number = block
        return self._open

    def seal(self) -> None:
        """Pack the open block, if there is one."""
        if self._open is not None:
            self._blocks[self._open_number] = self._open.pack()
            self._open = None

    def copy(self) -> Partitions:
        """Return an independent copy, which shares the packed blocks."""
        other = Partitions()
        other._blocks = list(self.blocks())
        other._count = self._count
        return other

    def _checked(self, number: int) -> int:
        if not -self._count <= number < self._count:
            raise IndexError(f"partition {number} of {self._count}")
        return number % self._count


@dataclass(slots=True)
class TopicImage:
    """A topic: name, id, partitions (index = number) and the configs set for it.

    Only the image that owns it changes it, in place. Others only read it, and keep no reference across a change.
    """

    topic: str
    topic_id: bytes
    partitions: Partitions = field(default_factory=Partitions)
    configs: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def replication_factor(self) -> int:
        """Number of replicas of the first partition; 0 for a topic without partitions."""
        return len(self.partitions[0].replicas) if self.partitions else 0

    def copy(self) -> TopicImage:
        """Return an independent copy, which shares the packed partitions."""
        return TopicImage(self.topic, self.topic_id, self.partitions.copy(), dict(self.configs))


@dataclass(slots=True)
class PartitionCounts:
    """Number of replicas and leaders of every broker, updated with each change of a partition.

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
        """Add one partition to the counts."""
        self.move(partition, 1)

    def replace(self, old: Members, new: Members, count: int) -> None:
        """Count `count` partitions that changed from `old` to `new`; cheap if leader and replicas are the same."""
        if old.leader_id != new.leader_id or old.replicas != new.replicas:
            self.move(old, -count)
            self.move(new, count)

    def copy(self) -> PartitionCounts:
        """Return an independent copy."""
        return PartitionCounts(self.partitions, self.leaderless, dict(self.replicas), dict(self.leaders))

    def move(self, partition: PartitionImage | Members, step: int) -> None:
        """Add `step` partitions like this one to the counts; a negative `step` removes them."""
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
