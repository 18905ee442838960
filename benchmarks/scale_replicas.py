# SPDX-License-Identifier: Apache-2.0
"""Adds replicas to the partitions that a broker of the scale benchmark leads, so that others can lead when it is lost.

Each partition is reassigned by the call that `lograft partitions reassign` makes. Then the leader reports the new replicas as in
sync, by the call that brokers use for it. Nothing is copied, because the brokers hold nothing. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc.aio
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2

from benchmarks.scale_brokers import HollowBrokers
from benchmarks.scale_calls import CALL_TIMEOUT_S, Voters, described, topic_name
from integration_tests.harness.cluster import CLUSTER_ID
from metaquorum.testing.peer_client import ControllerCalls, PeerClient

BATCH_PARTITIONS = 500
"""Partitions of one request: the maximum of a reassignment."""

BATCHES_IN_FLIGHT = 4
"""Batches under way at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedPartition:
    """A partition that only the victim has, and leads."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int


class ReplicaAdder:
    """Adds replicas to the partitions of which the victim has the only replica.

    Args:
        voters: the voters. Their leader must not change.
        brokers: the brokers.
        count: new number of replicas of each partition, at most one for each broker.
    """

    def __init__(self, voters: Voters, brokers: HollowBrokers, *, count: int) -> None:
        self._voters = voters
        self._brokers = brokers
        self._count = count
        self._controller: ControllerCalls | None = None

    async def add(self, topics: int) -> int:
        """Add replicas in that many topics, and return the number of partitions."""
        leader_id = (await self._voters.quorum()).leader_id
        address = self._brokers.addresses[leader_id]
        async with (
            grpc.aio.insecure_channel(self._voters.addresses[leader_id]) as channel,
            PeerClient(CLUSTER_ID, node_id=self._brokers.victim_id) as client,
        ):
            self._controller = ControllerCalls(client, address)
            names = map(topic_name, range(topics))
            return sum(await asyncio.gather(*(self._work(channel, names) for _ in range(BATCHES_IN_FLIGHT))))

    async def _work(self, channel: grpc.aio.Channel, names: Iterator[str]) -> int:
        added = 0
        waiting: list[LedPartition] = []
        for name in names:
            waiting += await self._led(channel, name)
            while len(waiting) >= BATCH_PARTITIONS:
                batch, waiting = waiting[:BATCH_PARTITIONS], waiting[BATCH_PARTITIONS:]
                added += await self._grow(channel, batch)
        return added + await self._grow(channel, waiting)

    async def _led(self, channel: grpc.aio.Channel, name: str) -> list[LedPartition]:
        topic = await described(channel, name)
        return [
            LedPartition(topic=name, topic_id=topic.topic_id, partition=each.partition, leader_epoch=each.leader_epoch)
            for each in topic.partitions
            if each.leader_id == self._brokers.victim_id and len(each.replicas) == 1
        ]

    async def _grow(self, channel: grpc.aio.Channel, batch: Sequence[LedPartition]) -> int:
        if batch:
            await self._reassign(channel, batch)
            await self._report(batch)
        return len(batch)

    def _replicas(self, partition: int) -> list[int]:
        others = [broker_id for broker_id in self._brokers.ids if broker_id != self._brokers.victim_id]
        chosen = [others[(partition + step) % len(others)] for step in range(self._count - 1)]
        return [self._brokers.victim_id, *chosen]

    async def _reassign(self, channel: grpc.aio.Channel, batch: Sequence[LedPartition]) -> None:
        request = admin_pb2.AlterPartitionReassignmentsRequest()
        for each in batch:
            request.reassignments.add(
                topic=each.topic, partition=each.partition, replicas=self._replicas(each.partition)
            )
        call = channel.unary_unary(
            "/lograft.v1.AdminService/AlterPartitionReassignments",
            response_deserializer=admin_pb2.AlterPartitionReassignmentsResponse.FromString,
        )
        answer = await call(request.SerializeToString(), timeout=CALL_TIMEOUT_S)
        refused = [result for result in answer.results if result.HasField("error")]
        assert not refused, f"{len(refused)} reassignments refused: {refused[0]}"

    async def _report(self, batch: Sequence[LedPartition]) -> None:
        request = controller_pb2.AlterPartitionRequest(
            cluster_id=CLUSTER_ID, broker_id=self._brokers.victim_id, broker_epoch=self._brokers.victim_epoch
        )
        for each in batch:
            # Before the reassignment every change was one of the leader, so the two epochs were equal. The reassignment added one.
            proposal = request.proposals.add(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.leader_epoch + 1,
            )
            for node_id in self._replicas(each.partition):
                proposal.isr.add(node_id=node_id)
        assert self._controller is not None, "only while replicas are added"
        answer = await self._controller.alter_partition(request, timeout_ms=int(CALL_TIMEOUT_S * 1000))
        refused = [result for result in answer.results if result.WhichOneof("outcome") == "error"]
        assert not refused, f"{len(refused)} proposals refused: {refused[0]}"
