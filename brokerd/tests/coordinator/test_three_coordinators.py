# SPDX-License-Identifier: Apache-2.0
"""Three real brokers over gRPC and the carrier: a coordinator moves to a follower with everything that it has answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerd.coordinator.runtime import CoordinatorRuntime
from brokerd.coordinator.unserved import UnservedError
from brokerd.coordinator.unserved import UnservedReason as Reason
from brokerd.tests.coordinator.coordinating_broker import Runtime
from brokerd.tests.coordinator.register_core import (
    Increment,
    Read,
    RegisterCodec,
    RegisterCommand,
    RegisterCore,
    register_of,
)
from brokerd.tests.support import connected
from brokerd.tests.three_brokers import LONG_S, PARTITIONS, Cluster, three_brokers

RETRIED = {Reason.MOVED, Reason.NO_COORDINATOR, Reason.LOADING, Reason.REFUSED, Reason.OVERLOADED}


class Coordinators:
    """A runtime on each broker of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.runtimes: dict[int, Runtime] = {node_id: self._make(node_id) for node_id in cluster.brokers}

    def _make(self, node_id: int) -> Runtime:
        manager = self.cluster.brokers[node_id].replica_manager
        assert manager is not None
        image = self.cluster.brokers[node_id].observer

        def place(partition: int) -> object:
            topic = image.image.topic_by_name("t")
            return None if topic is None else manager.leader_place(topic.topic_id, partition)

        return CoordinatorRuntime(
            "t",
            node_id=node_id,
            new_core=lambda _: RegisterCore(),
            codec=RegisterCodec(),
            leader_place=place,  # type: ignore[arg-type]
            scope_of=register_of,
        )

    def note_all(self) -> None:
        """Pass on the roles of the replicas that are open, and all that come."""
        for node_id, server in self.cluster.brokers.items():
            assert server.replica_manager is not None
            # These brokers have no use for their coordinators of groups.
            server.replica_manager.on_role = self.runtimes[node_id].note_role
            for replica in server.replica_manager.replicas():
                self.runtimes[node_id].note_role(replica)

    async def carry_out(self, partition: int, command: RegisterCommand, first: int = 1) -> int:
        """Ask brokers until one answers, as a client does: follow MOVED, come back for the rest; an unknown outcome is raised."""
        node_id = first
        async with asyncio.timeout(LONG_S):
            while True:
                if node_id not in self.cluster.brokers:
                    node_id = next(iter(self.cluster.brokers))
                try:
                    return await self.runtimes[node_id].submit(partition, command)
                except UnservedError as error:
                    if error.unserved.reason not in RETRIED:
                        raise
                    leader = error.unserved.failure.leader
                    node_id = node_id if leader is None else leader.leader_id
                await asyncio.sleep(0.01)

    async def stop(self, node_id: int) -> None:
        """Stop a broker and its runtime."""
        await self.runtimes[node_id].stop()
        await self.cluster.stop(node_id)


@pytest.mark.slow
async def test_coordinator_moves_to_a_follower_with_everything(tmp_path: Path) -> None:
    """Counters over all partitions, while brokers leave one after the other: no answered increment is missing or given twice."""
    async with three_brokers(tmp_path) as cluster:
        async with connected(cluster.brokers[1]) as client:
            await cluster.create_topic(client, cleanup_policy="compact")
        coordinators = Coordinators(cluster)
        coordinators.note_all()
        answered: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        unknown = dict.fromkeys(answered, 0)

        async def count(partition: int, times: int) -> None:
            for _ in range(times):
                try:
                    answered[partition].append(await coordinators.carry_out(partition, Increment("n")))
                except UnservedError as error:
                    if error.unserved.reason is not Reason.OUTCOME_UNKNOWN:
                        raise
                    unknown[partition] += 1

        await asyncio.gather(*(count(partition, 10) for partition in answered))
        for runtime in coordinators.runtimes.values():
            for each in runtime.partitions:
                assert await each.snapshots.take(lambda: True)
        for leaving in (3, 2):
            counting = asyncio.gather(*(count(partition, 15) for partition in answered))
            await coordinators.stop(leaving)
            if leaving == 2:
                # One of three replicas is left, below min.insync.replicas: nothing can be written.
                counting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await counting
                break
            await counting
        for partition, numbers in answered.items():
            assert numbers == sorted(set(numbers)), f"partition {partition}"
            assert len(numbers) >= 25 - unknown[partition]
        led = [each for each in coordinators.runtimes[1].partitions if each.replica.is_leader]
        assert any(each.is_last_load_from_snapshot for each in led)
        await coordinators.runtimes[1].stop()


@pytest.mark.slow
async def test_follower_names_the_coordinator_and_a_move_loads_from_its_snapshot(tmp_path: Path) -> None:
    """A preferred coordinator leaves; the next one has a snapshot of its own, and serves the same numbers."""
    async with three_brokers(tmp_path) as cluster:
        async with connected(cluster.brokers[1]) as client:
            await cluster.create_topic(client, cleanup_policy="compact")
        coordinators = Coordinators(cluster)
        coordinators.note_all()
        partition = next(number for number in range(PARTITIONS) if cluster.partition(number).leader_id in (2, 3))
        leader_id = cluster.partition(partition).leader_id
        assert leader_id is not None
        for wanted in range(1, 51):
            assert await coordinators.carry_out(partition, Increment("n", padding_bytes=100), leader_id) == wanted
        end_offset = (await cluster.replica(leader_id, partition)).log_end_offset
        for node_id, runtime in coordinators.runtimes.items():
            await cluster.committed(node_id, partition, end_offset)
            found = runtime.find(partition)
            assert found is not None
            assert await found.snapshots.take(lambda: True)
        with pytest.raises(UnservedError) as caught:
            await coordinators.runtimes[1].submit(partition, Read("n"))
        assert caught.value.unserved.reason is Reason.MOVED
        place = caught.value.unserved.failure.leader
        assert place is not None
        assert (place.leader_id, place.port) == (leader_id, cluster.brokers[leader_id].address.port)
        await coordinators.stop(leader_id)
        assert await coordinators.carry_out(partition, Increment("n")) == 51
        served = [
            each
            for runtime in coordinators.runtimes.values()
            if (each := runtime.find(partition)) is not None and each.machine.core is not None
        ]
        assert [(each.is_last_load_from_snapshot, each.loaded_records) for each in served] == [(True, 1)]
        for node_id in cluster.brokers:
            await coordinators.runtimes[node_id].stop()
