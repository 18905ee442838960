# SPDX-License-Identifier: Apache-2.0
"""The members of groups in the world: the asyncio consumers of the SDK, each in its own process.

Owns what their applications do: read, take their time, commit, leave and come back, stall. `GroupLaws` judges it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from lograft import TopicPartition
from lograft._client.clock import monotonic_ms
from lograft._groups.member import GroupMember
from lograft._groups.membership import Membership, Phase
from lograft.aio import Consumer
from lograft.errors import LograftError
from lograft.types import ConsumerRecord

from integration_tests.simulation.clients import AFTER_ERROR_S, TOPIC, until_topic
from integration_tests.simulation.group_laws import GroupLaws, Key
from integration_tests.simulation.options import WorldOptions, rack_name
from integration_tests.simulation.process import SimProcess
from metaquorum.testing.invariants import require
from metaquorum.testing.scheduler import Scheduler

POLL_TIMEOUT_MS: Final = 400
PROCESSING_LIMIT_MS: Final = 4_000
"""Processing limit of the members, in milliseconds."""
AUTO_COMMIT_MS: Final = 500
COMMIT_TIMEOUT_MS: Final = 5_000
LONGEST_AWAY_MS: Final = 4_000
"""Longest milliseconds between two memberships of one process."""


class GroupWorld(Protocol):
    """What members need from the world."""

    scheduler: Scheduler
    options: WorldOptions
    counts: Counter[str]
    bootstrap: list[str]
    laws: GroupLaws
    is_topic_there: bool
    is_healed: bool
    finished_groups: set[str]


class MemberClient:
    """The application of one member, until the group has nothing more to do.

    Args:
        world: the world.
        process: its process.
        group: its group.
        instance_id: name of a static member; None for a dynamic one.
    """

    def __init__(self, world: GroupWorld, process: SimProcess, *, group: str, instance_id: str | None) -> None:
        self.name = process.name
        self.group = group
        self._world = world
        self._process = process
        self._instance_id = instance_id
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")
        self._consumer: Consumer | None = None
        self._keys: dict[TopicPartition, Key] = {}
        self._is_auto = True
        self._is_unsteady = False

    # What the laws see.

    @property
    def is_alive(self) -> bool:
        """See `MemberView`."""
        return self._process.is_alive

    @property
    def member_id(self) -> str:
        """See `MemberView`."""
        membership = None if self._consumer is None or self._is_unsteady else self._consumer.membership
        return "" if membership is None else membership.member_id

    @property
    def heard_ms(self) -> int:
        """See `MemberView`. The clocks of clients are right."""
        core = None if self._consumer is None else self._membership()
        if core is None or core.phase is not Phase.MEMBER:
            return -1
        return core._answered_sent_ms  # pyright: ignore[reportPrivateUsage]

    @property
    def held(self) -> frozenset[Key]:
        """See `MemberView`."""
        return frozenset(self._keys.values()) if self.is_alive else frozenset()

    def may_deliver(self, key: Key) -> bool:
        """See `MemberView`."""
        core = self._membership() if self.is_alive and self._consumer is not None else None
        if core is None or core.phase is not Phase.MEMBER:
            return False
        # These are the facts on which the client decides; no public property has them.
        held = core._held - core._giving_up  # pyright: ignore[reportPrivateUsage]
        now_ms = self._process.loop.clock.local_ms(self._world.scheduler.now_ms)
        return key in held and now_ms < core.lease_end_ms

    def _membership(self) -> Membership | None:
        assert self._consumer is not None
        member: GroupMember | None = self._consumer._shared._member  # pyright: ignore[reportPrivateUsage]
        return None if member is None else member._core  # pyright: ignore[reportPrivateUsage]

    # The application.

    async def run(self) -> None:
        """Be a member, again and again."""
        world = self._world
        await until_topic(world)
        world.laws.joined(self)
        while not self._is_over:
            await self._live()
            if not self._is_over:
                world.counts["group member left"] += 1
                await asyncio.sleep(self._rng.uniform(0, 0 if world.is_healed else LONGEST_AWAY_MS) / 1000)

    @property
    def _is_over(self) -> bool:
        return self.group in self._world.finished_groups

    async def _live(self) -> None:
        rng, world = self._rng, self._world
        self._is_auto = rng.random() < 0.5
        rack = rack_name(rng.randint(1, world.options.broker_count)) if rng.random() < 0.5 else None
        consumer = Consumer(
            world.bootstrap,
            group=self.group,
            instance_id=self._instance_id,
            auto_commit=self._is_auto,
            auto_commit_interval_ms=AUTO_COMMIT_MS,
            assignor=rng.choice((None, "uniform", "range")),
            processing_limit_ms=PROCESSING_LIMIT_MS,
            client_rack=rack,
        )
        self._consumer = consumer
        self._is_unsteady = False
        try:
            pattern = "or.*" if rng.random() < 0.3 else None
            await consumer.subscribe(
                None if pattern else TOPIC,
                pattern=pattern,
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                on_lost=self._on_lost,
            )
            await self._work(consumer)
            self._is_unsteady = True
            if rng.random() < 0.5:
                await consumer.unsubscribe()
        finally:
            await consumer.close()
            self._keys.clear()
            self._consumer = None

    async def _work(self, consumer: Consumer) -> None:
        rng, world, laws = self._rng, self._world, self._world.laws
        leave_ms = None
        if world.options.leave_every_ms is not None:
            leave_ms = monotonic_ms() + rng.randint(1, 2 * world.options.leave_every_ms)
        while not self._is_over:
            if not world.is_healed and leave_ms is not None and monotonic_ms() >= leave_ms:
                return
            try:
                records = await consumer.poll(100, POLL_TIMEOUT_MS)
            except LograftError as error:
                world.counts[f"group poll: {error.code.name}"] += 1
                membership = self._membership()
                if membership is None or membership.phase is Phase.ENDED:
                    return
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            ends: dict[TopicPartition, int] = {}
            for record in records:
                tp = TopicPartition(record.topic, record.partition)
                with laws.noting():
                    laws.delivers(self, self._key(tp), record.offset, record.value or b"")
                ends[tp] = record.offset + 1
            world.counts["group record delivered"] += len(records)
            await self._take_time(records)
            for tp, end in ends.items():
                laws.processed(self, self._key(tp), end)
            if not self._is_auto and rng.random() < 0.4:
                await self._commit(consumer, {tp: consumer.position(tp) for tp in consumer.assignment})

    def _key(self, tp: TopicPartition) -> Key:
        return self._keys.get(tp, (b"", tp.partition))

    async def _take_time(self, records: Sequence[ConsumerRecord]) -> None:
        """Process records, or be away from the consumer for longer than its limit."""
        rng, world = self._rng, self._world
        delay_ms = rng.randint(0, 20) if records else 0
        stall_every_ms = world.options.stall_every_ms
        if stall_every_ms is not None and not world.is_healed and rng.random() < POLL_TIMEOUT_MS / 2 / stall_every_ms:
            world.counts["group application stalled"] += 1
            delay_ms = rng.randint(PROCESSING_LIMIT_MS // 2, 2 * PROCESSING_LIMIT_MS)
            self._is_unsteady = True
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        self._is_unsteady = False

    async def _commit(self, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        # A commit that was begun before the last fault may wait for its answer for longer than the processing limit.
        was_unsteady, self._is_unsteady = self._is_unsteady, True
        try:
            if self._rng.random() < 0.3:
                consumer.commit_async(offsets)
            else:
                await consumer.commit(offsets, timeout_ms=COMMIT_TIMEOUT_MS)
        except LograftError as error:
            self._world.counts[f"group commit: {error.code.name}"] += 1
        finally:
            self._is_unsteady = was_unsteady

    # Rebalances.

    def _on_assigned(self, tps: Sequence[TopicPartition]) -> None:
        consumer, laws = self._consumer, self._world.laws
        assert consumer is not None
        for tp in tps:
            key = self._keys[tp] = consumer._shared._keys[tp]  # pyright: ignore[reportPrivateUsage]
            with laws.noting():
                laws.begins(self, key, consumer.position(tp))

    async def _on_revoked(self, tps: Sequence[TopicPartition]) -> None:
        consumer = self._consumer
        assert consumer is not None
        self._end(tps, is_lost=False)
        if not self._is_auto:
            await self._commit(consumer, {tp: consumer.position(tp) for tp in tps})

    def _on_lost(self, tps: Sequence[TopicPartition]) -> None:
        self._end(tps, is_lost=True)

    def _end(self, tps: Sequence[TopicPartition], *, is_lost: bool) -> None:
        laws = self._world.laws
        keys = [self._keys.pop(tp) for tp in tps]
        with laws.noting():
            laws.ends(self, keys, is_lost=is_lost)


class CommittedReader:
    """Looks up what the groups have committed, when everything is over."""

    def __init__(self, world: GroupWorld) -> None:
        self._world = world

    async def run(self) -> None:
        """Compare it with the committed log."""
        world = self._world
        tps = [TopicPartition(TOPIC, each) for each in range(world.options.partition_count)]
        for group in sorted(world.finished_groups):
            async with Consumer(world.bootstrap, group=group, auto_commit=False) as consumer:
                while True:
                    try:
                        found = await consumer.committed(tps)
                        ids = await consumer._shared._keys_of(tps)  # pyright: ignore[reportPrivateUsage]
                        break
                    except LograftError:
                        await asyncio.sleep(AFTER_ERROR_S)
            for tp in tps:
                offset, known = found[tp], world.laws.committed(group, ids[tp])
                require(
                    (offset.offset if offset else None) == known,
                    "the last answer is what was committed",
                    (group, tp, offset, known),
                )
