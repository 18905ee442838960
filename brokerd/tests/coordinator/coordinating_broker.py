# SPDX-License-Identifier: Apache-2.0
"""A coordinator runtime over a real replica manager: real metadata, replica, log and cleaner on a simulated disk.

A test moves the followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lograft.wire.batch import read_batches
from lograft.wire.header import stamp

from brokerd.coordinator.core import Record
from brokerd.coordinator.log_pieces import encode_append
from brokerd.coordinator.machine import State
from brokerd.coordinator.partition import CoordinatorPartition
from brokerd.coordinator.runtime import CoordinatorRuntime
from brokerd.replica.cleaning import LogCleaning
from brokerd.replica.replica import Replica
from brokerd.tests.coordinator.register_core import (
    Register,
    RegisterCodec,
    RegisterCommand,
    RegisterCore,
    register_of,
)
from brokerd.tests.replica.broker_of_three import TOPIC_ID, BrokerOfThree, Route
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import ConfigRecord, ConfigResource
from storage.compaction.cleaner import CleanerSettings
from storage.testing.sim_disk import SimDisk

Runtime = CoordinatorRuntime[RegisterCommand, int, Register]
Partition = CoordinatorPartition[RegisterCommand, int, Register]


class CoordinatingBroker:
    """Broker 1 of three, with the coordinators of topic `t`, which has one partition.

    Attributes:
        three: the broker and its metadata.
        runtime: the runtime.
        ticks: responses of ticks.
    """

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.three = BrokerOfThree(disk)
        self.ticks: list[int] = []
        self.runtime: Runtime = CoordinatorRuntime(
            "t",
            node_id=1,
            new_core=lambda _: RegisterCore(),
            codec=RegisterCodec(),
            leader_place=lambda partition: self.three.manager.leader_place(TOPIC_ID, partition),
            scope_of=register_of,
            on_tick=lambda _, response: self.ticks.append(response),
        )
        self.three.manager.on_role = self.runtime.note_role
        self._routes: list[Route] = []
        self._session = 0

    async def start(self, *, leader_id: int = 1, min_isr: int = 2) -> None:
        """Start the broker, with its followers if it leads."""
        await self.three.start(leader_id=leader_id, min_isr=min_isr)
        if leader_id == 1:
            self.subscribe()
            self.commit()
            await self.active()

    async def stop(self) -> None:
        """Stop the runtime and the broker."""
        await self.runtime.stop()
        await self.three.manager.stop()

    def configure(self, **configs: str) -> None:
        """Set configs of the topic."""
        for name, value in configs.items():
            record = ConfigRecord(
                resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name=name.replace("_", "."), value=value
            )
            self.three.commit(record)

    @property
    def replica(self) -> Replica:
        """The replica."""
        found = self.three.manager.find(TOPIC_ID, 0)
        assert found is not None
        return found

    @property
    def partition(self) -> Partition:
        """The coordinator of the partition."""
        found = self.runtime.find(0)
        assert found is not None
        return found

    @property
    def core(self) -> RegisterCore:
        """The core of the active coordinator."""
        core = self.partition.machine.core
        assert isinstance(core, RegisterCore)
        return core

    @property
    def registers(self) -> dict[str, int]:
        """The registers of the active core."""
        return {name: number for name, (number, _) in self.core.registers.items()}

    def subscribe(self) -> None:
        """Let both followers subscribe, with everything that the leader has."""
        replica = self.replica
        self._session += 1
        self._routes = [Route(node_id, session=self._session) for node_id in (2, 3)]
        for route in self._routes:
            self.three.subscribe(
                replica,
                route,
                leader_epoch=replica.leader_epoch,
                end=replica.log_end_offset,
                last_epoch=replica.log.last_record_epoch,
            )
            assert route.heard[0][0] == "accepted", route.heard

    def commit(self) -> None:
        """Let both followers have everything; the leader's own flush may still be under way."""
        end_offset = self.replica.log_end_offset
        for route in self._routes:
            self.replica.ack_follower(route, appended_offset=end_offset, flushed_offset=end_offset)

    async def state(self, wanted: State) -> None:
        """Wait for a state of the coordinator."""
        await until(lambda: self.runtime.find(0) is not None and self.partition.machine.state is wanted)

    async def active(self) -> None:
        """Wait until the coordinator is active and has taken its first tick."""
        await until(
            lambda: (
                self.runtime.find(0) is not None
                and self.partition.machine.core is not None
                and self.core.tick_count > 0
            )
        )

    async def submit(self, *commands: RegisterCommand) -> list[int]:
        """Submit commands together, commit what they append, and return their responses."""
        tasks = [asyncio.create_task(self.runtime.submit(0, command)) for command in commands]
        async with asyncio.timeout(WAIT_S):
            while not all(task.done() for task in tasks):
                self.commit()
                await asyncio.sleep(0.001)
        return [task.result() for task in tasks]

    async def lead_again(self) -> None:
        """Give the leadership to broker 2 and back, and wait until the coordinator has loaded."""
        self.three.lead(2)
        await self.state(State.INACTIVE)
        self.three.lead(1)
        self.subscribe()
        self.commit()
        await self.active()

    async def clean(self) -> None:
        """Run the cleaner until it finds nothing to do."""
        cleaning = LogCleaning(self.three.manager.replicas, settings=CleanerSettings())
        while await asyncio.to_thread(cleaning._cleaner.run_once):
            pass

    def send(self, *records: Record) -> None:
        """Send a batch of the leader, committed, to this follower."""
        replica = self.replica
        base_offset = replica.log_end_offset
        batch = encode_append(records, timestamp_ms=1_000)
        stamp(batch, base_offset=base_offset, leader_epoch=replica.leader_epoch)
        session = self.three.said.session
        replica.on_leader_batches(
            session,
            bytes(batch),
            base_offset=base_offset,
            leader_epoch=replica.leader_epoch,
            high_watermark=base_offset + len(records),
            log_start_offset=0,
        )

    def accept(self) -> None:
        """Accept the present subscription, as the leader."""
        self.replica.on_subscription_accepted(self.three.said.session, high_watermark=0, log_start_offset=0)

    def batch_sizes(self) -> list[int]:
        """Return the number of records of each batch in the log."""
        replica = self.replica
        sizes: list[int] = []
        offset = replica.log_start_offset
        while offset < replica.log_end_offset:
            read = replica.read(offset, 1 << 20, end_offset=replica.log_end_offset)
            sizes += [each.record_count for each in read_batches(read.data)]
            offset = read.next_offset
        return sizes


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; flushes and threads are under way, and tell nobody but the replica."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
