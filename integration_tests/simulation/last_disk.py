# SPDX-License-Identifier: Apache-2.0
"""The fault "last disk": brokers leave one after the other, and the last one to leave loses its disk for a while.

Owns the steps of this fault, one fault at a time. It begins when all brokers serve and every replica is in sync, so the data on the
disk is elsewhere too, or its partition awaits it. The others leave by SIGTERM, kill -9 or power loss and stay away. The last one may
acknowledge alone. Then it leaves too and gets an empty disk. All start in any order. While the metadata awaits the disk, its
partitions have no leader. The disk comes back after a while, sometimes after the broker has lost an empty disk too. Disks that were
in the machine in between are kept while one is awaited, because a partition may be in sync only on them.

A partition may await a disk that never had its log: it was made while that disk was in the machine, and the disk left before the
broker had made the log. The operator then elects another replica uncleanly, which loses nothing: nothing was committed without that
log. The laws check it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from lograft.types import TopicPartition

from integration_tests.simulation.servers import BrokerMachine, DiskInHand
from metaquorum.metadata.awaited import awaited_directories
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy

if TYPE_CHECKING:
    from integration_tests.simulation.faults import StruckWorld

WHOLE_MS_MAX: Final = 8_000
"""Maximum milliseconds to wait until all brokers serve and all replicas are in sync."""
LEAVES_MS_MAX: Final = 1_500
"""Maximum milliseconds between two brokers that leave, and for which the last one is alone."""
STOPS_MS_MAX: Final = 6_000
"""Milliseconds after which a clean shutdown is ended by a kill."""
AWAITED_MS: Final = (200, 4_000)
"""Shortest and longest milliseconds for which an awaited disk stays away each time."""
LOSES_AGAIN: Final = 0.4
"""Probability that the broker loses another disk while the first one is awaited."""
ELECTION_MS: Final = 1_000
"""Milliseconds between two unclean elections."""
LOOK_MS: Final = 50
"""Milliseconds between two checks of the state."""


class LastDisk:
    """The fault, step by step.

    Args:
        world: the world.
        rng: source of chance.
        cut_power: makes a broker lose power.
    """

    def __init__(self, world: StruckWorld, rng: random.Random, cut_power: Callable[[BrokerMachine], None]) -> None:
        self._world = world
        self._rng = rng
        self._cut_power = cut_power
        self._steps: Iterator[int] | None = None
        self._kept: list[DiskInHand] = []

    @property
    def is_under_way(self) -> bool:
        """True from the moment it shall begin until no disk is awaited any more."""
        return self._steps is not None

    def strike(self) -> None:
        """Begin as soon as the world is whole, if that is within `WHOLE_MS_MAX`. Does nothing while it is under way."""
        if self._steps is None:
            self._steps = self._run()
            self._go_on()

    def _go_on(self) -> None:
        assert self._steps is not None, "a step of what is over"
        wait_ms = next(self._steps, None)
        if wait_ms is None:
            self._steps = None
        else:
            self._world.scheduler.after(wait_ms, self._go_on)

    def _run(self) -> Iterator[int]:
        """Run the steps. Yields the milliseconds until the next step."""
        world, rng = self._world, self._rng
        late_ms = world.scheduler.now_ms + WHOLE_MS_MAX
        while not world.is_whole:
            if world.scheduler.now_ms >= late_ms or world.is_healed:
                return
            yield LOOK_MS
        last = rng.choice([broker for broker in world.brokers if _has_replicas(broker)])
        others = [broker for broker in world.brokers if broker is not last]
        rng.shuffle(others)
        for other in others:
            yield from self._leave(other)
            yield rng.randint(0, LEAVES_MS_MAX)
        yield from self._leave(last)
        self._exchange(last, None)
        world.counts["last disk taken away"] += 1
        for broker in rng.sample(world.brokers, len(world.brokers)):
            broker.is_held = False
            world.scheduler.after(rng.randint(1, world.options.down_ms_max), broker.start)
        yield from self._give_back(last)
        self._kept.clear()

    def _leave(self, broker: BrokerMachine) -> Iterator[int]:
        """Stop, kill or power off a broker, and keep it from starting."""
        world, rng = self._world, self._rng
        broker.is_held = True
        how = rng.choice(("stop", "stop", "kill", "power"))
        if how == "stop":
            broker.stop()
            late_ms = world.scheduler.now_ms + STOPS_MS_MAX
            while broker.is_up and world.scheduler.now_ms < late_ms:
                yield LOOK_MS
        if how == "power" and world.options.flush_policy is FlushPolicy.ACK:
            self._cut_power(broker)
        broker.kill()

    def _exchange(self, broker: BrokerMachine, disk: DiskInHand | None) -> None:
        """Give a stopped broker another disk, and keep the one that it had."""
        self._kept.append(broker.exchange_disk(disk))
        if disk is not None:
            self._kept.remove(disk)

    def _give_back(self, last: BrokerMachine) -> Iterator[int]:
        """Give the broker awaited disks, each after a while, until every partition has a leader."""
        world, rng = self._world, self._rng
        was_awaited = False
        loses_again = rng.random() < LOSES_AGAIN
        while True:
            yield LOOK_MS
            if not last.is_serving:
                continue
            partitions = _partitions(last)
            awaited = {each for partition in partitions for each in _awaited(partition, last)}
            if not awaited:
                if any(partition.leader_id is None for partition in partitions):
                    continue
                world.counts["awaited disk came back" if was_awaited else "last disk lost, others had everything"] += 1
                return
            if not was_awaited:
                was_awaited = True
                world.counts["last disk in sync lost and awaited"] += 1
                yield rng.randint(*AWAITED_MS)
                continue
            disk = next((each for each in self._kept if awaited.intersection(each.directory_ids)), None)
            if disk is None and (forsaken := _forsaken(last)):
                world.elect_uncleanly(forsaken)
                world.counts["unclean election of what an awaited disk never had"] += 1
                yield ELECTION_MS
                continue
            if disk is None or not all(_is_elsewhere(partition, last) for partition in partitions):
                continue
            if loses_again and not world.is_healed:
                loses_again, disk = False, None
                world.counts["another disk lost while one is awaited"] += 1
            last.kill()
            self._exchange(last, disk)
            world.scheduler.after(rng.randint(1, world.options.down_ms_max), last.start)
            if disk is None:
                yield rng.randint(*AWAITED_MS)


def _partitions(broker: BrokerMachine) -> list[PartitionImage]:
    """Return all partitions as a serving broker knows them."""
    return [partition for topic in broker.server.observer.image.topics() for partition in topic.partitions]


def _has_replicas(broker: BrokerMachine) -> bool:
    return any(broker.key.node_id in partition.replicas for partition in _partitions(broker))


def _forsaken(broker: BrokerMachine) -> list[TopicPartition]:
    """Return the partitions that await nothing but disks that the broker has, none of which has their log."""
    found: list[TopicPartition] = []
    for topic in broker.server.observer.image.topics():
        for partition in topic.partitions:
            awaited = _awaited(partition, broker)
            is_back = bool(awaited) and broker.directory_ids.issuperset(awaited)
            if is_back and not broker.has_log(topic.topic_id, partition.partition):
                found.append(TopicPartition(topic.topic, partition.partition))
    return found


def _awaited(partition: PartitionImage, broker: BrokerMachine) -> tuple[bytes, ...]:
    return awaited_directories(partition.awaited, broker.key.node_id)


def _is_elsewhere(partition: PartitionImage, broker: BrokerMachine) -> bool:
    """Return True if everything of a partition that the broker's present disk holds in sync is in sync elsewhere too."""
    node_id = broker.key.node_id
    is_needed = node_id in partition.isr or node_id in partition.elr
    return not is_needed or bool(_awaited(partition, broker)) or bool(set(partition.isr) - {node_id})
