# SPDX-License-Identifier: Apache-2.0
"""Placement of the replicas of new partitions, and their leaders.

Owns only the rules. In this order:

1. No broker has a partition twice.
2. The replicas of a partition use as many racks as possible, as evenly as the sizes of the racks allow. Brokers without a rack count
as one rack. 3. Within the topic, racks get replicas in proportion to their brokers, and the brokers of a rack differ by at most one.
With racks of equal size (or without racks) all brokers differ by at most one. 4. Among equals, brokers with the fewest replicas in
the cluster come first. So the remainders of many topics even out, and a new broker is used first. 5. The numbers of leaders (first
replicas) differ by at most one between brokers with equally many replicas, and their remainders even out, too.

Among equally good placements the seed decides, so brokers share partitions in ever-changing groups, and the load of a lost broker
spreads over all others. Pure: equal arguments give equal placements.
Source: the aims of Kafka's StripedReplicaPlacer, reached by greedy choice with loads instead of a stripe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from metaquorum.metadata.state import PartitionCounts


@dataclass(frozen=True, slots=True)
class UsableBroker:
    """A broker that may get replicas. `rack` None: it has no rack."""

    broker_id: int
    rack: str | None


class _Draws:
    """Pseudo-random 64-bit numbers from a seed (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next(self) -> int:
        """Return the next number."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)


_MASK = 2**64 - 1

_Rank = tuple[float, float, int, int]
"""Sort key of a heap: load within the topic, load in the cluster, tie breaker, identity."""


@dataclass(slots=True)
class _Broker:
    broker_id: int
    in_topic: int
    in_cluster: int

    def rank(self, tie: int) -> _Rank:
        return self.in_topic, self.in_cluster, tie, self.broker_id


@dataclass(slots=True)
class _Rack:
    """A rack: a heap of its brokers, and the brokers that already have the current partition."""

    number: int
    size: int
    in_topic: int = 0
    in_cluster: int = 0
    brokers: list[tuple[_Rank, _Broker]] = field(default_factory=list["tuple[_Rank, _Broker]"])
    taken: list[_Broker] = field(default_factory=list[_Broker])

    def rank(self, tie: int) -> _Rank:
        # Load for each broker, so that a larger rack gets more replicas.
        return self.in_topic / self.size, self.in_cluster / self.size, tie, self.number

    def take(self) -> int:
        """Give a replica to the broker with the lowest load, and return its id."""
        broker = heappop(self.brokers)[1]
        broker.in_topic += 1
        broker.in_cluster += 1
        self.in_topic += 1
        self.in_cluster += 1
        self.taken.append(broker)
        return broker.broker_id


class _Placer:
    def __init__(
        self, factor: int, usable: Sequence[UsableBroker], topic: PartitionCounts, cluster: PartitionCounts, seed: int
    ) -> None:
        self._factor = factor
        self._draws = _Draws(seed)
        racks: dict[str | None, _Rack] = {}
        for broker in sorted(usable, key=lambda broker: broker.broker_id):
            rack = racks.setdefault(broker.rack, _Rack(number=len(racks), size=0))
            found = _Broker(
                broker.broker_id, topic.replicas.get(broker.broker_id, 0), cluster.replicas.get(broker.broker_id, 0)
            )
            rack.size += 1
            rack.in_topic += found.in_topic
            rack.in_cluster += found.in_cluster
            rack.brokers.append((found.rank(self._tie(found.broker_id)), found))
        for rack in racks.values():
            heapify(rack.brokers)
        self._racks = [(rack.rank(self._tie(rack.number)), rack) for rack in racks.values()]
        heapify(self._racks)

    def _tie(self, number: int) -> int:
        # A single replica shares its partition with no other broker, so plain ascending ids are as good, and easier to follow.
        return number if self._factor == 1 else self._draws.next()

    def next(self) -> list[int]:
        """Return the replicas of one more partition, unordered."""
        chosen: list[int] = []
        touched: dict[int, _Rack] = {}
        waiting: list[_Rack] = []
        # One round takes at most one broker of each rack, so no rack gets a second replica before each has one.
        while len(chosen) < self._factor:
            if not self._racks:
                self._queue(rack for rack in waiting if rack.brokers)
                waiting = []
            rack = heappop(self._racks)[1]
            chosen.append(rack.take())
            touched[rack.number] = rack
            waiting.append(rack)
        queued = {rack.number for _, rack in self._racks} if len(chosen) > len(touched) else set[int]()
        for rack in touched.values():
            for broker in rack.taken:
                heappush(rack.brokers, (broker.rank(self._tie(broker.broker_id)), broker))
            rack.taken.clear()
        self._queue(rack for rack in touched.values() if rack.number not in queued)
        return chosen

    def _queue(self, racks: Iterable[_Rack]) -> None:
        for rack in racks:
            heappush(self._racks, (rack.rank(self._tie(rack.number)), rack))


def place(
    partition_count: int,
    replication_factor: int,
    usable: Sequence[UsableBroker],
    *,
    topic: PartitionCounts,
    cluster: PartitionCounts,
    seed: int,
    max_leader_lookups: int,
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition; the first of each is its preferred leader.

    Args:
        partition_count: number of partitions, from 1.
        replication_factor: replicas of each, from 1 to the number of usable brokers.
        usable: brokers that may get replicas, without repetition.
        topic: existing counts of the topic; its leaders are the preferred ones.
        cluster: existing counts of the cluster.
        seed: random number that decides among equals.
        max_leader_lookups: as in `ControllerSettings`.
    """
    assert 1 <= replication_factor <= len(usable), f"{replication_factor} replicas on {len(usable)} brokers"
    placer = _Placer(replication_factor, usable, topic, cluster, seed)
    placed = [placer.next() for _ in range(partition_count)]
    if replication_factor > 1:
        _Leaders(placed, topic, cluster, max_leader_lookups).spread()
    return [tuple(replicas) for replicas in placed]


class _Leaders:
    """Chooses the first replica of each partition, then moves leaders along chains of partitions until they are even."""

    def __init__(
        self, placed: list[list[int]], topic: PartitionCounts, cluster: PartitionCounts, max_lookups: int
    ) -> None:
        self._placed = placed
        members = sorted({broker_id for replicas in placed for broker_id in replicas})
        self._in_topic = {broker_id: topic.leaders.get(broker_id, 0) for broker_id in members}
        self._in_cluster = {broker_id: cluster.leaders.get(broker_id, 0) for broker_id in members}
        # Partitions led by a broker, in insertion order.
        self._led: dict[int, dict[int, None]] = {broker_id: {} for broker_id in members}
        self._lookups_left = max_lookups

    def spread(self) -> None:
        """Put a leader at the start of each partition's replicas."""
        for partition, replicas in enumerate(self._placed):
            best = min(replicas, key=lambda broker_id: (self._in_topic[broker_id], self._in_cluster[broker_id]))
            self._lead(partition, best)
        for broker_id in self._led:
            while (chain := self._chain_to_better(broker_id)) is not None:
                for partition, heir in chain:
                    self._pass_on(partition, heir)

    def _lead(self, partition: int, broker_id: int) -> None:
        replicas = self._placed[partition]
        position = replicas.index(broker_id)
        replicas[0], replicas[position] = replicas[position], replicas[0]
        self._led[broker_id][partition] = None
        self._in_topic[broker_id] += 1
        self._in_cluster[broker_id] += 1

    def _pass_on(self, partition: int, heir: int) -> None:
        old = self._placed[partition][0]
        del self._led[old][partition]
        self._in_topic[old] -= 1
        self._in_cluster[old] -= 1
        self._lead(partition, heir)

    def _is_better(self, old: int, heir: int) -> bool:
        """Return True if moving one leader from `old` to `heir` is more even, in the topic or else in the cluster."""
        less = self._in_topic[old] - self._in_topic[heir]
        return less > 1 or (less == 1 and self._in_cluster[old] - self._in_cluster[heir] > 1)

    def _chain_to_better(self, start: int) -> list[tuple[int, int]] | None:
        """Return (partition, new leader) for each step from `start` to a broker that should lead one more; None if there is none."""
        if not any(self._is_better(start, broker_id) for broker_id in self._led):
            return None
        came_by: dict[int, tuple[int, int]] = {}
        queue = deque([start])
        while queue and self._lookups_left > 0:
            giver = queue.popleft()
            for partition in self._led[giver]:
                self._lookups_left -= 1
                for heir in self._placed[partition][1:]:
                    if heir == start or heir in came_by:
                        continue
                    came_by[heir] = (partition, giver)
                    if self._is_better(start, heir):
                        return _chain(came_by, start, heir)
                    queue.append(heir)
        return None


def _chain(came_by: dict[int, tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    while end != start:
        partition, giver = came_by[end]
        steps.append((partition, end))
        end = giver
    return steps
