# SPDX-License-Identifier: Apache-2.0
"""The clients of the world: producers, consumers and an operator. Each is the real asyncio SDK in its own process.

Owns their requests, and writes the answers into the history. An error is an unknown outcome, unless the SDK says that nothing was done.
A client that is killed leaves its operations open.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from lograft import BatchReceipt, TopicPartition
from lograft.aio import Admin, Consumer, Producer
from lograft.errors import LograftError
from lograft.types import ConfigResource, ElectionType, QuorumDescription
from lograft.wire.codes import ErrorCode

from brokerd.coordinator.internal_topics import GROUPS, INGESTS
from integration_tests.harness.history.events import Event, Kind, Type
from integration_tests.harness.load.senders import outcome_of
from integration_tests.simulation.options import WorldOptions, rack_name
from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.servers import VoterMachine
from metaquorum.metadata.topic_configs import FLUSH_POLICY, FlushPolicy
from metaquorum.testing.scheduler import Scheduler

TOPIC: Final = "orders"
WAITING_MAX: Final = 60
"""Records of one producer and partition without a known result. At this number the producer waits."""
DELIVERY_TIMEOUT_MS: Final = 30_000
AFTER_ERROR_S: Final = 0.2
POLL_TIMEOUT_MS: Final = 300
READ_TIMEOUT_MS: Final = 30_000
END_TIMEOUT_MS: Final = 5_000
SHORT_LIVES: Final = {"segment.ms": "1000", "delete.retention.ms": "3000"}
"""Configs of `__groups` with which segments are sealed, and tombstones end, within a run."""
MOVE_EVERY_MS: Final = 2_000
"""Mean milliseconds until the operator sets these configs, in a world that moves no coordinators."""
REPLACE_EVERY_MS: Final = 1_000
"""Mean milliseconds between two checks of the operator for a voter that lost its disk."""


class History:
    """A history in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._op_count = 0

    def begin(self, process: str, kind: Kind, **fields: Any) -> int:
        """Note an invocation and return the number of the operation."""
        self._op_count += 1
        self._note(self._op_count, process, Type.INVOKE, kind, fields)
        return self._op_count

    def end(self, op: int, process: str, type: Type, kind: Kind, **fields: Any) -> None:
        """Note a completion."""
        self._note(op, process, type, kind, fields)

    def _note(self, op: int, process: str, type: Type, kind: Kind, fields: dict[str, Any]) -> None:
        event = Event(op=op, process=process, type=type, kind=kind, time_ns=time.monotonic_ns(), **fields)
        self.events.append(event)


class TopicWorld(Protocol):
    """A world that says when its topic exists."""

    is_topic_there: bool


class ClientWorld(Protocol):
    """What clients need from the world."""

    scheduler: Scheduler
    options: WorldOptions
    history: History
    counts: Counter[str]
    bootstrap: list[str]
    is_topic_there: bool
    is_healed: bool
    lost_voter: VoterMachine | None


async def until_topic(world: TopicWorld) -> None:
    """Wait until the operator has created the topic. It polls, because a process that would notify might be killed."""
    while not world.is_topic_there:  # noqa: ASYNC110 -- another process sets it
        await asyncio.sleep(AFTER_ERROR_S)


class MortalProducer(Producer):
    """A producer whose process may be killed. What a killed process leaves behind is no fault."""

    def _leave(self, started_s: float) -> None:
        """Report nothing."""


class SendingClient:
    """One idempotent producer with acks=all, until the world is healed."""

    def __init__(self, world: ClientWorld, process: SimProcess) -> None:
        self._world = world
        self._name = process.name
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")
        self._waiting: dict[int, deque[int]] = {
            partition: deque() for partition in range(world.options.partition_count)
        }
        self._number = 0

    async def run(self) -> None:
        """Send, then wait for the results of everything."""
        world = self._world
        await until_topic(world)
        producer = MortalProducer(
            world.bootstrap,
            acks="all",
            linger_ms=self._rng.choice((0, 2, 10)),
            max_in_flight=self._rng.choice((1, 3, 8)),
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            on_batch=self._on_batch,
        )
        while not world.is_healed:
            await asyncio.sleep(self._rng.uniform(0, 2 * world.options.send_every_ms) / 1000)
            try:
                await self._send(producer)
            except LograftError:
                await asyncio.sleep(AFTER_ERROR_S)
        with contextlib.suppress(LograftError):  # `_on_batch` was told about each failed batch
            await producer.close(2 * DELIVERY_TIMEOUT_MS)

    async def _send(self, producer: Producer) -> None:
        partition = self._rng.randrange(len(self._waiting))
        waiting = self._waiting[partition]
        if len(waiting) >= WAITING_MAX:
            return
        history = self._world.history
        value = f"{self._name}:{self._number}"
        self._number += 1
        op = history.begin(self._name, Kind.SEND, partition=f"{TOPIC}-{partition}", values=[value])
        waiting.append(op)
        try:
            await producer.send(TOPIC, value.encode(), partition=partition)
        except LograftError as error:
            waiting.remove(op)
            history.end(op, self._name, Type.FAIL, Kind.SEND, text=str(error))
            raise

    def _on_batch(self, receipt: BatchReceipt) -> None:
        """Assign a result to the oldest waiting values of the partition: results come in the order of sending."""
        history, waiting = self._world.history, self._waiting[receipt.partition]
        counts = self._world.counts
        if receipt.error is None:
            assert receipt.base_offset is not None, "an acknowledged batch has an offset"
            counts["acknowledged"] += receipt.record_count
            counts["batch deduplicated"] += receipt.duplicate
            for offset in range(receipt.base_offset, receipt.base_offset + receipt.record_count):
                history.end(waiting.popleft(), self._name, Type.OK, Kind.SEND, offsets=[offset])
            return
        counts[f"failed: {receipt.error.code.name}"] += receipt.record_count
        for _ in range(receipt.record_count):
            history.end(waiting.popleft(), self._name, outcome_of(receipt), Kind.SEND, text=str(receipt.error))


class ReadingClient:
    """One consumer of all partitions, until the world is healed. Now and then it restarts at an offset before its position.

    With racks, it is in the rack of a broker two times of three, and reads from that broker what the broker follows.
    """

    def __init__(self, world: ClientWorld, process: SimProcess) -> None:
        self._world = world
        self._name = process.name
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")
        self._racks: random.Random = world.scheduler.rng(f"client/{process.name}/rack")
        self._positions = {TopicPartition(TOPIC, each): 0 for each in range(world.options.partition_count)}

    async def run(self) -> None:
        """Read records as they arrive."""
        world = self._world
        await until_topic(world)
        while not world.is_healed:
            async with Consumer(world.bootstrap, client_rack=self._draw_rack()) as consumer:
                if not await self._assign(consumer) or not await self._poll(consumer):
                    await asyncio.sleep(AFTER_ERROR_S)

    def _draw_rack(self) -> str | None:
        options = self._world.options
        if not options.has_racks or self._racks.random() < 1 / 3:
            return None
        return rack_name(self._racks.randint(1, options.broker_count))

    async def _assign(self, consumer: Consumer) -> bool:
        history = self._world.history
        op = history.begin(self._name, Kind.ASSIGN)
        try:
            await consumer.assign(list(self._positions), offsets=self._positions)
        except LograftError as error:
            history.end(op, self._name, Type.INFO, Kind.ASSIGN, text=str(error))
            return False
        positions = {str(tp): offset for tp, offset in self._positions.items()}
        history.end(op, self._name, Type.OK, Kind.ASSIGN, offsets_by_partition=positions)
        return True

    async def _poll(self, consumer: Consumer) -> bool:
        history = self._world.history
        for _ in range(self._rng.randint(5, 60)):
            if self._world.is_healed:
                return True
            op = history.begin(self._name, Kind.POLL)
            try:
                records = await consumer.poll(100, POLL_TIMEOUT_MS)
            except LograftError as error:
                history.end(op, self._name, Type.INFO, Kind.POLL, text=str(error))
                return False
            found: dict[str, list[tuple[int, str]]] = {}
            for record in records:
                tp = TopicPartition(record.topic, record.partition)
                found.setdefault(str(tp), []).append((record.offset, (record.value or b"").decode()))
                self._positions[tp] = record.offset + 1
            self._world.counts["records polled"] += len(records)
            history.end(op, self._name, Type.OK, Kind.POLL, records=found)
        for tp, position in self._positions.items():
            self._positions[tp] = max(0, position - self._rng.randrange(20))
        return True


class EndClient:
    """Asks for the ends of the partitions until the world is healed."""

    def __init__(self, world: ClientWorld, process: SimProcess, *, every_ms: int) -> None:
        self._world = world
        self._name = process.name
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")
        self._every_ms = every_ms

    async def run(self) -> None:
        """Ask repeatedly."""
        world, history = self._world, self._world.history
        await until_topic(world)
        partitions = [TopicPartition(TOPIC, each) for each in range(world.options.partition_count)]
        async with Consumer(world.bootstrap, request_timeout_ms=END_TIMEOUT_MS) as consumer:
            while not world.is_healed:
                await asyncio.sleep(self._rng.uniform(0, 2 * self._every_ms) / 1000)
                op = history.begin(self._name, Kind.END)
                try:
                    ends = await consumer.end_offsets(partitions)
                except LograftError as error:
                    history.end(op, self._name, Type.INFO, Kind.END, text=str(error))
                    continue
                world.counts["ends told"] += 1
                found = {str(tp): end for tp, end in ends.items()}
                history.end(op, self._name, Type.OK, Kind.END, offsets_by_partition=found)


class Operator:
    """Creates the topic, moves replicas, elects leaders, replaces voters."""

    def __init__(self, world: ClientWorld, process: SimProcess, broker_ids: Sequence[int]) -> None:
        self._world = world
        self._broker_ids = list(broker_ids)
        # The quorum epoch in which the replacement was first seen in the voter set, and the end of the leader's log then.
        self._seen: tuple[int, int] | None = None
        self._has_shortened: set[str] = set()
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")

    async def run(self) -> None:
        """Work until the world is healed."""
        world, options = self._world, self._world.options
        async with Admin(world.bootstrap) as admin:
            await self._create(admin)
            works = [
                (options.reassign_every_ms, self._reassign),
                (options.elect_every_ms, self._elect),
                (options.switch_every_ms, self._switch),
            ]
            due = [(every_ms, work) for every_ms, work in works if every_ms is not None]
            if options.group_count or options.ingest_count:
                due.append((options.move_every_ms or MOVE_EVERY_MS, self._move_coordinators))
            if options.voter_loss_every_ms is not None:
                due.append((REPLACE_EVERY_MS, self._replace_voter))
            while due and not world.is_healed:
                mean_ms = sum(every_ms for every_ms, _ in due) / len(due) ** 2
                await asyncio.sleep(self._rng.uniform(0, 2 * mean_ms) / 1000)
                if world.is_healed:
                    break
                await self._try(self._rng.choice(due)[1], admin)
            while world.lost_voter is not None:
                await asyncio.sleep(AFTER_ERROR_S)
                await self._try(self._replace_voter, admin)

    async def _try(self, work: Callable[[Admin], Awaitable[None]], admin: Admin) -> None:
        try:
            await work(admin)
        except LograftError as error:
            self._world.counts[f"operator: {error.code.name}"] += 1

    async def _create(self, admin: Admin) -> None:
        options = self._world.options
        configs = {
            "min.insync.replicas": str(options.min_isr),
            FLUSH_POLICY: options.flush_policy.value,
            "segment.bytes": str(options.segment_bytes),
        }
        while not self._world.is_topic_there:
            try:
                await admin.create_topic(
                    TOPIC,
                    partition_count=options.partition_count,
                    replication_factor=options.replication_factor,
                    configs=configs,
                )
                self._world.is_topic_there = True
            except LograftError as error:
                if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    self._world.is_topic_there = True
                elif error.code is ErrorCode.INVALID_CONFIG:
                    raise
                await asyncio.sleep(AFTER_ERROR_S)

    async def _reassign(self, admin: Admin) -> None:
        options, rng = self._world.options, self._rng
        chosen = rng.sample(range(options.partition_count), rng.randint(1, options.partition_count))
        changes = {
            TopicPartition(TOPIC, each): rng.sample(self._broker_ids, options.replication_factor) for each in chosen
        }
        for result in await admin.alter_partition_reassignments(changes):
            self._world.counts["reassignment" if result.error is None else "reassignment refused"] += 1

    async def _switch(self, admin: Admin) -> None:
        """Set the topic's flush policy to `ack` or to its initial policy."""
        policy = self._rng.choice((FlushPolicy.ACK, self._world.options.flush_policy))
        await admin.alter_configs({ConfigResource.topic(TOPIC): {FLUSH_POLICY: policy.value}})
        self._world.counts["switch of flush.policy"] += 1

    async def _replace_voter(self, admin: Admin) -> None:
        """Run the one command for it. The operator repeats it until the quorum says that the replacement votes."""
        lost = self._world.lost_voter
        if lost is None:
            return
        try:
            await admin.replace_voter(lost.key.node_id)
        finally:
            if self._is_committed(lost, await admin.describe_quorum()):
                self._world.lost_voter = None
                self._world.counts["voter change"] += 1

    def _is_committed(self, lost: VoterMachine, quorum: QuorumDescription) -> bool:
        """Return True if a leader has committed everything in its log from when it was seen with the replacement among its voters."""
        ends = {each.node_id: each.log_end_offset for each in quorum.voters}
        ids = {each.node_id: each.directory_id for each in quorum.voters}
        if quorum.leader_id is None or ids.get(lost.key.node_id) != lost.key.directory_id:
            self._seen = None
            return False
        if self._seen is None or self._seen[0] != quorum.quorum_epoch:
            self._seen = quorum.quorum_epoch, ends.get(quorum.leader_id) or 0
        return quorum.high_watermark is not None and quorum.high_watermark >= self._seen[1]

    async def _move_coordinators(self, admin: Admin) -> None:
        """Make the life of records of coordinators short, once; then give partitions other replicas, or elect preferred leaders."""
        rng, counts, options = self._rng, self._world.counts, self._world.options
        topics = [GROUPS.name] * bool(options.group_count) + [INGESTS.name] * bool(options.ingest_count)
        topic = rng.choice(topics) if len(topics) > 1 else topics[0]
        if topic not in self._has_shortened:
            await admin.alter_configs({ConfigResource.topic(topic): SHORT_LIVES})
            self._has_shortened.add(topic)
        elif self._world.options.move_every_ms is None:
            return
        elif rng.random() < 0.5:
            for result in await admin.elect_leaders([topic], election=ElectionType.PREFERRED):
                counts["preferred coordinator elected"] += result.error is None
        else:
            described = await admin.describe_topic(topic)
            one = rng.choice(described.partitions)
            replicas = rng.sample(self._broker_ids, len(one.replicas))
            change = {TopicPartition(topic, one.partition): replicas}
            for result in await admin.alter_partition_reassignments(change):
                counts["coordinator moved" if result.error is None else "coordinator not moved"] += 1

    async def _elect(self, admin: Admin) -> None:
        for result in await admin.elect_leaders([TOPIC], election=ElectionType.PREFERRED):
            self._world.counts["preferred leader elected"] += result.error is None


class FinalReader:
    """Reads every partition from start to end after everything is healed."""

    def __init__(self, world: ClientWorld, process: SimProcess) -> None:
        self._world = world
        self._name = process.name
        self.done: set[int] = set()

    async def run(self) -> None:
        """Read until every partition has been read whole."""
        partitions = range(self._world.options.partition_count)
        while len(self.done) < len(partitions):
            for partition in partitions:
                if partition not in self.done:
                    try:
                        await self._read(partition)
                        self.done.add(partition)
                    except LograftError:
                        await asyncio.sleep(AFTER_ERROR_S)

    async def _read(self, partition: int) -> None:
        history, tp = self._world.history, TopicPartition(TOPIC, partition)
        async with Consumer(self._world.bootstrap) as consumer:
            end_offset = (await consumer.end_offsets([tp]))[tp]
            op = history.begin(self._name, Kind.READ, partition=str(tp))
            await consumer.assign([tp], offsets={tp: 0})
            records: list[tuple[int, str]] = []
            while not records or records[-1][0] < end_offset - 1:
                if end_offset == 0:
                    break
                found = await consumer.poll(1_000, READ_TIMEOUT_MS)
                records += [(record.offset, (record.value or b"").decode()) for record in found]
            history.end(
                op,
                self._name,
                Type.OK,
                Kind.READ,
                partition=str(tp),
                records={str(tp): records},
                offsets_by_partition={str(tp): end_offset},
            )
