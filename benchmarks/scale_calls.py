# SPDX-License-Identifier: Apache-2.0
"""Calls of the scale benchmark to the voters: create topics, describe the quorum, make changes. Belongs to one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from lograft.v1 import admin_pb2, metadata_pb2

T = TypeVar("T")

PARTITIONS_PER_TOPIC = 100
CREATIONS_IN_FLIGHT = 8
"""CreateTopic calls under way at the same time."""

LOOK_S = 0.02
"""Seconds between two checks of a condition."""

CALL_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 1.0
FETCHES_MS = 1_000
"""Milliseconds since its last fetch within which a replica counts as alive."""

_ADMIN = "/lograft.v1.AdminService/"
_REFUSED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Statuses after which a call is sent again to another voter. A change may be made twice, and a node in its first start does not
serve yet."""


async def is_serving_at(address: str) -> bool:
    """Return True if a health service says that its server serves. A broker does once it has the metadata and is let in."""
    async with grpc.aio.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", response_deserializer=health_pb2.HealthCheckResponse.FromString
        )
        try:
            answer = await check(b"", timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING


@dataclass(slots=True)
class Created:
    """The created topics.

    Attributes:
        topics: number of topics.
        replicas: number of partitions with a replica on each broker, by broker id.
    """

    topics: int
    replicas: dict[int, int]


class Voters:
    """The voters of a cluster by node id, called directly.

    Args:
        addresses: internal ports of the voters by node id.
    """

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self.addresses = addresses

    async def quorum(self) -> admin_pb2.DescribeQuorumResponse:
        """Wait for a quorum leader, and return the quorum as the leader sees it."""
        return await until(self._quorum_once, CALL_TIMEOUT_S, "a quorum leader")

    async def _quorum_once(self) -> admin_pb2.DescribeQuorumResponse | None:
        request = admin_pb2.DescribeQuorumRequest().SerializeToString()
        for address in self.addresses.values():
            async with grpc.aio.insecure_channel(address) as channel:
                call = channel.unary_unary(
                    _ADMIN + "DescribeQuorum",
                    response_deserializer=admin_pb2.DescribeQuorumResponse.FromString,
                )
                try:
                    return await call(request, timeout=PROBE_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _REFUSED:
                        raise
        return None

    async def is_serving(self, node_id: int) -> bool:
        """Return True if the voter's health service says that it serves."""
        return await is_serving_at(self.addresses[node_id])

    async def has_everything(self, node_id: int, *, votes: bool | None = None) -> bool:
        """Return True if a replica has reached the high watermark and fetches. `votes`: only as a voter, or only as an observer."""
        quorum = await self.quorum()
        replicas = [(True, each) for each in quorum.voters] + [(False, each) for each in quorum.observers]
        return any(
            each.node_id == node_id
            and (votes is None or votes == is_voter)
            and each.log_end_offset >= quorum.high_watermark
            and (quorum.leader_id == node_id or _fetches(each))
            for is_voter, each in replicas
        )

    async def create(self, partitions: int, *, replication_factor: int) -> Created:
        """Create topics of 100 partitions, several at a time, at whichever voter leads."""
        count = max(1, partitions // PARTITIONS_PER_TOPIC)
        created = Created(topics=count, replicas={})
        numbers = iter(range(count))

        async def work() -> None:
            leader_id = (await self.quorum()).leader_id
            channel = grpc.aio.insecure_channel(self.addresses[leader_id])
            try:
                for number in numbers:
                    while not await _created(channel, topic_name(number), replication_factor, created.replicas):
                        await channel.close()
                        await asyncio.sleep(LOOK_S)
                        leader_id = (await self.quorum()).leader_id
                        channel = grpc.aio.insecure_channel(self.addresses[leader_id])
            finally:
                await channel.close()

        await asyncio.gather(*(work() for _ in range(CREATIONS_IN_FLIGHT)))
        return created

    async def change(self, topics: Sequence[str], value: str | None) -> None:
        """Set or remove the description of topics at whichever voter leads. Returns with the commit."""
        request = admin_pb2.AlterConfigsRequest()
        for topic in topics:
            changes = request.resources.add()
            changes.resource.type = admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC
            changes.resource.name = topic
            changes.changes.add(name="description", value=value)
        data = request.SerializeToString()

        async def attempt() -> bool | None:
            for address in self.addresses.values():
                async with grpc.aio.insecure_channel(address) as channel:
                    try:
                        await channel.unary_unary(_ADMIN + "AlterConfigs")(data, timeout=CALL_TIMEOUT_S)
                    except grpc.aio.AioRpcError as error:
                        if error.code() not in _REFUSED:
                            raise
                    else:
                        return True
            return None

        await until(attempt, CALL_TIMEOUT_S, "a change to be committed")

    async def leader_of(self, topic: str) -> dict[int, int | None]:
        """Return the leaders of the partitions of a topic, by a linearizable read."""

        async def attempt() -> metadata_pb2.Topic | None:
            quorum = await self.quorum()
            async with grpc.aio.insecure_channel(self.addresses[quorum.leader_id]) as channel:
                try:
                    return await described(channel, topic)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _REFUSED:
                        raise
            return None

        found = await until(attempt, CALL_TIMEOUT_S, f"the leaders of {topic}")
        return {each.partition: each.leader_id if each.HasField("leader_id") else None for each in found.partitions}


async def _created(channel: grpc.aio.Channel, topic: str, replication_factor: int, replicas: dict[int, int]) -> bool:
    """Create a topic and count its replicas. Return False if it must be tried again, without an active controller or without room."""
    create = channel.unary_unary(_ADMIN + "CreateTopic", response_deserializer=admin_pb2.CreateTopicResponse.FromString)
    request = admin_pb2.CreateTopicRequest(
        topic=topic, partition_count=PARTITIONS_PER_TOPIC, replication_factor=replication_factor
    )
    try:
        _count((await create(request.SerializeToString(), timeout=CALL_TIMEOUT_S)).topic, replicas)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.ALREADY_EXISTS:
            # An earlier attempt whose answer was lost created the topic.
            _count(await described(channel, topic), replicas)
            return True
        if error.code() not in _REFUSED:
            raise
        return False
    return True


async def described(channel: grpc.aio.Channel, topic: str) -> metadata_pb2.Topic:
    """Return a topic, by a linearizable read at the voter of the channel."""
    call = channel.unary_unary(
        _ADMIN + "DescribeTopic", response_deserializer=admin_pb2.DescribeTopicResponse.FromString
    )
    return (await call(admin_pb2.DescribeTopicRequest(topic=topic).SerializeToString(), timeout=CALL_TIMEOUT_S)).topic


def _fetches(replica: admin_pb2.QuorumReplica) -> bool:
    return replica.HasField("last_fetch_age_ms") and replica.last_fetch_age_ms < FETCHES_MS


def topic_name(number: int) -> str:
    """Return the name of a topic of the benchmark."""
    return f"topic-{number:06d}"


def _count(topic: metadata_pb2.Topic, replicas: dict[int, int]) -> None:
    for partition in topic.partitions:
        for broker_id in partition.replicas:
            replicas[broker_id] = replicas.get(broker_id, 0) + 1


async def until(condition: Callable[[], Awaitable[T | None]], timeout_s: float, what: str) -> T:
    """Call `condition` until it returns a true value, and return that value.

    Raises:
        TimeoutError: it did not in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            found = await condition()
            while not found:
                await asyncio.sleep(LOOK_S)
                found = await condition()
            return found
    except TimeoutError:
        raise TimeoutError(f"waited {timeout_s} s for {what}") from None
